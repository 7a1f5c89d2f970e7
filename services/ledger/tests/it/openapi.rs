//! The description of the REST API: committed, served, true.

use std::path::Path;
use std::process::Command;

use ledger::api::openapi::document;
use mesh_events::EventType;
use mesh_testkit::build::{self, CLUSTER};

use crate::api::Api;
use crate::support::{Database, audit_entry, audit_fact, node_event, of_user};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

#[test]
fn the_committed_description_is_what_the_code_gives() {
    let mut text = serde_json::to_string_pretty(&document()).unwrap();
    text.push('\n');
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(COMMITTED, &text).unwrap();
    }
    let committed = std::fs::read_to_string(Path::new(COMMITTED)).unwrap_or_default();
    assert!(
        committed == text,
        "services/ledger/openapi.json is not what the code gives; look at what changed, then: UPDATE_OPENAPI=1 cargo test -p ledger --test it openapi"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_and_every_parameter_in_it_is_taken() {
    let api = Api::with(
        Database::sqlite(),
        &[of_user("alice", EventType::JobStarted, build::job(5))],
    )
    .await;
    let (status, served) = api.get("/v1/events/openapi.json").await;
    assert_eq!(status, 200);
    assert_eq!(served, serde_json::to_value(document()).unwrap());
    let sample = |name: &str| match name {
        "type" => "job.*",
        "category" => "job",
        "job" | "array" | "from_seq" | "after" | "limit" => "5",
        "to_seq" => "9",
        "since" => "2h",
        "until" => "1h",
        "order" => "asc",
        "format" => "csv",
        "fields" => "seq",
        "by" => "day",
        "at" => "2h",
        "cursor" => "x",
        _ => "alice",
    };
    for (path, methods) in served["paths"].as_object().unwrap() {
        let place = path
            .replace("{cluster}", CLUSTER)
            .replace("{job}", "5")
            .replace("{node}", "n1");
        let parameters = methods["get"]["parameters"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        for parameter in parameters
            .iter()
            .filter(|parameter| parameter["in"] == "query")
        {
            let name = parameter["name"].as_str().unwrap();
            // A stream takes the filters, but has no end.
            if path.ends_with("/stream") && matches!(name, "until" | "to_seq") {
                continue;
            }
            let url = format!("{}{place}?{name}={}", api.url, sample(name));
            let answer = reqwest::get(url).await.unwrap();
            let status = answer.status().as_u16();
            // A stream does not end, so only what is wrong with a question is read.
            let text = match status {
                400 => answer.text().await.unwrap(),
                _ => String::new(),
            };
            assert!(
                !text.contains("there is no such")
                    && (status == 200 || status == 404 || name == "cursor"),
                "{path} {name}: {status} {text}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_as_described_whatever_is_asked() {
    let program = std::env::var("SCHEMATHESIS").expect(
        "SCHEMATHESIS is the path of schemathesis; `make test` sets it (scripts/schemathesis)",
    );
    let mut events: Vec<_> = (1..=20)
        .map(|id| of_user("alice", EventType::JobStarted, build::job(id)))
        .collect();
    events.push(node_event("n1", 1));
    let api = Api::with(Database::sqlite(), &events).await;
    api.store
        .append("MESH_AUDIT", 1, vec![audit_fact(&audit_entry(1))])
        .await
        .unwrap();
    let output = Command::new(program)
        .args(["run", &format!("{}/v1/events/openapi.json", api.url)])
        // A stream does not end.
        .args(["--exclude-path", "/v1/events/stream", "--seed", "1", "-n", "25", "--no-color"])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method"])
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
