//! Drift: forms in Slurm's output that this version does not know, described in Slurm's own keywords without data of a job or a person.
//!
//! Drift is recorded where responses are parsed, whoever sent the query, and taken by the service that publishes it.

mod log;

use std::collections::BTreeMap;

use slurm_types::JobState;

pub(crate) use self::log::{DriftLog, Unread};

use crate::parse::{NO_ID, NO_NAME, NO_OWNER, NO_STATE, NO_SUBMIT, Rejected};
use crate::record::Oddities;
use crate::shape::shape;
use crate::{AccountingRecord, JobRecord, NodeRecord};

/// Limit of forms published in one day: a release with more of them requires a new version of the mesh, not more events.
const MAX_DRIFT_EVENTS_PER_DAY: usize = 50;
/// Longest keyword of Slurm that is quoted.
const MAX_VALUE_CHARS: usize = 64;
const SLURMCTLD: &str = "slurmctld";
const SLURMDBD: &str = "slurmdbd";

/// One unknown form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Kind of the form in one word; label of a metric.
    pub what: &'static str,
    /// Source of the response.
    pub source: &'static str,
    /// Description of the form.
    pub message: String,
    /// The first occurrence, in characters that reveal nothing of a job or a person; may be empty.
    pub example: String,
    /// Number of occurrences.
    pub count: u64,
}

impl Drift {
    fn new(what: &'static str, source: &'static str, message: String) -> Self {
        Self {
            what,
            source,
            message,
            example: String::new(),
            count: 1,
        }
    }

    /// The description with its example.
    pub fn text(&self) -> String {
        if self.example.is_empty() {
            return self.message.clone();
        }
        format!(
            "{}; it starts (letters as x, digits as 0): {}",
            self.message, self.example
        )
    }

    /// Rows of a response that could not be parsed and were left out.
    pub(crate) fn of_rows(command: &'static str, unread: &Unread) -> Self {
        let source = source_of(command);
        let message = format!("{source} printed rows that this version cannot read ({command})");
        Self {
            example: shape(&unread.first),
            count: unread.count as u64,
            ..Self::new("row", source, message)
        }
    }

    /// A response that could not be parsed.
    pub(crate) fn of_answer(command: &'static str, problem: &'static str, excerpt: &str) -> Self {
        let source = source_of(command);
        let message = format!(
            "{source} printed an answer that this version cannot read ({command}): {problem}"
        );
        Self {
            example: shape(excerpt),
            ..Self::new("answer", source, message)
        }
    }

    /// A rejected record of a job. `None` if text written by its user may be the cause.
    pub(crate) fn of_job_record(rejected: &Rejected) -> Option<Self> {
        let problem = rejected.problem;
        let is_form = [NO_ID, NO_NAME, NO_STATE, NO_OWNER, NO_SUBMIT].contains(&problem);
        is_form.then(|| {
            let message =
                format!("{SLURMCTLD} printed a job that this version cannot read: {problem}");
            Self {
                example: rejected.example.clone(),
                ..Self::new("record", SLURMCTLD, message)
            }
        })
    }

    /// Unknown forms in a record of the controller.
    pub(crate) fn of_record(record: &JobRecord) -> Vec<Self> {
        let missing = [
            ("an id", record.job_id.is_none()),
            ("a submit time", record.submit.is_none()),
        ];
        let missing = missing.into_iter().filter(|(_, is_missing)| *is_missing);
        let missing = missing.map(|(field, _)| {
            let message = format!("{SLURMCTLD} printed a job without {field}");
            Self::new("record", SLURMCTLD, message)
        });
        Self::of_job(SLURMCTLD, &record.state, &record.oddities)
            .chain(missing)
            .collect()
    }

    /// Unknown forms in a row of accounting.
    pub(crate) fn of_row(row: &AccountingRecord) -> Vec<Self> {
        Self::of_job(SLURMDBD, &row.state, &row.oddities).collect()
    }

    /// Unknown forms in a record of a node.
    pub(crate) fn of_node(node: &NodeRecord) -> Vec<Self> {
        Self::of_state_names(SLURMCTLD, "node_state", "node", &node.state.unknown)
            .chain(Self::of_values(SLURMCTLD, "node", &node.oddities))
            .collect()
    }

    fn of_job(
        source: &'static str,
        state: &JobState,
        oddities: &Oddities,
    ) -> impl Iterator<Item = Self> {
        Self::of_state_names(source, "job_state", "job", &state.unknown)
            .chain(Self::of_values(source, "job", oddities))
    }

    fn of_state_names(
        source: &'static str,
        what: &'static str,
        of: &'static str,
        state_names: &[String],
    ) -> impl Iterator<Item = Self> {
        state_names.iter().map(move |state_name| {
            let state_name = redacted(state_name);
            let message = format!(
                "{source} printed the {of} state {state_name:?}, which this version does not know"
            );
            Self::new(what, source, message)
        })
    }

    /// One form for each field. A record that was stored in between has no names of fields; its forms were noted when it was parsed.
    fn of_values(
        source: &'static str,
        of: &'static str,
        oddities: &Oddities,
    ) -> impl Iterator<Item = Self> {
        oddities.fields().iter().map(move |odd| {
            let message = format!(
                "{source} printed {} of a {of} in a format that this version cannot read",
                odd.field
            );
            Self {
                example: odd.example.clone(),
                ..Self::new("value", source, message)
            }
        })
    }

    /// Decides whether to publish it on a day (since 1970), and records that it was. `published` has the forms of that day.
    pub fn note(&self, published: &mut BTreeMap<String, i64>, day: i64) -> bool {
        published.retain(|_, last| *last == day);
        if published.contains_key(&self.message) || published.len() >= MAX_DRIFT_EVENTS_PER_DAY {
            return false;
        }
        published.insert(self.message.clone(), day);
        true
    }
}

/// Source of a command's responses.
fn source_of(command: &str) -> &'static str {
    let of_accounting = ["sacct", "slurmrestd a", "slurmrestd u"];
    if of_accounting.iter().any(|begin| command.starts_with(begin)) {
        SLURMDBD
    } else {
        SLURMCTLD
    }
}

/// Slurm writes states in capitals; anything else could be part of a user's text.
fn redacted(state_name: &str) -> String {
    let is_slurms = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    state_name
        .chars()
        .take(MAX_VALUE_CHARS)
        .map(|c| if is_slurms(c) { c } else { '?' })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use slurm_types::NodeState;

    use super::*;
    use crate::{json, parse};

    fn state(state_name: &str) -> Drift {
        Drift::of_job(
            SLURMCTLD,
            &JobState::parse(state_name),
            &Oddities::default(),
        )
        .next()
        .unwrap()
    }

    #[test]
    fn an_unknown_format_is_reported_once_a_day() {
        let mut found = BTreeMap::new();
        let (one, other) = (state("BRAND_NEW"), state("OTHER"));
        assert!(one.note(&mut found, 1));
        assert!(!one.note(&mut found, 1));
        assert!(other.note(&mut found, 1));
        assert!(one.note(&mut found, 2));
        assert_eq!(found.len(), 1, "yesterday is forgotten");
    }

    #[test]
    fn a_flood_of_forms_is_bounded() {
        let mut found = BTreeMap::new();
        let count = (0..500)
            .filter(|n| state(&format!("NEW_{n}")).note(&mut found, 1))
            .count();
        assert_eq!(count, MAX_DRIFT_EVENTS_PER_DAY);
    }

    #[test]
    fn a_state_of_a_node_is_not_one_of_a_job() {
        let mut node = NodeRecord {
            state: NodeState::parse("IDLE+BRAND_NEW"),
            ..NodeRecord::default()
        };
        node.oddities.note_tres("CfgTRES", &["cpu=many".to_owned()]);
        let found: Vec<_> = Drift::of_node(&node)
            .into_iter()
            .map(|drift| (drift.what, drift.text()))
            .collect();
        let expected = [
            (
                "node_state",
                "slurmctld printed the node state \"BRAND_NEW\", which this version does not know",
            ),
            (
                "value",
                "slurmctld printed CfgTRES of a node in a format that this version cannot read; it starts (letters as x, digits as 0): cpu=x",
            ),
        ];
        assert_eq!(
            found,
            expected.map(|(what, message)| (what, message.to_owned()))
        );
    }

    /// As in text and in JSON.
    #[test]
    fn a_rejected_record_names_the_field_and_shows_its_shape() {
        let text = "JobId=7 JobName=secret UserId=alice(20001) GroupId=x(1) JobState=RUNNING SubmitTime=2026-11-20T20:52:06";
        let text_of = |text: &str| {
            let parsed = parse::jobs(text, &HashMap::new());
            Drift::of_job_record(&parsed.unclear[0].1).unwrap().text()
        };
        let of_json = |key: &str, value: serde_json::Value| {
            let mut job = serde_json::json!({"job_id": 7, "name": "secret", "user_id": 20001, "user_name": "alice",
                "job_state": ["RUNNING"], "submit_time": 1_763_760_000});
            assert!(json::job(&job).is_ok());
            job[key] = value;
            let (_, rejected) = json::job(&job).unwrap_err();
            Drift::of_job_record(&rejected).unwrap().text()
        };
        let starts = "; it starts (letters as x, digits as 0): ";
        let cases = [
            (
                text_of(&text.replace("JobName=", "Name=")),
                NO_NAME,
                ": x=0 x=x x=x(0) x=x(0) x=x x=0-0-0x0:0:0",
            ),
            (
                text_of(&text.replace("alice(20001)", "alice")),
                NO_OWNER,
                ": x",
            ),
            (
                text_of(&text.replace("2026-11-20T", "day 5 of alice ")),
                NO_SUBMIT,
                ": x 0 x x 0:0:0",
            ),
            (
                text_of(&text.replace(" JobState=RUNNING", "")),
                NO_STATE,
                "",
            ),
            (
                of_json("job_id", serde_json::json!("seven")),
                NO_ID,
                ": \"x\"",
            ),
            (
                of_json("submit_time", serde_json::json!({"at": 5})),
                NO_SUBMIT,
                ": {\"x\":0}",
            ),
        ];
        for (shown, problem, shape) in cases {
            assert!(shown.contains(problem) && shown.ends_with(shape), "{shown}");
            assert_eq!(shown.contains(starts), !shape.is_empty(), "{shown}");
            assert!(
                !shown.contains("alice") && !shown.contains("secret"),
                "{shown}"
            );
        }
    }

    #[test]
    fn an_answer_is_of_the_daemon_that_the_command_asks() {
        for (command, source) in [
            ("squeue", SLURMCTLD),
            ("scontrol", SLURMCTLD),
            ("sacct", SLURMDBD),
            ("sacctmgr", SLURMDBD),
            ("slurmrestd jobs", SLURMCTLD),
            ("slurmrestd nodes", SLURMCTLD),
            ("slurmrestd accounting", SLURMDBD),
            ("slurmrestd associations", SLURMDBD),
            ("slurmrestd users", SLURMDBD),
        ] {
            assert_eq!(source_of(command), source, "{command}");
        }
    }

    #[test]
    fn text_that_a_user_may_have_written_is_not_repeated() {
        assert_eq!(redacted("BRAND_NEW2"), "BRAND_NEW2");
        assert_eq!(redacted("alice's"), "???????");
        assert_eq!(redacted(&"A".repeat(1_000)).len(), MAX_VALUE_CHARS);
    }
}
