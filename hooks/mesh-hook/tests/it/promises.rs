//! Promises that hold in any case: status 0, within the deadline, and only Slurm's data on the bus.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mesh_testkit::{copy_program, wait_until};

use crate::site::{Site, TIMEOUT, assert_stderr, call, hook, needs_root};

/// The hard stop, plus time for a busy machine to start a process.
const QUICKLY: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_a_doorbell_with_slurms_variables_only() {
    let site = Site::start().await;
    let doorbell = site
        .delivered(|| {
            let mut command = hook(&site.config());
            command
                .env("SLURM_JOB_ID", "42")
                .env("SLURM_JOB_USER", "alice")
                .env("SLURM_JWT", "secret")
                .env("HOME", "/root")
                .arg("n[1-2]");
            command
        })
        .await;
    assert_eq!(
        (
            doorbell.hook.as_str(),
            doorbell.cluster.as_str(),
            doorbell.job_id
        ),
        ("PrologSlurmctld", "testbed", 42)
    );
    assert_eq!(doorbell.arguments, ["n[1-2]"]);
    let mut names: Vec<_> = doorbell.environment.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "SLURM_CLUSTER_NAME",
            "SLURM_JOB_ID",
            "SLURM_JOB_USER",
            "SLURM_SCRIPT_CONTEXT"
        ]
    );
    assert_eq!(site.ids().pop().unwrap(), Some(doorbell.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobcomp_brings_its_record_along() {
    let site = Site::start().await;
    let doorbell = site
        .delivered(|| {
            let mut command = hook(&site.config());
            command.env_clear().envs([
                ("JOBID", "7"),
                ("JOBSTATE", "TIMEOUT"),
                ("USERNAME", "alice"),
                ("PATH", "/bin"),
                ("TERM", "x"),
            ]);
            command
        })
        .await;
    assert_eq!(
        (
            doorbell.hook.as_str(),
            doorbell.job_id,
            doorbell.environment.len()
        ),
        ("JobComp", 7, 3)
    );
    assert_eq!(doorbell.environment["JOBSTATE"], "TIMEOUT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_environment_is_carried_as_far_as_it_is_sensible() {
    let site = Site::start().await;
    let doorbell = site
        .delivered(|| {
            let mut command = hook(&site.config());
            command
                .env("SLURM_JOB_ID", "9")
                .env("SLURM_JOB_NAME", OsString::from_vec((1..=255).collect()))
                .env("SLURM_JOB_COMMENT", "x".repeat(120_000))
                .env(OsString::from_vec(b"SLURM_JOB_\xff\xfe".to_vec()), "x")
                .envs((0..600).map(|n| (format!("SLURM_JOB_Z{n}"), "y".repeat(500))));
            command
        })
        .await;
    assert_eq!(doorbell.job_id, 9);
    assert!(
        doorbell.environment["SLURM_JOB_COMMENT"].len() <= 4096
            && doorbell.environment.len() <= 256
    );
    assert!(doorbell.environment["SLURM_JOB_NAME"].contains("ABC"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_that_is_silent_costs_no_more_than_the_hard_stop() {
    let site = Site::start().await;
    // Accepts connections and never answers. That is the worst case: a refused connection is noticed at once.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = fs::read_to_string(site.config()).unwrap();
    fs::write(
        site.config(),
        text.replace(
            &site.nats.url(),
            &format!("nats://{}", silent.local_addr().unwrap()),
        ),
    )
    .unwrap();
    // The fastest of several, because the machine may be busy.
    let calls = [(); 20].map(|()| call(&mut hook(&site.config())));
    for call in &calls {
        assert!(call.output.status.success(), "{call:?}");
    }
    let fastest = calls.iter().map(|call| call.took).min().unwrap();
    assert!(fastest < QUICKLY, "{fastest:?}");
    wait_until("all are spooled", TIMEOUT, async || {
        site.spooled().len() == 20
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_named_and_nothing_is_lost() {
    let site = Site::start().await;
    let text = fs::read_to_string(site.config()).unwrap();
    fs::write(site.config(), text.replace("hook-password", "wrong")).unwrap();
    site.wait_stderr(1, "Authorization").await;
    assert_eq!(site.spooled().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_goes_to_a_socket_of_another_user() {
    let site = Site::start().await;
    let own = rustix::process::geteuid().as_raw();
    site.configure(&format!("server_uid = {own}"));
    site.delivered(|| hook(&site.config())).await;
    let before = site.received().len();
    // The same server, but the configuration expects another user.
    site.configure(&format!("server_uid = {}", own + 1));
    site.wait_stderr(2, &format!("belongs to uid {own}")).await;
    assert_eq!(site.spooled().len(), 1);
    assert_eq!(site.received().len(), before);
}

#[test]
fn a_broken_configuration_is_one_line_and_status_0() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hook.toml");
    assert_stderr(|| hook(&path), "hook.toml");
    for text in [
        "",
        "cluster",
        "cluster = 1",
        "cluster = \"c\"\nspool = \"/s\"\n[nats]\nurl = \"http://x\"",
        "\u{0}\u{1}",
    ] {
        fs::write(&path, text).unwrap();
        assert_stderr(|| hook(&path), "hook.toml");
    }
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_stderr(|| hook(&path), "hook.toml");
}

#[test]
fn an_unknown_call_is_reported_with_status_0() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hook.toml");
    fs::write(
        &path,
        "cluster = \"c\"\nspool = \"/nowhere\"\n[nats]\nurl = \"nats://127.0.0.1:1\"",
    )
    .unwrap();
    assert_stderr(
        || {
            let mut command = hook(&path);
            command.env_clear();
            command
        },
        "--hook",
    );
}

#[test]
fn without_memory_or_a_second_process_it_still_exits_0() {
    let run = |command: &mut Command| {
        command
            .args(["--config", "/nonexistent"])
            .env_clear()
            .env("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld")
            .output()
            .unwrap()
    };
    let mut began = false;
    for kilobytes in (3_000..9_000u64).step_by(250) {
        let limit = format!("--as={}", kilobytes << 10);
        let output = run(Command::new("prlimit")
            .arg(limit)
            .arg(env!("CARGO_BIN_EXE_mesh-hook")));
        began |= output.status.success();
        // Otherwise the first line of `main` was not reached: the loader or the runtime ran out of memory.
        if began {
            assert_eq!(output.status.code(), Some(0), "{kilobytes}: {output:?}");
        }
    }
    assert!(began, "no limit was wide enough to try it");

    needs_root();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("mesh-hook");
    copy_program(Path::new(env!("CARGO_BIN_EXE_mesh-hook")), &program);
    // A user without other processes.
    let output = run(Command::new("setpriv")
        .args(["--reuid=61234", "--regid=61234", "--clear-groups"])
        .args(["/usr/bin/prlimit", "--nproc=1"])
        .arg(&program));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.contains("doorbell not sent: start"),
        "{output:?}"
    );
}
