//! The bytes of the ledger, and how they are verified: everything an auditor has to read.
//!
//! `docs/reference/events.md` §6 specifies the same in prose, `docs/reference/vectors.json` has inputs and results. From the bottom up:
//!
//! - [`chain`]: entries, leaves and the chain.
//! - [`merkle`]: the tree over the leaves, and its proofs. RFC 6962.
//! - [`tree`]: the subtrees that a ledger stores.
//! - [`note`]: signed texts and the keys that sign them. C2SP's `signed-note`.
//! - [`checkpoint`]: which tree the ledger had, as a signed note. C2SP's `tlog-checkpoint`.
//! - [`archive`]: what is signed when content is archived or erased.
//! - [`cosignature`]: what witnesses sign. C2SP's `tlog-cosignature`.
//! - [`succession`]: which checkpoint follows which, and which key signs when.
//! - [`verify`]: entries against the chain, the tree and checkpoints; [`fault`] names what does not fit.
//! - [`export`]: entries as JSON lines that can be verified with nothing but a public key.
//! - [`mod@file`]: whole exports and archives, verified on all cores.
//!
//! Deliberately absent: databases, the network, async, clocks, and what the bodies of entries mean.

pub mod archive;
pub mod chain;
pub mod checkpoint;
pub mod cosignature;
pub mod export;
pub mod fault;
pub mod file;
pub mod merkle;
pub mod note;
mod parallel;
pub mod succession;
pub mod tree;
pub mod verify;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tampering;
