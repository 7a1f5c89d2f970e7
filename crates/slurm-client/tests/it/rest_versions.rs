//! Selection of API version and token: a scripted server that answers as the releases did.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex},
};

use slurm_client::{AccountingQuery, Config, Error, Slurm};
use slurm_types::UnixTime;

use crate::rest_server::{ok, path, server, text};

#[tokio::test]
async fn every_release_is_asked_in_its_newest_version() {
    for (release, version, jobs) in [
        ("22.05", "v0.0.38", 35),
        ("24.11", "v0.0.42", 47),
        ("26.05", "v0.0.45", 51),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (slurm, seen, _) = server(dir.path(), move |head| {
            let path = path(head).split('?').next().unwrap().trim_end_matches('/');
            let name = path.rsplit_once('/').unwrap_or_default().1;
            ok(&match name {
                "openapi.json" => format!("{release}/rest/openapi.json"),
                "associations" | "users" => format!("{release}/access/{name}.json"),
                _ if path.starts_with("/slurmdb/") => {
                    format!("{release}/rest/{version}/db_{name}.json")
                }
                _ => format!("{release}/rest/{version}/{name}.json"),
            })
        });
        let queue = slurm.list_queue().await.unwrap();
        assert_eq!(
            (queue.rows.len(), queue.unread_lines),
            (jobs, 0),
            "{release}"
        );
        assert!(slurm.version().await.unwrap().starts_with(release));
        assert!(slurm.ping().await.unwrap().up, "{release}");
        assert!(!slurm.nodes().await.unwrap().is_empty(), "{release}");
        let partitions = slurm.partitions().await.unwrap();
        let cpu = partitions
            .iter()
            .find(|partition| partition.name == "cpu")
            .unwrap();
        let limits = (cpu.state.as_str(), cpu.max_time.as_str(), cpu.total_cpus);
        assert_eq!(limits, ("UP", "1-00:00:00", Some(8)), "{release}");
        // v0.0.40 to v0.0.44 do not report it.
        assert_eq!(cpu.default, release != "24.11");
        let window = AccountingQuery::Window {
            start: UnixTime::from_secs(1_795_200_000),
            end: None,
        };
        let rows = slurm.accounting(&window).await.unwrap();
        assert!(rows.len() > 20, "{release}");
        let access = slurm.access("mesh", false).await.unwrap();
        let counts = (access.associations.len(), access.users.len());
        assert_eq!(counts, (17, 6), "{release}");
        assert_eq!(seen.count("/openapi"), 1, "{release}");
        let asked = format!("/slurm/{version}/jobs");
        assert_eq!(seen.count(&asked), 1, "{release}");
    }
}

#[tokio::test]
async fn a_server_of_another_version_is_asked_again_for_its_paths() {
    let dir = tempfile::tempdir().unwrap();
    let upgraded = Arc::new(Mutex::new(false));
    let now = Arc::clone(&upgraded);
    let (slurm, seen, _) = server(dir.path(), move |head| {
        let release = if *now.lock().unwrap() {
            "26.05"
        } else {
            "22.05"
        };
        match path(head) {
            "/openapi.json" => ok(&format!("{release}/rest/openapi.json")),
            path if path.contains("/v0.0.38/ping") && release == "22.05" => {
                ok("22.05/rest/v0.0.38/ping.json")
            }
            path if path.contains("/v0.0.45/ping") && release == "26.05" => {
                ok("26.05/rest/v0.0.45/ping.json")
            }
            _ => text(
                404,
                "Unable find requested URL. Please view /openapi/v3 for API reference.",
            ),
        }
    });
    assert_eq!(slurm.version().await.unwrap(), "22.05.8");
    *upgraded.lock().unwrap() = true;
    assert_eq!(slurm.version().await.unwrap(), "26.05.5");
    assert_eq!(slurm.version().await.unwrap(), "26.05.5");
    assert_eq!(seen.count("/openapi.json"), 2);
}

#[tokio::test]
async fn a_server_without_our_versions_is_reported_with_its_versions() {
    let dir = tempfile::tempdir().unwrap();
    let (slurm, ..) = server(dir.path(), |_| {
        text(
            200,
            r#"{"paths":{"/slurm/v0.0.39/jobs":{},"/slurm/v0.0.99/jobs/":{}}}"#,
        )
    });
    let error = slurm.list_queue().await.unwrap_err();
    let found = matches!(&error, Error::NotServed { served, .. } if served == "v0.0.39, v0.0.99");
    assert!(found, "{error}");
}

#[tokio::test]
async fn node_states_without_flags_are_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (slurm, ..) = server(dir.path(), |head| match path(head) {
        "/openapi.json" => text(200, r#"{"paths":{"/slurm/v0.0.36/nodes":{}}}"#),
        _ => ok("22.05/rest/v0.0.36/nodes.json"),
    });
    let error = slurm.nodes().await.unwrap_err();
    assert!(matches!(error, Error::NotServed { .. }), "{error}");
}

#[tokio::test]
async fn the_token_is_read_again_when_its_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    mesh_testkit::write_private(&token, "SLURM_JWT=old.old.old\n");
    let (_, seen, config) = server(dir.path(), |head| {
        let named = head.contains("x-slurm-user-name: carol");
        match path(head) {
            _ if !head.contains("x-slurm-user-token: new.new.new") || !named => {
                text(401, "Authentication failure")
            }
            "/openapi.json" => ok("26.05/rest/openapi.json"),
            _ => ok("26.05/rest/v0.0.45/ping.json"),
        }
    });
    let slurm = Slurm::new(Config {
        token_file: Some(token.clone()),
        rest_user: Some("carol".to_owned()),
        ..config
    });
    let error = slurm.ping().await.unwrap_err();
    assert!(
        matches!(error, Error::Denied { status: 401, .. }),
        "{error}"
    );
    assert_eq!(seen.count("old.old.old"), 1);
    fs::write(&token, "new.new.new").unwrap();
    assert!(slurm.ping().await.unwrap().up);
    fs::write(&token, "two words").unwrap();
    let error = slurm.ping().await.unwrap_err();
    assert!(
        matches!(error, Error::TokenFile { .. }) && !error.is_transient(),
        "{error}"
    );
    fs::write(&token, "new.new.new").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let error = slurm.ping().await.unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
    fs::remove_file(&token).unwrap();
    assert!(matches!(slurm.ping().await, Err(Error::TokenFile { .. })));
}

/// A proxy before slurmrestd may answer with a page that repeats the request, as it is or encoded.
#[tokio::test]
async fn no_error_repeats_the_token() {
    let token = "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg";
    let encoded = token.replace('.', "%2E");
    let pages = [
        (403, format!("<pre>x-slurm-user-token: {token}</pre>")),
        (502, format!("bad gateway for {encoded}")),
        (500, format!("cut off: {}", &token[..40])),
        (200, format!("sign in first, {token}")),
        (
            500,
            format!(r#"{{"errors":[{{"error":"no {token}","error_number":1}}]}}"#),
        ),
    ];
    for (status, page) in pages {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        mesh_testkit::write_private(&file, token);
        let answer = page.clone();
        let (_, _, config) = server(dir.path(), move |head| match path(head) {
            "/openapi.json" => ok("26.05/rest/openapi.json"),
            _ => text(status, &answer),
        });
        let slurm = Slurm::new(Config {
            token_file: Some(file),
            ..config
        });
        let error = slurm.ping().await.unwrap_err();
        let shown = format!("{error} {error:?}");
        for part in token.split('.') {
            assert!(!shown.contains(part), "{page}: {shown}");
        }
    }
}
