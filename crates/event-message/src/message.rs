//! Messages for people, independent of the chat that displays them.
//!
//! A message has a heading, a sentence, fields and links. Slack, Teams, Discord and PagerDuty differ in layout,
//! escaping and limits only.

mod advice;
mod budget;
pub(super) mod job;
mod line;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::cost::v1::{CostEvent, Spending};
use mesh_events::{Event, EventType};
use serde::{Deserialize, Serialize};

use crate::{Link, Text, pending, text};

/// Types sent to chats that name none: events that require the reader's action or that they wait for, except those of
/// [`is_routine`](event_filter::routine::is_routine). docs/guide/webhooks.md gives the reason for each. A hold is reported
/// by its explanation, which names who may release it, so `job.held` would be redundant.
pub const DEFAULT_TYPES: &[EventType] = &[
    EventType::JobStarted,
    EventType::JobCompleted,
    EventType::JobFailed,
    EventType::JobCancelled,
    EventType::JobTimeout,
    EventType::JobOutOfMemory,
    EventType::JobNodeFail,
    EventType::JobPreempted,
    EventType::JobBootFail,
    EventType::JobDeadline,
    EventType::NodeDown,
    EventType::NodeDrained,
    EventType::NodeRecovered,
    EventType::QueueExplained,
    EventType::CaptureGapOpened,
    EventType::CaptureGapClosed,
    EventType::CaptureSourceDown,
    EventType::CaptureSourceUp,
    EventType::CaptureSchemaDrift,
];

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Success.
    Good,
    /// Neutral information.
    Info,
    /// May require attention.
    Warning,
    /// Failure.
    Error,
}

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageField {
    /// Label of the field.
    pub name: &'static str,
    /// Value of the field.
    pub value: Text,
}

/// Report that an endpoint was paused or disabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Name of the endpoint.
    pub webhook: String,
    /// `paused` or `disabled`.
    pub state: String,
    /// Reason for the change.
    pub reason: String,
}

/// A message for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Severity of the news.
    pub severity: Severity,
    /// One emoji.
    pub sign: &'static str,
    /// What happened, in a few words.
    pub heading: Text,
    /// One sentence of detail. Empty if the heading is sufficient.
    pub sentence: Text,
    /// Named values, most important first.
    pub facts: Vec<MessageField>,
    /// Links to more information.
    pub links: Vec<Link>,
    /// Where it happened.
    pub footer: Text,
}

impl Message {
    /// A message of a heading and a sentence.
    pub fn line(severity: Severity, sign: &'static str, heading: Text, sentence: Text) -> Self {
        Self {
            severity,
            sign,
            heading,
            sentence,
            facts: Vec::new(),
            links: Vec::new(),
            footer: Text::new(),
        }
    }

    /// Adds a field, unless its value is empty.
    #[must_use]
    pub fn fact(mut self, name: &'static str, value: impl Into<Text>) -> Self {
        let value = value.into();
        if !value.is_empty() {
            self.facts.push(MessageField { name, value });
        }
        self
    }

    /// Adds how long the job of an explanation has been pending.
    #[must_use]
    pub fn waited(mut self, event: &Event, now: DateTime<Utc>) -> Self {
        if let Some(since) = pending::since(event) {
            self.facts.insert(
                0,
                MessageField {
                    name: "Waited so far",
                    value: Text::from(text::span((now - since).num_seconds())),
                },
            );
        }
        self
    }

    /// Adds what the owner of the job has spent this month. Only for messages to the owner alone.
    #[must_use]
    pub fn spent(self, spending: &Spending) -> Self {
        let amounts = spending.spent.iter().map(text::money);
        let unpriced = (spending.unpriced_runs > 0).then(|| text::unpriced(spending.unpriced_runs));
        let parts: Vec<_> = amounts.chain(unpriced).collect();
        self.fact("This month so far", parts.join(", "))
    }

    /// "N events while away": events that were too old to be sent.
    pub fn away(count: u64, cluster: &str) -> Self {
        let (events, were) = if count == 1 {
            ("event", "was")
        } else {
            ("events", "were")
        };
        let sentence = Text::from(format!("{count} {events} of cluster "))
            .strong(cluster)
            .plain(format!(" while away {were} too old to be shown here. "))
            .code("smesh events")
            .plain(" lists them.");
        Self::line(Severity::Info, "💤", Text::from("While away"), sentence)
    }

    /// Reports that another endpoint of the same owner was paused or disabled.
    pub fn halted(notice: &Notice) -> Self {
        let Notice {
            webhook,
            state,
            reason,
        } = notice;
        let heading = Text::from("Webhook ")
            .strong(webhook)
            .plain(format!(" is {state}"));
        let sentence = Text::from(format!("{reason}. Its events are kept for 14 days. "))
            .code(format!("smesh webhooks resume {webhook}"))
            .plain(" lets it go on.");
        Self::line(Severity::Warning, "🔌", heading, sentence)
    }

    /// The message of a test delivery.
    pub fn test(endpoint: &str, cluster: &str) -> Self {
        let sentence = Text::from("Test of webhook ")
            .strong(endpoint)
            .plain(" from slurm-mesh on cluster ")
            .strong(cluster)
            .plain(": it works.");
        Self::line(Severity::Info, "👋", Text::from("Test"), sentence)
    }
}

/// The message for an event, with its cost if known. `None` for events that chats do not show.
pub fn of(event: &Event, cost: Option<&CostEvent>) -> Option<Message> {
    let kind = event.kind().ok()?;
    match kind {
        EventType::JobStarted => job::started(event, cost),
        kind if kind.is_end() => job::ended(kind, event, cost),
        kind => line::of(kind, event),
    }
}

#[cfg(test)]
pub(crate) mod tests;
