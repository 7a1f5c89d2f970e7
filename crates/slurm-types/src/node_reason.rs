//! Known reason texts of nodes, with the cause and the lifecycle they imply.

use std::sync::LazyLock;

use regex::Regex;

use crate::{Lifecycle, data};

/// Meaning of a known reason text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeReason {
    /// Author of the text: `slurm`, `aws-parallelcluster`, `gcp-slurm`, `azure-cyclecloud`.
    pub source: &'static str,
    /// The node's lifecycle that it implies.
    pub lifecycle: Lifecycle,
    /// The cause in a word: `unreachable`, `power_saving`, `insufficient_capacity`, `spot_preempted`, …
    pub cause: &'static str,
    /// Further explanation; may be empty.
    pub note: &'static str,
}

static TABLE: LazyLock<Vec<(Regex, NodeReason)>> = LazyLock::new(|| {
    data::rows(data::NODE_REASONS)
        .filter_map(|row| {
            let [source, pattern, lifecycle, cause, ..] = row[..] else {
                return None;
            };
            let note = row.get(4).copied().unwrap_or_default();
            Some((
                Regex::new(pattern).ok()?,
                NodeReason {
                    source,
                    lifecycle: stage(lifecycle)?,
                    cause,
                    note,
                },
            ))
        })
        .collect()
});

impl NodeReason {
    /// The first row of the table whose pattern matches the text. Slurm's rows come first. A text written by an administrator gives `None`.
    pub fn lookup(text: &str) -> Option<Self> {
        let text = text.trim();
        TABLE
            .iter()
            .find(|(pattern, _)| pattern.is_match(text))
            .map(|(_, reason)| *reason)
    }
}

fn stage(word: &str) -> Option<Lifecycle> {
    Some(match word {
        "provisioning" => Lifecycle::Provisioning,
        "active" => Lifecycle::Active,
        "draining" => Lifecycle::Draining,
        "drained" => Lifecycle::Drained,
        "down" => Lifecycle::Down,
        "terminating" => Lifecycle::Terminating,
        "terminated" => Lifecycle::Terminated,
        "unknown" => Lifecycle::Unknown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_usable() {
        assert_eq!(data::rows(data::NODE_REASONS).count(), 30);
        assert_eq!(TABLE.len(), 30);
    }

    #[test]
    fn texts_of_slurm_and_clouds_are_classified() {
        let cause = |text| NodeReason::lookup(text).map(|reason| (reason.cause, reason.lifecycle));
        assert_eq!(
            cause("Not responding"),
            Some(("unreachable", Lifecycle::Down))
        );
        assert_eq!(
            cause("ResumeTimeout reached"),
            Some(("launch_failed", Lifecycle::Terminated))
        );
        assert_eq!(
            cause("(Code:InsufficientInstanceCapacity)Failure when resuming nodes"),
            Some(("insufficient_capacity", Lifecycle::Terminated))
        );
        assert_eq!(
            cause("(Code:SomethingNew)Failure when resuming nodes"),
            Some(("launch_failed", Lifecycle::Terminated))
        );
        assert_eq!(
            cause("Preempted instance"),
            Some(("spot_preempted", Lifecycle::Down))
        );
        assert_eq!(cause("bad disk"), None);
    }
}
