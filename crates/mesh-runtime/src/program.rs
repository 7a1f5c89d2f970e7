//! Other programs that a service runs to their end.

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use unix_process::ProcessGroup;

/// Runs a program without input to its end. It is killed with everything it has started after `within`, and when the future is dropped.
///
/// # Errors
/// If it cannot be started or its output cannot be read. [`io::ErrorKind::TimedOut`] if it was killed.
pub async fn output(command: &mut Command, within: Duration) -> io::Result<Output> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0)
        .spawn()?;
    let group = ProcessGroup::of(child.id());
    let output = tokio::time::timeout(within, child.wait_with_output())
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    group.has_ended();
    Ok(output)
}
