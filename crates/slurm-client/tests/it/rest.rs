//! slurmrestd that answers badly: a scripted server, since the real one cannot be made to do most of this. Its good responses were
//! captured.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use slurm_client::{AccountingQuery, Config, Error, Slurm, Source};
use slurm_types::JobId;
use tokio::net::TcpListener;

use crate::rest_server::{Answer, Make, Reply, Seen, capture, ok, path, serve, server, text};

fn id(id: u32) -> JobId {
    JobId::new(id).unwrap()
}

/// The kind of error that a response causes.
async fn kind(reply: Make) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (slurm, ..) = server(dir.path(), move |head| match path(head) {
        "/openapi.json" => ok("26.05/rest/openapi.json"),
        _ => reply(),
    });
    let kinds = [
        slurm.list_queue().await.map(drop),
        slurm.jobs(&[id(1)]).await.map(drop),
        slurm.nodes().await.map(drop),
        slurm
            .accounting(&AccountingQuery::Jobs(vec![id(1)]))
            .await
            .map(drop),
    ]
    .map(|answer| answer.map_or_else(|error| error.kind(), |()| "ok"));
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "{kinds:?}");
    kinds[0].to_owned()
}

#[tokio::test]
async fn bad_answers_are_classified_and_never_prove_a_purge() {
    let cases: [(Make, &str); 12] = [
        (|| text(401, "Authentication failure"), "denied"),
        (|| text(403, ""), "denied"),
        (
            || {
                text(
                    511,
                    r#"{"errors":[{"error_number":1007,"error":"Protocol authentication error"}]}"#,
                )
            },
            "denied",
        ),
        (
            || {
                text(
                    500,
                    r#"{"errors":[{"error_number":-1,"error":"Unable to contact slurm controller (connect failure)"}]}"#,
                )
            },
            "controller_down",
        ),
        (
            || text(500, r#"{"errors":[{"error_number":1,"error":"Kaputt"}]}"#),
            "failed",
        ),
        (|| text(502, "<html>bad gateway</html>"), "rest_down"),
        (
            || {
                text(
                    200,
                    r#"{"jobs":[],"nodes":[],"errors":[{"error_number":1,"error":"Kaputt"}]}"#,
                )
            },
            "reported",
        ),
        (|| text(200, r#"{"errors":[]}"#), "suspicious"),
        (|| text(200, r#"{"jobs":[{"job_id":1,"#), "suspicious"),
        (|| text(200, "<html>hello</html>"), "malformed"),
        (|| text(200, ""), "suspicious"),
        (|| Reply::Cut(vec![b'x'; 4096]), "suspicious"),
    ];
    for (number, (reply, expected)) in cases.into_iter().enumerate() {
        assert_eq!(kind(reply).await, expected, "case {number}");
    }
}

#[tokio::test]
async fn only_slurms_error_number_means_an_unknown_job() {
    for (release, status) in [
        ("22.05/rest/v0.0.38", 500),
        ("22.05/rest/v0.0.36", 500),
        ("26.05/rest/v0.0.45", 404),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (slurm, ..) = server(dir.path(), move |head| match path(head) {
            "/openapi.json" => ok("26.05/rest/openapi.json"),
            _ => Reply::Status(status, capture(&format!("{release}/nosuchjob.json"))),
        });
        let answer = slurm.jobs(&[id(999_999)]).await.unwrap();
        assert_eq!(answer.missing, [id(999_999)], "{release}");
    }
    // A response without the job and without an error proves nothing.
    let dir = tempfile::tempdir().unwrap();
    let (slurm, ..) = server(dir.path(), |head| match path(head) {
        "/openapi.json" => ok("26.05/rest/openapi.json"),
        _ => text(200, r#"{"jobs":[],"errors":[]}"#),
    });
    let answer = slurm.jobs(&[id(7)]).await.unwrap();
    assert!(answer.missing.is_empty() && answer.found.is_empty());
    assert_eq!(answer.unclear.len(), 1);
}

#[tokio::test]
async fn an_answer_that_does_not_end_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, config) = server(dir.path(), |head| match path(head) {
        "/openapi.json" => ok("26.05/rest/openapi.json"),
        _ => Reply::Hang(capture("26.05/rest/v0.0.45/jobs.json")),
    });
    let slurm = Slurm::new(Config {
        command_timeout: Duration::from_secs(1),
        ..config
    });
    let error = slurm.list_queue().await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let config = |url: &str| Config {
        source: Source::Rest,
        rest_url: url.parse().unwrap(),
        ..Config::default()
    };
    for url in ["unix:///nonexistent/socket", "http://127.0.0.1:9"] {
        let error = Slurm::new(config(url)).list_queue().await.unwrap_err();
        let named = matches!(&error, Error::RestDown { url: named, .. } if named == url);
        assert!(named && error.is_transient(), "{error}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer: Answer = Arc::new(|_| text(404, "no such thing"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&answer), Seen::default()));
        }
    });
    let error = Slurm::new(config(&url)).list_queue().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Malformed {
                command: "slurmrestd openapi",
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn nothing_has_changed_is_no_empty_queue() {
    for (release, version, unchanged) in [
        ("22.05", "v0.0.38", (|| text(304, "")) as Make),
        ("26.05", "v0.0.45", || {
            text(
                200,
                r#"{"jobs":[],"last_update":{"set":true,"infinite":false,"number":1795208030},"errors":[],"warnings":[{"description":"No job changes since update_time[1795208021]"}]}"#,
            )
        }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (slurm, seen, _) = server(dir.path(), move |head| match path(head) {
            "/openapi.json" => ok(&format!("{release}/rest/openapi.json")),
            path if path.contains("update_time=") => unchanged(),
            path if path.contains("diag") => ok(&format!("{release}/rest/{version}/diag.json")),
            _ => ok(&format!("{release}/rest/{version}/jobs.json")),
        });
        let first = slurm.list_queue().await.unwrap();
        let second = slurm.list_queue().await.unwrap();
        assert_eq!(first.rows, second.rows, "{release}");
        assert_eq!(seen.count("update_time="), 1, "{release}");
    }
}

#[tokio::test]
async fn an_empty_list_of_changes_is_asked_about_again() {
    let dir = tempfile::tempdir().unwrap();
    let (slurm, seen, _) = server(dir.path(), |head| match path(head) {
        "/openapi.json" => ok("26.05/rest/openapi.json"),
        path if path.contains("update_time=") => {
            text(200, r#"{"jobs":[],"errors":[],"warnings":[]}"#)
        }
        _ => ok("26.05/rest/v0.0.45/jobs.json"),
    });
    let first = slurm.list_queue().await.unwrap();
    assert_eq!(slurm.list_queue().await.unwrap().rows, first.rows);
    assert_eq!((seen.count("update_time="), seen.count("/jobs/")), (1, 3));
}

/// Up to 25.11 a request for changed nodes fails whenever the partitions did not change.
#[tokio::test]
async fn nodes_are_always_asked_for_whole() {
    for (release, version) in [
        ("22.05", "v0.0.38"),
        ("24.11", "v0.0.42"),
        ("26.05", "v0.0.45"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (slurm, seen, _) = server(dir.path(), move |head| match path(head) {
            "/openapi.json" => ok(&format!("{release}/rest/openapi.json")),
            path if path.contains("nodes") && path.contains("update_time") => text(
                500,
                r#"{"nodes":[],"errors":[{"error":"Unable to query partitions"}]}"#,
            ),
            path if path.contains("nodes") => ok(&format!("{release}/rest/{version}/nodes.json")),
            path if path.contains("diag") => ok(&format!("{release}/rest/{version}/diag.json")),
            _ => ok(&format!("{release}/rest/{version}/jobs.json")),
        });
        let first = slurm.nodes().await.unwrap();
        // Also after polls of the queue, which request only changes.
        for _ in 0..2 {
            slurm.list_queue().await.unwrap();
            assert_eq!(slurm.nodes().await.unwrap(), first, "{release}");
        }
        assert_eq!(seen.count("/nodes"), 3, "{release}");
    }
}

#[tokio::test]
async fn an_older_answer_after_a_newer_one_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let job = String::from_utf8(capture("26.05/rest/v0.0.45/job.json")).unwrap();
    let time = Arc::new(Mutex::new(1_795_208_022_i64));
    let now = Arc::clone(&time);
    let (slurm, ..) = server(dir.path(), move |head| match path(head) {
        "/openapi.json" => ok("26.05/rest/openapi.json"),
        _ => {
            let mut document: serde_json::Value = serde_json::from_str(&job).unwrap();
            document["last_update"]["number"] = (*now.lock().unwrap()).into();
            text(200, &document.to_string())
        }
    });
    let job: serde_json::Value =
        serde_json::from_slice(&capture("26.05/rest/v0.0.45/job.json")).unwrap();
    let job = id(u32::try_from(job["jobs"][0]["job_id"].as_i64().unwrap()).unwrap());
    assert_eq!(slurm.jobs(&[job]).await.unwrap().found.len(), 1);
    *time.lock().unwrap() -= 60;
    let answer = slurm.jobs(&[job]).await.unwrap();
    assert_eq!(
        (
            answer.found.len(),
            answer.missing.len(),
            answer.unclear.len()
        ),
        (0, 0, 1)
    );
    // If the controller's clock was set back, the next response is accepted.
    assert_eq!(slurm.jobs(&[job]).await.unwrap().found.len(), 1);
    *time.lock().unwrap() += 60;
    assert!(slurm.list_queue().await.is_ok());
    *time.lock().unwrap() -= 60;
    let error = slurm.list_queue().await.unwrap_err();
    assert!(matches!(error, Error::Stale { .. }), "{error}");
}

#[test]
fn listings_over_rest_are_rare() {
    let pause = |source, millis| {
        let config = Config {
            source,
            ..Config::default()
        };
        Slurm::new(config).min_poll_interval(Duration::from_millis(millis))
    };
    assert_eq!(pause(Source::Rest, 10), Duration::from_secs(30));
    assert_eq!(pause(Source::Rest, 8_400), Duration::from_secs(168));
    assert_eq!(pause(Source::Cli, 8_400), Duration::ZERO);
}
