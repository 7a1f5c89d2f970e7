//! From events to runs: every event is evaluated against the rules, and acknowledged after its runs are in the database.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use event_filter::DecodedEvent;
use mesh_bus::{BatchHandler, Disposition, Message, trace};
use mesh_events::catalogue::MESH_IN;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Category, EventType, IncomingEvent, from_timestamp, subject};
use mesh_runtime::Condition;
use slurm_submit::SubmitKey;
use tokio::sync::{Notify, watch};

use crate::adapters::ends::JobEnd;
use crate::adapters::plan::Planned;
use crate::adapters::store::Store;
use crate::config::Config;
use crate::domain::budget::BudgetState;
use crate::domain::firing::{self, Firing};
use crate::domain::guards;
use crate::domain::index::Rules;
use crate::domain::intent::IntentState;
use crate::domain::message::SourceMessage;
use crate::domain::source::Transport;
use crate::driver;
use crate::error::Error;
use crate::metrics;
use crate::recovery::Recovery;

/// Delay before a batch is retried after a database error.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one attempt, which detects a server that is gone silently. Well within the consumer's ack wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Plans the runs of events.
#[derive(Clone)]
pub(crate) struct EventEvaluator {
    pub store: Store,
    pub rules: watch::Receiver<Arc<Rules>>,
    pub config: Config,
    /// Cluster of this process.
    pub cluster: Arc<str>,
    /// Notifies the driver and the outbox.
    pub due_runs: Arc<driver::DueRuns>,
    pub recorded: Arc<Notify>,
    /// Condition: the database accepts writes.
    pub database: Condition,
    pub recovery: Recovery,
}

/// What an event means beside the rules that it fires.
enum Observation {
    /// A job ended.
    Ended(JobEnd),
    /// Slurm's controller answers again.
    SourceUp { cluster: String },
    /// A budget of this cluster is exceeded, or has room again.
    Budget(BudgetState),
}

impl BatchHandler for EventEvaluator {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let mut outcomes = vec![Disposition::Ack; messages.len()];
        let rules = Arc::clone(&self.rules.borrow());
        let (mut firings, mut observations) = (Vec::new(), Vec::new());
        let (mut evaluated, mut too_old) = (0, 0);
        for (message, outcome) in messages.iter().zip(&mut outcomes) {
            let first = firings.len();
            if message.stream == MESH_IN {
                match incoming(message, &rules) {
                    Ok(found) => {
                        evaluated += 1;
                        for event in &found {
                            too_old += fire_incoming(message, event, &rules, &mut firings);
                        }
                        self.recovery.mark(message, &mut firings[first..]);
                    }
                    Err(reason) => {
                        metrics::events("rejected", 1);
                        *outcome = Disposition::DeadLetter { reason };
                    }
                }
                continue;
            }
            let event: DecodedEvent = match message.event() {
                Ok(event) => event.into(),
                Err(error) => {
                    metrics::events("rejected", 1);
                    *outcome = Disposition::DeadLetter {
                        reason: mesh_runtime::error_chain(&error),
                    };
                    continue;
                }
            };
            // A type of a newer version fires nothing.
            let Ok(kind) = event.kind() else { continue };
            evaluated += 1;
            observations.extend(observation(kind, &event, &self.cluster));
            let at = event.occurred_at.as_ref().and_then(from_timestamp);
            let age = at.map(|at| Utc::now() - at);
            let age = age.and_then(|age| age.to_std().ok()).unwrap_or_default();
            for rule in rules.matching(kind, &event) {
                if guards::is_too_old(rule, age) {
                    too_old += 1;
                    continue;
                }
                let traceparent = message.handling().in_scope(trace::traceparent);
                let traceparent = traceparent.unwrap_or_default();
                firings.extend(firing::of_event(rule, kind, &event, traceparent));
            }
            self.recovery.mark(message, &mut firings[first..]);
        }
        let storing = self.store_all(&firings, observations);
        let stored = tokio::time::timeout(ATTEMPT_TIMEOUT, storing).await;
        match stored.unwrap_or(Err(Error::TooSlow(ATTEMPT_TIMEOUT))) {
            Ok(()) => {
                self.database.ok();
                metrics::events("evaluated", evaluated);
                metrics::events("too_old", too_old);
                outcomes
            }
            Err(error) => {
                // The whole batch is redelivered. Runs that were planned are found by their keys.
                let reason = mesh_runtime::error_chain(&error);
                tracing::warn!(error = reason, "runs not planned, retrying");
                self.database.fail(reason);
                vec![Disposition::Nak { after: RETRY_DELAY }; messages.len()]
            }
        }
    }
}

impl EventEvaluator {
    async fn store_all(
        &self,
        firings: &[Firing],
        observations: Vec<Observation>,
    ) -> Result<(), Error> {
        let now = Utc::now();
        // First, so that the limit on running jobs counts an end before the firing that it causes.
        let mut ends = Vec::new();
        for observation in observations {
            match observation {
                Observation::Ended(end) => ends.push(end),
                Observation::SourceUp { cluster } => {
                    let at = now + self.config.confirm_after;
                    self.store.check_again(&cluster, at, now).await?;
                    self.due_runs.notify();
                }
                Observation::Budget(state) => self.store.store_budget(&state).await?,
            }
        }
        for end in self.store.ends_of_runs(ends).await? {
            if self.store.job_ended(&end).await? {
                // Another may wait for it.
                self.due_runs.notify();
            }
        }
        if firings.is_empty() {
            return Ok(());
        }
        let site = self.config.site_limits();
        let planned = self.store.plan(firings, &site, now).await?;
        report(firings, &planned);
        self.due_runs.notify();
        self.recorded.notify_one();
        Ok(())
    }
}

/// The events of a message of `MESH_IN`.
fn incoming(message: &Message, rules: &Rules) -> Result<Vec<IncomingEvent>, String> {
    let Some((cluster, name)) = subject::raw_source(&message.subject) else {
        let event = serde_json::from_slice(&message.body);
        return event
            .map(|event| vec![event])
            .map_err(|error| error.to_string());
    };
    let source = rules.source(&name);
    let source = source.filter(|source| source.transport == Transport::Nats);
    let source = source.ok_or_else(|| format!("no source {name:?} of kind nats"))?;
    let id = ["Nats-Msg-Id", "ce-id"]
        .into_iter()
        .find_map(|header| message.header(header));
    let place = message.stream_sequence.to_string();
    let message = SourceMessage {
        cluster: &cluster,
        source: &name,
        id: id.unwrap_or(&place),
        r#type: message.header("ce-type"),
        at: message.published,
        body: &message.body,
    };
    message.events(source.format)
}

/// Adds the firings of an event from outside. Returns how many rules it is too old for.
fn fire_incoming(
    message: &Message,
    event: &IncomingEvent,
    rules: &Rules,
    firings: &mut Vec<Firing>,
) -> u64 {
    let Some((_, source)) = event.place() else {
        return 0;
    };
    let age = (Utc::now() - event.time).to_std().unwrap_or_default();
    let traceparent = message.handling().in_scope(trace::traceparent);
    let traceparent = traceparent.unwrap_or_default();
    let mut too_old = 0;
    for rule in rules.of_source(source) {
        match firing::of_incoming(rule, event, &traceparent) {
            Some(_) if guards::is_too_old(rule, age) => too_old += 1,
            firing => firings.extend(firing),
        }
    }
    too_old
}

/// Logs and counts what became of firings.
pub(crate) fn report(firings: &[Firing], planned: &[Planned]) {
    for (firing, planned) in firings.iter().zip(planned) {
        let (rule, event) = (&firing.rule.id, &firing.cause.event_id);
        match planned.state {
            None if planned.is_joined => {
                metrics::firing("joined");
                tracing::info!(%rule, event.id = event, run.key = planned.key, "task joined the run of its array");
            }
            None => metrics::firing("repeated"),
            Some(IntentState::Refused) => {
                metrics::firing(planned.refusal);
                tracing::info!(%rule, event.id = event, reason = planned.reason, "firing refused");
            }
            Some(state) => {
                metrics::firing(state.as_str());
                tracing::info!(%rule, event.id = event, run.key = planned.key, "rule fired");
            }
        }
    }
}

fn observation(kind: EventType, event: &DecodedEvent, own_cluster: &str) -> Option<Observation> {
    let cluster = event.cluster.clone();
    if kind.category() == Category::User {
        // The same name elsewhere is another person.
        let state = BudgetState::of(kind, event).filter(|_| cluster == own_cluster);
        return state.map(Observation::Budget);
    }
    match (kind, event.job(), &event.payload) {
        (EventType::CaptureSourceUp, _, Some(Payload::Capture(_))) => {
            Some(Observation::SourceUp { cluster })
        }
        // After a requeue the job goes on.
        (EventType::JobRequeued, ..) => None,
        (kind, Some(job), _) if kind.is_end() => Some(Observation::Ended(JobEnd {
            cluster,
            key: SubmitKey::in_comment(&job.comment),
            user: event
                .owner
                .as_ref()
                .map_or_else(String::new, |owner| owner.user.clone()),
            job_id: job.job_id,
            at: event
                .occurred_at
                .as_ref()
                .and_then(from_timestamp)
                .unwrap_or_default(),
            how: kind.event().to_owned(),
            restarts: job.restarts.unwrap_or(0),
        })),
        _ => None,
    }
}
