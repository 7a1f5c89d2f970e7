//! What happens to the bus of `smesh up` when its disk is full, and when somebody deletes what is in it.

use std::fs;
use std::time::{Duration, Instant};

use mesh_hook::ring::Outcome;
use mesh_testkit::SmallDisk;

use crate::mesh::{Mesh, stdout};

/// That nothing is stored is known within this time.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn after_a_full_disk_nats_stores_again_by_itself_and_everything_says_so_meanwhile() {
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
    // What fits into pages that are there is stored still.
    mesh.wait_until("the lease cannot be written", || {
        let log = fs::read_to_string(mesh.path("data/private/nats.log")).unwrap();
        log.contains("failed to store a msg on stream '$G > KV_mesh_leases'")
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
    assert!(doctor.contains("nats-server does not store"), "{doctor}");
    mesh.wait_until("a doorbell is spooled", || {
        matches!(mesh.ring(), Outcome::Spooled(_))
    });
    assert_eq!(mesh.nats_pid(), old, "a start on a full disk is of no use");

    disk.empty();
    mesh.wait_until("another nats-server", || {
        // There is no such file while none runs.
        let pid = fs::read_to_string(mesh.path("data/private/nats.pid"));
        pid.is_ok_and(|pid| pid.trim() != old.to_string())
    });
    mesh.wait_until("it stores, and readiness says so", || {
        well() && matches!(mesh.ring(), Outcome::Delivered { .. })
    });
}

#[test]
fn streams_and_buckets_that_were_deleted_come_back_and_it_is_said() {
    let mesh = Mesh::started();
    mesh.wait_until("ingest leads", || {
        mesh.readiness()["roles"]["ingest"] == "leader"
    });
    for name in [
        "MESH_HOOKS",
        "SLURM_EVENTS",
        "KV_mesh_leases",
        "KV_mesh_ingest",
    ] {
        mesh.jetstream(&format!("STREAM.DELETE.{name}"));
    }
    mesh.wait_until("it is said", || {
        let readiness = mesh.readiness();
        let notes = readiness["notes"]["smesh.repairs"]
            .as_str()
            .unwrap_or_default();
        [
            "stream MESH_HOOKS",
            "stream SLURM_EVENTS",
            "bucket mesh_leases",
            "bucket mesh_ingest",
        ]
        .iter()
        .all(|name| notes.contains(name))
    });
    mesh.wait_until("everything works again", || {
        let readiness = mesh.readiness();
        let problems = readiness["problems"].as_object().unwrap();
        let of_nats = |name: &String| name.ends_with(".nats") || name.ends_with(".leadership");
        !problems.keys().any(of_nats)
            && readiness["roles"]["ingest"] == "leader"
            && matches!(mesh.ring(), Outcome::Delivered { .. })
    });
    let doctor = stdout(&mesh.run(&["doctor"]));
    assert!(doctor.contains("stream SLURM_EVENTS"), "{doctor}");
}
