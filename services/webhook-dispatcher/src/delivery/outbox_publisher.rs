//! Publishes the outcomes of deliveries: an audit entry for each, and a dead letter for each failed one.
//!
//! Outcomes stay in the database until JetStream has acknowledged both, so neither a restart nor a NATS outage loses
//! one. Message ids are derived from endpoint and event, so a repeated publish is stored once.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use audit_outbox::AuditRow;
use chrono::{DateTime, Utc};
use mesh_bus::{Backoff, Bus, RawMessage};
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{
    AuditEntry, DeadLetter, Delivery as Audited, WebhookChanged,
};
use mesh_events::{subject, timestamp};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::attempt::cause::Cause;
use crate::delivery::EndpointWorker;
use crate::delivery::worker_context::WorkerContext;
use crate::error::Error;
use crate::names;
use crate::repeat::RETRY_INTERVAL;
use crate::store::endpoints::ACTS;
use crate::store::outbox::Key;
use crate::store::{Delivery, State};
use crate::stream::SERVICE;

/// Outcomes per round.
const BATCH_SIZE: u32 = 512;
/// How long outcomes are batched: audit entries are not urgent, and a batch costs the server one sync.
const GATHER_INTERVAL: Duration = Duration::from_millis(100);

/// Publishes outcomes until shutdown, then the remaining ones if NATS accepts them.
pub async fn run(shared: Arc<WorkerContext>, shutdown: CancellationToken) {
    loop {
        let stopping = shutdown.is_cancelled();
        let pause = match round(&shared).await {
            Ok(Round::All) if stopping => return,
            Ok(Round::All) => {
                tokio::select! {
                    () = shared.outcomes.notified() => {}
                    () = shutdown.cancelled() => {}
                }
                GATHER_INTERVAL
            }
            Ok(Round::More) => Duration::ZERO,
            Ok(Round::Refused) if stopping => return,
            Ok(Round::Refused) => RETRY_INTERVAL,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "publishing outcomes failed, retrying"
                );
                if stopping {
                    return;
                }
                RETRY_INTERVAL
            }
        };
        Backoff::fixed(pause).wait(&shutdown).await;
    }
}

enum Round {
    /// Everything is published.
    All,
    /// There may be more outcomes.
    More,
    /// NATS did not acknowledge some.
    Refused,
}

async fn round(shared: &WorkerContext) -> Result<Round, Error> {
    let endpoints = shared
        .owned
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let outcomes = shared.store.outbox(endpoints, BATCH_SIZE).await?;
    let database = &shared.store.database;
    if outcomes.is_empty() && ACTS.unpublished(database, 1).await?.is_empty() {
        return Ok(Round::All);
    }
    if !shared.bus.connected() || shared.store.check_writes().is_err() {
        return Ok(Round::Refused);
    }
    let acts_sent = match ACTS.publish(database, &shared.bus, &shared.cluster).await {
        Ok(_) => true,
        Err(audit_outbox::Error::Database(error)) => return Err(error.into()),
        Err(audit_outbox::Error::Bus(error)) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "audit entry not published"
            );
            false
        }
    };
    let count = outcomes.len();
    let sent = publish_outcomes(&shared.bus, &shared.cluster, outcomes).await;
    let all = acts_sent && sent.len() == count;
    shared.store.mark_published(sent).await?;
    Ok(if all { Round::More } else { Round::Refused })
}

/// Publishes outcomes. Returns the keys of those that were acknowledged.
async fn publish_outcomes(bus: &Bus, cluster: &str, outcomes: Vec<Delivery>) -> Vec<Key> {
    // The dispatcher's own messages have no entries: they concern events that have entries already.
    let (events, own): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|outcome| names::is_event(&outcome.event_id));
    let (dead, mut others): (Vec<_>, Vec<_>) = events
        .into_iter()
        .partition(|outcome| outcome.state == State::Dead);
    // Dead letters first, so that a reader of the audit entry finds the letter.
    let letters: Vec<RawMessage> = dead.iter().map(dead_letter).collect();
    others.extend(acknowledged(dead, bus.publish_many(&letters).await));
    let mut entry = AuditEntry {
        cluster: cluster.to_owned(),
        kind: "delivery".to_owned(),
        service: SERVICE.to_owned(),
        ..AuditEntry::default()
    };
    let subject = subject::audit(cluster, &entry.kind);
    let (keys, entries): (Vec<_>, Vec<_>) = others
        .into_iter()
        .map(|outcome| audit_entry(&mut entry, &subject, outcome))
        .unzip();
    let audited = acknowledged(keys, bus.publish_many(&entries).await);
    own.iter().map(Key::of).chain(audited).collect()
}

/// Those of which the bus acknowledged the message.
fn acknowledged<T>(
    all: Vec<T>,
    results: Vec<Result<(), mesh_bus::Error>>,
) -> impl Iterator<Item = T> {
    let together = all.into_iter().zip(results);
    together.filter_map(|(one, result)| match result {
        Ok(()) => Some(one),
        Err(error) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "outcome not published"
            );
            None
        }
    })
}

/// An audit entry about a change of an endpoint.
pub fn act(cluster: &str, changed: WebhookChanged, now: DateTime<Utc>) -> AuditRow {
    ACTS.entry(cluster, now, Act::Webhook(changed))
}

impl EndpointWorker {
    /// An audit entry about what the dispatcher itself does to the endpoint.
    pub(super) fn own_act(&self, what: &str, reason: &str, now: DateTime<Utc>) -> AuditRow {
        let changed = WebhookChanged {
            endpoint: self.endpoint.name.clone(),
            what: what.to_owned(),
            owner: self.endpoint.owner.clone(),
            reason: reason.to_owned(),
            ..WebhookChanged::default()
        };
        act(&self.shared.cluster, changed, now)
    }
}

fn outcome_id(outcome: &Delivery) -> String {
    names::outcome_id(&outcome.endpoint, &outcome.event_id, outcome.round)
}

fn dead_letter(outcome: &Delivery) -> RawMessage {
    let id = outcome_id(outcome);
    let letter = DeadLetter {
        id: id.clone(),
        consumer: format!("{SERVICE}/{}", outcome.endpoint),
        reason: outcome.error.clone(),
        at: Some(timestamp(outcome.updated_at)),
        subject: outcome.subject.clone(),
        body: outcome.body.to_vec(),
        stream: match names::replay(&outcome.event_id) {
            Some(_) => MESH_REPLAY.to_owned(),
            None => SLURM_EVENTS.to_owned(),
        },
        stream_sequence: outcome.stream_sequence,
        attempts: outcome.attempts,
        side: side(outcome).to_owned(),
    };
    RawMessage {
        subject: subject::dead(SERVICE),
        id,
        body: letter.encode_to_vec().into(),
    }
}

fn side(outcome: &Delivery) -> &'static str {
    outcome.cause.map_or("", |cause| cause.side().as_str())
}

/// Fills the entry with an outcome. All entries of a round share its other fields.
fn audit_entry(entry: &mut AuditEntry, subject: &str, outcome: Delivery) -> (Key, RawMessage) {
    let key = Key::of(&outcome);
    entry.id = outcome_id(&outcome);
    entry.at = Some(timestamp(outcome.updated_at));
    entry.act = Some(Act::Delivery(Audited {
        outcome: outcome.state.as_str().to_owned(),
        attempts: outcome.attempts,
        status: outcome.status.into(),
        cause: Cause::str_of(outcome.cause).to_owned(),
        side: side(&outcome).to_owned(),
        round: outcome.round,
        endpoint: outcome.endpoint,
        event_id: outcome.event_id,
        event_type: outcome.event_type,
        error: outcome.error,
    }));
    let message = RawMessage {
        subject: subject.to_owned(),
        id: entry.id.clone(),
        body: entry.encode_to_vec().into(),
    };
    (key, message)
}
