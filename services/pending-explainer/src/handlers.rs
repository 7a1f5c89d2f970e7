//! Handles messages and snapshots: decide, write, publish.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use chrono::Utc;
use futures_util::{StreamExt as _, stream};
use mesh_bus::{BatchHandler, Bus, Disposition, Message};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::queue::v1::QueueSnapshot;
use mesh_events::{Event, catalogue, subject};
use mesh_runtime::Condition;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::adapters::store::{Shard, Store};
use crate::domain::queue::Queue;
use crate::domain::timeline;
use crate::error::Error;
use crate::metrics;

/// The newest queue of each cluster.
pub type Queues = Arc<RwLock<HashMap<String, Arc<Queue>>>>;

/// State shared by the handlers.
#[derive(Clone)]
pub struct Explainer {
    /// Bus for events and snapshots.
    pub bus: Bus,
    /// Explanations of each run.
    pub store: Arc<Store>,
    /// Newest snapshots.
    pub queues: Queues,
    /// The configured cluster.
    pub cluster: String,
    /// Maximum number of shards written concurrently.
    pub concurrency: usize,
    /// Shutdown signal.
    pub shutdown: CancellationToken,
}

impl BatchHandler for Explainer {
    /// Events are applied one after the other, because events of a run depend on each other. Their shards are then written
    /// concurrently.
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let now = Utc::now();
        let mut outcomes = vec![Disposition::Ack; messages.len()];
        let mut by_shard: BTreeMap<String, (Arc<Shard>, Vec<HandledMessage>)> = BTreeMap::new();
        for (index, message) in messages.iter().enumerate() {
            let event = match message.event() {
                Ok(event) => event,
                Err(error) => {
                    outcomes[index] = Disposition::DeadLetter {
                        reason: mesh_runtime::error_chain(&error),
                    };
                    continue;
                }
            };
            let Some(job) = event.job() else { continue };
            let shard = match self.store.shard(&event.cluster, &job.run).await {
                Ok(shard) => shard,
                Err(error) => {
                    outcomes[index] = outcome_of(&error);
                    continue;
                }
            };
            let mut explanation = None;
            shard.change(|runs| match timeline::heard(runs, &event, now) {
                timeline::UpdateOutcome::Nothing => (false, Vec::new()),
                timeline::UpdateOutcome::Noted => (true, Vec::new()),
                timeline::UpdateOutcome::Publish(event) => {
                    explanation = Some((*event).clone());
                    (true, vec![*event])
                }
            });
            let (_, heard) = by_shard
                .entry(shard.key().to_owned())
                .or_insert_with(|| (shard, Vec::new()));
            heard.push(HandledMessage {
                index,
                explanation,
                span: message.handling(),
            });
        }
        let shards = by_shard
            .into_values()
            .map(|(shard, heard)| self.settle_shard(shard, heard));
        let settled: Vec<_> = stream::iter(shards)
            .buffer_unordered(self.concurrency)
            .collect()
            .await;
        for (index, outcome) in settled.into_iter().flatten() {
            outcomes[index] = outcome;
        }
        outcomes
    }
}

/// A message of a batch that was applied.
struct HandledMessage {
    index: usize,
    explanation: Option<Event>,
    span: Span,
}

fn outcome_of(error: &Error) -> Disposition {
    match error {
        // Another instance was faster. Its state has been read, so the retry follows at once.
        Error::Conflict { .. } => Disposition::Nak {
            after: Duration::from_millis(100),
        },
        Error::State { .. } => {
            tracing::error!(error = mesh_runtime::error_chain(error), "state unusable");
            Disposition::Nak {
                after: Duration::from_secs(30),
            }
        }
        Error::Bus(_) => {
            tracing::debug!(
                error = mesh_runtime::error_chain(error),
                "explanation deferred"
            );
            Disposition::Nak {
                after: Duration::from_secs(1),
            }
        }
    }
}

impl Explainer {
    /// Writes a shard, then publishes the events of its messages in their order.
    async fn settle_shard(
        &self,
        shard: Arc<Shard>,
        heard: Vec<HandledMessage>,
    ) -> Vec<(usize, Disposition)> {
        if let Err(error) = self.store.commit(&shard, &self.shutdown).await {
            let outcome = outcome_of(&error);
            return heard
                .into_iter()
                .map(|heard| (heard.index, outcome.clone()))
                .collect();
        }
        let mut outcomes = Vec::with_capacity(heard.len());
        for HandledMessage {
            index,
            explanation,
            span,
        } in heard
        {
            let published = match &explanation {
                Some(event) => self.publish(&shard, event, "event").instrument(span).await,
                None => Ok(()),
            };
            outcomes.push((
                index,
                published.map_or_else(|error| outcome_of(&error), |()| Disposition::Ack),
            ));
        }
        outcomes
    }

    async fn publish(
        &self,
        shard: &Shard,
        event: &Event,
        cause: &'static str,
    ) -> Result<(), Error> {
        match self.bus.publish_until_done(event, &self.shutdown).await {
            Ok(_) => {
                shard.published(&event.id);
                if let Some(Payload::Queue(queue)) = &event.payload {
                    metrics::explained(
                        cause,
                        queue
                            .explanation
                            .as_ref()
                            .map_or("", |explanation| &explanation.reason_class),
                    );
                }
                Ok(())
            }
            // The event can never be published. Logged once and skipped, because it would block its shard's outbox forever.
            Err(error @ mesh_bus::Error::Invalid { .. }) => {
                tracing::error!(
                    error = mesh_runtime::error_chain(&error),
                    "explanation dropped"
                );
                shard.published(&event.id);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the queue periodically until shutdown, then stores that everything is published.
    pub async fn follow_queue(&self, every: Duration, health: &Condition) {
        loop {
            match self.tick().await {
                Ok(()) => health.ok(),
                Err(Error::Conflict { key }) => {
                    tracing::debug!(key, "state conflict: another instance wrote it, retrying")
                }
                Err(error) => {
                    health.fail(mesh_runtime::error_chain(&error));
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "queue evaluation failed"
                    );
                }
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    /// Publishes the remaining outbox, applies new snapshots, publishes changed estimates, and removes old runs.
    async fn tick(&self) -> Result<(), Error> {
        self.store.restore(&self.shutdown).await?;
        let shards = self.store.shards().await;
        for shard in &shards {
            for event in shard.outbox() {
                self.publish(shard, &event, "event").await?;
            }
        }
        let clusters: BTreeSet<&str> = shards
            .iter()
            .map(|shard| shard.cluster())
            .chain([self.cluster.as_str()])
            .collect();
        for cluster in clusters {
            if let Some(queue) = self.read_queue(cluster).await? {
                self.evaluate(cluster, &queue, &shards).await?;
            }
        }
        self.expire(&shards).await?;
        metrics::waiting(
            shards
                .iter()
                .map(|shard| {
                    shard.read(|runs| runs.values().filter(|run| run.left_at.is_none()).count())
                })
                .sum(),
        );
        self.store.settle(&self.shutdown).await
    }

    /// The newest queue of a cluster, if it is newer than the last one.
    async fn read_queue(&self, cluster: &str) -> Result<Option<Arc<Queue>>, Error> {
        let bucket = self.bus.bucket(catalogue::BUCKET_QUEUE).await?;
        let mut chunks = Vec::new();
        for entry in bucket.load(&subject::token(cluster)).await? {
            match QueueSnapshot::decode(entry.value) {
                Ok(chunk) => chunks.push(chunk),
                Err(error) => tracing::warn!(%error, key = entry.key, "queue snapshot unreadable"),
            }
        }
        let Some(queue) = Queue::from_chunks(chunks) else {
            return Ok(None);
        };
        metrics::snapshot_age((Utc::now() - queue.taken_at).num_seconds());
        let mut queues = self
            .queues
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_known = |last: &Arc<Queue>| !queue.is_news_after(last, Utc::now());
        if queues.get(cluster).is_some_and(is_known) {
            return Ok(None);
        }
        let queue = Arc::new(queue);
        queues.insert(cluster.to_owned(), Arc::clone(&queue));
        Ok(Some(queue))
    }

    async fn evaluate(
        &self,
        cluster: &str,
        queue: &Queue,
        shards: &[Arc<Shard>],
    ) -> Result<(), Error> {
        let now = Utc::now();
        for shard in shards.iter().filter(|shard| shard.cluster() == cluster) {
            let mut sayings = Vec::new();
            let changed = shard.change(|runs| {
                for (key, run) in runs.iter_mut() {
                    let place = queue.place(key);
                    sayings
                        .extend(place.and_then(|place| timeline::seen(run, cluster, place, now)));
                }
                (!sayings.is_empty(), sayings.clone())
            });
            if changed {
                self.store.commit(shard, &self.shutdown).await?;
                for event in sayings {
                    self.publish(shard, &event, "snapshot").await?;
                }
            }
        }
        Ok(())
    }

    async fn expire(&self, shards: &[Arc<Shard>]) -> Result<(), Error> {
        let now = Utc::now();
        for shard in shards {
            if shard.change(|runs| (timeline::expire(runs, now), Vec::new())) {
                self.store.commit(shard, &self.shutdown).await?;
            }
        }
        Ok(())
    }
}
