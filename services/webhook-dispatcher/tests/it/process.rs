//! The dispatcher as a process: faults in its configuration, a key from its environment, and its health checks.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use mesh_events::EventType;
use mesh_testkit::{CannedResponse, Postgres, WebhookReceiver, wait_until};
use serde_json::json;

use crate::dispatcher::{Dispatcher, command, logs};
use crate::harness::{DEADLINE, Kind, Mesh, alice, event, ids, signed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_is_refused_with_every_fault() {
    let mesh = Mesh::without_dispatcher().await;
    let good = signed("pipeline", "https://example.org/", "");
    let config = mesh.write_config(std::slice::from_ref(&good));
    assert!(
        command(&config)
            .arg("--check-config")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    );

    let config = mesh.write_config(&[
        good,
        signed("chat", "https://10.0.0.1/", "types = [\"job.exploded\"]"),
    ]);
    let output = command(&config).arg("--check-config").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for part in [
        "mesh.toml",
        "\"chat\": url: 10.0.0.1 may not be reached (private)",
        "\"chat\": types: unknown event type \"job.exploded\"",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_key_may_be_in_the_environment_and_an_old_one_is_refused_with_its_new_name() {
    let mut mesh = Mesh::without_dispatcher().await;
    let good = mesh.write_config(&[]);
    let output = command(&good)
        .arg("--print-config")
        .env("MESH_WEBHOOK_DISPATCHER__RETRY__INITIAL_INTERVAL", "7s")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let table = text.split("[webhook-dispatcher.retry]").nth(1).unwrap();
    for line in ["initial_interval = \"7s\"", "multiplier = 4"] {
        assert!(table.contains(line), "{line:?} is not in {text}");
    }

    let refused = |variable: &str, value: &str| {
        let output = command(&good)
            .arg("--check-config")
            .env(variable, value)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused("MESH_WEBHOOK_DISPATCHER__FIRST_WAIT", "7s");
    assert!(
        text.contains(
            "environment variable MESH_WEBHOOK_DISPATCHER__FIRST_WAIT: renamed to MESH_WEBHOOK_DISPATCHER__RETRY__INITIAL_INTERVAL"
        ),
        "{text}"
    );
    let text = refused(
        "MESH_WEBHOOK_DISPATCHER__ENDPOINTS",
        "[{name=\"a\",growth=2}]",
    );
    assert!(
        text.contains(
            "environment variable MESH_WEBHOOK_DISPATCHER__ENDPOINTS: endpoints[0].growth is renamed to endpoints[0].retry.multiplier"
        ),
        "{text}"
    );

    let old = "[[webhook-dispatcher.endpoints]]\nname = \"a\"\nurl = \"https://example.org/\"\nlongest_wait = \"1h\"";
    mesh.settings = "remember = \"20d\"".to_owned();
    let config = mesh.write_config(&[old.to_owned()]);
    let output = command(&config).arg("--check-config").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "configuration {}: [webhook-dispatcher] remember: renamed to retention; [webhook-dispatcher] endpoints[0].longest_wait: renamed to endpoints[0].retry.max_interval",
        config.display()
    );
    assert!(text.contains(&expected), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_secrets_may_be_in_the_environment() {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::for_api(Kind::Sqlite).await;
    let spec = json!({"name": "mine", "url": receiver.url("/"), "types": ["job.started"]});
    let (status, answer) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    mesh.wait_for_positions(1).await;
    mesh.stop().await;
    let file = mesh.folder.path().join("webhook-dispatcher.key");
    let key = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();

    let config = mesh.write_config(&[]);
    let mut command = command(&config);
    command
        .env("MESH_WEBHOOK_DISPATCHER__SECRETS_KEY", key.trim())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _dispatcher = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    wait_until("it is delivered", DEADLINE, async || {
        receiver.received().len() == 1
    })
    .await;
    let received = &receiver.received()[0];
    assert_eq!(received.header("webhook-id"), event.id);
    assert!(received.header("webhook-signature").starts_with("v1,"));
    assert!(!file.exists(), "no other key was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_receivers_do_not_hold_up_a_stop() {
    const DRAIN: Duration = Duration::from_secs(20);
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::without_dispatcher().await;
    let config = mesh.write_config(&[signed("pipeline", &receiver.url("/"), "")]);
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replacen("[mesh]", "[mesh]\ndrain_deadline = \"20s\"", 1);
    std::fs::write(&config, text).unwrap();
    let mut dispatcher = Dispatcher::start(&config, 0);
    mesh.wait_for_positions(1).await;
    // One of them is a retry when it stops, the others come from the bus.
    let slow = CannedResponse {
        delay: Duration::from_secs(30),
        ..CannedResponse::status(204)
    };
    receiver.answer_next([CannedResponse::status(503)]);
    receiver.answer_always(slow);
    let mut expected = BTreeSet::new();
    for job in 1..=3 {
        let event = event(EventType::JobStarted, job);
        mesh.publish(&event).await;
        expected.insert(event.id);
    }
    wait_until("requests under way", DEADLINE, async || {
        receiver.received().len() == 1 + expected.len()
    })
    .await;

    let start = Instant::now();
    dispatcher.signal("-TERM");
    let status = dispatcher.ended().await;
    assert!(status.success(), "{status}\n{}", logs(&config));
    assert!(start.elapsed() < DRAIN, "{:?}", start.elapsed());

    receiver.answer_always(CannedResponse::status(204));
    let before = receiver.received().len();
    let _dispatcher = Dispatcher::start(&config, 0);
    wait_until("all are sent again", DEADLINE, async || {
        ids(&receiver.received()[before..])
            .into_iter()
            .collect::<BTreeSet<_>>()
            == expected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_does_not_hold_up_a_stop() {
    const DRAIN: Duration = Duration::from_secs(20);
    let receiver = WebhookReceiver::start().await;
    let postgres = Postgres::start().await;
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.database = postgres.create_database();
    let config = mesh.write_config(&[signed("pipeline", &receiver.url("/"), "")]);
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replacen("[mesh]", "[mesh]\ndrain_deadline = \"20s\"", 1);
    std::fs::write(&config, text).unwrap();
    let mut dispatcher = Dispatcher::start(&config, 0);
    mesh.wait_for_positions(1).await;
    receiver.answer_always(CannedResponse::status(204));
    let paused = postgres.pause();
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    // Queries now wait for the database.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    dispatcher.signal("-TERM");
    let status = dispatcher.ended().await;
    assert!(status.success(), "{status}\n{}", logs(&config));
    assert!(start.elapsed() < DRAIN, "{:?}", start.elapsed());

    drop(paused);
    let _dispatcher = Dispatcher::start(&config, 0);
    wait_until("it is delivered", DEADLINE, async || {
        !receiver.received().is_empty()
    })
    .await;
}

/// Runs a health check against a dispatcher.
fn probe(config: &Path, dispatcher: &Dispatcher, what: &str) -> Output {
    command(config)
        .env("MESH_MESH__API__SOCKET", dispatcher.socket())
        .args(["--probe", what])
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_check_needs_nothing_but_the_program() {
    let mut mesh = Mesh::without_dispatcher().await;
    let config = mesh.write_config(&[]);
    let dispatcher = Dispatcher::start(&config, 0);
    let passes = |what| probe(&config, &dispatcher, what).status.success();
    wait_until("it is ready", DEADLINE, async || passes("readyz")).await;
    mesh.nats.kill();
    wait_until("it is not ready", DEADLINE, async || !passes("readyz")).await;
    let said = probe(&config, &dispatcher, "readyz").stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("503") && said.contains("nats:"), "{said}");
    assert!(passes("livez"), "a restart would not help");

    drop(dispatcher);
    let gone = command(&config).args(["--probe", "livez"]).output();
    let gone = gone.unwrap();
    assert_eq!(gone.status.code(), Some(1));
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(said.contains("does not answer"), "{said}");
}
