//! Messages with a heading and a sentence, for all events except a job's start and end.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::node::v1::Node;
use mesh_events::proto::mesh::queue::v1::Explanation;
use mesh_events::proto::mesh::user::v1::Notice;
use mesh_events::{Event, EventType, from_timestamp};

use super::job::{burn_rate, id, total, who};
use super::{Message, Severity, budget};
use crate::{Text, text};

pub fn of(kind: EventType, event: &Event) -> Option<Message> {
    let word = kind.event().replace('_', " ");
    let message = match event.payload.as_ref()? {
        Payload::Job(payload) => {
            let job = payload.job.as_ref()?;
            let (severity, sign) = if kind == EventType::JobHeld {
                (Severity::Warning, "✋")
            } else {
                (Severity::Info, "🔹")
            };
            let heading = Text::from(format!("Job {} {word}", id(job)));
            Message::line(severity, sign, heading, who(event, job))
        }
        Payload::Queue(payload) => {
            let job = payload.job.as_ref()?;
            let heading = Text::from(format!("Job {} waits", id(job)));
            explained(
                Message::line(Severity::Info, "⏳", heading, who(event, job)),
                payload.explanation.as_ref()?,
            )
        }
        Payload::Node(payload) => {
            node(kind, &word, payload.node.as_ref()?).fact("Cause", payload.cause.as_str())
        }
        // What a run used comes after most ends. It changes no cost, so it is no news.
        Payload::Cost(payload) if payload.reason == "usage" => return None,
        Payload::Cost(payload) => {
            let job = payload.job.as_ref()?;
            let (word, amount) = match kind {
                EventType::CostEstimated => ("costs", burn_rate(payload)),
                EventType::CostAccrued => ("has cost so far", total(payload)),
                EventType::CostAdjusted => ("has a corrected cost", total(payload)),
                _ => ("has cost", total(payload)),
            };
            let heading = Text::from(format!("Job {} {word} ", id(job))).and(amount);
            let message = Message::line(Severity::Info, "🪙", heading, who(event, job));
            match kind {
                EventType::CostAccrued => message.fact("Burn rate", burn_rate(payload)),
                _ => message,
            }
        }
        Payload::User(payload) => {
            let severity = match kind {
                EventType::UserQuotaExceeded => Severity::Error,
                EventType::UserQuotaHigh => Severity::Warning,
                EventType::UserQuotaCleared => Severity::Good,
                _ => Severity::Info,
            };
            if let Some(message) = budget::of(severity, &word, payload) {
                return Some(with_cluster(message, event));
            }
            if let Some(notice) = &payload.notice {
                let message = match payload.attribute.as_str() {
                    "Step" => of_step(&payload.after, notice),
                    _ => of_rule(kind, notice),
                };
                return Some(with_cluster(message, event));
            }
            let heading = if payload.user.is_empty() {
                Text::from("Account ").code(text::cut(&payload.account, 80))
            } else {
                Text::from("User ").code(text::cut(&payload.user, 80))
            };
            let message = Message::line(
                severity,
                "👤",
                heading.plain(format!(": {word}")),
                Text::from(kind.summary()),
            );
            message
                .fact("Account", Text::new().code(&payload.account))
                .fact("What", payload.attribute.as_str())
                .fact("Before", payload.before.as_str())
                .fact("After", payload.after.as_str())
        }
        Payload::Capture(payload) => {
            let (severity, sign) = match kind {
                EventType::CaptureGapOpened | EventType::CaptureSourceDown => {
                    (Severity::Warning, "⚠️")
                }
                _ => (Severity::Info, "📡"),
            };
            let sentence = if payload.message.is_empty() {
                kind.summary()
            } else {
                &payload.message
            };
            let heading = Text::from("Capture from ")
                .code(text::cut(&payload.source, 80))
                .plain(format!(": {word}"));
            Message::line(severity, sign, heading, Text::from(sentence))
                .fact("Lost permanently", payload.not_recoverable.as_str())
        }
    };
    Some(with_cluster(message, event))
}

fn with_cluster(mut message: Message, event: &Event) -> Message {
    if message.footer.is_empty() {
        message.footer = Text::from(format!("cluster {}", event.cluster));
    }
    message
}

/// What a rule tells or asks. Its text has data from outside, so it is no markup.
fn of_rule(kind: EventType, notice: &Notice) -> Message {
    let (severity, sign, rest) = match kind {
        EventType::UserApprovalRequested => (Severity::Warning, "✋", ": a run waits for approval"),
        _ => (Severity::Info, "🔔", ""),
    };
    let heading = Text::from("Rule ").code(text::cut(&notice.rule, 80));
    let sentence = Text::from(text::cut(&notice.text, 500));
    let data = notice.data.iter().take(10);
    let data: Vec<String> = data
        .map(|(name, value)| format!("{name}: {}", text::cut(value, 100)))
        .collect();
    let expires = notice.expires.as_ref().and_then(from_timestamp);
    Message::line(severity, sign, heading.plain(rest), sentence)
        .fact("Data", data.join(", "))
        .fact("Run", Text::new().code(&notice.run))
        .fact(
            "Until",
            expires.map(|at| Text::new().time(at)).unwrap_or_default(),
        )
}

/// What the SPANK plugin reports of a step.
fn of_step(step: &str, notice: &Notice) -> Message {
    let has_failed = notice.data.get("failed").is_some_and(|count| count != "0");
    let (severity, sign) = match has_failed {
        true => (Severity::Error, "❌"),
        false => (Severity::Info, "🔔"),
    };
    let tasks = notice.data.iter().filter_map(|(name, exit_code)| {
        let task = name.strip_prefix("task.")?;
        Some(format!("task {task}: {exit_code}"))
    });
    let tasks: Vec<String> = tasks.take(10).collect();
    let heading = Text::from("Step ").code(text::cut(step, 80));
    let sentence = Text::from(text::cut(&notice.text, 500));
    Message::line(severity, sign, heading, sentence).fact("Exit codes", tasks.join(", "))
}

fn node(kind: EventType, word: &str, node: &Node) -> Message {
    let (severity, sign) = match kind {
        EventType::NodeDown | EventType::NodePreempted => (Severity::Error, "🔴"),
        EventType::NodeDraining | EventType::NodeDrained => (Severity::Warning, "🟠"),
        EventType::NodeRecovered | EventType::NodeActive => (Severity::Good, "🟢"),
        _ => (Severity::Info, "🔹"),
    };
    let heading = Text::from("Node ")
        .code(text::cut(&node.name, 80))
        .plain(format!(" {word}"));
    Message::line(severity, sign, heading, Text::from(kind.summary()))
        .fact("Reason", node.reason.as_str())
        .fact("Partitions", node.partitions.join(", "))
}

fn explained(message: Message, explanation: &Explanation) -> Message {
    let actor = match explanation.actor.as_str() {
        "" | "wait" => "",
        actor => actor,
    };
    let start = explanation.expected_start.as_ref().and_then(from_timestamp);
    message
        .fact("Why", Text::marked(&explanation.summary))
        .fact("Who can act", actor)
        .fact("What to do", Text::marked(&explanation.advice))
        .fact(
            "Expected start",
            start
                .map(|start| Text::new().time(start))
                .unwrap_or_default(),
        )
}
