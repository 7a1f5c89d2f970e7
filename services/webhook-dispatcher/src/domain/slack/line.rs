//! Everything but a job's start and end: one line each.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::queue::v1::Explanation;
use mesh_events::{Event, EventType, from_timestamp};

use super::job::{burn_rate, id, total, who};
use super::{LONG, Message, NAME, SENTENCE, code, escape};
use crate::domain::text;

pub fn of(kind: EventType, event: &Event) -> Option<Message> {
    let text = match event.payload.as_ref()? {
        Payload::Job(payload) => {
            let job = payload.job.as_ref()?;
            let sign = if kind == EventType::JobHeld {
                ":raised_hand:"
            } else {
                ":small_blue_diamond:"
            };
            format!(
                "{sign} Job {} {}: {}",
                id(job),
                kind.event().replace('_', " "),
                who(event, job)
            )
        }
        Payload::Queue(payload) => {
            let job = payload.job.as_ref()?;
            format!(
                ":hourglass_flowing_sand: Job {} waits: {}\n{}",
                id(job),
                explained(payload.explanation.as_ref()?),
                who(event, job)
            )
        }
        Payload::Node(payload) => {
            let node = payload.node.as_ref()?;
            let sign = match kind {
                EventType::NodeDown | EventType::NodePreempted => ":red_circle:",
                EventType::NodeDraining | EventType::NodeDrained => ":large_orange_circle:",
                EventType::NodeRecovered | EventType::NodeActive => ":large_green_circle:",
                _ => ":small_blue_diamond:",
            };
            let reason = if node.reason.is_empty() {
                String::new()
            } else {
                format!(" Reason: {}", escape(&node.reason, LONG))
            };
            format!(
                "{sign} Node {} {}: {}{reason}",
                code(&node.name, NAME),
                kind.event().replace('_', " "),
                kind.summary()
            )
        }
        Payload::Cost(payload) => {
            let job = payload.job.as_ref()?;
            let (word, amount) = match kind {
                EventType::CostEstimated => ("costs", burn_rate(payload)),
                EventType::CostAccrued => ("has cost so far", total(payload)),
                EventType::CostAdjusted => ("has a corrected cost", total(payload)),
                _ => ("has cost", total(payload)),
            };
            format!(
                ":coin: Job {} {word}: {amount}. {}",
                id(job),
                who(event, job)
            )
        }
        Payload::User(payload) => {
            let account = if payload.account.is_empty() {
                String::new()
            } else {
                format!(", account {}", code(&payload.account, NAME))
            };
            format!(
                ":bust_in_silhouette: {} User {}{account}",
                kind.summary(),
                code(&payload.user, NAME)
            )
        }
        Payload::Capture(payload) => {
            let sign = match kind {
                EventType::CaptureGapOpened | EventType::CaptureSourceDown => ":warning:",
                _ => ":satellite_antenna:",
            };
            let message = if payload.message.is_empty() {
                kind.summary().to_owned()
            } else {
                escape(&payload.message, LONG)
            };
            format!(
                "{sign} {message} Source: {}, cluster {}",
                code(&payload.source, NAME),
                escape(&event.cluster, NAME)
            )
        }
    };
    Some(Message::line(&text))
}

fn explained(explanation: &Explanation) -> String {
    let mut text = escape(&explanation.summary, SENTENCE / 2);
    if !explanation.advice.is_empty() {
        let advice = escape(&explanation.advice, SENTENCE / 2);
        match explanation.actor.as_str() {
            "" | "wait" => text.push_str(&format!("\n{advice}")),
            actor => text.push_str(&format!("\nWho can act: {}. {advice}", escape(actor, NAME))),
        }
    }
    if let Some(start) = explanation.expected_start.as_ref().and_then(from_timestamp) {
        text.push_str(&format!("\nExpected start: {}", text::slack_time(start)));
    }
    text
}
