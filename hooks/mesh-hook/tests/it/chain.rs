//! The site's own program keeps everything: arguments, streams, environment, process, exit status.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use mesh_testkit::{script, wait_until};

use crate::site::{Call, SOON, Site, call, hook};

#[tokio::test(flavor = "multi_thread")]
async fn the_sites_program_keeps_its_status_and_the_doorbell_rings() {
    let site = Site::start().await;
    let program = site.folder.path().join("prolog");
    for (n, (text, code, signal)) in [
        ("exit 0", Some(0), None),
        ("exit 3", Some(3), None),
        ("kill -TERM $$", None, Some(15)),
        ("kill -9 $$", None, Some(9)),
    ]
    .into_iter()
    .enumerate()
    {
        script(&program, text);
        let status = hook(&site.config())
            .env("SLURM_JOB_ID", n.to_string())
            .arg("--chain")
            .arg(&program)
            .status()
            .unwrap();
        assert_eq!((status.code(), status.signal()), (code, signal), "{text}");
        site.wait_for(n + 1).await;
    }
    assert_eq!(
        site.rung()
            .iter()
            .map(|bell| bell.job_id)
            .collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_streams_environment_and_process_are_unchanged() {
    let site = Site::start().await;
    let program = site.folder.path().join("prolog");
    // Also: no child that the program did not start.
    script(
        &program,
        "printf '<%s>' \"$@\"; cat; echo \"$SITE_VARIABLE $$\"; pgrep -P $$ || :; echo to-stderr >&2",
    );
    let mut child = hook(&site.config())
        .env("SITE_VARIABLE", "kept")
        .env("PATH", "/usr/bin:/bin")
        .arg("--chain")
        .arg(&program)
        .args(["--hook", "a b", "", "*"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"from stdin ")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("<--hook><a b><><*>from stdin kept {pid}\n")
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "to-stderr\n");
    site.wait_for(1).await;
    assert_eq!(site.rung()[0].arguments, ["--hook", "a b", "", "*"]);
    assert!(!site.rung()[0].environment.contains_key("SITE_VARIABLE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_that_is_silent_does_not_delay_the_sites_program() {
    let site = Site::start().await;
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
    // The fastest of several, since the machine may be busy: waiting for NATS would cost each of them 200 ms.
    let fastest = (0..20)
        .map(|_| call(hook(&site.config()).args(["--chain", "/bin/true"])))
        .inspect(Call::assert_quiet)
        .map(|call| call.took)
        .min();
    assert!(fastest.unwrap() < Duration::from_millis(100), "{fastest:?}");
    wait_until("the doorbells are spooled", SOON, async || {
        site.spooled().len() == 20
    })
    .await;
}

#[test]
fn nothing_of_ours_keeps_the_sites_program_from_running() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("hook.toml");
    let status = |command: &mut Command| command.status().unwrap().code();
    assert_eq!(
        status(hook(&absent).args(["--chain", "/bin/sh", "-c", "exit 3"])),
        Some(3),
        "no configuration"
    );
    fs::write(&absent, "nonsense").unwrap();
    assert_eq!(
        status(hook(&absent).args(["--chain", "/bin/sh", "-c", "exit 4"])),
        Some(4),
        "broken configuration"
    );
    assert_eq!(
        status(hook(&absent).env_clear().args(["--chain", "/bin/true"])),
        Some(0),
        "no environment"
    );
}

#[test]
fn a_sites_program_that_cannot_start_fails_as_it_did_without_us() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("hook.toml");
    let call = |program: &str| call(hook(&config).args(["--chain", program]));
    let absent = call("/nowhere/prolog");
    assert_eq!(absent.output.status.code(), Some(127));
    assert!(absent.stderr().contains("/nowhere/prolog"), "{absent:?}");
    fs::write(folder.path().join("data"), "").unwrap();
    assert_eq!(
        call(folder.path().join("data").to_str().unwrap())
            .output
            .status
            .code(),
        Some(126)
    );
}
