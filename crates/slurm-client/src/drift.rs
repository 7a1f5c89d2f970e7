//! Forms that Slurm printed and this version does not know, for people: in Slurm's own words, with nothing of a job or a person.

use std::collections::BTreeMap;

use slurm_types::JobState;

use crate::{AccountingRecord, JobRecord, NodeRecord};

/// Forms that are published in one day: a release with more of them needs a new version of the mesh, not more events.
const MAX_DRIFT_EVENTS_PER_DAY: usize = 50;
/// Longest word of Slurm that is quoted.
const MAX_WORD_CHARS: usize = 64;
const SLURMCTLD: &str = "slurmctld";
const SLURMDBD: &str = "slurmdbd";

/// One form that is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drift {
    /// What it is a form of, in one word; label of a metric.
    pub what: &'static str,
    /// Whose answer it was in.
    pub source: &'static str,
    /// The form, for people.
    pub message: String,
}

impl Drift {
    /// What is not known in a record of the controller.
    pub fn of_record(record: &JobRecord) -> Vec<Self> {
        let missing = (record.job_id.is_none() || record.submit.is_none()).then(|| Self {
            what: "record",
            source: SLURMCTLD,
            message: format!("{SLURMCTLD} printed a job without an id or a submit time"),
        });
        Self::of_job(SLURMCTLD, &record.state, record.oddities)
            .chain(missing)
            .collect()
    }

    /// What is not known in a row of accounting.
    pub fn of_row(row: &AccountingRecord) -> Vec<Self> {
        Self::of_job(SLURMDBD, &row.state, row.oddities).collect()
    }

    /// What is not known in a record of a node.
    pub fn of_node(node: &NodeRecord) -> Vec<Self> {
        let values = "a TRES or a number of a node";
        Self::of_words(SLURMCTLD, "node_state", "node", &node.state.unknown)
            .chain(Self::of_values(SLURMCTLD, values, node.oddities))
            .collect()
    }

    fn of_job(source: &'static str, state: &JobState, oddities: u32) -> impl Iterator<Item = Self> {
        let values = "a TRES, a number or an exit code of a job";
        Self::of_words(source, "job_state", "job", &state.unknown)
            .chain(Self::of_values(source, values, oddities))
    }

    fn of_words(
        source: &'static str,
        what: &'static str,
        of: &'static str,
        words: &[String],
    ) -> impl Iterator<Item = Self> {
        words.iter().map(move |word| Self {
            what,
            source,
            message: format!(
                "{source} printed the {of} state {:?}, which this version does not know",
                slurms_word(word)
            ),
        })
    }

    fn of_values(source: &'static str, values: &str, oddities: u32) -> Option<Self> {
        (oddities > 0).then(|| Self {
            what: "value",
            source,
            message: format!("{source} printed {values} in a form that this version cannot read"),
        })
    }

    /// Whether to publish it on a day (since 1970), and notes that it was. `published` has the forms of that day.
    pub fn note(&self, published: &mut BTreeMap<String, i64>, day: i64) -> bool {
        published.retain(|_, last| *last == day);
        if published.contains_key(&self.message) || published.len() >= MAX_DRIFT_EVENTS_PER_DAY {
            return false;
        }
        published.insert(self.message.clone(), day);
        true
    }
}

/// Slurm writes states in capitals; anything else could be part of what a user wrote.
fn slurms_word(word: &str) -> String {
    let is_slurms = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    word.chars()
        .take(MAX_WORD_CHARS)
        .map(|c| if is_slurms(c) { c } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use slurm_types::NodeState;

    use super::*;

    fn state(word: &str) -> Drift {
        Drift::of_job(SLURMCTLD, &JobState::parse(word), 0)
            .next()
            .unwrap()
    }

    #[test]
    fn a_form_is_told_once_a_day() {
        let mut told = BTreeMap::new();
        let (one, other) = (state("BRAND_NEW"), state("OTHER"));
        assert!(one.note(&mut told, 1));
        assert!(!one.note(&mut told, 1));
        assert!(other.note(&mut told, 1));
        assert!(one.note(&mut told, 2));
        assert_eq!(told.len(), 1, "yesterday is forgotten");
    }

    #[test]
    fn a_flood_of_forms_is_bounded() {
        let mut told = BTreeMap::new();
        let count = (0..500)
            .filter(|n| state(&format!("NEW_{n}")).note(&mut told, 1))
            .count();
        assert_eq!(count, MAX_DRIFT_EVENTS_PER_DAY);
    }

    #[test]
    fn a_state_of_a_node_is_not_one_of_a_job() {
        let node = NodeRecord {
            state: NodeState::parse("IDLE+BRAND_NEW"),
            oddities: 1,
            ..NodeRecord::default()
        };
        let told: Vec<_> = Drift::of_node(&node)
            .into_iter()
            .map(|drift| (drift.what, drift.message))
            .collect();
        let expected = [
            (
                "node_state",
                "slurmctld printed the node state \"BRAND_NEW\", which this version does not know",
            ),
            (
                "value",
                "slurmctld printed a TRES or a number of a node in a form that this version cannot read",
            ),
        ];
        assert_eq!(
            told,
            expected.map(|(what, message)| (what, message.to_owned()))
        );
    }

    #[test]
    fn what_a_user_could_have_written_is_not_repeated() {
        assert_eq!(slurms_word("BRAND_NEW2"), "BRAND_NEW2");
        assert_eq!(slurms_word("alice's"), "???????");
        assert_eq!(slurms_word(&"A".repeat(1_000)).len(), MAX_WORD_CHARS);
    }
}
