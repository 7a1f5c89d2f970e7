//! The pure core: entries, the growth of the chain, and requests. No IO, no async, no clock. The
//! formats and their verification are in `ledger-format`, whose modules are re-exported here.

pub mod append;
pub mod archive;
pub mod audited;
pub mod cursor;
pub mod filter;
pub mod gap;
pub mod history_audit;
pub mod job_history;
pub mod keys;
pub mod kpis;
pub mod node_history;
pub mod nodes;
pub mod order;
pub mod query;
pub mod record;
pub mod replay;
pub mod sequence_set;
pub mod stats;

pub use ledger_format::{checkpoint, export, fault, key_rotation, note, tile, verify};
