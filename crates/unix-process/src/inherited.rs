//! Signals and standard streams as this process inherited them.
//!
//! Before `main`, Rust's runtime ignores SIGPIPE and opens `/dev/null` in place of a closed standard stream. std resets SIGPIPE to its
//! default and unblocks all signals in every program it starts. So the inherited state is recorded before the runtime begins, as the loader
//! runs `.init_array`.

#![expect(
    unsafe_code,
    reason = "libc calls without a safe wrapper in std or rustix"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Whether SIGPIPE was ignored.
static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);
/// The standard streams that were closed, a bit for each.
static CLOSED_STREAMS: AtomicU8 = AtomicU8::new(0);

#[used]
// SAFETY: the section holds pointers to C functions, which the loader calls once, before `main`.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Runs before Rust's runtime: may use only libc and atomics.
extern "C" fn note() {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action this only writes the present one.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) };
    if asked == 0 {
        // SAFETY: it was written.
        let action = unsafe { action.assume_init() };
        IGNORES_SIGPIPE.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    for stream in 0..3_u8 {
        // SAFETY: only reads flags.
        if unsafe { libc::fcntl(stream.into(), libc::F_GETFD) } == -1 {
            CLOSED_STREAMS.fetch_or(1 << stream, Ordering::Relaxed);
        }
    }
}

/// Replaces this process by a program with the signals and standard streams that this process inherited. Returns only if that fails.
pub fn exec(command: &mut Command) -> io::Error {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: without a new set this only writes the present one.
    let asked =
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, std::ptr::null(), blocked.as_mut_ptr()) };
    if asked != 0 {
        return io::Error::last_os_error();
    }
    // SAFETY: it was written.
    let blocked = unsafe { blocked.assume_init() };
    // SAFETY: `restore` only calls functions that may be called between fork and exec; here nothing is forked at all.
    unsafe { command.pre_exec(move || restore(&blocked)) };
    command.exec()
}

/// Runs last before exec, after std's changes.
fn restore(blocked: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: blocks the signals that were blocked a moment ago.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, blocked, std::ptr::null_mut()) };
    if IGNORES_SIGPIPE.load(Ordering::Relaxed) {
        // SAFETY: no handler of ours is in place that other code could rely on.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
    let closed = CLOSED_STREAMS.load(Ordering::Relaxed);
    for stream in (0..3_u8).filter(|stream| closed & (1 << stream) != 0) {
        // SAFETY: the runtime opened it on /dev/null, and this program ends here.
        unsafe { libc::close(stream.into()) };
    }
    Ok(())
}
