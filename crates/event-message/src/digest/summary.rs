//! The content of an array digest's message.

use std::collections::BTreeMap;

use mesh_events::EventType;
use mesh_events::proto::mesh::cost::v1::Money;
use serde::{Deserialize, Serialize};

use super::{is_failure, kind_of};
use crate::text;
use crate::{Message, Severity, Text, person};

/// Maximum causes listed by name. The rest is summed.
const MAX_CAUSES: usize = 8;

/// Why a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DigestReason {
    /// The first task started.
    First,
    /// The first task failed.
    Failing,
    /// Progress report.
    Progress,
    /// All tasks have ended.
    Done,
}

/// A snapshot of an array, small enough to be stored until it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Why the message is sent.
    pub moment: DigestReason,
    /// Number of the message, from 1.
    pub number: u32,
    /// Id of the replay that publishes the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// Id of the array.
    pub array: u32,
    /// Slurm's `ClusterName`.
    pub cluster: String,
    /// Job name.
    pub name: String,
    /// Unix user.
    pub user: String,
    /// Partition.
    pub partition: String,
    /// E-mail of the user, if known.
    pub email: Option<String>,
    /// Full name of the user, if known.
    #[serde(default)]
    pub person: Option<String>,
    /// Number of known tasks.
    pub known: u64,
    /// True if these are all tasks.
    pub whole: bool,
    /// Number of ended tasks.
    pub ended: u64,
    /// Number of running tasks.
    pub running: u64,
    /// Ended tasks by cause.
    pub causes: BTreeMap<String, u64>,
    /// Number of failed tasks.
    pub failed: u64,
    /// The failed tasks, in the syntax of `--array`.
    pub failed_tasks: String,
    /// Number of requeued tasks.
    #[serde(default)]
    pub requeued: u64,
    /// Task, node and cause of the first failure seen.
    pub first_failure: Option<String>,
    /// Cost by currency, in millionths.
    pub micros: BTreeMap<String, i64>,
}

impl Summary {
    /// True if an endpoint with these types receives it. A start is sent if starts are requested, a failure if such
    /// failures are. Progress is sent if a task ended with a requested type, or was requeued and requeues are
    /// requested.
    pub fn concerns(&self, asked: impl Fn(EventType) -> bool) -> bool {
        match self.moment {
            DigestReason::First => asked(EventType::JobStarted),
            DigestReason::Failing | DigestReason::Progress | DigestReason::Done => {
                let mut causes = self.causes.keys();
                let failing = self.moment == DigestReason::Failing;
                let requeued = !failing && self.requeued > 0;
                (requeued && asked(EventType::JobRequeued))
                    || causes.any(|cause| {
                        (!failing || is_failure(cause)) && kind_of(cause).is_some_and(&asked)
                    })
            }
        }
    }

    /// Key of the array, for a message that is updated.
    pub fn topic(&self) -> String {
        let array = format!("array/{}/{}", self.cluster, self.array);
        match &self.replay {
            Some(replay) => format!("{array}/{replay}"),
            None => array,
        }
    }

    /// The message for people.
    pub fn message(&self) -> Message {
        let array = self.array;
        let of = if self.whole {
            format!("of {} tasks", self.known)
        } else {
            format!("of at least {} tasks", self.known)
        };
        let (severity, sign, heading) = match (self.moment, self.failed) {
            (DigestReason::First, _) => (
                Severity::Info,
                "▶️",
                format!("Array {array} started: the first {of}"),
            ),
            (DigestReason::Failing, _) => (
                Severity::Error,
                "❌",
                format!("Array {array}: a task failed"),
            ),
            (DigestReason::Progress, 0) => (
                Severity::Info,
                "⏳",
                format!("Array {array}: {} {of} ended", self.ended),
            ),
            (DigestReason::Progress, failed) => (
                Severity::Warning,
                "⏳",
                format!("Array {array}: {} {of} ended, {failed} failed", self.ended),
            ),
            (DigestReason::Done, 0) => (
                Severity::Good,
                "✅",
                format!("Array {array} ended: {} tasks, none failed", self.ended),
            ),
            (DigestReason::Done, failed) => (
                Severity::Error,
                "❌",
                format!(
                    "Array {array} ended: {failed} of {} tasks failed",
                    self.ended
                ),
            ),
        };
        let name = if self.name.trim().is_empty() {
            Text::from("An array")
        } else {
            Text::new().strong(&self.name)
        };
        let owner = person(self.person.as_deref(), &self.user);
        let about = name.plain(format!(" of {owner} in partition {}", self.partition));
        let retry = if self.failed_tasks.is_empty() || self.failed_tasks.ends_with('…') {
            Text::new()
        } else {
            Text::marked("Submit the failed tasks again with ")
                .code(format!("--array={}", self.failed_tasks))
                .plain(".")
        };
        let cost: Vec<String> = self
            .micros
            .iter()
            .map(|(currency, micros)| {
                text::money(&Money {
                    micros: *micros,
                    currency: currency.clone(),
                })
            })
            .collect();
        let first = self.moment == DigestReason::First;
        let mut message = Message::line(severity, sign, Text::from(heading), about);
        if !first {
            message = message
                .fact("Ended", self.causes())
                .fact("Running", unless_none(self.running))
                .fact("Went back to the queue", unless_none(self.requeued))
                .fact(
                    "First failure",
                    self.first_failure.clone().unwrap_or_default(),
                )
                .fact("Failed tasks", Text::new().code(&self.failed_tasks))
                .fact("Cost", cost.join(", "));
            if self.moment == DigestReason::Done {
                message = message.fact("What to try", retry);
            }
        }
        message.footer = Text::from(format!("cluster {}", self.cluster));
        message
    }

    /// `completed 9980, exit code 1 12, …`, the most frequent first.
    fn causes(&self) -> String {
        let mut causes: Vec<_> = self.causes.iter().collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let rest: u64 = causes
            .iter()
            .skip(MAX_CAUSES)
            .map(|(_, count)| **count)
            .sum();
        let mut named: Vec<String> = causes
            .iter()
            .take(MAX_CAUSES)
            .map(|(cause, count)| format!("{count} {cause}"))
            .collect();
        if rest > 0 {
            named.push(format!("{rest} for other causes"));
        }
        named.join(", ")
    }
}

fn unless_none(count: u64) -> String {
    match count {
        0 => String::new(),
        count => count.to_string(),
    }
}
