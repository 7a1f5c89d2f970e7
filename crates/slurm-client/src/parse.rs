//! Converts Slurm's text to records. Pure; survives any bytes.

mod accounting;
mod association;
mod commented;
mod cut;
mod delimited;
mod job;
mod keys;
mod limits;
mod listing;
mod long;
mod node;
mod node_event;
mod queue;
mod scheduling;
mod statistics;
mod submitted;
mod usage;

pub(crate) use accounting::{FIELDS as ACCOUNTING_FIELDS, accounting, record as accounting_row};
pub(crate) use association::{
    TRANSACTION_FORMAT, USER_FORMAT, association_format, associations, transactions, users,
};
pub(crate) use commented::{COMMENTED_COLUMNS, commented_job};
pub(crate) use cut::FreeTexts;
pub(crate) use delimited::{Separator, delimited};
pub(crate) use job::{
    DUPLICATE_ID, NO_ID, NO_NAME, NO_OWNER, NO_STATE, NO_SUBMIT, ParsedJobs, Rejected, jobs,
    missing, own_fields, reject_duplicates,
};
pub(crate) use keys::pairs;
pub(crate) use limits::limits;
pub use listing::LISTING_LETTERS;
pub(crate) use listing::ListingSeparators;
pub(crate) use long::{Texts, free_text, long_jobs};
pub(crate) use node::{config, nodes, own_end, partitions};
pub(crate) use node_event::{NODE_EVENT_FORMAT, node_events};
pub(crate) use queue::{
    FORMAT as QUEUE_FORMAT, Rows, StringInterner, count_record, queue, queue_columns, row_of_record,
};
pub(crate) use scheduling::{
    PRIORITY_FORMAT, RUNNING_FORMAT, backfill, licenses, priorities, reservations, running,
};
pub(crate) use statistics::{SHARE_FORMAT, shares, statistics};
pub(crate) use submitted::{SUBMITTED_FIELDS, submitted};
pub(crate) use usage::{fields as usage_fields, usage};

/// A text; Slurm's placeholders for "none" become empty.
pub(crate) fn text(value: &str) -> String {
    match value.trim() {
        "(null)" | "N/A" | "None assigned" | "(unknown)" => String::new(),
        text => text.to_owned(),
    }
}

/// The items of a comma-separated list.
pub(crate) fn list(value: &str) -> Vec<String> {
    let value = text(value);
    value
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A whole number at the start: `1-1` and `4+` give 1 and 4.
pub(crate) fn leading<T: std::str::FromStr>(value: &str) -> Option<T> {
    let value = value.trim();
    let end = value
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(value.len());
    value[..end].parse().ok()
}

/// GPUs in a `Gres` text: `gpu:a100:4(S:0-1),fpga:1` is 4.
pub(crate) fn gres_gpus(gres: &str) -> u64 {
    let mut gpus = 0_u64;
    let mut depth = 0_usize;
    let mut start = 0;
    // Commas inside parentheses do not separate items: `gpu:4(IDX:0,2-3)`.
    for (at, c) in gres.char_indices().chain([(gres.len(), ',')]) {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                gpus = gpus.saturating_add(gpu_item(&gres[start..at]));
                start = (at + 1).min(gres.len());
            }
            _ => {}
        }
    }
    gpus
}

fn gpu_item(item: &str) -> u64 {
    let item = item.trim();
    let item = item.split('(').next().unwrap_or(item);
    let item = item
        .strip_prefix("gres:")
        .or_else(|| item.strip_prefix("gres/"))
        .unwrap_or(item);
    let mut parts = item.split([':', '=']);
    match (parts.next(), parts.next_back()) {
        (Some("gpu"), Some(count)) => leading(count).unwrap_or(1),
        (Some("gpu"), None) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
