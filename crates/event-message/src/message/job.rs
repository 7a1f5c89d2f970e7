//! Messages about a job's start and end.

use chrono::{DateTime, Utc};
use event_filter::price;
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, from_timestamp};

use super::{Message, Severity, advice};
use crate::{Link, Text, text};

pub fn started(event: &Event, cost: Option<&CostEvent>) -> Option<Message> {
    let job = event.job()?;
    let times = Times::of(job);
    let limit = job.time_limit_minutes.map_or("none".to_owned(), |minutes| {
        text::span(i64::from(minutes) * 60)
    });
    let heading = Text::from(format!("Job {} started", id(job)));
    let message = Message::line(Severity::Info, "▶️", heading, who(event, job))
        .fact("Nodes", nodes(job))
        .fact("Resources", Text::new().code(resources(job)))
        .fact("Burn rate", cost.map(burn_rate).unwrap_or_default())
        .fact("Time limit", limit)
        .fact("Waited", span(times.submitted, times.started))
        .fact("Started", moment(times.started));
    Some(about(message, event, job))
}

pub fn ended(kind: EventType, event: &Event, cost: Option<&CostEvent>) -> Option<Message> {
    let job = event.job()?;
    let times = Times::of(job);
    let ran = span(times.started, times.ended);
    let (severity, sign, word) = match kind {
        EventType::JobCompleted => (Severity::Good, "✅", "completed"),
        EventType::JobRequeued => (Severity::Warning, "↩️", "requeued"),
        EventType::JobPreempted => (Severity::Warning, "↩️", "preempted"),
        EventType::JobCancelled => (Severity::Warning, "🚫", "cancelled"),
        EventType::JobRevoked => (Severity::Info, "➡️", "revoked"),
        _ => (Severity::Error, "❌", "failed"),
    };
    let failed = severity == Severity::Error;
    let heading = if failed {
        format!("Job {} failed: {}", id(job), advice::cause(kind, job))
    } else {
        format!("Job {} {word}", id(job))
    };
    let node = match (kind, job.failed_node.as_str()) {
        (EventType::JobNodeFail | EventType::JobBootFail, node) if !node.is_empty() => {
            Text::new().code(node)
        }
        _ => nodes(job),
    };
    let unknown = if ran.is_empty() { "" } else { "not known yet" };
    let log = if failed {
        Text::new().code(&job.std_out)
    } else {
        Text::new()
    };
    let message = Message::line(severity, sign, Text::from(heading), who(event, job))
        .fact("Cause", cause(kind, event, job))
        .fact("Node", node)
        .fact("Ran for", ran)
        .fact("Ended", moment(times.ended))
        .fact("Cost", cost.map_or_else(|| Text::from(unknown), total))
        .fact("Output", log)
        .fact("What to try", advice::next(kind, job));
    Some(about(message, event, job))
}

/// Adds what all messages about jobs have in common: links and the footer.
fn about(mut message: Message, event: &Event, job: &Job) -> Message {
    message.links.extend(Link::of_comment(&job.comment));
    let account = event.owner.as_ref().map(|owner| owner.account.as_str());
    let account = account.filter(|account| !account.is_empty());
    message.footer = Text::from(format!("cluster {}", event.cluster))
        .plain(account.map_or(String::new(), |account| format!(", account {account}")));
    message
}

/// The cause, the actor and Slurm's reason. Empty for ends that need no explanation.
fn cause(kind: EventType, event: &Event, job: &Job) -> Text {
    if matches!(
        kind,
        EventType::JobCompleted | EventType::JobRequeued | EventType::JobRevoked
    ) {
        return Text::new();
    }
    let mut cause = advice::cause(kind, job);
    let by = event.actor.as_ref().map(by).unwrap_or_default();
    if !by.is_empty() {
        cause = format!("{cause}, {by}");
    }
    if matches!(job.reason.as_str(), "" | "None") {
        Text::from(cause)
    } else {
        Text::from(format!("{cause}, ")).code(&job.reason)
    }
}

fn by(actor: &Actor) -> String {
    match actor.kind() {
        ActorKind::User => "by its owner".to_owned(),
        ActorKind::Admin if actor.user.is_empty() => "by an administrator".to_owned(),
        ActorKind::Admin => format!("by {}", actor.user),
        ActorKind::Coordinator => format!("by {}, who coordinates its account", actor.user),
        ActorKind::Preemptor if !actor.job.is_empty() => format!("by job {}", actor.job),
        ActorKind::System => "by Slurm".to_owned(),
        ActorKind::Preemptor | ActorKind::Unspecified => String::new(),
    }
}

/// Slurm's id form: `123`, `123_4`, `123+1`.
pub fn id(job: &Job) -> String {
    if job.display_id.is_empty() {
        job.job_id.to_string()
    } else {
        text::cut(&job.display_id, 80)
    }
}

/// `*train* of Alice (alice) in partition gpu`.
pub fn who(event: &Event, job: &Job) -> Text {
    let owner = event.owner.as_ref();
    let user = owner.map(|owner| owner.user.as_str()).unwrap_or_default();
    let person = owner
        .and_then(|owner| owner.identity.as_ref())
        .map(|identity| identity.name.as_str())
        .filter(|name| !name.is_empty());
    let owner = self::person(person, user);
    let name = if job.name.trim().is_empty() {
        Text::from("A job")
    } else {
        Text::new().strong(shorter(&job.name))
    };
    name.plain(format!(
        " of {owner} in partition {}",
        shorter(&job.partition)
    ))
}

/// `Alice (alice)`, or the user name alone if the full name is unknown.
pub fn person(name: Option<&str>, user: &str) -> String {
    match name {
        Some(name) => format!("{} ({})", shorter(name), shorter(user)),
        None => shorter(user),
    }
}

/// Truncates a name to leave room for the rest.
fn shorter(name: &str) -> String {
    text::cut(name, 80)
}

/// The nodes, with their number if there are several.
fn nodes(job: &Job) -> Text {
    let count = if job.node_count > 1 {
        format!(" ({} nodes)", job.node_count)
    } else {
        String::new()
    };
    if job.nodes.is_empty() {
        Text::new()
    } else {
        Text::new().code(text::cut(&job.nodes, 250)).plain(count)
    }
}

pub fn burn_rate(cost: &CostEvent) -> Text {
    match (price::burn_rate(cost), &cost.estimated) {
        (Some(rate), Some(max)) => Text::from(format!(
            "{} per hour, {} if it runs to its time limit",
            text::money(rate),
            text::money(max)
        )),
        (Some(rate), None) => Text::from(format!("{} per hour", text::money(rate))),
        (None, _) => unpriced(cost),
    }
}

pub fn total(cost: &CostEvent) -> Text {
    match price::total(cost).or(price::accrued(cost)) {
        Some(money) => Text::from(text::money(money)),
        None => unpriced(cost),
    }
}

fn unpriced(cost: &CostEvent) -> Text {
    if cost.problem.is_empty() {
        Text::from("unpriced")
    } else {
        Text::from(format!("unpriced: {}", cost.problem))
    }
}

fn resources(job: &Job) -> &str {
    if job.alloc_tres.is_empty() {
        &job.req_tres
    } else {
        &job.alloc_tres
    }
}

fn moment(time: Option<DateTime<Utc>>) -> Text {
    time.map(|time| Text::new().time(time)).unwrap_or_default()
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
