//! `smesh up`: starts, runs only once, recovers after a crash, restarts nats-server, leaves no process behind.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use crate::mesh::{Mesh, is_nats, stderr};

#[test]
fn it_starts_without_slurm_and_reports_what_it_waits_for() {
    let mut mesh = Mesh::started();
    let doctor = mesh.run(&["doctor"]);
    assert_eq!(
        doctor.status.code(),
        Some(1),
        "slurmctld is not there: {doctor:?}"
    );
    assert!(
        String::from_utf8_lossy(&doctor.stdout).contains("slurmctld"),
        "{doctor:?}"
    );
    let pid = mesh.nats_pid().to_string();
    let status = mesh.end("-TERM");
    assert!(status.success(), "{status:?}");
    assert!(
        !is_nats(&pid, mesh.folder.path()),
        "nats-server is stopped, too"
    );
    assert!(!mesh.path("data/api.sock").exists());
}

#[test]
fn a_second_one_on_the_same_directory_is_refused() {
    let mesh = Mesh::started();
    let second = mesh.run(&["up"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        stderr(&second).contains("another `smesh up` already uses"),
        "{}",
        stderr(&second)
    );
    assert!(mesh.run(&["events"]).status.success(), "the first goes on");
}

#[test]
fn after_kill_9_the_next_start_stops_the_old_nats_server() {
    let mut mesh = Mesh::started();
    let old = mesh.nats_pid().to_string();
    mesh.end("-KILL");
    assert!(
        is_nats(&old, mesh.folder.path()),
        "the server outlives its parent"
    );
    mesh.start();
    assert!(!is_nats(&old, mesh.folder.path()));
    assert!(is_nats(&mesh.nats_pid().to_string(), mesh.folder.path()));
    assert!(mesh.end("-INT").success());
}

#[test]
fn a_foreign_process_with_the_old_pid_is_left_alone() {
    let mut mesh = Mesh::started();
    mesh.end("-TERM");
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(mesh.path("data/private/nats.pid"), other.id().to_string()).unwrap();
    mesh.start();
    assert!(other.try_wait().unwrap().is_none(), "it still sleeps");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_nats_server_that_dies_is_started_again_on_the_same_address() {
    let mesh = Mesh::started();
    let hook_config = fs::read_to_string(mesh.path("data/hook.toml")).unwrap();
    let old = mesh.nats_pid();
    assert!(
        Command::new("kill")
            .args(["-KILL", &old.to_string()])
            .status()
            .unwrap()
            .success()
    );
    mesh.wait_until("a new nats-server", || {
        mesh.nats_pid() != old && is_nats(&mesh.nats_pid().to_string(), mesh.folder.path())
    });
    assert_eq!(
        fs::read_to_string(mesh.path("data/hook.toml")).unwrap(),
        hook_config
    );
    mesh.wait_until("a doorbell rings", || {
        matches!(mesh.ring(), mesh_hook::ring::Outcome::Delivered { .. })
    });
}

#[test]
fn a_restart_reuses_the_address_and_renews_own_credentials() {
    let mut mesh = Mesh::started();
    let hook_config = mesh.path("data/hook.toml");
    let before = fs::read_to_string(&hook_config).unwrap();
    let mode = |name: &str| fs::metadata(mesh.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (
            mode("data"),
            mode("data/private"),
            mode("data/hook.toml"),
            mode("data/api.sock")
        ),
        (0o711, 0o700, 0o600, 0o666)
    );
    for entry in fs::read_dir(mesh.path("data")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o077;
        assert!(mode == 0 || name == "api.sock", "{name}: {mode:o}");
    }
    if rustix::process::geteuid().is_root() {
        let slurm_user = uzers::get_user_by_name("daemon").unwrap().uid();
        assert_eq!(
            fs::metadata(&hook_config).unwrap().uid(),
            slurm_user,
            "SlurmUser's"
        );
        assert_eq!(
            fs::metadata(mesh.path("data/hook-spool")).unwrap().uid(),
            slurm_user,
            "SlurmUser's"
        );
    }
    mesh.end("-TERM");
    mesh.start();
    let after = fs::read_to_string(&hook_config).unwrap();
    let without_password = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("password"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(without_password(&after), without_password(&before));
    assert_ne!(after, before, "a new password");
    let config = mesh_hook::Config::load(&hook_config).unwrap();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(config.server_uid, Some(own));
}

#[test]
fn a_stored_port_taken_by_another_process_is_replaced() {
    let mut mesh = Mesh::started();
    mesh.end("-TERM");
    let stored_port = fs::read_to_string(mesh.path("data/private/nats.port")).unwrap();
    let port: u16 = stored_port.trim().parse().unwrap();
    let _squatter = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    mesh.start();
    let hook_config = fs::read_to_string(mesh.path("data/hook.toml")).unwrap();
    assert!(
        !hook_config.contains(&format!(":{port}")),
        "the hooks know the new address: {hook_config}"
    );
}

#[test]
fn two_signals_end_it_at_once_and_nats_server_with_it() {
    let mut mesh = Mesh::started();
    let nats = mesh.nats_pid().to_string();
    // Two different signals, because the second of two equal ones may be merged with the first.
    mesh.signal("-TERM");
    mesh.end("-INT");
    // The kernel ends it together with its parent, not before.
    mesh.wait_until("nats-server is gone", || {
        !is_nats(&nats, mesh.folder.path())
    });
}

/// A database file alone, without its log, must contain everything.
#[test]
fn a_stop_while_nats_is_unavailable_leaves_complete_files() {
    let mut mesh = Mesh::init();
    let config = mesh.path("mesh.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        config,
        text + "\n[mesh.nats]\nurl = \"nats://127.0.0.1:1\"\n",
    )
    .unwrap();
    mesh.start();
    mesh.end("-TERM");
    let files: Vec<String> = fs::read_dir(mesh.path("data"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".db"))
        .collect();
    assert!(files.len() > 2, "{files:?}");
    assert!(
        !files.iter().any(|name| name.ends_with("-wal")),
        "{files:?}"
    );
}
