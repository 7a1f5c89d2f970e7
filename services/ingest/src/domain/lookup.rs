//! Open lookups of runs that no record shows any more, and of tasks that left an array's record: how long to ask, and when to give up.
//! Every lookup ends within [`LookupLimits::within`], whatever Slurm answers.

use std::time::Duration;

use mesh_events::is_default;
use serde::{Deserialize, Serialize};

use super::observation::Owner;

/// Number of answers without a record that prove its absence from accounting.
const ANSWERS_TO_PROVE_ABSENCE: u32 = 3;

/// Subject of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndLookup {
    /// How a run ended that the controller does not have any more.
    End,
    /// How a run ended whose job is already in a later run.
    EarlierEnd,
    /// What became of tasks that left their array's record.
    Tasks {
        /// Whether the array has no record of its own any more.
        record_absent: bool,
    },
    /// The same of an array that a list of all jobs does not have. Only the time ends that wait, and with a gap, as the array was not read by id.
    TasksOfUnlisted,
}

impl EndLookup {
    /// Whether an array has no record of its own any more, as far as is known.
    pub const fn is_record_absent(self) -> bool {
        matches!(
            self,
            Self::TasksOfUnlisted
                | Self::Tasks {
                    record_absent: true
                }
        )
    }
}

/// Time limits, from `[ingest]` of `mesh.toml`.
#[derive(Clone, Copy, Debug)]
pub struct LookupLimits {
    /// `missing_record_timeout`: the minimum wait before absence proves anything.
    pub max_wait: Duration,
    /// `resolution_timeout`: the maximum wait.
    pub within: Duration,
    /// Whether accounting is enabled.
    pub accounting: bool,
}

/// Answers of accounting to a lookup so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupAnswers {
    /// Number of answers.
    pub count: u32,
    /// Whether the last one came after `missing_record_timeout`. Earlier ones prove nothing, however long ago: slurmctld may have had still
    /// to send the record.
    pub is_late: bool,
    /// Whether the last answer has the run, or the array, as alive.
    pub alive: bool,
}

/// State of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Not resolved yet.
    Open {
        /// Whether to ask accounting (again).
        ask: bool,
    },
    /// There is no record, and there will be none.
    Absent,
    /// The answer is missing, late or contradictory: a gap.
    Unknowable,
}

/// Resolves a lookup from its age and accounting's answers. A restart loses a part of the age, so it lies between two values: `waited`
/// proves absence, and `at_most` ends the wait.
pub fn settle(
    lookup: EndLookup,
    (waited, at_most): (Duration, Duration),
    answers: LookupAnswers,
    limits: LookupLimits,
) -> Resolution {
    // A record that the controller lacks and accounting has as alive is a contradiction, for example from a backup slurmctld with an old
    // state.
    let contradicted = answers.alive && (lookup == EndLookup::End || lookup.is_record_absent());
    let unanswered = limits.accounting && answers.count == 0;
    if at_most >= limits.within {
        // The run has ended, and without a record it is unknown how.
        let is_unproven = matches!(lookup, EndLookup::End | EndLookup::TasksOfUnlisted);
        return if contradicted || unanswered || is_unproven {
            Resolution::Unknowable
        } else {
            Resolution::Absent
        };
    }
    let asked = !limits.accounting || answers.count >= ANSWERS_TO_PROVE_ABSENCE;
    let is_waited_for = waited >= limits.max_wait;
    let proven = asked && is_waited_for && (answers.is_late || !limits.accounting);
    match lookup {
        EndLookup::End | EndLookup::TasksOfUnlisted => Resolution::Open { ask: true },
        _ if proven && !contradicted => Resolution::Absent,
        // An answer that has the run as alive may be outdated by now.
        _ => Resolution::Open {
            ask: !asked || is_waited_for || contradicted,
        },
    }
}

/// A lookup as stored with its run, so that a restart continues the wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLookup {
    /// Time it has been open, in seconds.
    #[serde(rename = "w")]
    pub waited: u64,
    /// Number of answers from accounting.
    #[serde(rename = "n", default)]
    pub answers: u32,
    /// Number of restarts meanwhile.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub restarts: u32,
    /// Whether slurmctld does not have the job.
    #[serde(rename = "m", default, skip_serializing_if = "is_default")]
    pub is_missing: bool,
    /// Missing tasks, in Slurm's notation.
    #[serde(rename = "t", default, skip_serializing_if = "String::is_empty")]
    pub tasks: String,
    /// Lookups of tasks that went missing later.
    #[serde(rename = "l", default, skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<Self>,
    /// Owner of the run.
    #[serde(rename = "o", default)]
    pub owner: Owner,
    /// Last payload of an array, whose record may be gone: `Job` of the events in base64.
    #[serde(rename = "j", default, skip_serializing_if = "String::is_empty")]
    pub job: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: LookupLimits = LookupLimits {
        max_wait: Duration::from_secs(30),
        within: Duration::from_secs(600),
        accounting: true,
    };

    fn lookups() -> impl Strategy<Value = EndLookup> {
        prop_oneof![
            Just(EndLookup::End),
            Just(EndLookup::EarlierEnd),
            any::<bool>().prop_map(|record_absent| EndLookup::Tasks { record_absent }),
            Just(EndLookup::TasksOfUnlisted),
        ]
    }

    /// One step: seconds since the last one, whether accounting answers (and if so, whether with the run as alive), and whether ingest is
    /// killed afterwards.
    type Step = (u64, Option<bool>, bool);

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(
            (1..60u64, any::<Option<bool>>(), prop::bool::weighted(0.1)),
            200,
        )
    }

    proptest! {
        #[test]
        fn every_question_ends_in_time_whatever_is_answered(
            lookup in lookups(),
            steps in steps(),
            accounting in any::<bool>(),
        ) {
            let limits = LookupLimits { accounting, ..LIMITS };
            let (mut waited, mut stored, mut answers) = (0, 0, LookupAnswers::default());
            let mut settled = None;
            // After this, ingest is not killed any more.
            let quiet = std::iter::repeat_n((60, None, false), 20);
            for (seconds, answer, kill) in steps.into_iter().chain(quiet) {
                waited += seconds;
                let age = Duration::from_secs(waited);
                match settle(lookup, (age, age), answers, limits) {
                    Resolution::Open { ask } => {
                        prop_assert!(waited < 600);
                        if let Some(alive) = answer.filter(|_| ask && accounting) {
                            answers = LookupAnswers {
                                count: answers.count + 1,
                                is_late: age >= LIMITS.max_wait,
                                alive,
                            };
                        }
                    }
                    end => {
                        settled = Some(end);
                        break;
                    }
                }
                // Like the collector, which does not store the wait at every step.
                if waited - stored >= 30 {
                    stored = waited;
                }
                if kill {
                    waited = stored;
                    (answers.alive, answers.is_late) = (false, false);
                }
            }
            prop_assert!(settled.is_some());
            if settled == Some(Resolution::Absent) {
                prop_assert!(waited >= 30);
                prop_assert!(!accounting || answers.count > 0);
                prop_assert!(lookup != EndLookup::End && lookup != EndLookup::TasksOfUnlisted);
            }
        }

        #[test]
        fn only_an_answer_after_the_wait_proves_an_absence(count in 3..100u32, waited in 30..599u64) {
            let age = Duration::from_secs(waited);
            let resolution = |is_late| {
                let answers = LookupAnswers { count, is_late, alive: false };
                settle(EndLookup::EarlierEnd, (age, age), answers, LIMITS)
            };
            prop_assert_eq!(resolution(false), Resolution::Open { ask: true });
            prop_assert_eq!(resolution(true), Resolution::Absent);
        }

        #[test]
        fn an_answer_that_contradicts_the_controller_is_asked_for_again(count in 0..100u32, waited in 0..599u64) {
            let lookup = EndLookup::Tasks { record_absent: true };
            let answers = LookupAnswers { count, is_late: true, alive: true };
            let age = Duration::from_secs(waited);
            let settled = settle(lookup, (age, age), answers, LIMITS);
            prop_assert_eq!(settled, Resolution::Open { ask: true });
        }
    }
}
