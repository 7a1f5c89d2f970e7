//! The OpenAPI description: committed, served, complete, and matching the API's behaviour.

use std::collections::BTreeSet;
use std::process::Command;

use axum::http::StatusCode;
use mesh_testkit::NatsServer;
use serde_json::{Value, json};
use workflow_trigger::api::openapi::document;

use crate::approval::{PUBLISH, decide, rule};
use crate::support::{Site, Trigger, admin, bus, on_both, submitter_of_users};

on_both!(answers_are_as_described_whatever_is_asked);

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
const PATH: &str = "/v1/triggers/openapi.json";
/// Secret of the source `lab`.
const TOKEN: &str = "a token of machines, of 32 bytes and more";

#[test]
fn the_committed_description_is_what_the_code_gives() {
    mesh_testkit::assert_committed_openapi("workflow-trigger", COMMITTED, &document());
}

/// A rule that people fire, one whose runs need approval, and a source.
async fn start(site: &Site, nats: &NatsServer) -> Trigger {
    mesh_testkit::write_private(&site.path("lab.secret"), TOKEN);
    let source = "[[workflow-trigger.sources]]\nname = \"lab\"\nsignature = \"bearer\"\nsecret_file = \"lab.secret\"\n";
    let fired = "[[workflow-trigger.rules]]\nname = \"one\"\nowner = \"alice\"\ndry_run = true\non = { manual = true }\naction = { submit = \"true.sh\" }\n";
    let nightly = "[[workflow-trigger.rules]]\nname = \"nightly\"\nowner = \"alice\"\ndry_run = true\non = { cron = \"0 2 1 1 *\" }\naction = { submit = \"true.sh\" }\n";
    let tables = [
        rule("deploy", PUBLISH, "by = [\"root\"]"),
        fired.to_owned(),
        nightly.to_owned(),
        source.to_owned(),
        submitter_of_users(site),
    ];
    let limits = "api_rules = true\nlimits = { per_user_hour = 1000000, per_hour = 1000000 }";
    site.start(nats, limits, &tables.concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_and_has_every_route() {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let trigger = start(&site, &nats).await;
    let (status, served) = trigger.ask(admin(), "GET", PATH, None).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(served, serde_json::to_value(document()).unwrap());
    let paths = served["paths"].as_object().unwrap();
    let mut described: BTreeSet<String> = paths.keys().cloned().collect();
    described.insert(PATH.to_owned());
    assert_eq!(described, trigger.routes());
    for (path, methods) in paths {
        for (method, described) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let path = ["{owner}", "{name}", "{key}"]
                .iter()
                .fold(path.clone(), |path, name| path.replace(name, "nobody"));
            let (status, _) = trigger.ask(admin(), &method, &path, None).await;
            let statuses = described["responses"].as_object().unwrap();
            assert!(
                statuses.contains_key(status.as_str()),
                "{method} {path}: {status}"
            );
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
    trigger.stop().await;
}

/// Keys of runs: one that waits for approval, a dead letter, and one of a dry run.
async fn runs(trigger: &Trigger) -> Vec<String> {
    let waits = trigger.fire("deploy", "waits", json!({})).await;
    let dead = trigger.fire("deploy", "dead", json!({})).await;
    let (status, answer) = decide(trigger, admin(), &dead, "reject").await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let dry = trigger.fire("one", "dry", json!({"key": "a"})).await;
    vec![waits, dead, dry]
}

async fn answers_are_as_described_whatever_is_asked(site: Site) {
    let program = std::env::var("SCHEMATHESIS").expect(
        "SCHEMATHESIS is the path of schemathesis; `make test` sets it (scripts/schemathesis)",
    );
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let trigger = start(&site, &nats).await;
    // Makes most generated requests refer to existing data.
    let mut known = String::new();
    for (parameter, values) in [
        ("path.owner", json!(["alice"])),
        ("path.name", json!(["one", "deploy", "nightly", "lab"])),
        ("path.key", json!(runs(&trigger).await)),
        ("query.rule", json!(["alice/one", "alice/deploy"])),
        (
            "query.state",
            json!(["approval", "dead", "refused,dry_run"]),
        ),
        ("query.job", json!([7])),
    ] {
        let name = parameter.replace('.', "-");
        known += &format!(
            "[dictionaries.{name}]\nvalues = {values}\n[parameters.\"{parameter}\"]\ndictionary = \"{name}\"\nprobability = 0.8\n"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("schemathesis.toml");
    std::fs::write(&config, known).unwrap();
    let url = trigger.serve(admin()).await;
    let output = Command::new(program)
        .arg("--config-file")
        .arg(config)
        .args(["run", &format!("{url}{PATH}"), "--seed", "1", "-n", "20", "--no-color"])
        // For the source; people are known without.
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // The requests reached what they are about.
    let fired: Vec<Value> = trigger.runs("rule=alice/one").await;
    assert!(fired.len() > 1, "nothing was fired");
    trigger.stop().await;
}
