//! One line for the operator: to standard error, and to syslog, because Slurm drops what most hooks print.

use std::fmt::Display;
use std::io::Write;
use std::os::unix::net::UnixDatagram;

/// Says something. Never fails: there is nobody left to tell.
pub fn report(message: impl Display) {
    let line = format!("mesh-hook: {message}").replace(['\n', '\r'], " ");
    writeln!(std::io::stderr(), "{line}").ok();
    syslog(&line);
}

/// Says something to syslog only.
pub fn warn(message: impl Display) {
    syslog(&format!("mesh-hook: {message}").replace(['\n', '\r'], " "));
}

fn syslog(line: &str) {
    if let Ok(socket) = UnixDatagram::unbound() {
        // A full log must not hold up a job.
        socket.set_nonblocking(true).ok();
        // Facility 3 (daemon), severity 4 (warning): RFC 3164 §4.1.1.
        socket
            .send_to(format!("<28>{line}").as_bytes(), "/dev/log")
            .ok();
    }
}
