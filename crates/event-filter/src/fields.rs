//! The fields of an event for expressions, templates and GitHub's workflows: flat groups with plain names.
//!
//! A group that an event does not have is null, so an expression about a job is false for an event without one. A
//! field that Slurm does not report is null or empty. Money is a number in its currency, times are RFC 3339,
//! durations are seconds. docs/guide/webhook-formats.md lists all fields.

use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::{ActorKind, Confidence, Event, event::Payload};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, from_timestamp};
use serde_json::{Value, json};

use crate::{price, sample};

/// The fields of an event. Texts are truncated to `max` characters, lists to 100 entries.
pub fn of(event: &Event, cost: Option<&CostEvent>, max: usize) -> Value {
    let text = |text: &str| Value::from(cut(text, max));
    let owner = event.owner.as_ref().map(|owner| {
        let identity = owner.identity.as_ref();
        json!({
            "user": text(&owner.user),
            "account": text(&owner.account),
            "email": identity.map(|identity| text(&identity.email)),
            "name": identity.map(|identity| text(&identity.name)),
        })
    });
    let actor = event.actor.as_ref().map(|actor| {
        let kind = match actor.kind() {
            ActorKind::Unspecified => "unknown",
            ActorKind::User => "user",
            ActorKind::Admin => "admin",
            ActorKind::System => "system",
            ActorKind::Preemptor => "preemptor",
            ActorKind::Coordinator => "coordinator",
        };
        json!({"kind": kind, "user": text(&actor.user), "job": text(&actor.job)})
    });
    let own_cost = match &event.payload {
        Some(Payload::Cost(cost)) => Some(cost),
        _ => cost,
    };
    let node = match &event.payload {
        Some(Payload::Node(payload)) => payload.node.as_ref().map(|node| {
            json!({
                "name": text(&node.name),
                "state": text(&node.state),
                "lifecycle": text(&node.lifecycle),
                "previous_lifecycle": text(&payload.previous_lifecycle),
                "reason": text(&node.reason),
                "cause": text(&payload.cause),
                "partitions": node.partitions.iter().take(100).map(|p| text(p)).collect::<Vec<_>>(),
            })
        }),
        _ => None,
    };
    let change = match &event.payload {
        Some(Payload::User(payload)) => Some(json!({
            "user": text(&payload.user),
            "account": text(&payload.account),
            "attribute": text(&payload.attribute),
            "before": text(&payload.before),
            "after": text(&payload.after),
        })),
        _ => None,
    };
    let notice = match &event.payload {
        Some(Payload::User(payload)) => payload.notice.as_ref().map(|notice| {
            json!({
                "rule": text(&notice.rule),
                "run": text(&notice.run),
                "text": text(&notice.text),
                "expires": time(notice.expires.as_ref().and_then(from_timestamp)),
                "event_id": text(&notice.event_id),
            })
        }),
        _ => None,
    };
    let step = match &event.payload {
        Some(Payload::User(payload)) if payload.attribute == "Step" => {
            payload.notice.as_ref().map(|notice| {
                let value = |name: &str| notice.data.get(name);
                let number = |name: &str| value(name).and_then(|text| text.parse::<u32>().ok());
                json!({
                    "id": text(&payload.after),
                    "moment": value("moment").map(|moment| text(moment.as_str())),
                    "host": value("host").map(|host| text(host.as_str())),
                    "tasks": number("tasks"),
                    "failed": number("failed"),
                })
            })
        }
        _ => None,
    };
    let queue = match &event.payload {
        Some(Payload::Queue(payload)) => payload.explanation.as_ref().map(|explanation| {
            json!({
                "summary": text(&explanation.summary),
                "reason": text(&explanation.reason),
                "reason_class": text(&explanation.reason_class),
                "actor": text(&explanation.actor),
                "advice": text(&explanation.advice),
                "expected_start": time(explanation.expected_start.as_ref().and_then(from_timestamp)),
            })
        }),
        _ => None,
    };
    let capture = match &event.payload {
        Some(Payload::Capture(payload)) => Some(json!({
            "source": text(&payload.source),
            "message": text(&payload.message),
            "not_recoverable": text(&payload.not_recoverable),
        })),
        _ => None,
    };
    let category = event
        .kind()
        .map(|kind| kind.category().as_str())
        .unwrap_or_default();
    json!({
        "id": event.id,
        "type": event.r#type,
        "category": category,
        "cluster": text(&event.cluster),
        "time": time(event.occurred_at.as_ref().and_then(from_timestamp)),
        "subject": text(event.entity_key()),
        "late": event.late,
        "inferred": event.confidence() == Confidence::Inferred,
        "owner": owner,
        "actor": actor,
        "job": event.job().map(|job| self::job(job, max)),
        "node": node,
        "change": change,
        "notice": notice,
        "step": step,
        "cost": own_cost.map(self::cost),
        "queue": queue,
        "capture": capture,
    })
}

fn job(job: &Job, max: usize) -> Value {
    let text = |text: &str| Value::from(cut(text, max));
    let submitted = job.submit_time.as_ref().and_then(from_timestamp);
    let started = job.start_time.as_ref().and_then(from_timestamp);
    let ended = job.end_time.as_ref().and_then(from_timestamp);
    let seconds = |from: Option<DateTime<Utc>>, until: Option<DateTime<Utc>>| {
        from.zip(until)
            .map(|(from, until)| (until - from).num_seconds().max(0))
    };
    let tres = if job.alloc_tres.is_empty() {
        &job.req_tres
    } else {
        &job.alloc_tres
    };
    let count = |name: &str| {
        tres.split(',').find_map(|part| {
            part.strip_prefix(name)?
                .strip_prefix('=')?
                .parse::<u64>()
                .ok()
        })
    };
    json!({
        "id": text(if job.display_id.is_empty() { "" } else { &job.display_id }),
        "job_id": job.job_id,
        "run": text(&job.run),
        "name": text(&job.name),
        "partition": text(&job.partition),
        "qos": text(&job.qos),
        "state": text(&job.state),
        "reason": text(&job.reason),
        "exit_code": job.exit_code.as_ref().map(|exit| exit.code),
        "signal": job.exit_code.as_ref().map(|exit| exit.signal),
        "nodes": text(&job.nodes),
        "node_count": job.node_count,
        "failed_node": text(&job.failed_node),
        "cpus": count("cpu"),
        "gpus": count("gres/gpu"),
        "tres": text(tres),
        "array_job_id": job.array.as_ref().map(|array| array.job_id),
        "array_task_id": job.array.as_ref().and_then(|array| array.task_id),
        "restarts": job.restarts,
        "submit_time": time(submitted),
        "start_time": time(started),
        "end_time": time(ended),
        "waited_seconds": seconds(submitted, started),
        "run_seconds": seconds(started, ended),
        "time_limit_minutes": job.time_limit_minutes,
        "work_dir": text(&job.work_dir),
        "std_out": text(&job.std_out),
        "std_err": text(&job.std_err),
        "comment": text(&job.comment),
        "max_rss_mib": job.usage.as_ref().map(|usage| usage.max_rss_kib / 1024),
        "cpu_seconds": job.usage.as_ref().map(|usage| usage.cpu_seconds),
    })
}

fn cost(cost: &CostEvent) -> Value {
    let money = [&cost.total, &cost.accrued, &cost.burn_rate, &cost.estimated];
    let currency = money
        .into_iter()
        .flatten()
        .next()
        .map(|money| money.currency.as_str());
    json!({
        "total": amount(price::total(cost)),
        "accrued": amount(price::accrued(cost)),
        "per_hour": amount(price::burn_rate(cost)),
        "estimated": amount(cost.estimated.as_ref()),
        "currency": currency,
        "problem": cut(&cost.problem, 300),
    })
}

/// For display and comparison. The exact amount is in the event's micros.
fn amount(money: Option<&Money>) -> Value {
    money.map_or(Value::Null, |money| json!(money.micros as f64 / 1e6))
}

fn time(time: Option<DateTime<Utc>>) -> Value {
    time.map_or(Value::Null, |time| {
        time.to_rfc3339_opts(SecondsFormat::AutoSi, true).into()
    })
}

/// Truncates a text to `max` characters, followed by `…` if there were more.
pub fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// An event that has every group and field, to check expressions and templates when they are saved.
pub fn sample() -> Value {
    let mut event = sample::event(EventType::JobFailed);
    let mut fields = of(&event, Some(&sample::cost()), 200);
    let others = [
        EventType::NodeDown,
        EventType::UserQuotaExceeded,
        EventType::UserApprovalRequested,
        EventType::QueueExplained,
        EventType::CaptureGapOpened,
    ];
    for other in others
        .map(sample::event)
        .into_iter()
        .chain([sample::step()])
    {
        event = other;
        if let (Value::Object(fields), Value::Object(others)) = (&mut fields, of(&event, None, 200))
        {
            for (name, value) in others {
                if fields.get(&name).is_none_or(Value::is_null) {
                    fields.insert(name, value);
                }
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_every_field() {
        let page = include_str!("../../../docs/guide/webhook-formats.md");
        let Value::Object(fields) = sample() else {
            panic!("no fields")
        };
        for (name, value) in &fields {
            assert!(!value.is_null(), "the sample has no {name}");
            assert!(page.contains(&format!("`{name}`")), "{name}");
            let row = page
                .lines()
                .find(|line| line.starts_with(&format!("| `{name}`")));
            for field in value
                .as_object()
                .into_iter()
                .flat_map(serde_json::Map::keys)
            {
                assert!(
                    row.unwrap().contains(&format!("`{field}`")),
                    "{name}.{field}"
                );
            }
        }
    }
}
