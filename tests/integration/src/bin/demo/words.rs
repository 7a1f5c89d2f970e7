//! Short texts for events.

use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::{Event, EventType, from_timestamp};
use serde_json::Value;

/// Subject of an event: a job's id as Slurm writes it, or a node.
pub fn subject(event: &Event) -> String {
    match event.job() {
        Some(job) if !job.display_id.is_empty() => job.display_id.clone(),
        Some(job) => job.job_id.to_string(),
        None => {
            let key = event.entity_key();
            key.split_once('/').map_or(key, |(_, name)| name).to_owned()
        }
    }
}

/// Content of an event.
pub fn event(kind: EventType, event: &Event) -> String {
    match &event.payload {
        Some(Payload::Job(payload)) => payload
            .job
            .as_ref()
            .map_or(String::new(), |job| of_job(kind, payload, job)),
        Some(Payload::Cost(cost)) => of_cost(kind, cost),
        Some(Payload::Queue(queue)) => {
            let explanation = queue.explanation.as_ref();
            explanation.map_or(String::new(), |explanation| {
                // Both are complete sentences.
                format!("{} {}", explanation.summary, explanation.advice)
            })
        }
        Some(Payload::Node(payload)) => {
            let node = payload.node.as_ref();
            let (stage, reason) = node.map_or(("", ""), |node| (&node.lifecycle, &node.reason));
            sentence(&[stage, &payload.cause, reason])
        }
        Some(Payload::Capture(capture)) => capture.message.clone(),
        Some(Payload::User(_)) | None => String::new(),
    }
}

fn of_job(kind: EventType, payload: &JobEvent, job: &Job) -> String {
    let seconds = || {
        let start = job.start_time.as_ref().and_then(from_timestamp)?;
        let end = job.end_time.as_ref().and_then(from_timestamp)?;
        Some(format!("after {} s", (end - start).num_seconds()))
    };
    let ran = if job.nodes.is_empty() {
        None
    } else {
        seconds()
    };
    let ran = ran.unwrap_or_default();
    match kind {
        EventType::JobSubmitted | EventType::JobBaseline => {
            let republished = payload
                .continues
                .as_ref()
                .map_or(String::new(), |continues| {
                    format!("again after {}", continues.cause)
                });
            sentence(&[
                &job.name,
                &format!("partition {}", job.partition),
                &republished,
            ])
        }
        EventType::JobStarted => {
            sentence(&[&job.name, &format!("on {}", job.nodes), &job.alloc_tres])
        }
        EventType::JobPending | EventType::JobHeld | EventType::JobReleased => {
            sentence(&[&job.name, &job.reason])
        }
        EventType::JobFailed => {
            let code = job
                .exit_code
                .as_ref()
                .map_or(String::new(), |code| match code.signal {
                    0 => format!("exit status {}", code.code),
                    signal => format!("signal {signal}"),
                });
            sentence(&[&job.name, &code, &ran])
        }
        EventType::JobCancelled if !payload.array_tasks.is_empty() => {
            sentence(&[&job.name, &format!("tasks {}", payload.array_tasks)])
        }
        EventType::JobUpdated => {
            let usage = job.usage.clone().unwrap_or_default();
            let percent = |permille: Option<u32>, of: &str| {
                permille.map_or_else(String::new, |permille| {
                    format!("used {} % of its {of}", permille / 10)
                })
            };
            sentence(&[
                &job.name,
                &percent(usage.cpu_efficiency_permille, "CPU time"),
                &percent(usage.memory_efficiency_permille, "memory"),
            ])
        }
        _ => sentence(&[&job.name, &ran]),
    }
}

fn of_cost(kind: EventType, cost: &CostEvent) -> String {
    if !cost.problem.is_empty() {
        return cost.problem.clone();
    }
    let amount = |money: &Option<Money>| money.as_ref().map_or(String::new(), money_text);
    match kind {
        EventType::CostEstimated => format!(
            "{} per hour, {} at its time limit",
            amount(&cost.burn_rate),
            amount(&cost.estimated)
        ),
        _ => format!("{} in {} s", amount(&cost.total), cost.charged_seconds),
    }
}

fn money_text(money: &Money) -> String {
    amount(money.micros, &money.currency)
}

/// `12.34 EUR`, with more digits for small amounts.
pub fn amount(micros: i64, currency: &str) -> String {
    let (units, rest) = (micros / 1_000_000, (micros % 1_000_000).abs());
    format!("{units}.{:04} {currency}", rest / 100)
}

/// The first text in a chat message.
pub fn chat(body: &Value) -> String {
    let text = body["text"].as_str().unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn sentence(parts: &[&str]) -> String {
    let parts: Vec<_> = parts.iter().filter(|part| !part.is_empty()).collect();
    parts
        .iter()
        .map(|part| part.trim())
        .collect::<Vec<_>>()
        .join(", ")
}
