//! The site's program keeps its arguments, streams, environment, process and exit status.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use mesh_testkit::{script, wait_until};

use crate::site::{Call, Site, TIMEOUT, call, hook};

#[tokio::test(flavor = "multi_thread")]
async fn the_sites_program_returns_its_status_and_the_doorbell_is_sent() {
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
        site.received()
            .iter()
            .map(|doorbell| doorbell.job_id)
            .collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
}

/// slurmctld and slurmd kill the process group of a hook's program as soon as the program ends (`killpg`, "kill children too").
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_of_the_programs_group_reaches_no_sender() {
    const CALLS: usize = 30;
    let site = Site::start().await;
    let program = site.folder.path().join("prolog");
    script(&program, "kill -9 0");
    for job in 0..CALLS {
        // On one CPU the program may have ended before the sender's process runs for the first time.
        let mut call = Command::new("taskset");
        let hook = hook(&site.config());
        let status = call
            .args(["--cpu-list", "0"])
            .arg(hook.get_program())
            .args(hook.get_args())
            .args(["--hook", "PrologSlurmctld", "--chain"])
            .arg(&program)
            .env("SLURM_JOB_ID", job.to_string())
            .process_group(0)
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(9));
    }
    site.wait_for(CALLS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_streams_environment_and_process_are_unchanged() {
    let site = Site::start().await;
    let program = site.folder.path().join("prolog");
    // Checks also that the program has no child it did not start.
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
    assert_eq!(site.received()[0].arguments, ["--hook", "a b", "", "*"]);
    assert!(!site.received()[0].environment.contains_key("SITE_VARIABLE"));
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
    // The fastest of several, because the machine may be busy. Waiting for NATS would cost each call 200 ms.
    let fastest = (0..20)
        .map(|_| call(hook(&site.config()).args(["--chain", "/bin/true"])))
        .inspect(Call::assert_quiet)
        .map(|call| call.took)
        .min();
    assert!(fastest.unwrap() < Duration::from_millis(100), "{fastest:?}");
    wait_until("the doorbells are spooled", TIMEOUT, async || {
        site.spooled().len() == 20
    })
    .await;
}

#[test]
fn no_failure_prevents_the_sites_program() {
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

/// A command run with these `env` settings and shell redirections, as the caller of the hook may have set them.
fn called(settings: &[&str], redirections: &str, command: &[&str]) -> Command {
    let mut called = Command::new("env");
    let shell = format!("exec {redirections}; exec \"$@\"");
    called
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld")
        .args(settings)
        .args(["/bin/sh", "-c", &shell, "sh"])
        .args(command);
    called
}

#[test]
fn signals_and_descriptors_are_as_the_caller_made_them() {
    let folder = tempfile::tempdir().unwrap();
    let (seen, config) = (folder.path().join("seen"), folder.path().join("hook.toml"));
    let chain = [
        env!("CARGO_BIN_EXE_mesh-hook"),
        "--config",
        config.to_str().unwrap(),
        "--chain",
    ];
    let output_of = |settings: &[&str], redirections: &str, command: &[&str]| {
        let redirections = format!("1>{} {redirections}", seen.display());
        let mut called = called(settings, &redirections, command);
        let output = called.stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let text = fs::read_to_string(&seen).unwrap();
        // Of `ls -l` only the names. The names of pipes and processes differ from call to call.
        let line = |line: &str| match line.split_once(" -> ") {
            Some((entry, target)) => {
                let name = entry.rsplit(' ').next().unwrap_or_default();
                let target =
                    target.trim_end_matches(|c: char| c.is_ascii_digit() || "[]/fd".contains(c));
                format!("{name} {target}")
            }
            None => line.to_owned(),
        };
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let signals = &["/bin/grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"][..];
    let descriptors = &["/bin/ls", "-l", "/proc/self/fd"][..];
    let mut different = std::collections::BTreeSet::new();
    for settings in [
        &[
            "--ignore-signal=PIPE,HUP,CHLD,ALRM",
            "--block-signal=USR1,TERM",
        ][..],
        &["--default-signal=PIPE", "--ignore-signal=INT"],
    ] {
        for redirections in ["7</dev/null 8>/dev/zero", "0<&-", "2>&-", "0<&- 2>&-"] {
            for program in [signals, descriptors] {
                let direct = output_of(settings, redirections, program);
                let chained = output_of(settings, redirections, &[&chain[..], program].concat());
                assert_eq!(direct, chained, "{settings:?} {redirections}");
                different.insert(direct);
            }
        }
    }
    assert_eq!(different.len(), 6, "the settings matter: {different:#?}");
}

/// Waits until no sender of this configuration is left.
async fn wait_until_no_sender(config: &Path) {
    wait_until("no sender is left", TIMEOUT, async || {
        super::disk::senders(config) == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_hangs_at_its_start_delays_nothing_and_does_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (config, preload) = (
        folder.path().join("hook.toml"),
        folder.path().join("preload"),
    );
    // The loader blocks on a pipe without a writer, as if the program were on a hung disk.
    assert!(
        Command::new("mkfifo")
            .arg(&preload)
            .status()
            .unwrap()
            .success()
    );
    for arguments in [&["--chain", "/sbin/ldconfig", "--version"][..], &[]] {
        let mut command = hook(&config);
        command.env("LD_PRELOAD", &preload).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let (done, ended) = std::sync::mpsc::channel();
        thread::spawn(move || done.send(command.output().unwrap()));
        // The hook itself starts and reads an empty file; later processes block. (ldconfig has no loader.)
        drop(OpenOptions::new().write(true).open(&preload).unwrap());
        let output = ended.recv_timeout(TIMEOUT).expect("the sender holds it up");
        assert!(output.status.success(), "{output:?}");
        let ran = String::from_utf8_lossy(&output.stdout).contains("ldconfig");
        assert_eq!(ran, !arguments.is_empty());
        assert_eq!(super::disk::senders(&config), 1, "it hangs");
        wait_until_no_sender(&config).await;
    }
}
