//! What only accounting knows: lookups of ended runs, usage, exit codes, catching up after an absence, and filling a ledger's gaps.

pub mod array_reconcile;
pub mod batch_step_ends;
pub mod catch_up;
pub mod exit_codes;
pub mod gap_fill;
pub mod rate_limit;
pub mod resolver;
pub mod usage;
