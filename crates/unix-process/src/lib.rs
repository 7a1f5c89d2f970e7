//! Process functions of Linux that std does not offer: the workspace's only unsafe code.
//!
//! - [`inherited`]: becomes another program with the inherited signals and streams, not as Rust's runtime changed them.
//! - [`detached`]: starts a process that is no child and inherits nothing.

pub mod detached;
pub mod inherited;
