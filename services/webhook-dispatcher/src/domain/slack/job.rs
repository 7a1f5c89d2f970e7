//! Messages about a job's start and end.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, from_timestamp};

use super::{LONG, Message, NAME, advice, code, escape};
use crate::domain::text;

pub fn started(event: &Event, cost: Option<&CostEvent>) -> Option<Message> {
    let job = event.job()?;
    let times = Times::of(job);
    let fields = [
        ("Nodes", code(&job.nodes, LONG)),
        ("Resources", code(resources(job), LONG)),
        ("Burn rate", cost.map(burn_rate).unwrap_or_default()),
        (
            "Time limit",
            job.time_limit_minutes.map_or("none".to_owned(), |minutes| {
                text::span(i64::from(minutes) * 60)
            }),
        ),
        ("Waited", span(times.submitted, times.started)),
        (
            "Started",
            times.started.map(text::slack_time).unwrap_or_default(),
        ),
    ];
    Some(Message::card(
        &format!(":arrow_forward: Job {} started", id(job)),
        &who(event, job),
        &fields,
        &footer(event),
    ))
}

pub fn ended(kind: EventType, event: &Event, cost: Option<&CostEvent>) -> Option<Message> {
    let job = event.job()?;
    let times = Times::of(job);
    let ran = span(times.started, times.ended);
    let (sign, word) = match kind {
        EventType::JobCompleted => (":white_check_mark:", "completed"),
        EventType::JobRequeued => (":leftwards_arrow_with_hook:", "requeued"),
        EventType::JobPreempted => (":leftwards_arrow_with_hook:", "preempted"),
        EventType::JobCancelled => (":no_entry_sign:", "cancelled"),
        EventType::JobRevoked => (":arrow_right:", "revoked"),
        _ => (":x:", "failed"),
    };
    let failed = word == "failed";
    let heading = if failed {
        format!(
            "{sign} Job {} failed: {}",
            id(job),
            advice::cause(kind, job)
        )
    } else {
        format!("{sign} Job {} {word}", id(job))
    };
    let node = match (kind, job.failed_node.as_str()) {
        (EventType::JobNodeFail | EventType::JobBootFail, node) if !node.is_empty() => node,
        _ => &job.nodes,
    };
    let unknown = if ran.is_empty() { "" } else { "not known yet" };
    let fields = [
        ("Cause", cause(kind, event, job)),
        ("Node", code(node, LONG)),
        ("Ran for", ran),
        (
            "Ended",
            times.ended.map(text::slack_time).unwrap_or_default(),
        ),
        ("Cost", cost.map_or(unknown.to_owned(), total)),
        (
            "Output",
            if failed {
                code(&job.std_out, LONG)
            } else {
                String::new()
            },
        ),
        ("What to try", advice::next(kind, job)),
    ];
    Some(Message::card(
        &heading,
        &who(event, job),
        &fields,
        &footer(event),
    ))
}

/// Cause, who did it and Slurm's reason; nothing for ends that need no explanation.
fn cause(kind: EventType, event: &Event, job: &Job) -> String {
    if matches!(
        kind,
        EventType::JobCompleted | EventType::JobRequeued | EventType::JobRevoked
    ) {
        return String::new();
    }
    let by = event.actor.as_ref().map(by).unwrap_or_default();
    let reason = if job.reason == "None" {
        String::new()
    } else {
        code(&job.reason, NAME)
    };
    let parts: Vec<_> = [advice::cause(kind, job), by, reason]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(", ")
}

fn by(actor: &Actor) -> String {
    match actor.kind() {
        ActorKind::User => "by its owner".to_owned(),
        ActorKind::Admin if actor.user.is_empty() => "by an administrator".to_owned(),
        ActorKind::Admin => format!("by {}", escape(&actor.user, NAME)),
        ActorKind::Preemptor if !actor.job.is_empty() => {
            format!("by job {}", escape(&actor.job, NAME))
        }
        ActorKind::System => "by Slurm".to_owned(),
        ActorKind::Preemptor | ActorKind::Unspecified => String::new(),
    }
}

/// Slurm's id form: digits and `_+[]-,%`.
pub fn id(job: &Job) -> String {
    if job.display_id.is_empty() {
        job.job_id.to_string()
    } else {
        escape(&job.display_id, NAME)
    }
}

/// `*train* of Alice (alice) in partition gpu`.
pub fn who(event: &Event, job: &Job) -> String {
    let owner = event.owner.as_ref();
    let user = owner
        .map(|owner| escape(&owner.user, NAME))
        .unwrap_or_default();
    let person = owner
        .and_then(|owner| owner.identity.as_ref())
        .map(|identity| escape(&identity.name, NAME))
        .unwrap_or_default();
    let owner = if person.is_empty() {
        user
    } else {
        format!("{person} ({user})")
    };
    let name = if job.name.is_empty() {
        "A job".to_owned()
    } else {
        format!("*{}*", escape(&job.name, NAME))
    };
    format!(
        "{name} of {owner} in partition {}",
        escape(&job.partition, NAME)
    )
}

pub fn burn_rate(cost: &CostEvent) -> String {
    match (&cost.burn_rate, &cost.estimated) {
        (Some(rate), Some(most)) => format!(
            "{} per hour, {} if it runs to its time limit",
            amount(rate),
            amount(most)
        ),
        (Some(rate), None) => format!("{} per hour", amount(rate)),
        (None, _) => no_price(cost),
    }
}

pub fn total(cost: &CostEvent) -> String {
    cost.total
        .as_ref()
        .or(cost.accrued.as_ref())
        .map_or_else(|| no_price(cost), amount)
}

fn no_price(cost: &CostEvent) -> String {
    if cost.problem.is_empty() {
        "no price".to_owned()
    } else {
        format!("no price: {}", escape(&cost.problem, LONG))
    }
}

fn amount(money: &Money) -> String {
    escape(&text::money(money), NAME)
}

fn resources(job: &Job) -> &str {
    if job.alloc_tres.is_empty() {
        &job.req_tres
    } else {
        &job.alloc_tres
    }
}

fn footer(event: &Event) -> String {
    let account = event
        .owner
        .as_ref()
        .map(|owner| owner.account.as_str())
        .unwrap_or_default();
    let account = if account.is_empty() {
        String::new()
    } else {
        format!(", account {}", escape(account, NAME))
    };
    format!("cluster {}{account}", escape(&event.cluster, NAME))
}

struct Times {
    submitted: Option<DateTime<Utc>>,
    started: Option<DateTime<Utc>>,
    ended: Option<DateTime<Utc>>,
}

impl Times {
    fn of(job: &Job) -> Self {
        Self {
            submitted: job.submit_time.as_ref().and_then(from_timestamp),
            started: job.start_time.as_ref().and_then(from_timestamp),
            ended: job.end_time.as_ref().and_then(from_timestamp),
        }
    }
}

fn span(from: Option<DateTime<Utc>>, until: Option<DateTime<Utc>>) -> String {
    from.zip(until)
        .map(|(from, until)| text::span((until - from).num_seconds()))
        .unwrap_or_default()
}
