//! Memory of the process.

#![expect(unsafe_code, reason = "malloc_trim has no safe form")]

/// Gives the system the pages that were freed. glibc's malloc does so by itself only at the end of a heap: what was freed between blocks
/// that are in use stays with the process, and only threads that share the heap use it again.
pub fn return_freed() {
    // SAFETY: locks one heap after the other and changes no block that is in use.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}
