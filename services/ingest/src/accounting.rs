//! Reads what only accounting has: ends of purged runs, usage, exit codes, runs missed during downtime, and facts that a ledger lacks.

pub mod array_reconcile;
pub mod batch_step_ends;
pub mod catch_up;
pub mod exit_codes;
pub mod gap_fill;
pub mod rate_limit;
pub mod resolver;
pub mod usage;
