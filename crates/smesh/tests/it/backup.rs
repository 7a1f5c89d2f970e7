//! The drill: a backup under load, everything destroyed, and the backup restored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mesh_bus::Bus;
use mesh_events::EventType::{JobPending, JobStarted};
use mesh_events::catalogue::BUCKET_NODES;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{Postgres, WebhookReceiver, write_private};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::forged::size_of;
use crate::mesh::{Mesh, stderr, stdout};

async fn connect(mesh: &Mesh, role: &str) -> Bus {
    let port = std::fs::read_to_string(mesh.path("data/private/nats.port")).unwrap();
    let config = mesh_bus::Config {
        url: format!("nats://127.0.0.1:{}", port.trim()),
        user: Some(role.into()),
        password_file: Some(mesh.path(&format!("data/private/nats-passwords/{role}"))),
        provision: false,
        ..mesh_bus::Config::default()
    };
    Bus::connect(&config, role).await.unwrap()
}

/// Publishes what ingest would publish about a job, every fact with its id.
async fn publish(bus: &Bus, number: u32) -> [String; 2] {
    let events = [JobPending, JobStarted].map(|kind| job_event(kind, job(number)));
    for event in &events {
        let shutdown = CancellationToken::new();
        bus.publish_until_done(event, &shutdown).await.unwrap();
    }
    events.map(|event| event.id)
}

fn entries(mesh: &Mesh) -> u64 {
    let note = stdout(&mesh.run(&["ledger", "checkpoint"]));
    size_of(&note)
}

/// How often the ledger has each event of these types.
fn ids(mesh: &Mesh) -> BTreeMap<String, u32> {
    let mut ids = BTreeMap::new();
    let types = "job.pending,job.started";
    let exported = mesh.run(&["export", "--format", "ndjson", "--type", types]);
    assert!(exported.status.success(), "{}", stderr(&exported));
    for line in stdout(&exported).lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let event = entry.get("event").unwrap_or(&entry);
        *ids.entry(event["id"].as_str().unwrap().to_owned())
            .or_default() += 1;
    }
    ids
}

fn backup_file(mesh: &Mesh) -> PathBuf {
    let mut files = std::fs::read_dir(mesh.path("backup")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none(), "only complete files");
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_load_is_restored_with_nothing_missing_and_nothing_twice() {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::init();
    let endpoint = format!(
        "\n[[webhook-dispatcher.endpoints]]\nname = \"pipeline\"\nurl = \"{}\"\nallow_http = true\nallow_private = [\"127.0.0.0/8\"]\n\
         secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\ntypes = [\"job.started\"]\n",
        receiver.url("/hook")
    );
    let toml = mesh.path("mesh.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    // The first boundary of a checkpoint comes soon.
    write_private(
        &toml,
        text + &endpoint + "\n[ledger.checkpoint]\ninterval = \"1s\"\n",
    );
    mesh.start();

    let (stop, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let load = tokio::spawn({
        let (bus, stop, count) = (
            connect(&mesh, "ingest").await,
            Arc::clone(&stop),
            Arc::clone(&count),
        );
        async move {
            while !stop.load(Ordering::Relaxed) {
                publish(&bus, count.load(Ordering::Relaxed) + 1).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    mesh.wait_until("entries are signed", || entries(&mesh) > 200);
    let kept = stdout(&mesh.run(&["ledger", "checkpoint"]));
    std::fs::write(mesh.path("kept.note"), &kept).unwrap();
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(doctor.contains("no backup"), "{doctor}");

    let admin = connect(&mesh, "admin").await;
    let nodes = admin.bucket(BUCKET_NODES).await.unwrap();
    let value = br#"{"version":1,"nodes":{"n1":{"n":5}},"outbox":[]}"#.to_vec();
    nodes.put("other.7", value.into(), None).await.unwrap();
    let before = count.load(Ordering::Relaxed);
    let made = mesh.run(&["backup", "--secrets", "--json", "backup"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let after = count.load(Ordering::Relaxed);
    assert!(after > before, "the load went on");
    let made: Value = serde_json::from_str(&stdout(&made)).unwrap();
    let file = backup_file(&mesh);
    assert_eq!(
        made["file"].as_str(),
        Some(format!("backup/{}", file.file_name().unwrap().to_str().unwrap()).as_str())
    );
    let consumers = made["manifest"]["consumers"].as_array().unwrap();
    assert!(
        consumers
            .iter()
            .any(|one| one["name"] == "ledger" && one["ack_floor"].as_u64() > Some(0)),
        "{made}"
    );
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(!doctor.contains("no backup"), "{doctor}");
    mesh.wait_until("more was published", || {
        count.load(Ordering::Relaxed) > after + 50
    });
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
    let all = count.load(Ordering::Relaxed);

    // Everything is lost, and with it what came after the backup.
    mesh.end("-KILL");
    let nats = mesh.nats_pid().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-9", &nats])
            .status()
            .unwrap()
            .success()
    );
    std::fs::remove_dir_all(mesh.path("data")).unwrap();

    let name = file.to_str().unwrap();
    let verified = mesh.run(&["backup", "verify", name]);
    assert!(verified.status.success(), "{}", stderr(&verified));
    assert!(
        stdout(&verified).contains("fit chain, tree and checkpoints"),
        "{}",
        stdout(&verified)
    );
    let refused = mesh.run(&["restore", name, "--into", "data"]);
    assert_eq!(refused.status.code(), Some(64), "{}", stdout(&refused));
    assert!(!mesh.path("data").exists(), "nothing was done");
    let restored = mesh.run(&["restore", name, "--into", "data", "--yes"]);
    assert!(restored.status.success(), "{}", stderr(&restored));
    let again = mesh.run(&["restore", name, "--into", "data", "--yes"]);
    assert!(
        stderr(&again).contains("is not empty"),
        "{}",
        stderr(&again)
    );

    mesh.start();
    let admin = connect(&mesh, "admin").await;
    let nodes = admin.bucket(BUCKET_NODES).await.unwrap();
    let seeded = nodes.get("other.7").await.unwrap().unwrap();
    let seeded: Value = serde_json::from_slice(&seeded.value).unwrap();
    assert_eq!(seeded["nodes"]["n1"]["n"], 10_005, "no id is used again");
    // Ingest publishes again what Slurm has recorded since.
    let bus = connect(&mesh, "ingest").await;
    let mut expected = BTreeSet::new();
    for number in 1..=all {
        expected.extend(publish(&bus, number).await);
    }
    let complete = || ids(&mesh).len() == expected.len();
    mesh.wait_until("the ledger has all events", complete);
    let found = ids(&mesh);
    assert!(found.keys().all(|id| expected.contains(id)));
    assert!(found.values().all(|count| *count == 1), "{found:?}");
    let size = size_of(&kept);
    mesh.wait_until("it signs", || entries(&mesh) > size);
    let newest = stdout(&mesh.run(&["ledger", "checkpoint"]));
    assert_eq!(
        newest.lines().next(),
        kept.lines().next(),
        "the origin is the same"
    );
    let verified = mesh.run(&["verify", "--checkpoint", "kept.note"]);
    assert!(verified.status.success(), "{}", stdout(&verified));
    mesh.wait_until("every start was delivered", || {
        let delivered: BTreeSet<String> = receiver
            .received()
            .iter()
            .map(|request| request.header("webhook-id").to_owned())
            .collect();
        delivered.len() >= all as usize
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_incomplete_backup_is_refused() {
    let mesh = Mesh::started();
    let bus = connect(&mesh, "ingest").await;
    publish(&bus, 1).await;
    let made = mesh.run(&["backup", "backup"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let file = backup_file(&mesh);
    let whole = std::fs::read(&file).unwrap();
    let check = |content: &[u8], problem: &str| {
        let path = mesh.path("changed.tar");
        std::fs::write(&path, content).unwrap();
        for args in [
            &["backup", "verify", "changed.tar"][..],
            &["restore", "changed.tar", "--into", "new", "--yes"],
        ] {
            let refused = mesh.run(args);
            assert_eq!(refused.status.code(), Some(1), "{args:?}");
            assert!(stderr(&refused).contains(problem), "{}", stderr(&refused));
        }
        assert!(!mesh.path("new").exists());
    };
    let mut changed = whole.clone();
    let middle = whole
        .windows(6)
        .position(|bytes| bytes == b"SQLite")
        .unwrap();
    changed[middle + 40] ^= 1;
    check(&changed, "has another checksum");
    check(&whole[..whole.len() / 2], "is damaged");
    let manifest = whole
        .windows(13)
        .rposition(|bytes| bytes == b"manifest.json")
        .unwrap();
    check(&whole[..manifest], "no manifest.json");
    // The same, through a pipe.
    let piped = mesh.run(&["backup", "--databases", "-"]);
    assert!(piped.status.success(), "{}", stderr(&piped));
    std::fs::write(mesh.path("piped.tar"), &piped.stdout).unwrap();
    let verified = mesh.run(&["backup", "verify", "--json", "piped.tar"]);
    let verified: Value = serde_json::from_str(&stdout(&verified)).unwrap();
    assert_eq!(verified["verified"], true, "{verified}");
    let running = mesh.run(&["restore", "piped.tar", "--to-running", "--yes"]);
    assert!(
        stderr(&running).contains("nothing is overwritten"),
        "{}",
        stderr(&running)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_is_verified_and_restored_where_its_archives_are_not() {
    let mut mesh = Mesh::init();
    let toml = mesh.path("mesh.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    write_private(&toml, text + "\n[ledger.checkpoint]\ninterval = \"1s\"\n");
    mesh.start();
    let bus = connect(&mesh, "ingest").await;
    for number in 1..=5 {
        publish(&bus, number).await;
    }
    mesh.wait_until("they are signed", || {
        let note = mesh.run(&["ledger", "checkpoint"]);
        note.status.success() && size_of(&stdout(&note)) >= 10
    });
    let retain = ["--before", "1ms", "--archive-dir", "old"];
    let retained = mesh.run(&[&["ledger", "retain"], &retain[..]].concat());
    assert!(retained.status.success(), "{}", stderr(&retained));
    let made = mesh.run(&["backup", "backup"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let file = backup_file(&mesh);
    let file = file.to_str().unwrap();
    std::fs::remove_dir_all(mesh.path("old")).unwrap();
    let missing = mesh.run(&["verify"]);
    assert_eq!(missing.status.code(), Some(1), "{}", stdout(&missing));
    assert!(
        stdout(&missing).contains("ledger-000000000001-"),
        "{}",
        stdout(&missing)
    );
    mesh.end("-TERM");
    for args in [
        &["backup", "verify", file][..],
        &["restore", file, "--into", "new", "--yes"],
    ] {
        let output = mesh.run(args);
        let printed = stdout(&output);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        assert!(
            printed.contains("files of archives: not checked: 1 are not on this host"),
            "{printed}"
        );
    }
    let json = mesh.run(&["--json", "backup", "verify", file]);
    let json: Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert!(
        json["ledger_unchecked"]["files of archives"].is_string(),
        "{json}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_alone_are_restored_beside_the_bus_and_the_ledger_is_resumed() {
    restore_databases(&["", ""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_on_postgresql_is_dumped_and_restored_to_an_empty_database() {
    let server = Postgres::shared().await;
    let urls = [server.create_database(), server.create_database()];
    restore_databases(&urls.each_ref().map(String::as_str)).await;
}

/// Backs up a ledger at the first URL and restores it at the second.
async fn restore_databases(ledger: &[&str; 2]) {
    let mut mesh = Mesh::init();
    let toml = mesh.path("mesh.toml");
    let text = std::fs::read_to_string(&toml).unwrap();
    let text = format!("{text}\n[ledger.db]\nurl = \"{}\"\n", ledger[0]);
    write_private(&toml, text + "\n[ledger.checkpoint]\ninterval = \"1s\"\n");
    mesh.start();
    let bus = connect(&mesh, "ingest").await;
    let mut expected = BTreeSet::new();
    for number in 1..=20 {
        expected.extend(publish(&bus, number).await);
    }
    // Each job has two events, and one of the cost engine.
    let all_signed = |mesh: &Mesh, jobs: u64| {
        let verified = stdout(&mesh.run(&["verify", "--json"]));
        let verified: Value = serde_json::from_str(&verified).unwrap_or_default();
        verified["entries"].as_u64() >= Some(3 * jobs) && verified["entries"] == verified["signed"]
    };
    mesh.wait_until("all entries are signed", || all_signed(&mesh, 20));
    let made = mesh.run(&["backup", "backup"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let file = backup_file(&mesh);
    for number in 21..=40 {
        expected.extend(publish(&bus, number).await);
    }
    // The kept checkpoint is the last: a ledger that is resumed up to an earlier one must be resumed again.
    mesh.wait_until("they are signed, too", || all_signed(&mesh, 40));
    let kept = stdout(&mesh.run(&["ledger", "checkpoint"]));
    std::fs::write(mesh.path("kept.note"), &kept).unwrap();
    let file = file.to_str().unwrap();
    let args = ["restore", file, "--to-running", "--databases", "--yes"];
    let refused = mesh.run(&args);
    assert!(!refused.status.success(), "it runs");
    mesh.end("-TERM");
    for name in ["ledger.db", "cost-engine.db", "webhook-dispatcher.db"] {
        for side in ["", "-wal", "-shm"] {
            std::fs::remove_file(mesh.path(&format!("data/{name}{side}"))).ok();
        }
    }
    if !ledger[0].is_empty() {
        let refused = mesh.run(&args);
        assert!(
            stderr(&refused).contains("has tables"),
            "{}",
            stderr(&refused)
        );
        let text = std::fs::read_to_string(&toml).unwrap();
        write_private(&toml, text.replace(ledger[0], ledger[1]));
    }
    let restored = mesh.run(&args);
    assert!(restored.status.success(), "{}", stderr(&restored));
    mesh.spawn();
    mesh.wait_until("the doctor says what to do", || {
        stdout(&mesh.run(&["doctor"])).contains("smesh ledger resume")
    });
    let resumed = mesh.run(&["ledger", "resume", "--from-checkpoint", "kept.note"]);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    mesh.wait_until("it has all events again", || {
        ids(&mesh).len() >= expected.len()
    });
    // What arrived after the kept one.
    mesh.wait_until("it has what it has signed", || {
        let verified = mesh.run(&["verify", "--checkpoint", "kept.note"]);
        verified.status.success()
    });
    assert!(entries(&mesh) >= size_of(&kept));
    let found = ids(&mesh);
    assert_eq!(found.len(), expected.len());
    assert!(found.values().all(|count| *count == 1));
}
