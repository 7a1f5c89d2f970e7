//! The signals that ask a process to end, as a descriptor.

#![expect(
    unsafe_code,
    reason = "libc calls without a safe wrapper in std or rustix"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// Makes SIGTERM, SIGINT and SIGHUP readable from a descriptor, in place of their ending this process. Threads that exist already may still
/// be ended by them: call it before there are others.
///
/// # Errors
/// If the system has no more descriptors.
pub fn descriptor() -> io::Result<OwnedFd> {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set.
    let signals = unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(signals.as_mut_ptr(), signal);
        }
        signals.assume_init()
    };
    // SAFETY: changes the signals of this thread and of those that it starts.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: makes a new descriptor.
    let descriptor = unsafe {
        libc::signalfd(
            -1,
            &raw const signals,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )
    };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
