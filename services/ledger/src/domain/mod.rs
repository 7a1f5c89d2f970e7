//! The pure core: what an entry is, how the chain grows, what can be asked. No IO, no async, no clock. What the bytes are and how they are
//! verified is in `ledger-format`, whose modules have their names here, too.

pub mod append;
pub mod archive;
pub mod cursor;
pub mod fact;
pub mod filter;
pub mod history;
pub mod hole;
pub mod keys;
pub mod nodes;
pub mod order;
pub mod query;
pub mod replay;
pub mod stats;
pub mod story;
pub mod taken;

pub use ledger_format::{checkpoint, export, fault, key_rotation, note, tile, verify};
