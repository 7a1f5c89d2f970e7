//! A service program whose SQLite file is damaged.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{wait_until, write_private};

/// Size of a SQLite page.
const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a service's program with a configuration, damages the file that it creates, and checks that it reports the damage and the remedy.
/// Damages the first page after the header, then the last.
///
/// # Panics
/// If it does not.
pub async fn assert_corruption_reported(program: &str, config: &Path, file: &Path, remedy: &str) {
    let log = config.with_extension("log");
    let mut child = start(program, config, &log);
    wait_until("the file is made", PATIENCE, async || {
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        file.exists() && log_text.contains("started")
    })
    .await;
    let stopped = Command::new("kill").arg(child.id().to_string()).status();
    assert!(stopped.expect("run kill").success());
    let ended = child.wait().expect("wait for it");
    assert!(ended.success(), "{ended}");
    let whole = fs::read(file).expect("read the file");
    for page in [1, whole.len() / PAGE - 1] {
        let mut damaged = whole.clone();
        damaged[page * PAGE..(page + 1) * PAGE].fill(0xAA);
        write_private(file, damaged);
        let log_text = config.with_extension(format!("{page}.log"));
        let mut child = start(program, config, &log_text);
        let name = format!("{} is damaged", file.display());
        wait_until("it says what to do", PATIENCE, async || {
            // It may have exited: then the log has its message.
            let mut ask = Command::new(program);
            ask.arg("--config").arg(config).args(["--probe", "readyz"]);
            let asked = ask.output().expect("ask how it is");
            let log = fs::read_to_string(&log_text).unwrap_or_default();
            let output = String::from_utf8_lossy(&asked.stderr).into_owned() + &log;
            output.contains(&name) && output.contains(remedy)
        })
        .await;
        drop(child.kill());
        child.wait().expect("wait for it");
    }
}

fn start(program: &str, config: &Path, log: &Path) -> Child {
    let log = fs::File::create(log).expect("create a log");
    Command::new(program)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("the log"))
        .stderr(log)
        .spawn()
        .expect("start it")
}
