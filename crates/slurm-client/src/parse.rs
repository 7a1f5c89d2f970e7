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

use std::collections::BTreeSet;

use slurm_types::HostList;

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

/// Most GPUs of a node. Longer lists of indices are not Slurm's.
const MAX_GPUS: usize = 1024;

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
    gres_items(gres)
        .into_iter()
        .map(gpu_item)
        .fold(0, u64::saturating_add)
}

/// Indices of GPUs in a `Gres` text, sorted: `gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:1)` has 0, 1 and 3.
pub(crate) fn gres_gpu_indices(gres: &str) -> Vec<u32> {
    let mut indices = BTreeSet::new();
    for item in gres_items(gres) {
        let list = item
            .split_once("(IDX:")
            .and_then(|(_, rest)| rest.split_once(')'));
        if let Some((list, _)) = list.filter(|_| gpu_item(item) > 0) {
            // The same form as the numbers of a host list. `N/A` is none.
            let numbers = HostList::expand_up_to(&format!("[{list}]"), MAX_GPUS);
            let numbers = numbers.unwrap_or_default();
            indices.extend(numbers.iter().filter_map(|n| n.parse::<u32>().ok()));
        }
    }
    indices.into_iter().collect()
}

/// The items of a `Gres` text. Commas inside parentheses do not separate items: `gpu:4(IDX:0,2-3)`.
fn gres_items(gres: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut depth = 0_usize;
    let mut start = 0;
    for (at, c) in gres.char_indices().chain([(gres.len(), ',')]) {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(&gres[start..at]);
                start = (at + 1).min(gres.len());
            }
            _ => {}
        }
    }
    items
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
