//! What the audit says about runs and rules: all that is known of a database that is lost.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, TriggerActed};

use super::intent::IntentState;
use super::rule::RuleId;

/// A run in the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRun {
    /// Its rule.
    pub rule: RuleId,
    /// Cluster of the event.
    pub cluster: String,
    /// The last entry about it.
    pub last: TriggerActed,
    /// Names of whoever caused it.
    pub requesters: BTreeSet<String>,
    /// The job that an entry named. 0 if none did.
    pub job_id: u32,
    /// True if it was planned, and not only refused or recorded.
    pub is_fired: bool,
    /// Time of its first entry.
    pub created_at: DateTime<Utc>,
    /// Time of its last entry.
    pub updated_at: DateTime<Utc>,
}

impl RecordedRun {
    /// Its state, if it is final. `None`: what became of it is not known.
    pub fn outcome(&self) -> Option<IntentState> {
        let state: IntentState = self.last.what.parse().ok()?;
        state.is_final().then_some(state)
    }
}

/// Who paused a rule, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPause {
    /// When.
    pub at: DateTime<Utc>,
    /// Who. Empty if the service did.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// The audit of the workflow-trigger, folded in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Runs by key.
    pub runs: BTreeMap<String, RecordedRun>,
    /// Rules that are paused.
    pub paused: BTreeMap<RuleId, RecordedPause>,
}

impl Recorded {
    /// Adds an entry.
    pub fn add(&mut self, entry: AuditEntry) {
        let Some(Act::Trigger(act)) = entry.act else {
            return;
        };
        let at = entry.at.as_ref().and_then(from_timestamp);
        let (Some(rule), Some(at)) = (RuleId::parse(&act.rule), at) else {
            return;
        };
        match act.what.as_str() {
            "paused" => {
                let pause = RecordedPause {
                    at,
                    by: act.made_by,
                    reason: act.reason,
                };
                self.paused.insert(rule, pause);
            }
            "resumed" => drop(self.paused.remove(&rule)),
            _ if act.key.is_empty() => {}
            _ => {
                let run = self.runs.entry(act.key.clone());
                let run = run.or_insert_with(|| RecordedRun {
                    rule,
                    cluster: entry.cluster,
                    last: TriggerActed::default(),
                    requesters: BTreeSet::new(),
                    job_id: 0,
                    is_fired: false,
                    created_at: at,
                    updated_at: at,
                });
                run.is_fired |= ["fired", "approval"].contains(&act.what.as_str());
                if act.job_id != 0 {
                    run.job_id = act.job_id;
                }
                run.requesters.extend(act.requesters.iter().cloned());
                // Another task of its array, or the end of its job: what became of the run stays.
                let is_outcome = !["joined", "replaced"].contains(&act.what.as_str());
                if is_outcome || run.last.what.is_empty() {
                    (run.last, run.updated_at) = (act, at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::timestamp;

    use super::*;

    fn recorded(entries: &[(&str, &str, u32)]) -> Recorded {
        let mut recorded = Recorded::default();
        for (what, key, job_id) in entries {
            let act = TriggerActed {
                what: (*what).to_owned(),
                rule: "alice/align".to_owned(),
                key: (*key).to_owned(),
                job_id: *job_id,
                ..TriggerActed::default()
            };
            recorded.add(AuditEntry {
                at: Some(timestamp(Utc::now())),
                act: Some(Act::Trigger(act)),
                ..AuditEntry::default()
            });
        }
        recorded
    }

    #[test]
    fn only_a_last_entry_that_is_an_outcome_says_what_became_of_a_run() {
        let check = |entries: &[(&str, &str, u32)], expected: Option<IntentState>| {
            let run = recorded(entries).runs["k"].clone();
            assert_eq!(run.outcome(), expected, "{entries:?}");
        };
        check(&[("fired", "k", 0)], None);
        check(&[("fired", "k", 0), ("submitted", "k", 7)], None);
        let released = [
            ("fired", "k", 0),
            ("submitted", "k", 7),
            ("released", "k", 0),
        ];
        check(&released, Some(IntentState::Released));
        assert_eq!(recorded(&released).runs["k"].job_id, 7);
        check(&[("refused", "k", 0)], Some(IntentState::Refused));
        // Another task of the array changes nothing of that.
        let joined = [("refused", "k", 0), ("joined", "k", 0)];
        check(&joined, Some(IntentState::Refused));
        check(&[("fired", "k", 0), ("joined", "k", 0)], None);
        assert!(!recorded(&[("refused", "k", 0)]).runs["k"].is_fired);
        check(
            &[
                ("fired", "k", 0),
                ("given_up", "k", 0),
                ("redriven", "k", 0),
            ],
            None,
        );
    }

    #[test]
    fn whoever_caused_or_redrove_a_run_is_known() {
        let mut recorded = Recorded::default();
        for (what, who) in [("fired", "carol"), ("refused", ""), ("redriven", "dave")] {
            let act = TriggerActed {
                what: what.to_owned(),
                rule: "alice/align".to_owned(),
                key: "k".to_owned(),
                requesters: [who.to_owned()]
                    .into_iter()
                    .filter(|who| !who.is_empty())
                    .collect(),
                ..TriggerActed::default()
            };
            recorded.add(AuditEntry {
                at: Some(timestamp(Utc::now())),
                act: Some(Act::Trigger(act)),
                ..AuditEntry::default()
            });
        }
        let expected = ["carol", "dave"].map(str::to_owned);
        assert_eq!(recorded.runs["k"].requesters, expected.into());
    }

    #[test]
    fn a_rule_is_paused_until_it_is_resumed() {
        assert_eq!(recorded(&[("paused", "", 0)]).paused.len(), 1);
        let resumed = recorded(&[("paused", "", 0), ("resumed", "", 0)]);
        assert_eq!(resumed, Recorded::default());
    }
}
