//! `smesh ledger monitor` while it runs, and what `smesh` has seen of a ledger under several addresses.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mesh_testkit::write_private;
use serde_json::Value;

use crate::forged::{DATABASE, KEY, copy, signed, size_of};
use crate::mesh::{Mesh, stderr, stdout};
use crate::others::with_an_event_of_alice;

/// A running monitor, which prints to a file.
pub struct Monitor {
    pub child: Child,
    printed: std::path::PathBuf,
}

impl Monitor {
    pub fn start(mesh: &Mesh, name: &str) -> Self {
        let printed = mesh.path(name);
        let args = [
            "ledger",
            "monitor",
            "--json",
            "--interval",
            "100ms",
            "--metrics",
        ];
        let child = mesh
            .smesh(&[&args[..], &["monitor.prom"]].concat())
            .stdin(Stdio::null())
            .stdout(fs::File::create(&printed).unwrap())
            .stderr(fs::File::create(mesh.path("monitor.err")).unwrap())
            .spawn()
            .unwrap();
        Self { child, printed }
    }

    /// The answers so far. Other lines report that the ledger cannot be reached.
    pub fn answers(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.printed).unwrap();
        let lines = text.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    fn size(&self) -> u64 {
        let answers = self.answers();
        answers
            .last()
            .map_or(0, |last| last["size"].as_u64().unwrap_or_default())
    }

    fn stop(mut self, signal: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").arg(signal).arg(id).status();
        assert!(sent.unwrap().success());
        self.child.wait().unwrap().code()
    }
}

/// Stops the mesh and restores an earlier state of its ledger.
pub fn set_back(mesh: &mut Mesh, backup: &Path) {
    mesh.end("-TERM");
    copy(
        backup,
        &mesh.path("data"),
        &[DATABASE.as_slice(), &KEY].concat(),
    );
    mesh.spawn();
    mesh.wait_until("the API answers", || mesh.listens());
}

/// A mesh with a copy of its stopped ledger.
pub async fn with_a_backup() -> (Mesh, std::path::PathBuf) {
    let mut mesh = with_an_event_of_alice(|_| {}).await;
    signed(&mesh, 8).await;
    mesh.end("-TERM");
    let backup = mesh.path("backup");
    fs::create_dir(&backup).unwrap();
    copy(
        &mesh.path("data"),
        &backup,
        &[DATABASE.as_slice(), &KEY].concat(),
    );
    mesh.start();
    (mesh, backup)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_follows_the_ledger_and_ends_with_an_alert_at_a_fork() {
    let (mut mesh, backup) = with_a_backup().await;
    let first = Monitor::start(&mesh, "first");
    mesh.wait_until("it sees the ledger", || first.size() > 0);
    let before = first.size();
    signed(&mesh, 9).await;
    mesh.wait_until("it sees more", || first.size() > before);
    assert!(
        first
            .answers()
            .iter()
            .all(|one| one["contradicted"] == false)
    );
    assert_eq!(first.stop("-INT"), Some(0), "Ctrl-C");

    // Another one goes on where it was, and waits while the ledger is away.
    let second = Monitor::start(&mesh, "second");
    mesh.wait_until("it sees the ledger", || second.size() > 0);
    mesh.end("-TERM");
    mesh.wait_until("it tries again", || {
        fs::read_to_string(&second.printed)
            .unwrap()
            .contains("retrying: ")
    });
    mesh.start();
    let newest = size_of(&signed(&mesh, 10).await);
    mesh.wait_until("it sees all", || second.size() >= newest);
    let mut second = second;
    assert!(second.child.try_wait().unwrap().is_none(), "it runs");

    set_back(&mut mesh, &backup);
    let ended = second.child.wait().unwrap();
    assert_eq!(
        ended.code(),
        Some(1),
        "{}",
        fs::read_to_string(mesh.path("monitor.err")).unwrap()
    );
    let alert = second.answers().pop().unwrap();
    assert_eq!(
        (&alert["contradicted"], &alert["reported"]),
        (&true.into(), &true.into())
    );
    assert!(
        size_of(alert["seen"].as_str().unwrap()) >= newest,
        "{alert}"
    );
    let metrics = fs::read_to_string(mesh.path("monitor.prom")).unwrap();
    assert!(
        metrics.contains("contradicted{origin=\"slurm-mesh.org/ledger/testbed\"} 1\n"),
        "{metrics}"
    );

    // What was seen is in the file, so a new monitor says the same at once.
    let mut third = Monitor::start(&mesh, "third");
    assert_eq!(third.child.wait().unwrap().code(), Some(1));
    assert_eq!(third.answers().len(), 1);
    // The event follows once the ledger is whole again.
    assert!(mesh.run(&["ledger", "resume"]).status.success());
    mesh.wait_until("the audit says it", || {
        let listed = mesh.run(&["events", "--type", "audit.history", "--json"]);
        stdout(&listed).contains("contradicted")
    });
    let fourth = Monitor::start(&mesh, "fourth");
    mesh.wait_until("it follows again", || fourth.size() >= newest);
    assert_eq!(fourth.stop("-TERM"), Some(0));
}

fn events(mesh: &Mesh, socket: &str) -> std::process::Output {
    mesh.run(&["--socket", socket, "-M", "testbed", "events"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_is_the_same_under_another_address() {
    let (mut mesh, backup) = with_a_backup().await;
    signed(&mesh, 9).await;
    symlink("data/api.sock", mesh.path("second.sock")).unwrap();
    symlink("data/api.sock", mesh.path("third.sock")).unwrap();
    assert!(events(&mesh, "second.sock").status.success());
    // What was seen at one address is the state of the ledger, so also of an address that was never used.
    set_back(&mut mesh, &backup);
    for socket in ["second.sock", "third.sock"] {
        let refused = events(&mesh, socket);
        assert_eq!(refused.status.code(), Some(1), "{socket}: {refused:?}");
        assert!(
            stderr(&refused).contains("an earlier one counts"),
            "{refused:?}"
        );
    }
    assert!(mesh.run(&["ledger", "resume"]).status.success());
    assert!(events(&mesh, "third.sock").status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_ledger_at_a_known_address_is_refused() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    signed(&mesh, 8).await;
    symlink(mesh.path("data/api.sock"), mesh.path("moved.sock")).unwrap();
    assert!(events(&mesh, "moved.sock").status.success());
    let origin = "other.example.org/ledger";
    let other = with_an_event_of_alice(|other| {
        let config = fs::read_to_string(other.path("mesh.toml")).unwrap();
        let more = format!("\n[ledger.checkpoint]\norigin = {origin:?}\n");
        write_private(&other.path("mesh.toml"), config + &more);
    })
    .await;
    signed(&other, 8).await;
    let socket = other.path("data/api.sock");
    let socket = socket.to_str().unwrap();
    // Known under its own address, it is another ledger all the same.
    assert!(events(&mesh, socket).status.success());
    let move_to = |to: &Path| {
        fs::remove_file(mesh.path("moved.sock")).unwrap();
        symlink(to, mesh.path("moved.sock")).unwrap();
    };
    move_to(&other.path("data/api.sock"));
    let refused = events(&mesh, "moved.sock");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains("contradicts"), "{refused:?}");
    let accept = ["--socket", "moved.sock", "ledger", "accept", origin];
    assert!(mesh.run(&accept).status.success());
    assert!(events(&mesh, "moved.sock").status.success());
    move_to(&mesh.path("data/api.sock"));
    assert_eq!(events(&mesh, "moved.sock").status.code(), Some(1));
    assert!(mesh.run(&["events"]).status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_ledger_of_a_known_origin_is_refused_until_it_is_accepted() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    signed(&mesh, 8).await;
    let forged = with_an_event_of_alice(|_| {}).await;
    signed(&forged, 8).await;
    let socket = forged.path("data/api.sock");
    let socket = socket.to_str().unwrap();
    let refused = events(&mesh, socket);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(
        stderr(&refused).contains("no hand-over from a known key"),
        "{refused:?}"
    );
    let accept = [
        "--socket",
        socket,
        "ledger",
        "accept",
        "slurm-mesh.org/ledger/testbed",
    ];
    assert!(mesh.run(&accept).status.success());
    // Both are known from then on, each at its address.
    assert!(events(&mesh, socket).status.success());
    assert!(mesh.run(&["events"]).status.success());
}
