//! Slurm that is not installed, hangs, or answers badly.

use std::{
    fs,
    num::NonZeroU32,
    path::Path,
    time::{Duration, Instant},
};

use mesh_testkit::script;
use slurm_client::{Config, Error, Slurm};

fn command(dir: &Path, name: &str, text: &str) {
    script(&dir.join(name), text);
}

fn slurm_config(dir: &Path) -> Config {
    let conf = dir.join("slurm.conf");
    fs::write(&conf, "").unwrap();
    Config {
        conf: Some(conf),
        bin_dir: Some(dir.to_owned()),
        command_timeout: Duration::from_secs(60),
        ..Config::default()
    }
}

fn slurm(dir: &Path) -> Slurm {
    Slurm::new(slurm_config(dir))
}

/// A client with a short deadline, but long enough for a busy machine to start a command.
fn impatient(dir: &Path) -> Slurm {
    Slurm::new(Config {
        command_timeout: Duration::from_secs(5),
        ..slurm_config(dir)
    })
}

#[tokio::test]
async fn missing_commands_are_reported_with_the_package() {
    let dir = tempfile::tempdir().unwrap();
    let error = slurm(dir.path()).list_queue().await.unwrap_err();
    assert!(
        matches!(&error, Error::NotInstalled { command: "squeue", hint } if hint.contains("bin_dir")),
        "{error}"
    );
    assert!(!error.is_transient());
}

#[tokio::test]
async fn a_missing_slurm_conf_is_named_at_once() {
    let started = Instant::now();
    let config = Config {
        conf: Some("/nonexistent/slurm.conf".into()),
        ..Config::default()
    };
    let error = Slurm::new(config).list_queue().await.unwrap_err();
    assert!(
        matches!(&error, Error::ConfigMissing { path, .. } if path.ends_with("slurm.conf")),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_hung_command_is_killed_at_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    command(
        dir.path(),
        "squeue",
        &format!("echo $$ > {}\nexec sleep 600", pid_file.display()),
    );
    let error = impatient(dir.path()).list_queue().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::TimedOut {
                command: "squeue",
                ..
            }
        ),
        "{error}"
    );
    let process = Path::new("/proc").join(fs::read_to_string(pid_file).unwrap().trim());
    let deadline = Instant::now() + Duration::from_secs(60);
    // A killed child stays as a zombie until it is reaped; its command line is gone at once.
    while fs::read(process.join("cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(Instant::now() < deadline, "the command still runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn answers_that_are_cut_or_foreign_are_errors() {
    for (script, kind) in [
        ("printf '1|half a li'", "suspicious"),
        ("echo hello", "malformed"),
        (
            "echo 'squeue: error: Munge encode failed' >&2; exit 1",
            "munge_down",
        ),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
            "controller_down",
        ),
        ("kill -9 $$", "failed"),
        // Status 0 proves little.
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2",
            "controller_down",
        ),
        ("echo 'squeue: error: Invalid user' >&2; exit 0", "failed"),
        (
            "echo 'squeue: error: Unable to contact slurm controller (connect failure)'",
            "malformed",
        ),
        ("exec sleep 600", "timed_out"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        command(dir.path(), "squeue", script);
        let asked = match kind {
            "timed_out" => impatient(dir.path()),
            _ => slurm(dir.path()),
        };
        assert_eq!(
            asked.list_queue().await.unwrap_err().kind(),
            kind,
            "{script}"
        );
    }
}

#[tokio::test]
async fn an_empty_list_of_nodes_is_not_trusted() {
    let dir = tempfile::tempdir().unwrap();
    command(dir.path(), "scontrol", "exit 0");
    let error = slurm(dir.path()).nodes().await.unwrap_err();
    assert!(matches!(error, Error::Suspicious { .. }), "{error}");
}

#[tokio::test]
async fn accounting_that_fails_with_status_0_is_unknown() {
    let window = slurm_client::AccountingQuery::Window {
        start: slurm_types::UnixTime::from_secs(1_795_000_000),
        end: None,
    };
    for (script, kind) in [
        (
            "echo 'sacct: error: Problem talking to the database: Connection refused' >&2",
            "accounting_down",
        ),
        (
            "echo 'sacct: error: slurmdbd: Connection refused'",
            "malformed",
        ),
        ("printf '1<x>2'", "suspicious"),
        ("exec sleep 600", "timed_out"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        command(dir.path(), "sacct", script);
        let asked = match kind {
            "timed_out" => impatient(dir.path()),
            _ => slurm(dir.path()),
        };
        let error = asked.accounting(&window).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{script}");
    }
    // An empty window is a valid result: no run lived in it.
    let dir = tempfile::tempdir().unwrap();
    command(dir.path(), "sacct", "exit 0");
    let rows = slurm(dir.path()).accounting(&window).await.unwrap();
    assert!(rows.is_empty());
}

#[tokio::test]
async fn an_answer_without_the_job_does_not_prove_its_purge() {
    let id = slurm_types::JobId::new(7).unwrap();
    for script in [
        "exit 0",
        "echo 'JobId=7 JobName=cut'",
        "echo 'JobId=8 JobName=x UserId=a(1) JobState=RUNNING SubmitTime=5'",
    ] {
        let dir = tempfile::tempdir().unwrap();
        command(dir.path(), "scontrol", script);
        command(dir.path(), "squeue", "exit 0");
        let answer = slurm(dir.path()).jobs(&[id]).await.unwrap();
        let counts = (answer.found.len(), answer.missing.len());
        assert_eq!(counts, (0, 0), "{script}");
        assert!(!answer.unclear.is_empty(), "{script}");
    }
}

#[tokio::test]
async fn settings_of_the_caller_do_not_reach_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    command(
        dir.path(),
        "scontrol",
        "echo \"slurm-wlm ${SLURM_TIME_FORMAT}-${TZ}-${SQUEUE_FORMAT:-none} 9.$(env | grep -c CARGO)\"",
    );
    assert_eq!(slurm(dir.path()).version().await.unwrap(), "9.0");
}

#[tokio::test]
async fn commands_are_bounded_in_a_second_whatever_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let calls = dir.path().join("calls");
    command(
        dir.path(),
        "scontrol",
        &format!("echo >> {}\necho slurm-wlm 22.05.8", calls.display()),
    );
    let slurm = Slurm::new(Config {
        commands_per_second: NonZeroU32::new(5).unwrap(),
        ..slurm_config(dir.path())
    });
    let started = Instant::now();
    let asking = (0..15).map(|n| {
        // A clone with a longer deadline has separate permits, but shares the rate limit.
        let asked = if n % 2 == 0 {
            slurm.clone()
        } else {
            slurm.with_timeout(Duration::from_secs(60))
        };
        tokio::spawn(async move { asked.version().await.unwrap() })
    });
    for answer in asking.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), "22.05.8");
    }
    assert_eq!(fs::read_to_string(calls).unwrap().len(), 15);
    // 5 at once, 10 at 5 per second.
    assert!(
        started.elapsed() >= Duration::from_millis(1_990),
        "{:?}",
        started.elapsed()
    );
}
