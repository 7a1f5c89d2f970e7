//! The formats of the ledger and their verification. An auditor needs to read only this crate.
//!
//! `docs/reference/events.md` §6 specifies the same formats in prose; `docs/reference/vectors.json`
//! has test vectors. From the bottom up:
//!
//! - [`chain`]: entries, leaves and the chain.
//! - [`merkle`]: the tree over the leaves, and its proofs. RFC 6962.
//! - [`tile`]: the tiles of the tree that a ledger stores.
//! - [`note`]: signed texts and the keys that sign them. C2SP's `signed-note`.
//! - [`checkpoint`]: size and root of the tree as a signed note. C2SP's `tlog-checkpoint`.
//! - [`archive`]: the signed statement that content was archived or erased.
//! - [`cosignature`]: witness cosignatures. C2SP's `tlog-cosignature`.
//! - [`key_rotation`]: the sequence of checkpoints and of the keys that sign them.
//! - [`verify`]: entries against the chain, the tree and checkpoints; [`fault`] lists the faults.
//! - [`export`]: entries as JSON lines that can be verified with only a public key.
//! - [`mod@file`]: whole exports and archives, verified on all cores.
//!
//! The crate uses no database, network, async runtime or clock, and does not decode the bodies of
//! entries.

pub mod archive;
pub mod chain;
pub mod checkpoint;
pub mod cosignature;
pub mod export;
pub mod fault;
pub mod file;
pub mod key_rotation;
pub mod merkle;
pub mod note;
mod parallel;
pub mod tile;
pub mod verify;

#[cfg(test)]
mod fixture;
