//! Processes that are nobody's child.

#![expect(
    unsafe_code,
    reason = "calls of libc that std and rustix have no safe form of"
)]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

/// Does some work in a process of its own that is no child of this one, and returns as soon as that exists. What is waited for does nothing
/// but fork and exit, so no disk and no loader can hold it up.
///
/// # Errors
/// If the system gives no process, or this one has more than one thread.
pub fn detached(work: impl FnOnce()) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() > 1 {
        let problem = "a process with several threads cannot be copied";
        return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
    }
    let child = fork()?;
    if child != 0 {
        return wait_for(child);
    }
    let status = match fork() {
        Ok(0) => {
            // Nothing of this copy may go back into the code that was copied.
            catch_unwind(AssertUnwindSafe(work)).ok();
            0
        }
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EAGAIN),
    };
    // SAFETY: ends this copy at once, without what is to be done at the end of the original.
    unsafe { libc::_exit(status) }
}

fn fork() -> io::Result<libc::pid_t> {
    // SAFETY: there is one thread only, so the copy finds no lock taken and may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(child),
    }
}

fn wait_for(child: libc::pid_t) -> io::Result<()> {
    loop {
        let mut status = 0;
        // SAFETY: waits for a child that nobody else knows.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return match libc::WEXITSTATUS(status) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            };
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // Who ignores SIGCHLD has no children to wait for: the system has waited.
            Some(libc::ECHILD) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Becomes a program that has nothing of what this process was given but its environment: no descriptors beside the standard streams, no
/// signals ignored that end a process or blocked. The system ends it after `within`, whatever it does, unless it calls [`started`] before.
/// Returns only if it cannot be started.
pub fn exec_alone(command: &mut Command, within: Duration) -> io::Error {
    if let Err(error) = close_on_exec() {
        return error;
    }
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    let seconds = u32::try_from(within.as_secs()).unwrap_or(u32::MAX);
    // SAFETY: changes the signals of this process only, to what every process begins with.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        for signal in [libc::SIGALRM, libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_DFL);
        }
        // The alarm goes on in the new program.
        libc::alarm(seconds);
    }
    command.exec()
}

/// The program that was started by [`exec_alone`] is at work and sets its own limits from here on.
pub fn started() {
    // SAFETY: takes back an alarm, if there is one.
    unsafe { libc::alarm(0) };
}

/// Has every descriptor beside the standard streams closed by exec.
fn close_on_exec() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        if let Some(descriptor) = name.to_str().and_then(|name| name.parse::<i32>().ok())
            && descriptor > 2
        {
            // SAFETY: changes what exec does with it, not what it is.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
