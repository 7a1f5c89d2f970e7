//! `smesh ledger monitor` compares the API's checkpoints with those published on NATS.

use std::process::{Output, Stdio};

use ledger::adapters::KeyFile;
use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::note::PrivateKey;
use mesh_events::subject;
use serde_json::Value;

use crate::forged::{KEY, signed, size_of};
use crate::mesh::{Mesh, stderr, stdout};
use crate::monitor::{Monitor, set_back, with_a_backup};
use crate::others::{bus, with_an_event_of_alice};

const MONITOR: [&str; 4] = ["ledger", "monitor", "--once", "--json"];

fn monitor(mesh: &Mesh) -> Output {
    mesh.run(&MONITOR)
}

fn answer(output: &Output) -> Value {
    let printed = stdout(output);
    serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{output:?}"))
}

/// The ledger's own key.
fn stolen_key(mesh: &Mesh) -> PrivateKey {
    let file = KeyFile::new(mesh.path("data").join(KEY[0]));
    file.read().unwrap().unwrap()
}

/// A checkpoint as large as a genuine one, with another root.
fn forged(genuine: &str, key: &PrivateKey) -> String {
    let checkpoint = Checkpoint {
        root: [9; 32],
        ..Checkpoint::unverified(genuine).unwrap()
    };
    checkpoint.sign(&[key]).unwrap()
}

/// Publishes notes as the ledger does.
async fn publish(mesh: &Mesh, notes: &[&str]) {
    let bus = bus(mesh, "ledger").await;
    for note in notes {
        let origin = note.lines().next().unwrap();
        let id = format!("{:016x}", rand::random::<u64>());
        let body = note.as_bytes().to_vec();
        let subject = subject::checkpoint(origin);
        bus.publish_raw(subject, &id, body).await.unwrap();
    }
}

/// Publishes a checkpoint, then the genuine one again: the ledger itself compares only the newest one.
async fn slip_in(mesh: &Mesh, note: &str) {
    let genuine = stdout(&mesh.run(&["ledger", "checkpoint"]));
    publish(mesh, &[note, &genuine]).await;
}

fn assert_published_contradiction(output: &Output) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let alert = answer(output);
    let found = (&alert["contradicted"], &alert["source"]);
    assert_eq!(found, (&true.into(), &"published".into()), "{alert}");
}

fn audit_has_a_contradiction(mesh: &Mesh) {
    mesh.wait_until("the audit says it", || {
        let listed = mesh.run(&["events", "--type", "audit.history", "--json"]);
        stdout(&listed).contains("contradicted")
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_fork_ends_a_running_monitor_with_an_alert_and_an_event() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let genuine = signed(&mesh, 8).await;
    let size = size_of(&genuine);
    let mut running = Monitor::start(&mesh, "printed");
    mesh.wait_until("it compares what is published", || {
        let last = running.answers().pop().unwrap_or_default();
        last["published_size"].as_u64() >= Some(size)
    });
    slip_in(&mesh, &forged(&genuine, &stolen_key(&mesh))).await;

    assert_eq!(running.child.wait().unwrap().code(), Some(1));
    let alert = running.answers().pop().unwrap();
    assert_eq!(alert["source"], "published", "{alert}");
    assert_eq!(alert["reported"], true, "{alert}");
    let metrics = std::fs::read_to_string(mesh.path("monitor.prom")).unwrap();
    let expected = "contradicted{origin=\"slurm-mesh.org/ledger/testbed\"} 1\n";
    assert!(metrics.contains(expected), "{metrics}");
    audit_has_a_contradiction(&mesh);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_while_no_monitor_ran_is_compared_later_and_can_be_accepted() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let genuine = signed(&mesh, 8).await;
    let first = monitor(&mesh);
    assert!(first.status.success(), "{first:?}");
    assert_eq!(answer(&first)["contradicted"], false);
    slip_in(&mesh, &forged(&genuine, &stolen_key(&mesh))).await;
    assert_published_contradiction(&monitor(&mesh));
    // It stays one.
    assert_published_contradiction(&monitor(&mesh));
    let origin = genuine.lines().next().unwrap();
    assert!(mesh.run(&["ledger", "accept", origin]).status.success());
    let after = monitor(&mesh);
    assert!(after.status.success(), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_a_hand_over_is_an_alert_and_anything_else_is_not() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let genuine = signed(&mesh, 8).await;
    let origin = genuine.lines().next().unwrap();
    // A new key that the former one handed over to is trusted.
    assert!(monitor(&mesh).status.success());
    assert!(mesh.run(&["ledger", "key", "rotate"]).status.success());
    let genuine = signed(&mesh, 9).await;
    let text = format!("{origin}\nno checkpoint\n");
    slip_in(&mesh, &text).await;
    let size = format!("\n{}\n", size_of(&genuine));
    slip_in(&mesh, &genuine.replacen(&size, "\n1000000\n", 1)).await;
    let fine = monitor(&mesh);
    assert!(fine.status.success(), "{fine:?}");
    let unknown = PrivateKey::new(origin, &[7; 32]).unwrap();
    let note = Checkpoint::unverified(&genuine).unwrap();
    slip_in(&mesh, &note.sign(&[&unknown]).unwrap()).await;
    let alert = monitor(&mesh);
    assert_published_contradiction(&alert);
    assert!(stderr(&alert).contains("no hand-over"), "{alert:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_is_noticed_at_first_contact_by_what_was_published() {
    let (mut mesh, backup) = with_a_backup().await;
    signed(&mesh, 9).await;
    set_back(&mut mesh, &backup);
    // Nothing is known of the ledger but what is on NATS.
    std::fs::remove_file(mesh.path("known_ledgers.json")).unwrap();
    let blind = mesh.run(&[&MONITOR[..], &["--api-only"]].concat());
    assert!(blind.status.success(), "{blind:?}");
    assert_published_contradiction(&monitor(&mesh));
    assert!(mesh.run(&["ledger", "resume"]).status.success());
    audit_has_a_contradiction(&mesh);
    let resumed = monitor(&mesh);
    assert!(resumed.status.success(), "{resumed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_was_created_again_is_read_from_its_beginning() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let genuine = signed(&mesh, 8).await;
    assert!(monitor(&mesh).status.success());
    mesh.jetstream("STREAM.DELETE.MESH_CHECKPOINTS");
    mesh.wait_until("the stream is declared again", || {
        let info = mesh.jetstream_answer("STREAM.INFO.MESH_CHECKPOINTS");
        info.contains("\"created\"")
    });
    slip_in(&mesh, &forged(&genuine, &stolen_key(&mesh))).await;
    assert_published_contradiction(&monitor(&mesh));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_the_monitor_says_so_and_goes_on_only_if_it_was_told() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    signed(&mesh, 8).await;
    let socket = mesh.path("data/api.sock");
    let elsewhere = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut smesh = mesh.smesh(&MONITOR);
        let smesh = smesh.args(["--socket", socket.to_str().unwrap()]);
        let smesh = smesh.args(more).current_dir(elsewhere.path());
        smesh.stdin(Stdio::null()).output().unwrap()
    };
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    assert!(stderr(&refused).contains("--api-only"), "{refused:?}");
    assert!(run(&["--api-only"]).status.success());
    // As on another host: a configuration of its own names the server and the reader's credentials.
    let port = std::fs::read_to_string(mesh.path("data/private/nats.port")).unwrap();
    let write = |port: &str| {
        let password = mesh.path("data/private/nats-passwords/reader");
        let config = format!(
            "[mesh]\ncluster = \"testbed\"\n[mesh.nats]\nurl = \"nats://127.0.0.1:{port}\"\nuser = \"reader\"\npassword_file = {password:?}\n"
        );
        let path = elsewhere.path().join("mesh.toml");
        mesh_testkit::write_private(&path, config);
    };
    write(port.trim());
    let compared = run(&[]);
    assert!(compared.status.success(), "{compared:?}");
    assert!(answer(&compared)["published_size"].as_u64() > Some(0));
    // Nobody listens there.
    write("1");
    let unread = run(&[]);
    assert_eq!(unread.status.code(), Some(1), "{unread:?}");
    assert!(
        stderr(&unread).contains("published checkpoints"),
        "{unread:?}"
    );
}
