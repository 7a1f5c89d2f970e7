//! What people read, before it is laid out for a chat.
//!
//! A message has a heading, a sentence, facts and links; Slack, Teams, Discord and PagerDuty differ only in how these look, how text is
//! escaped and where it is cut. Text from outside (names, paths, reasons) is kept as it came: every layout escapes and cuts it.

mod advice;
mod job;
mod line;
mod link;
mod markup;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::{Event, EventType};
use serde::{Deserialize, Serialize};

use super::{pending, text};

pub use job::person;
pub use link::Link;
pub use markup::{Dialect, Span, Text, clean, units};

/// What a chat shows if its endpoint names no types: what needs the reader, or what they asked for; but for what
/// [`is_routine`](super::routine::is_routine). docs/guide/webhooks.md says why for each. A hold comes as its explanation, which says who may
/// end it; `job.held` beside it would be the same again.
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

/// How bad the news is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something went well.
    Good,
    /// Something happened.
    Info,
    /// Somebody may want to look.
    Warning,
    /// Something failed.
    Error,
}

/// One named value.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageField {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Text,
}

/// An endpoint that is not sent to any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Its name.
    pub webhook: String,
    /// `paused` or `disabled`.
    pub state: String,
    /// Why.
    pub reason: String,
}

/// A message for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// How bad the news is.
    pub severity: Severity,
    /// One emoji.
    pub sign: &'static str,
    /// What happened, in a few words.
    pub heading: Text,
    /// A sentence about it. Empty if the heading says everything.
    pub sentence: Text,
    /// Named values, the important ones first.
    pub facts: Vec<MessageField>,
    /// Where to find more.
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

    /// Adds a fact, unless it is empty.
    #[must_use]
    pub fn fact(mut self, name: &'static str, value: impl Into<Text>) -> Self {
        let value = value.into();
        if !value.is_empty() {
            self.facts.push(MessageField { name, value });
        }
        self
    }

    /// Says how long the job of an explanation has waited by now.
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

    /// "N events while away": what the endpoint missed because it was too old when it could be sent.
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

    /// Another endpoint of the same owner is not sent to any more.
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

    /// What a test of an endpoint sends.
    pub fn test(endpoint: &str, cluster: &str) -> Self {
        let sentence = Text::from("Test of webhook ")
            .strong(endpoint)
            .plain(" from slurm-mesh on cluster ")
            .strong(cluster)
            .plain(": it works.");
        Self::line(Severity::Info, "👋", Text::from("Test"), sentence)
    }
}

/// The message of an event, with its cost if that is known. `None` for events that no chat shows.
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
