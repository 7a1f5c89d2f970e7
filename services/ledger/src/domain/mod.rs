//! The pure core: what an entry is, how the chain grows, what can be asked. No IO, no async, no clock. What the bytes are and how they are
//! verified is in `ledger-format`, whose modules have their names here, too.

pub mod append;
pub mod archive;
pub mod cursor;
pub mod filter;
pub mod gap;
pub mod history_audit;
pub mod job_history;
pub mod keys;
pub mod nodes;
pub mod order;
pub mod query;
pub mod record;
pub mod replay;
pub mod sequence_set;
pub mod stats;

pub use ledger_format::{checkpoint, export, fault, key_rotation, note, tile, verify};
