//! Handles messages and snapshots: decide, write, publish.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use chrono::Utc;
use futures_util::{StreamExt as _, stream};
use mesh_bus::{BatchHandler, Bus, Disposition, Message};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, catalogue};
use mesh_runtime::Condition;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::adapters::store::{Shard, Store};
use crate::domain::evidence::Evidence;
use crate::domain::listing::Listing;
use crate::domain::queue::Queue;
use crate::domain::start_estimate::{ClusterQuality, EstimateBasis, StartEstimate};
use crate::domain::{ClusterView, timeline};
use crate::error::Error;
use crate::metrics;

/// The newest snapshots of each cluster.
pub type Snapshots = Arc<RwLock<HashMap<String, Snapshot>>>;

/// Index of the queue in [`Snapshot::revisions`].
const QUEUE: usize = 0;
/// Index of the evidence in [`Snapshot::revisions`].
const EVIDENCE: usize = 1;
/// Index of the list of jobs in [`Snapshot::revisions`].
const LISTING: usize = 2;

/// The newest snapshots of a cluster.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// The queue.
    pub queue: Option<Arc<Queue>>,
    /// What else decides about starts.
    pub evidence: Option<Arc<Evidence>>,
    /// When runs may start. Absent before the first queue with evidence.
    pub estimates: Option<Arc<HashMap<String, StartEstimate>>>,
    /// How often such estimates were right.
    pub quality: Option<Arc<ClusterQuality>>,
    /// What the estimates were made from.
    pub basis: Option<Arc<EstimateBasis>>,
    /// All jobs as squeue prints them.
    pub listing: Option<Arc<Listing>>,
    /// Revisions of the first chunks, so that only a new snapshot is read and assembled.
    revisions: [Option<u64>; 3],
}

impl Snapshot {
    /// What they show.
    pub fn view(&self) -> ClusterView<'_> {
        ClusterView {
            queue: self.queue.as_deref(),
            evidence: self.evidence.as_deref(),
            estimates: self.estimates.as_deref(),
        }
    }
}

/// State shared by the handlers.
#[derive(Clone)]
pub struct Explainer {
    /// Bus for events and snapshots.
    pub bus: Bus,
    /// Explanations of each run.
    pub store: Arc<Store>,
    /// Newest snapshots.
    pub snapshots: Snapshots,
    /// The configured cluster.
    pub cluster: String,
    /// Maximum number of shards written concurrently.
    pub concurrency: usize,
    /// Admits one question about other requests at a time: each takes a core for a moment.
    pub what_if: Arc<Semaphore>,
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
            let snapshot = self.snapshot(&event.cluster);
            shard.change(
                |runs| match timeline::apply_event(runs, &event, snapshot.view(), now) {
                    timeline::UpdateOutcome::Nothing => (false, Vec::new()),
                    timeline::UpdateOutcome::Noted => (true, Vec::new()),
                    timeline::UpdateOutcome::Publish(event) => {
                        explanation = Some((*event).clone());
                        (true, vec![*event])
                    }
                },
            );
            let (_, handled) = by_shard
                .entry(shard.key().to_owned())
                .or_insert_with(|| (shard, Vec::new()));
            handled.push(HandledMessage {
                index,
                explanation,
                span: message.handling(),
            });
        }
        let shards = by_shard
            .into_values()
            .map(|(shard, handled)| self.settle_shard(shard, handled));
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
        Error::Newer { .. } | Error::Json { .. } => {
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
        handled: Vec<HandledMessage>,
    ) -> Vec<(usize, Disposition)> {
        if let Err(error) = self.store.commit(&shard, &self.shutdown).await {
            let outcome = outcome_of(&error);
            return handled
                .into_iter()
                .map(|handled| (handled.index, outcome.clone()))
                .collect();
        }
        let mut outcomes = Vec::with_capacity(handled.len());
        for HandledMessage {
            index,
            explanation,
            span,
        } in handled
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
            self.read_evidence(cluster).await?;
            self.read_listing(cluster).await?;
            if self.read_queue(cluster).await?.is_some() {
                self.evaluate(cluster, &self.snapshot(cluster), &shards)
                    .await?;
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

    /// The newest snapshots of a cluster, empty before the first.
    pub fn snapshot(&self, cluster: &str) -> Snapshot {
        let snapshots = self
            .snapshots
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        snapshots.get(cluster).cloned().unwrap_or_default()
    }

    /// Replaces the evidence of a cluster by the newest one.
    async fn read_evidence(&self, cluster: &str) -> Result<(), Error> {
        let snapshot = self.snapshot(cluster);
        let last = snapshot.revisions[EVIDENCE];
        let stored = self.bus.chunks(catalogue::BUCKET_EVIDENCE, cluster, last);
        let read = stored
            .await?
            .and_then(|stored| Some((stored.revision, Evidence::from_chunks(stored.chunks)?)));
        let newest = match read {
            Some((revision, evidence)) => {
                let evidence = Arc::new(evidence);
                self.change_snapshot(cluster, |snapshot| {
                    snapshot.evidence = Some(Arc::clone(&evidence));
                    snapshot.revisions[EVIDENCE] = revision;
                });
                Some(evidence)
            }
            None => snapshot.evidence,
        };
        if let Some(evidence) = newest {
            metrics::evidence_age((Utc::now() - evidence.taken_at).num_seconds());
        }
        Ok(())
    }

    /// Replaces the list of jobs of a cluster by the newest one.
    async fn read_listing(&self, cluster: &str) -> Result<(), Error> {
        let last = self.snapshot(cluster).revisions[LISTING];
        let stored = self.bus.chunks(catalogue::BUCKET_LISTING, cluster, last);
        let read = stored
            .await?
            .and_then(|stored| Some((stored.revision, Listing::from_chunks(stored.chunks)?)));
        if let Some((revision, listing)) = read {
            let listing = Arc::new(listing);
            self.change_snapshot(cluster, |snapshot| {
                snapshot.listing = Some(Arc::clone(&listing));
                snapshot.revisions[LISTING] = revision;
            });
        }
        Ok(())
    }

    /// The newest queue of a cluster, if it is newer than the last one.
    async fn read_queue(&self, cluster: &str) -> Result<Option<Arc<Queue>>, Error> {
        let snapshot = self.snapshot(cluster);
        let last = snapshot.revisions[QUEUE];
        let stored = self.bus.chunks(catalogue::BUCKET_QUEUE, cluster, last);
        let read = stored
            .await?
            .and_then(|stored| Some((stored.revision, Queue::from_chunks(stored.chunks)?)));
        let Some((revision, queue)) = read else {
            if let Some(queue) = snapshot.queue {
                metrics::snapshot_age((Utc::now() - queue.taken_at).num_seconds());
            }
            return Ok(None);
        };
        metrics::snapshot_age((Utc::now() - queue.taken_at).num_seconds());
        let is_known = |last: &Arc<Queue>| !queue.is_news_after(last, Utc::now());
        if snapshot.queue.as_ref().is_some_and(is_known) {
            return Ok(None);
        }
        let queue = Arc::new(queue);
        self.change_snapshot(cluster, |snapshot| {
            snapshot.queue = Some(Arc::clone(&queue));
            snapshot.revisions[QUEUE] = revision;
        });
        Ok(Some(queue))
    }

    pub(crate) fn change_snapshot(&self, cluster: &str, change: impl FnOnce(&mut Snapshot)) {
        let mut snapshots = self
            .snapshots
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        change(snapshots.entry(cluster.to_owned()).or_default());
    }

    async fn evaluate(
        &self,
        cluster: &str,
        snapshot: &Snapshot,
        shards: &[Arc<Shard>],
    ) -> Result<(), Error> {
        let now = Utc::now();
        for shard in shards.iter().filter(|shard| shard.cluster() == cluster) {
            let mut events = Vec::new();
            let changed = shard.change(|runs| {
                let mut is_changed = false;
                for run in runs.values_mut() {
                    let update = timeline::apply_snapshot(run, cluster, snapshot.view(), now);
                    is_changed |= update.is_changed;
                    events.extend(update.event);
                }
                (is_changed, events.clone())
            });
            if changed {
                self.store.commit(shard, &self.shutdown).await?;
                for event in events {
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
