//! The pure core: what an entry is, how the chain grows and is verified, what can be asked. No IO, no async, no clock.

pub mod append;
pub mod archive;
pub mod checkpoint;
pub mod cursor;
pub mod export;
pub mod fact;
pub mod fault;
pub mod filter;
pub mod hole;
pub mod keys;
pub mod nodes;
pub mod note;
pub mod query;
pub mod replay;
pub mod stats;
pub mod story;
pub mod succession;
pub mod taken;
#[cfg(test)]
mod tampering;
pub mod tree;
pub mod verify;
