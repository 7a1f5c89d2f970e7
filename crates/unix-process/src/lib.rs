//! What std does not offer of Linux's processes: the workspace's only unsafe code.
//!
//! - [`inherited`]: becomes another program with the signals and streams that this process was given, not as Rust's runtime changed them.
//! - [`detached`]: starts a process that is nobody's child, and gives it nothing of what this one was given.

pub mod detached;
pub mod inherited;
