//! Who may do what with whose rules.

use axum::http::StatusCode;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::NatsServer;
use serde_json::{Value, json};

use crate::support::{Site, bus, rule};

const OK: StatusCode = StatusCode::OK;
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
const NO_CONTENT: StatusCode = StatusCode::NO_CONTENT;
const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;
const UNPROCESSABLE: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
const CONFLICT: StatusCode = StatusCode::CONFLICT;

fn caller(name: &str) -> Caller {
    match name {
        "root" => Caller::peer("root", 0, Role::Admin),
        "eve" => Caller::peer("eve", 20_009, Role::Auditor),
        "prometheus" => Caller::peer("prometheus", 65_534, Role::Metrics),
        user => Caller::peer(user, 20_001, Role::User),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_is_its_owners_alone() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let tables = rule("one", "dry_run = true")
        + "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";
    let trigger = site.start(&nats, "", &tables).await;
    let refused = "state=refused";
    // A dead letter that nobody can redrive: its rule is a dry run.
    let dead = {
        let retry = "/v1/triggers/alice/one/fire";
        let paused = "/v1/triggers/alice/one/pause";
        trigger
            .ask(caller("root"), "POST", paused, Some(json!({})))
            .await;
        trigger
            .ask(caller("root"), "POST", retry, Some(json!({"id": "x"})))
            .await;
        trigger
            .ask(
                caller("root"),
                "POST",
                "/v1/triggers/alice/one/resume",
                None,
            )
            .await;
        trigger.runs(refused).await[0]["key"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let rule = "/v1/triggers/alice/one";
    let run = format!("/v1/trigger-runs/{dead}");
    // alice, bob, an auditor, a metrics reader, an administrator
    let people = ["alice", "bob", "eve", "prometheus", "root"];
    let matrix: [(&str, String, Option<Value>, [StatusCode; 5]); 10] = [
        (
            "GET",
            rule.to_owned(),
            None,
            [OK, NOT_FOUND, OK, NOT_FOUND, OK],
        ),
        (
            "POST",
            format!("{rule}/test"),
            Some(json!({"data": {}})),
            [OK, NOT_FOUND, FORBIDDEN, NOT_FOUND, OK],
        ),
        (
            "POST",
            format!("{rule}/fire"),
            Some(json!({"data": {}})),
            [ACCEPTED, NOT_FOUND, FORBIDDEN, NOT_FOUND, ACCEPTED],
        ),
        (
            "POST",
            format!("{rule}/pause"),
            Some(json!({})),
            [NO_CONTENT, NOT_FOUND, FORBIDDEN, NOT_FOUND, NO_CONTENT],
        ),
        (
            "POST",
            format!("{rule}/resume"),
            None,
            [NO_CONTENT, NOT_FOUND, FORBIDDEN, NOT_FOUND, NO_CONTENT],
        ),
        ("GET", run.clone(), None, [OK, NOT_FOUND, OK, NOT_FOUND, OK]),
        (
            "POST",
            format!("{run}/redrive"),
            None,
            [CONFLICT, NOT_FOUND, FORBIDDEN, NOT_FOUND, CONFLICT],
        ),
        // A run that does not wait, of a rule without approval.
        (
            "POST",
            format!("{run}/approve"),
            None,
            [FORBIDDEN, NOT_FOUND, FORBIDDEN, NOT_FOUND, CONFLICT],
        ),
        (
            "POST",
            format!("{run}/reject"),
            Some(json!({})),
            [CONFLICT, NOT_FOUND, FORBIDDEN, NOT_FOUND, CONFLICT],
        ),
        (
            "POST",
            "/v1/triggers/bob/one/fire".to_owned(),
            Some(json!({})),
            [NOT_FOUND; 5],
        ),
    ];
    for (method, path, body, expected) in matrix {
        for (name, expected) in people.into_iter().zip(expected) {
            let (status, answer) = trigger.ask(caller(name), method, &path, body.clone()).await;
            assert_eq!(status, expected, "{name}: {method} {path}: {answer}");
        }
        if method == "POST" {
            let headers = [("content-type", "application/json")];
            let (status, _) = trigger.send(&path, &headers, "{}").await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "nobody: {path}");
        }
        // Nobody leaves it paused for the next row.
        trigger
            .ask(caller("root"), "POST", &format!("{rule}/resume"), None)
            .await;
    }
    for name in people {
        let path = "/v1/triggers/openapi.json";
        let (status, _) = trigger.ask(caller(name), "GET", path, None).await;
        assert_eq!(status, OK, "{name}: {path}");
    }
    // What others own is not in lists.
    for (name, rules) in people.into_iter().zip([1, 0, 1, 0, 1]) {
        let (status, body) = trigger.ask(caller(name), "GET", "/v1/triggers", None).await;
        assert_eq!((status, list(&body, "rules")), (OK, rules), "{name}");
        let (status, body) = trigger
            .ask(caller(name), "GET", "/v1/trigger-runs", None)
            .await;
        assert_eq!(status, OK);
        assert_eq!(list(&body, "runs") > 0, rules > 0, "{name}");
    }
    trigger.stop().await;
}

fn list(body: &Value, key: &str) -> usize {
    body[key].as_array().map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_is_checked_before_it_is_accepted() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let tables = "[[workflow-trigger.rules]]\nname = \"data\"\nowner = \"alice\"\ndry_run = true\n[workflow-trigger.rules.on]\nmanual = true\nwhen = 'data.key is endingwith \".gz\"'\n[workflow-trigger.rules.action]\nsubmit = \"true.sh\"\nargs = [\"{{ data.key }}\"]\npartition = \"{{ data.partition }}\"\n";
    let trigger = site.start(&nats, "", tables).await;
    let path = "/v1/triggers/alice/data/fire";
    for (data, expected, words) in [
        (json!({"key": "a.gz", "partition": "cpu"}), ACCEPTED, ""),
        (json!({"key": "a.txt"}), UNPROCESSABLE, "on.when"),
        (json!({"key": "a.gz"}), UNPROCESSABLE, "action.partition"),
        (
            json!({"key": "a.gz", "partition": "--uid=0"}),
            UNPROCESSABLE,
            "partition",
        ),
        (
            json!({"key": "a\u{0}.gz", "partition": "cpu"}),
            UNPROCESSABLE,
            "NUL",
        ),
        (
            json!({"key": "x".repeat(40_000) + ".gz", "partition": "cpu"}),
            UNPROCESSABLE,
            "longer",
        ),
    ] {
        let (status, body) = trigger
            .ask(caller("alice"), "POST", path, Some(json!({"data": data})))
            .await;
        assert_eq!(status, expected, "{body}");
        let detail = body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "{detail}");
    }
    // The same id fires once.
    let body = json!({"id": "nightly", "data": {"key": "b.gz", "partition": "cpu"}});
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(
            trigger
                .ask(caller("alice"), "POST", path, Some(body.clone()))
                .await,
        );
    }
    assert_eq!((answers[0].0, answers[1].0), (ACCEPTED, OK));
    assert_eq!(answers[0].1["key"], answers[1].1["key"]);
    trigger.stop().await;
}
