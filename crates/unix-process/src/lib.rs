//! Process functions of Linux that std does not offer: the workspace's only unsafe code.
//!
//! - [`inherited`]: becomes another program with the inherited signals and streams, not as Rust's runtime changed them.
//! - [`detached`]: starts a process that is no child and inherits nothing.
//! - [`memory`]: gives freed memory back.
//! - [`termination`]: the signals that ask this process to end, as a descriptor.
//! - [`ProcessGroup`]: a child that is killed with everything it has started.

pub mod detached;
mod group;
pub mod inherited;
pub mod memory;
pub mod termination;

pub use group::ProcessGroup;
