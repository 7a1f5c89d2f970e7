//! The description of the REST API is committed, served, and correct.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use ledger::adapters::KeyFile;
use ledger::api::openapi::document;
use ledger::api::{Events, Proofs, Replays, export_router, proof_router, replay_router, router};
use ledger::checkpointer::Checkpointer;
use ledger::replayer::Replayer;
use mesh_events::EventType;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use serde_json::{Value, json};

use crate::api::get;
use crate::support::{Database, admin, audit_entry, audit_fact, bus, node_event, of_user, record};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

/// All described routes on a signed ledger of the given events, as seen by an administrator.
struct Whole {
    _database: Database,
    _nats: NatsServer,
    url: String,
}

impl Whole {
    async fn with(events: &[Event]) -> Self {
        mesh_runtime::install_crypto_provider();
        let database = Database::sqlite();
        let store = database.store().await;
        let mut records: Vec<_> = events.iter().map(record).collect();
        records.push(audit_fact(&audit_entry(1)));
        store.append("SLURM_EVENTS", 1, records).await.unwrap();
        let nats = NatsServer::start().await;
        let bus = bus(&nats, "ledger").await;
        let file = KeyFile::new(database.folder.path().join("key"));
        let checkpointer = Checkpointer::new(store.clone(), bus.clone(), file, "o", CLUSTER);
        checkpointer.sign_if_new().await.unwrap();
        let proofs = Arc::new(Proofs::new(store.clone(), checkpointer));
        // No replayer is running: every replay is accepted and stays open.
        let replayer = Replayer::new(store.clone(), bus, CLUSTER, Duration::from_secs(86_400));
        let limits = ledger::ReplayConfig {
            max_running: 100_000,
            ..ledger::ReplayConfig::default()
        };
        let limits = limits.limits();
        let replays = Replays::new(store.clone(), replayer, limits);
        let routes = router(Arc::new(Events::new(store, 1000, 100)))
            .merge(export_router(Arc::clone(&proofs)))
            .merge(proof_router(proofs))
            .merge(replay_router(Arc::new(replays)))
            .layer(Extension(admin()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self {
            _database: database,
            _nats: nats,
            url,
        }
    }
}

#[test]
fn the_committed_description_matches_the_code() {
    mesh_testkit::assert_committed_openapi("ledger", COMMITTED, &document());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_and_every_parameter_in_it_is_taken() {
    let api = Whole::with(&[of_user("alice", EventType::JobStarted, fixtures::job(5))]).await;
    let (status, served) = get(&api.url, "/v1/events/openapi.json").await;
    assert_eq!(status, 200);
    assert_eq!(served, serde_json::to_value(document()).unwrap());
    let sample = |name: &str| match name {
        "type" => "job.*",
        "category" => "job",
        "job" | "array" | "from_seq" | "after" | "limit" => "5",
        "seq" | "size" | "from" | "to" => "1",
        "state" => "done",
        "to_seq" => "9",
        "since" => "2h",
        "until" => "1h",
        "order" => "asc",
        "format" => "csv",
        "fields" => "seq",
        "by" => "cluster",
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
            // A stream accepts the filters, but has no end.
            if path.ends_with("/stream") && matches!(name, "until" | "to_seq") {
                continue;
            }
            // The subject of a proof is a required parameter.
            let of = match (path.as_str(), name) {
                (path, "size") if path.ends_with("/inclusion") => "&seq=1",
                (path, "to") if path.ends_with("/consistency") => "&from=1",
                _ => "",
            };
            let url = format!("{}{place}?{name}={}{of}", api.url, sample(name));
            let answer = reqwest::get(url).await.unwrap();
            let status = answer.status().as_u16();
            // A stream does not end, so only the body of an error is read.
            let text = match status {
                400 => answer.text().await.unwrap(),
                _ => String::new(),
            };
            let described = methods["get"]["responses"][status.to_string()].is_object();
            assert!(
                described && !text.contains("unknown") && (status != 400 || name == "cursor"),
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
        .map(|id| of_user("alice", EventType::JobStarted, fixtures::job(id)))
        .collect();
    events.push(node_event("n1", 1));
    let api = Whole::with(&events).await;
    let replays = format!("{}/v1/replays", api.url);
    let begun = reqwest::Client::new()
        .post(replays)
        .json(&json!({"rate": 1}));
    let begun: Value = begun.send().await.unwrap().json().await.unwrap();
    // Makes most generated requests refer to existing data.
    let mut known = String::new();
    for (parameter, values) in [
        ("path.cluster", json!([CLUSTER])),
        ("path.job", json!(["5", "7", "19"])),
        ("path.node", json!(["n1"])),
        ("path.id", json!([begun["id"]])),
        ("query.seq", json!([1, 5, 22])),
        ("query.size", json!([5, 22])),
        ("query.from", json!([0, 1, 5])),
        ("query.to", json!([5, 22])),
    ] {
        let name = parameter.replace('.', "-");
        known += &format!(
            "[dictionaries.{name}]\nvalues = {values}\n[parameters.\"{parameter}\"]\ndictionary = \"{name}\"\nprobability = 0.8\n"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("schemathesis.toml");
    std::fs::write(&config, known).unwrap();
    let output = Command::new(program)
        .arg("--config-file")
        .arg(config)
        .args(["run", &format!("{}/v1/events/openapi.json", api.url)])
        // A stream does not end.
        .args(["--exclude-path", "/v1/events/stream", "--seed", "1", "-n", "25", "--no-color"])
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
}
