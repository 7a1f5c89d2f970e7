//! One line for the operator, to standard error and to syslog, because Slurm discards the output of most hooks.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// Logs a message. Never fails.
pub fn report(message: impl Display) {
    let line = format!("mesh-hook: {message}").replace(['\n', '\r'], " ");
    writeln!(std::io::stderr(), "{line}").ok();
    syslog(&line);
}

/// Logs a message to syslog only.
pub fn warn(message: impl Display) {
    syslog(&format!("mesh-hook: {message}").replace(['\n', '\r'], " "));
}

fn syslog(line: &str) {
    if let Ok(socket) = UnixDatagram::unbound() {
        // A full log must not delay a job.
        socket.set_nonblocking(true).ok();
        // Facility 3 (daemon), severity 4 (warning): RFC 3164 §4.1.1.
        socket
            .send_to(format!("<28>{line}").as_bytes(), "/dev/log")
            .ok();
    }
}
