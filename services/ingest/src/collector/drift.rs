//! What Slurm printed and this version does not know: told once per form and day.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::EventType;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use slurm_client::{AccountingRecord, JobRecord};
use slurm_types::JobState;

use super::Collector;
use crate::adapters::store::Meta;
use crate::{Error, metrics};

const SECONDS_PER_DAY: i64 = 86_400;
/// Forms that are told in one day: a release with more of them needs a new version of the mesh, not more events.
const MAX_FORMS_PER_DAY: usize = 50;
/// Longest word of Slurm that is quoted.
const MAX_WORD: usize = 64;

/// One form that is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drift {
    /// Label of the metric.
    what: &'static str,
    /// Whose answer it was in.
    source: &'static str,
    /// For people. Holds Slurm's own words, and nothing of a job or a person.
    message: String,
}

impl Drift {
    fn of_state(source: &'static str, state: &JobState) -> impl Iterator<Item = Self> {
        state.unknown.iter().map(move |word| Self {
            what: "job_state",
            source,
            message: format!(
                "{source} printed the job state {:?}, which this version does not know",
                slurms_word(word)
            ),
        })
    }

    fn of_values(source: &'static str, oddities: u32) -> Option<Self> {
        (oddities > 0).then(|| Self {
            what: "value",
            source,
            message: format!(
                "{source} printed a TRES, a number or an exit code of a job in a form that this version cannot read"
            ),
        })
    }

    /// What is not known in a record of the controller.
    pub fn of_record(record: &JobRecord) -> Vec<Self> {
        let source = "slurmctld";
        let missing = (record.job_id.is_none() || record.submit.is_none()).then(|| Self {
            what: "record",
            source,
            message: format!("{source} printed a job without an id or a submit time"),
        });
        Self::of_state(source, &record.state)
            .chain(Self::of_values(source, record.oddities))
            .chain(missing)
            .collect()
    }

    /// What is not known in a row of accounting.
    pub fn of_row(row: &AccountingRecord) -> Vec<Self> {
        let source = "slurmdbd";
        Self::of_state(source, &row.state)
            .chain(Self::of_values(source, row.oddities))
            .collect()
    }
}

/// Slurm writes states in capitals; anything else could be part of what a user wrote.
fn slurms_word(word: &str) -> String {
    let is_slurms = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    word.chars()
        .take(MAX_WORD)
        .map(|c| if is_slurms(c) { c } else { '?' })
        .collect()
}

/// Whether a form is told now, and notes that it was.
fn note(meta: &mut Meta, drift: &Drift, day: i64) -> bool {
    meta.drifts.retain(|_, told| *told == day);
    let is_new = !meta.drifts.contains_key(&drift.message);
    if !is_new || meta.drifts.len() >= MAX_FORMS_PER_DAY {
        return false;
    }
    meta.drifts.insert(drift.message.clone(), day);
    true
}

impl Collector {
    /// Counts what is not known, and tells each form once a day. What cannot be stored now is told when it is seen next.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn drifted(&self, drifts: impl IntoIterator<Item = Drift>) -> Result<(), Error> {
        let mut forms = BTreeSet::new();
        for drift in drifts {
            metrics::drift(drift.what);
            forms.insert(drift);
        }
        if forms.is_empty() {
            return Ok(());
        }
        let day = Utc::now().timestamp().div_euclid(SECONDS_PER_DAY);
        let mut core = self.core.lock().await;
        for drift in forms {
            if !note(&mut core.meta, &drift, day) {
                continue;
            }
            tracing::warn!(
                what = drift.what,
                source = drift.source,
                "{}",
                drift.message
            );
            let told = CaptureEvent {
                source: drift.source.to_owned(),
                message: drift.message.clone(),
                ..CaptureEvent::default()
            };
            let kind = EventType::CaptureSchemaDrift;
            if !self.capture_locked(&mut core, kind, told, None).await? {
                core.meta.drifts.remove(&drift.message);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(word: &str) -> Drift {
        let state = JobState::parse(word);
        Drift::of_state("slurmctld", &state).next().unwrap()
    }

    #[test]
    fn a_form_is_told_once_a_day() {
        let mut meta = Meta::default();
        let (one, other) = (state("BRAND_NEW"), state("OTHER"));
        assert!(note(&mut meta, &one, 1));
        assert!(!note(&mut meta, &one, 1));
        assert!(note(&mut meta, &other, 1));
        let mut meta: Meta = serde_json::from_slice(&serde_json::to_vec(&meta).unwrap()).unwrap();
        assert!(!note(&mut meta, &one, 1), "also after a restart");
        assert!(note(&mut meta, &one, 2));
        assert_eq!(meta.drifts.len(), 1, "yesterday is forgotten");
    }

    #[test]
    fn a_flood_of_forms_is_bounded() {
        let mut meta = Meta::default();
        let told = (0..500)
            .filter(|n| note(&mut meta, &state(&format!("NEW_{n}")), 1))
            .count();
        assert_eq!(told, MAX_FORMS_PER_DAY);
    }

    #[test]
    fn what_a_user_could_have_written_is_not_repeated() {
        assert_eq!(slurms_word("BRAND_NEW2"), "BRAND_NEW2");
        assert_eq!(slurms_word("alice's"), "???????");
        assert_eq!(slurms_word(&"A".repeat(1_000)).len(), MAX_WORD);
    }
}
