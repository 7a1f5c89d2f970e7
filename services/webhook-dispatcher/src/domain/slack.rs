//! What people read in a chat: Slack's incoming-webhook format, as Block Kit.
//!
//! A job's start, failure and end are messages with fields; everything else is one line. Slack's limits (section 3,000 characters, field
//! 2,000, header 150, ten fields, and about 13,000 characters in all) hold for any event, because every text from outside is clipped first.

mod advice;
mod job;
mod line;

use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::{Event, EventType};
use serde::Serialize;
use serde_json::{Value, json};

use super::text::escape;

/// Names of users, partitions, nodes and the like.
const NAME: usize = 80;
/// Paths, host lists, reasons.
const LONG: usize = 300;
/// Sentences written by the mesh itself with names in them.
const SENTENCE: usize = 1_200;

/// What a chat shows if its endpoint names no types: what someone may want to act on.
pub const DEFAULT_TYPES: &[EventType] = &[
    EventType::JobStarted,
    EventType::JobHeld,
    EventType::JobRequeued,
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
    EventType::NodePreempted,
    EventType::UserQuotaHigh,
    EventType::UserQuotaExceeded,
    EventType::UserQuotaCleared,
    EventType::QueueExplained,
    EventType::CaptureGapOpened,
    EventType::CaptureGapClosed,
    EventType::CaptureSourceDown,
    EventType::CaptureSourceUp,
];

/// A message for an incoming webhook.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    /// For notifications and clients without blocks.
    pub text: String,
    /// Block Kit.
    pub blocks: Vec<Value>,
}

impl Message {
    /// A message of one line of Slack's markup.
    fn line(text: &str) -> Self {
        let text = clip(text, 2 * SENTENCE);
        Self {
            blocks: vec![section(&text)],
            text,
        }
    }

    /// A message with a heading, a sentence and fields.
    fn card(heading: &str, sentence: &str, fields: &[(&str, String)], footer: &str) -> Self {
        let heading = clip(heading, 150);
        let mut blocks = vec![
            json!({"type": "header", "text": {"type": "plain_text", "text": heading, "emoji": true}}),
            section(&clip(sentence, 2 * SENTENCE)),
        ];
        let fields: Vec<Value> = fields
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .take(10)
            .map(|(name, value)| json!({"type": "mrkdwn", "text": format!("*{name}*\n{}", clip(value, 600))}))
            .collect();
        if !fields.is_empty() {
            blocks.push(json!({"type": "section", "fields": fields}));
        }
        if !footer.is_empty() {
            blocks.push(json!({"type": "context", "elements": [{"type": "mrkdwn", "text": clip(footer, SENTENCE)}]}));
        }
        Self {
            text: heading,
            blocks,
        }
    }

    /// "N events while away": what the endpoint missed because it was too old when it could be sent.
    pub fn away(count: u64, cluster: &str) -> Self {
        let (events, were) = if count == 1 {
            ("event", "was")
        } else {
            ("events", "were")
        };
        Self::line(&format!(
            ":zzz: {count} {events} of cluster *{}* while away {were} too old to be shown here. `smesh events` lists them.",
            escape(cluster, NAME)
        ))
    }

    /// What a test of an endpoint sends.
    pub fn test(endpoint: &str, cluster: &str) -> Self {
        Self::line(&format!(
            ":wave: Test of webhook *{}* from slurm-mesh on cluster *{}*: it works.",
            escape(endpoint, NAME),
            escape(cluster, NAME)
        ))
    }
}

/// The message of an event, with its cost if that is known. `None` for events that no chat shows.
pub fn render(event: &Event, cost: Option<&CostEvent>) -> Option<Message> {
    let kind = event.kind().ok()?;
    match kind {
        EventType::JobStarted => job::started(event, cost),
        kind if kind.is_end() => job::ended(kind, event, cost),
        kind => line::of(kind, event),
    }
}

fn section(text: &str) -> Value {
    json!({"type": "section", "text": {"type": "mrkdwn", "text": text}})
}

/// Cuts text that is already escaped: never inside an entity or a `<…>`, which is why the limits above are generous.
fn clip(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let cut: String = text.chars().take(limit - 1).collect();
    let safe = [
        cut.rfind('&').filter(|at| !cut[*at..].contains(';')),
        cut.rfind('<').filter(|at| !cut[*at..].contains('>')),
    ];
    let end = safe.into_iter().flatten().min().unwrap_or(cut.len());
    format!("{}…", &cut[..end])
}

/// Text in Slack's inline code, or nothing.
fn code(text: &str, limit: usize) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("`{}`", escape(text, limit))
    }
}

#[cfg(test)]
mod tests;
