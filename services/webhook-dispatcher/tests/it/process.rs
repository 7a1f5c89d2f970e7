//! The dispatcher as a process of its own: killed, and misconfigured.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mesh_events::EventType;
use mesh_testkit::{Answer, Receiver, wait_until};

use crate::harness::{DEADLINE, Mesh, event, ids, signed};

fn command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webhook-dispatcher"));
    command.arg("--config").arg(config).stdout(Stdio::null());
    command
}

/// Killed on drop.
struct Process(Child);

impl Process {
    fn start(config: &Path) -> Self {
        Self(command(config).stderr(Stdio::null()).spawn().unwrap())
    }

    /// As `kill -9`.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_nothing_and_repeats_only_what_was_under_way() {
    const EVENTS: u32 = 300;
    const CONCURRENCY: usize = 8;
    let receiver = Receiver::start().await;
    // Slow, so that it is killed in the middle also on a busy machine.
    receiver.answer_always(Answer {
        delay: Duration::from_millis(200),
        ..Answer::status(204)
    });
    let mesh = Mesh::without_dispatcher().await;
    let text = signed(
        "pipeline",
        &receiver.url("/"),
        &format!("concurrency = {CONCURRENCY}"),
    );
    // The consumer's ack wait is three times as long, half a minute at least.
    let config = mesh.write_config(&[text.replace("timeout = \"30s\"", "timeout = \"5s\"")]);
    let mut process = Process::start(&config);
    mesh.wait_for_consumers(1).await;
    let events: Vec<_> = (1..=EVENTS)
        .map(|job| event(EventType::JobStarted, job))
        .collect();
    let expected: BTreeSet<String> = events.iter().map(|event| event.id.clone()).collect();
    mesh.bus
        .publish_all(events, &Default::default())
        .await
        .unwrap();
    wait_until("some deliveries", DEADLINE, async || {
        receiver.received().len() >= 50
    })
    .await;
    process.kill();
    let before = receiver.received().len();
    assert!(before < EVENTS as usize, "killed in the middle");

    receiver.answer_always(Answer::status(204));
    let _process = Process::start(&config);
    // Messages that were handed out and not acknowledged come again after the consumer's ack wait, half a minute.
    wait_until("every event", DEADLINE, async || {
        ids(&receiver.received())
            .into_iter()
            .collect::<BTreeSet<_>>()
            == expected
    })
    .await;
    let repeated = receiver.received().len() - expected.len();
    assert!(repeated <= CONCURRENCY, "{repeated} repeated");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_configuration_is_refused_with_every_fault() {
    let mesh = Mesh::without_dispatcher().await;
    let good = signed("pipeline", "https://example.org/", "");
    let config = mesh.write_config(std::slice::from_ref(&good));
    assert!(
        command(&config)
            .arg("--check-config")
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
