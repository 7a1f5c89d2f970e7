//! Detached processes, which are children of no process of ours.

#![expect(
    unsafe_code,
    reason = "libc calls without a safe wrapper in std or rustix"
)]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

/// Does some work in a separate process that is no child of this one, and returns as soon as it exists. The caller waits only for a process
/// that forks and exits, so neither a disk nor the loader can delay it. The new process is in a process group of its own from its first
/// instruction on: whoever kills the caller's group, as Slurm does when a hook's program ends, does not kill it.
///
/// # Errors
/// If the system cannot create a process, or this one has more than one thread.
pub fn detached(work: impl FnOnce()) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() > 1 {
        let problem = "a process with several threads cannot fork";
        return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
    }
    let child = fork()?;
    if child != 0 {
        return wait_for(child);
    }
    // SAFETY: moves this copy, which leads no session, into a new group. The next copy begins there.
    if unsafe { libc::setpgid(0, 0) } != 0 {
        let error = io::Error::last_os_error().raw_os_error();
        // SAFETY: as below.
        unsafe { libc::_exit(error.unwrap_or(libc::EPERM)) }
    }
    let status = match fork() {
        Ok(0) => {
            // The copy must never return into the code of the original.
            catch_unwind(AssertUnwindSafe(work)).ok();
            0
        }
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EAGAIN),
    };
    // SAFETY: ends this copy at once, without the exit handlers of the original.
    unsafe { libc::_exit(status) }
}

fn fork() -> io::Result<libc::pid_t> {
    // SAFETY: there is only one thread, so the copy finds no lock taken and may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(child),
    }
}

fn wait_for(child: libc::pid_t) -> io::Result<()> {
    loop {
        let mut status = 0;
        // SAFETY: waits for a child that no other code knows.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return match libc::WEXITSTATUS(status) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            };
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // If SIGCHLD is ignored, there are no children to wait for: the system has reaped it.
            Some(libc::ECHILD) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Replaces this process by a program that inherits only its environment: no descriptors except the standard streams, no ignored or blocked
/// signals that end a process. The system ends it after `within`, unless it calls [`started`] before. Returns only if it cannot be started.
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
        // The alarm persists in the new program.
        libc::alarm(seconds);
    }
    command.exec()
}

/// Cancels the time limit of [`exec_alone`]: the program is running and sets its own limits from here on.
pub fn started() {
    // SAFETY: cancels an alarm, if there is one.
    unsafe { libc::alarm(0) };
}

/// Marks every descriptor except the standard streams as close-on-exec.
fn close_on_exec() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        if let Some(descriptor) = name.to_str().and_then(|name| name.parse::<i32>().ok())
            && descriptor > 2
        {
            // SAFETY: changes what exec does with it, not the descriptor itself.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
