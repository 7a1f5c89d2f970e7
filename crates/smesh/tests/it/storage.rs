//! The bus of `smesh up` with a full disk, and with deleted streams.

use std::fs;
use std::time::{Duration, Instant};

use mesh_events::catalogue::{BUCKETS, CONSUMERS, Consumer, STREAMS};
use mesh_hook::ring::Outcome;
use mesh_testkit::{NatsServer, SmallDisk};
use smesh::services::SERVICES;

use crate::mesh::{Mesh, stdout};

/// The doctor's line for healthy storage.
const STORE: &str = "streams and buckets store";
/// Time within which a storage fault must be reported.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn after_a_full_disk_nats_recovers_and_the_outage_is_reported() {
    let disk = SmallDisk::mount("64m");
    let mut mesh = Mesh::init_with_streams_at(disk.path());
    mesh.start();
    mesh.wait_until("a doorbell rings", || {
        matches!(mesh.ring(), Outcome::Delivered { .. })
    });
    let well = || {
        ["smesh.nats-server", "ingest.nats", "ingest.leadership"]
            .iter()
            .all(|name| mesh.problem(name).is_empty())
    };
    mesh.wait_until("nothing is wrong with NATS", well);
    let old = mesh.nats_pid();
    disk.fill();
    // Data that fits into existing pages is still stored.
    mesh.wait_until("the lease cannot be written", || {
        let log = fs::read_to_string(mesh.path("data/private/nats.log")).unwrap();
        log.contains("failed to store a msg on stream 'mesh > KV_mesh_leases'")
    });
    let full = Instant::now();
    mesh.wait_until("readiness says that nothing is stored", || {
        mesh.problem("smesh.nats-server")
            .contains("no space left on device")
            && mesh.problem("ingest.nats").contains("does not store")
            && mesh.problem("ingest.leadership").contains("lease")
    });
    println!("known after {:?}", full.elapsed());
    assert!(full.elapsed() < KNOWN_WITHIN, "{:?}", full.elapsed());
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(doctor.contains("nats-server stores nothing"), "{doctor}");
    for stream in ["SLURM_EVENTS", "MESH_AUDIT", "KV_mesh_leases"] {
        // Readiness also names streams to which a service publishes.
        let line = doctor.lines().find(|line| {
            line.contains("streams  ") && line.contains(&format!("{stream} does not store"))
        });
        let line = line.unwrap_or_else(|| panic!("{stream}: {doctor}"));
        assert!(line.contains("no space left on device"), "{line}");
    }
    mesh.wait_until("a doorbell is spooled", || {
        matches!(mesh.ring(), Outcome::Spooled(_))
    });
    assert_eq!(mesh.nats_pid(), old, "a start on a full disk is of no use");

    disk.empty();
    mesh.wait_until("another nats-server", || {
        // The file is missing while no server runs.
        let pid = fs::read_to_string(mesh.path("data/private/nats.pid"));
        pid.is_ok_and(|pid| pid.trim() != old.to_string())
    });
    mesh.wait_until("it stores, and readiness says so", || {
        well() && matches!(mesh.ring(), Outcome::Delivered { .. })
    });
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(doctor.contains(STORE), "{doctor}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_server_of_ones_own_doctor_names_the_stream_that_stores_nothing() {
    let disk = SmallDisk::mount("24m");
    let mut nats = NatsServer::start_with_streams_at(disk.path()).await;
    let mesh = Mesh::init();
    let path = mesh.path("mesh.toml");
    let text = fs::read_to_string(&path).unwrap();
    let section = format!("[mesh.nats]\n{}", nats.toml());
    mesh_testkit::write_private(&path, format!("{text}\n{section}"));
    let provision = mesh.run(&["nats", "provision"]);
    assert!(provision.status.success(), "{provision:?}");
    let doctor = || stdout(&mesh.run(&["doctor"]));
    assert!(doctor().contains(STORE), "{}", doctor());

    disk.fill();
    let config = mesh_bus::Config {
        url: nats.url(),
        provision: false,
        ..mesh_bus::Config::default()
    };
    let bus = mesh_bus::Bus::connect(&config, "admin").await.unwrap();
    let large = vec![b'x'; 500_000];
    let dead = bus.publish_raw("mesh.dead.ledger".into(), "large", large);
    assert!(dead.await.is_err());
    disk.empty();
    // The disk has room again and all other streams store, but nothing has been published to this one since.
    let printed = doctor();
    let broken: Vec<&str> = printed
        .lines()
        .filter(|line| line.contains("does not store"))
        .collect();
    assert_eq!(broken.len(), 1, "{printed}");
    assert!(broken[0].contains("MESH_DEAD does not store"), "{printed}");
    assert!(printed.contains("and restart it"), "{printed}");
    nats.restart().await;
    assert!(doctor().contains(STORE), "{}", doctor());
}

/// Waits until the note about repairs contains all of these.
fn assert_reported(mesh: &Mesh, expected: &[String]) {
    mesh.wait_until("it is said", || {
        let readiness = mesh.readiness();
        let notes = readiness["notes"]["smesh.repairs"].as_str();
        let services = SERVICES.each_ref().map(|service| {
            let name = service.name();
            let note = &readiness["notes"][format!("{name}.repairs")];
            note.as_str().unwrap_or_default().to_owned()
        });
        let notes = notes.unwrap_or_default().to_owned() + &services.concat();
        expected.iter().all(|one| notes.contains(one))
    });
}

/// Consumers that are active without a Slurm. Ingest reads no doorbells before its first poll of the queue.
fn consumers() -> impl Iterator<Item = &'static Consumer> {
    CONSUMERS
        .iter()
        .filter(|consumer| consumer.name != "ingest")
}

fn works(mesh: &Mesh) {
    mesh.wait_until("everything works again", || {
        let readiness = mesh.readiness();
        let problems = readiness["problems"].as_object().unwrap();
        let of_nats = |name: &String| name.ends_with(".nats") || name.ends_with(".leadership");
        !problems.keys().any(of_nats)
            && readiness["roles"]["ingest"] == "leader"
            && readiness["roles"]["node-watcher"] == "leader"
            && matches!(mesh.ring(), Outcome::Delivered { .. })
    });
    for consumer in consumers() {
        let durable = consumer.durable("testbed");
        let info = format!("CONSUMER.INFO.{}.{durable}", consumer.stream);
        mesh.wait_until(&info, || {
            mesh.jetstream_answer(&info).contains("\"num_pending\"")
        });
    }
}

#[test]
fn deleted_streams_buckets_and_consumers_are_restored_and_reported() {
    let mut mesh = Mesh::init();
    let path = mesh.path("mesh.toml");
    let text = fs::read_to_string(&path).unwrap();
    // Both are off by default.
    let section = "[exporter]\nenabled = true\n[[workflow-trigger.rules]]\nname = \"manual\"\nowner = \"alice\"\non = { manual = true }\naction = { cancel = \"{{ data.job }}\" }\n";
    mesh_testkit::write_private(&path, format!("{text}\n{section}"));
    mesh.start();
    works(&mesh);
    let buckets = BUCKETS.iter().map(|bucket| format!("KV_{}", bucket.name));
    let streams = STREAMS.iter().map(|stream| stream.name.to_owned());
    for name in streams.chain(buckets) {
        mesh.jetstream(&format!("STREAM.DELETE.{name}"));
    }
    let buckets = BUCKETS.iter().map(|one| format!("bucket {} was", one.name));
    let streams = STREAMS.iter().map(|one| format!("stream {} was", one.name));
    let printed: Vec<String> = streams.chain(buckets).collect();
    assert_reported(&mesh, &printed);
    works(&mesh);
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(printed.iter().all(|one| doctor.contains(one)), "{doctor}");

    let mut printed = Vec::new();
    for consumer in consumers() {
        let durable = consumer.durable("testbed");
        mesh.jetstream(&format!("CONSUMER.DELETE.{}.{durable}", consumer.stream));
        printed.push(format!("consumer {durable} of {}: it was", consumer.stream));
    }
    assert_reported(&mesh, &printed);
    works(&mesh);
}
