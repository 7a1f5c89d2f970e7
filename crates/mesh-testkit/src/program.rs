//! Programs that a test writes and runs.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes an executable shell script, replacing an existing file.
///
/// A child process writes it. If this process did, a process started by another test at that moment would inherit the open file. Until that
/// process has called `exec`, the script could not be run ("text file busy").
///
/// # Panics
/// If it cannot be written.
pub fn script(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("run install");
    let mut stdin = install.stdin.take().expect("a pipe");
    write!(stdin, "#!/bin/sh\n{text}\n").expect("write a script");
    drop(stdin);
    assert!(install.wait().expect("wait for install").success());
}

/// Copies a program in the same way.
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("install")
        .args(["-m", "755"])
        .args([from, to])
        .status();
    assert!(status.expect("run install").success());
}
