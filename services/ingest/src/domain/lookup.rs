//! What is open about a run that no record shows any more, or about tasks that left an array's record: how long to ask, and when to say
//! that nobody knows. Every question ends within [`LookupLimits::within`], whatever Slurm answers or does not answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::observation::Owner;

/// Answers of accounting after which what it does not have does not exist.
const ANSWERS_TO_PROVE_ABSENCE: u32 = 3;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndLookup {
    /// How a run ended that the controller does not know any more.
    End,
    /// How a run ended whose job is in a later run already.
    EarlierEnd,
    /// What became of tasks that left their array's record. `record_gone`: the controller does not know the array any more.
    Tasks {
        /// Whether the array has no record of its own any more.
        record_gone: bool,
    },
}

/// How long is waited, by `[ingest]` of `mesh.toml`.
#[derive(Clone, Copy, Debug)]
pub struct LookupLimits {
    /// `missing_record_timeout`: the shortest wait before absence proves anything.
    pub patience: Duration,
    /// `resolution_timeout`: the longest wait at all.
    pub within: Duration,
    /// Whether accounting is asked.
    pub accounting: bool,
}

/// What accounting has said of a question so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupAnswers {
    /// How often it answered.
    pub count: u32,
    /// Whether the last answer has the run, or the array, as alive.
    pub alive: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Nothing yet.
    Open {
        /// Whether accounting is to be asked (again).
        ask: bool,
    },
    /// There is no record, and there will be none.
    Absent,
    /// Nobody can say, in time or without contradiction: a gap.
    Unknowable,
}

/// Settles a question that is open for so long.
pub fn settle(
    question: EndLookup,
    waited: Duration,
    answers: LookupAnswers,
    limits: LookupLimits,
) -> Resolution {
    // A record that is gone here and alive there is a contradiction, as from a backup slurmctld with an old state.
    let contradicted = answers.alive
        && matches!(
            question,
            EndLookup::End | EndLookup::Tasks { record_gone: true }
        );
    let unanswered = limits.accounting && answers.count == 0;
    if waited >= limits.within {
        // A run has ended somehow, and without a record nobody knows how.
        return if contradicted || unanswered || question == EndLookup::End {
            Resolution::Unknowable
        } else {
            Resolution::Absent
        };
    }
    let asked = !limits.accounting || answers.count >= ANSWERS_TO_PROVE_ABSENCE;
    match question {
        EndLookup::End => Resolution::Open { ask: true },
        _ if asked && !contradicted && waited >= limits.patience => Resolution::Absent,
        // The answer that has it as alive may be old by now.
        _ => Resolution::Open {
            ask: !asked || contradicted,
        },
    }
}

/// A question as it is stored with its run, so that a restart does not begin the wait anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLookup {
    /// How long it is open, in seconds.
    #[serde(rename = "w")]
    pub waited: u64,
    /// Answers of accounting.
    #[serde(rename = "n", default)]
    pub answers: u32,
    /// Tasks that are waited for, as Slurm writes them.
    #[serde(rename = "t", default, skip_serializing_if = "String::is_empty")]
    pub tasks: String,
    /// Whose it is.
    #[serde(rename = "o", default)]
    pub owner: Owner,
    /// What was seen last of an array, of which nothing may be left to be read: `Job` of the events in base64.
    #[serde(rename = "j", default, skip_serializing_if = "String::is_empty")]
    pub job: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: LookupLimits = LookupLimits {
        patience: Duration::from_secs(30),
        within: Duration::from_secs(600),
        accounting: true,
    };

    fn questions() -> impl Strategy<Value = EndLookup> {
        prop_oneof![
            Just(EndLookup::End),
            Just(EndLookup::EarlierEnd),
            any::<bool>().prop_map(|record_gone| EndLookup::Tasks { record_gone }),
        ]
    }

    /// What happens at one look: seconds since the last one, whether accounting answers if it is asked, whether with the run as alive,
    /// and whether ingest is killed after it.
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
            question in questions(),
            steps in steps(),
            accounting in any::<bool>(),
        ) {
            let limits = LookupLimits { accounting, ..LIMITS };
            let (mut waited, mut stored, mut answers) = (0, 0, LookupAnswers::default());
            let mut settled = None;
            // Then nobody kills it any more.
            let quiet = std::iter::repeat_n((60, None, false), 20);
            for (seconds, answer, kill) in steps.into_iter().chain(quiet) {
                waited += seconds;
                match settle(question, Duration::from_secs(waited), answers, limits) {
                    Resolution::Open { ask } => {
                        prop_assert!(waited < 600);
                        if let Some(alive) = answer.filter(|_| ask && accounting) {
                            answers = LookupAnswers { count: answers.count + 1, alive };
                        }
                    }
                    end => {
                        settled = Some(end);
                        break;
                    }
                }
                // As the collector stores it: not at every look.
                if waited - stored >= 30 {
                    stored = waited;
                }
                if kill {
                    waited = stored;
                    answers.alive = false;
                }
            }
            prop_assert!(settled.is_some());
            if settled == Some(Resolution::Absent) {
                prop_assert!(waited >= 30);
                prop_assert!(!accounting || answers.count > 0);
                prop_assert!(question != EndLookup::End);
            }
        }

        #[test]
        fn an_answer_that_contradicts_the_controller_is_asked_for_again(count in 0..100u32, waited in 0..599u64) {
            let question = EndLookup::Tasks { record_gone: true };
            let answers = LookupAnswers { count, alive: true };
            let settled = settle(question, Duration::from_secs(waited), answers, LIMITS);
            prop_assert_eq!(settled, Resolution::Open { ask: true });
        }
    }
}
