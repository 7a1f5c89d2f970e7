//! The embedded tables and their parser. See `data/README.md` for their source.

#[cfg(test)]
use std::collections::HashMap;

/// Job states: `data/job_states.tsv`.
pub const JOB_STATES: &str = include_str!("../data/job_states.tsv");
/// Node states: `data/node_states.tsv`.
pub const NODE_STATES: &str = include_str!("../data/node_states.tsv");
/// Texts found as a node's reason: `data/node_reasons.tsv`.
pub const NODE_REASONS: &str = include_str!("../data/node_reasons.tsv");
/// Every pending reason: `data/pending_reasons.tsv`.
pub const PENDING_REASONS: &str = include_str!("../data/pending_reasons.tsv");
/// Free texts printed in place of a reason: `data/pending_descriptions.tsv`.
pub const PENDING_DESCRIPTIONS: &str = include_str!("../data/pending_descriptions.tsv");

/// The rows of a table, without its header.
pub fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(|line| line.split('\t').collect())
}

/// Index of each column of a table, by its name in the header.
#[cfg(test)]
pub(crate) fn columns(table: &'static str) -> HashMap<&'static str, usize> {
    table
        .lines()
        .next()
        .unwrap_or_default()
        .split('\t')
        .enumerate()
        .map(|(at, name)| (name, at))
        .collect()
}
