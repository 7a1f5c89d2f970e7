//! Where everything comes together: readings in, events out, memory kept.
//!
//! One lock orders it all. What was recorded by Slurm is published first and remembered afterwards: after a crash it is told again with
//! the same id. What was sampled is written to the outbox of its shard, then published: after a crash it is told again with the same
//! id and the same count.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use mesh_bus::Bus;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Source, event::Payload};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId, EventType, RunKey, SCHEMA_VERSION, timestamp};
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::adapters::store::{Meta, Store};
use crate::config::Config;
use crate::domain::{
    self, Ask, Book, End, Fact, FactId, Look, Record, Remainder, Sighting, observe,
    settle_remainder, snapshot,
};
use crate::envelope::{Cause, Frame, other_run};
use crate::identity::IdentityMap;
use crate::{Error, metrics};

/// A reading on its way into the books.
pub struct Reading {
    /// What was read.
    pub sighting: Sighting,
    /// Digest of the sweep's row it was read for.
    pub digest: Option<u64>,
    /// True if no record of Slurm stands behind it.
    pub inferred: bool,
    /// Spans of the doorbells that led to it.
    pub links: Vec<Span>,
}

impl Reading {
    /// A reading nobody rang for.
    pub const fn new(sighting: Sighting) -> Self {
        Self {
            sighting,
            digest: None,
            inferred: false,
            links: Vec::new(),
        }
    }
}

/// What has to be asked after readings were taken in, by Slurm's ids of the records.
#[derive(Debug, Default)]
pub struct Asks {
    /// The controller again, soon.
    pub again: BTreeSet<u32>,
    /// Accounting.
    pub accounting: BTreeSet<u32>,
}

/// A job whose earlier run, or whose end, must be proven.
struct Unproven {
    since: Instant,
    /// Answers of accounting since.
    answers: u32,
}

/// The books, behind one lock.
pub struct Core {
    /// Every run that is remembered.
    pub book: Book,
    /// About the cluster.
    pub meta: Meta,
    store: Store,
    dirty: BTreeSet<u32>,
    /// The newest snapshot of runs that are not over.
    last: HashMap<RunKey, (Job, domain::Owner)>,
    unproven: HashMap<u32, Unproven>,
    /// Set when something was decided but not published: the books are ahead of the bus and must not be stored.
    ahead: bool,
}

/// The collector. Cheap to clone.
#[derive(Clone)]
pub struct Collector {
    /// The cluster.
    pub cluster: String,
    /// Settings.
    pub config: Arc<Config>,
    bus: Bus,
    identities: Arc<IdentityMap>,
    core: Arc<Mutex<Core>>,
    shutdown: CancellationToken,
}

impl Collector {
    /// Loads what is remembered and publishes what was on its way.
    ///
    /// # Errors
    /// If told to stop, or if what is stored cannot be read.
    pub async fn load(
        bus: Bus,
        cluster: &str,
        config: Arc<Config>,
        identities: Arc<IdentityMap>,
        shutdown: CancellationToken,
    ) -> Result<Self, Error> {
        let (store, loaded) = Store::load(&bus, cluster, &shutdown).await?;
        let republished = loaded.outbox.len();
        bus.publish_all(loaded.outbox, &shutdown).await?;
        let now = Utc::now().timestamp();
        let meta = loaded.meta.unwrap_or_else(|| Meta {
            capture_since: now,
            watermark: now,
            ..Meta::default()
        });
        tracing::info!(
            runs = loaded.book.len(),
            republished,
            first_start = !meta.baseline_done,
            "state loaded"
        );
        let core = Core {
            book: loaded.book,
            meta,
            store,
            dirty: BTreeSet::new(),
            last: HashMap::new(),
            unproven: HashMap::new(),
            ahead: false,
        };
        let core = Arc::new(Mutex::new(core));
        Ok(Self {
            cluster: cluster.to_owned(),
            config,
            bus,
            identities,
            core,
            shutdown,
        })
    }

    /// The books.
    pub async fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().await
    }

    /// Takes readings in: decides, publishes, remembers. Returns when all facts are stored by JetStream.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn absorb(&self, cause: &Cause, readings: Vec<Reading>) -> Result<Asks, Error> {
        let mut core = self.core.lock().await;
        let now = Utc::now();
        let mut asks = Asks::default();
        let mut told = Vec::new();
        for reading in readings {
            self.take_in(&mut core, cause, now, reading, &mut asks, &mut told);
        }
        metrics::unproven(core.unproven.len());
        self.publish(&mut core, told).await?;
        Ok(asks)
    }

    fn take_in(
        &self,
        core: &mut Core,
        cause: &Cause,
        now: DateTime<Utc>,
        reading: Reading,
        asks: &mut Asks,
        told: &mut Vec<Told>,
    ) {
        let Reading {
            mut sighting,
            digest,
            inferred,
            links,
        } = reading;
        // The controller's record is complete; what the others leave open was seen before.
        if sighting.record != Record::Controller
            && let Some((last, owner)) = core.last.get(&sighting.run)
        {
            snapshot::fill(&mut sighting.job, last);
            if sighting.owner.user.is_empty() {
                sighting.owner = owner.clone();
            }
        }
        let sweep = if let Cause::Sweep(number) = cause {
            Some(*number)
        } else {
            None
        };
        let look = Look {
            now: now.timestamp(),
            sweep,
            first_start: !core.meta.baseline_done && sweep.is_some(),
            given_up: self.given_up(core, sighting.raw_id),
            inferred,
        };
        let decision = observe(&core.book, &sighting, &look);
        if decision.asks.contains(&Ask::Accounting) {
            asks.accounting.insert(sighting.raw_id);
            core.unproven
                .entry(sighting.raw_id)
                .or_insert_with(|| Unproven {
                    since: Instant::now(),
                    answers: 0,
                });
        } else if !decision.changes.is_empty() && sighting.end_kind().is_none() {
            core.unproven.remove(&sighting.raw_id);
        }
        if decision.asks.contains(&Ask::Again) {
            asks.again.insert(sighting.raw_id);
        }
        for run in &decision.lost {
            metrics::lost();
            tracing::warn!(
                run = run.entity_key(),
                "the end of this run is in no record of Slurm"
            );
        }
        let frame = Frame {
            now,
            cause,
            late_after: self.late_after(),
            identities: &self.identities,
        };
        for fact in &decision.facts {
            let own = fact.run == sighting.run
                || (fact.run.attempt > 0 && fact.run.submit_time == sighting.run.submit_time);
            let (job, owner) = match core.last.get(&fact.run) {
                _ if own => (sighting.job.clone(), sighting.owner.clone()),
                Some((job, owner)) => (job.clone(), owner.clone()),
                None => (other_run(fact, &sighting), sighting.owner.clone()),
            };
            told.push(Told::new(
                fact,
                frame.event(fact, &sighting, job, &owner),
                sighting.raw_id,
                &links,
            ));
        }
        for (run, mut tracked) in decision.changes {
            if let Some(digest) = digest.filter(|_| {
                run.job_id == sighting.run.job_id && run.task_id == sighting.run.task_id
            }) {
                tracked.digest = digest;
            }
            if tracked.over() {
                core.last.remove(&run);
                core.unproven.remove(&tracked.raw_id);
            } else if run == sighting.run {
                core.last
                    .insert(run.clone(), (sighting.job.clone(), sighting.owner.clone()));
            }
            core.dirty.insert(Store::shard_of(&tracked));
            core.book.put(run, tracked);
        }
    }

    /// Whether the proof of something about this job was waited for long enough.
    fn given_up(&self, core: &Core, raw_id: u32) -> bool {
        core.unproven.get(&raw_id).is_some_and(|unproven| {
            let waited = unproven.since.elapsed();
            let asked_in_vain = unproven.answers >= 3 || !self.config.accounting;
            waited >= self.config.settle_within
                || (asked_in_vain && waited >= self.config.proof_patience)
        })
    }

    fn late_after(&self) -> i64 {
        let limit = self.config.sweep_interval.saturating_mul(2) + Duration::from_secs(20);
        i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
    }

    async fn publish(&self, core: &mut Core, told: Vec<Told>) -> Result<(), Error> {
        if told.is_empty() {
            return Ok(());
        }
        // Of a run with a sampled fact everything goes through the outbox, so that its events stay in order.
        let counted: BTreeSet<RunKey> = told
            .iter()
            .filter(|told| told.sampled)
            .map(|told| told.run.clone())
            .collect();
        let (counted, plain): (Vec<Told>, Vec<Told>) = told
            .into_iter()
            .partition(|told| counted.contains(&told.run));
        core.ahead = true;
        self.bus
            .publish_all_traced(
                plain.into_iter().map(Told::into_parts).collect(),
                &self.shutdown,
            )
            .await?;
        if !counted.is_empty() {
            let shards: BTreeSet<u32> = counted
                .iter()
                .filter_map(|told| core.book.get(&told.run))
                .map(Store::shard_of)
                .collect();
            let outbox: Vec<(u32, Event)> = counted
                .iter()
                .filter_map(|told| {
                    Some((
                        Store::shard_of(core.book.get(&told.run)?),
                        told.event.clone(),
                    ))
                })
                .collect();
            let Core { store, book, .. } = core;
            store.write(book, &shards, &outbox).await?;
            self.bus
                .publish_all_traced(
                    counted.into_iter().map(Told::into_parts).collect(),
                    &self.shutdown,
                )
                .await?;
            // Their outboxes are emptied with the next write.
            core.dirty.extend(shards);
        }
        core.ahead = false;
        Ok(())
    }

    /// Stores what has changed.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn flush(&self) -> Result<(), Error> {
        let mut core = self.core.lock().await;
        let Core {
            store,
            book,
            meta,
            dirty,
            ahead,
            ..
        } = &mut *core;
        if *ahead {
            return Ok(());
        }
        store.write(book, dirty, &[]).await?;
        dirty.clear();
        store.write_meta(meta, &[]).await
    }

    /// How many of these runs were not known, or not known to be over.
    pub async fn count_new(&self, readings: &[Reading]) -> u64 {
        let core = self.core.lock().await;
        let new = readings.iter().filter(|reading| {
            !core
                .book
                .get(&reading.sighting.run)
                .is_some_and(domain::Tracked::over)
        });
        u64::try_from(new.count()).unwrap_or(u64::MAX)
    }

    /// Notes an answer of accounting about these jobs.
    pub async fn accounting_answered(&self, ids: &[u32]) {
        let mut core = self.core.lock().await;
        for id in ids {
            if let Some(unproven) = core.unproven.get_mut(id) {
                unproven.answers += 1;
            }
        }
    }

    /// A run that no source knows: asked for again until it is settled as a gap. Returns whether it must still be asked for.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn missing(&self, raw_id: u32) -> Result<bool, Error> {
        let mut core = self.core.lock().await;
        let unproven = core.unproven.entry(raw_id).or_insert_with(|| Unproven {
            since: Instant::now(),
            answers: 0,
        });
        if unproven.since.elapsed() < self.config.settle_within {
            return Ok(true);
        }
        core.unproven.remove(&raw_id);
        let now = Utc::now().timestamp();
        let mut lost = Vec::new();
        for run in core.book.by_raw_id(raw_id) {
            if let Some(tracked) = core
                .book
                .get_mut(&run)
                .filter(|tracked| !tracked.over() && !tracked.is_array)
            {
                tracked.end = Some(End {
                    event: String::new(),
                    at: now,
                    inferred: true,
                });
                let shard = Store::shard_of(tracked);
                lost.push((run.clone(), shard));
            }
        }
        for (run, shard) in lost {
            metrics::lost();
            core.last.remove(&run);
            core.dirty.insert(shard);
            let what = CaptureEvent {
                source: "slurmctld".to_owned(),
                message: format!(
                    "{} is gone from the controller and not in accounting",
                    run.entity_key()
                ),
                to: Some(timestamp(Utc::now())),
                not_recoverable: format!("how and when {} ended", run.entity_key()),
                ..CaptureEvent::default()
            };
            self.capture_locked(&mut core, EventType::CaptureGapClosed, what)
                .await?;
        }
        Ok(false)
    }

    /// Settles the tasks that left an array's record without turning up. Returns whether the array must be asked for.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn settle_array(
        &self,
        cause: &Cause,
        array: &RunKey,
        record_gone: bool,
    ) -> Result<bool, Error> {
        let mut core = self.core.lock().await;
        let given_up = self.given_up(&core, array.job_id);
        let now = Utc::now();
        let (next, fact, ask) =
            match settle_remainder(&core.book, array, record_gone, given_up, now.timestamp()) {
                None => return Ok(false),
                Some(Remainder::Settled(next)) => (*next, None, false),
                Some(Remainder::Missing(next)) => (*next, None, true),
                Some(Remainder::Cancelled(next, fact)) => (*next, Some(*fact), false),
            };
        if ask {
            core.unproven
                .entry(array.job_id)
                .or_insert_with(|| Unproven {
                    since: Instant::now(),
                    answers: 0,
                });
        } else {
            core.unproven.remove(&array.job_id);
        }
        core.dirty.insert(Store::shard_of(&next));
        core.book.put(array.clone(), next);
        if let Some(fact) = fact
            && let Some((job, owner)) = core.last.get(array).cloned()
        {
            let frame = Frame {
                now,
                cause,
                late_after: self.late_after(),
                identities: &self.identities,
            };
            let event = frame.event_without_reading(&fact, job, &owner);
            let told = vec![Told::new(&fact, event, array.job_id, &[])];
            self.publish(&mut core, told).await?;
        }
        Ok(ask)
    }

    /// Tells something about capture itself.
    ///
    /// # Errors
    /// If told to stop, or if another ingest took over.
    pub async fn capture(&self, kind: EventType, what: CaptureEvent) -> Result<(), Error> {
        let mut core = self.core.lock().await;
        self.capture_locked(&mut core, kind, what).await
    }

    async fn capture_locked(
        &self,
        core: &mut Core,
        kind: EventType,
        what: CaptureEvent,
    ) -> Result<(), Error> {
        let key = format!("capture/{}", what.source);
        let count = core
            .meta
            .counts
            .entry(format!("{kind} {}", what.source))
            .or_default();
        *count += 1;
        let n = *count;
        let now = timestamp(Utc::now());
        let event = Event {
            id: EventId::sampled(&self.cluster, &key, kind, n).to_string(),
            cluster: self.cluster.clone(),
            r#type: kind.to_string(),
            occurred_at: Some(now),
            observed_at: Some(now),
            source: Source::Derived.into(),
            confidence: Confidence::Observed.into(),
            entity: Some(Entity {
                kind: "cluster".to_owned(),
                key,
            }),
            run_seq: n,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::Capture(what)),
            ..Event::default()
        };
        metrics::fact(kind);
        let Core { store, meta, .. } = core;
        store.write_meta(meta, std::slice::from_ref(&event)).await?;
        let span = tracing::info_span!(parent: None, "ingest.fact", event.id = event.id, event.r#type = %kind);
        self.bus
            .publish_all_traced(vec![(event, span)], &self.shutdown)
            .await?;
        Ok(())
    }

    /// Notes that Slurm still knows these records.
    pub async fn touch(&self, raw_ids: &BTreeSet<u32>, now: i64) {
        let mut core = self.core.lock().await;
        core.book.touch(raw_ids, now);
    }

    /// Forgets runs that ended long ago and that Slurm has forgotten, too.
    pub async fn forget(&self) {
        let mut core = self.core.lock().await;
        // Measured from the last sweep that was told: after a long absence accounting is asked about the time since then.
        let oldest = core.meta.watermark
            - i64::try_from(self.config.forget_after.as_secs()).unwrap_or(i64::MAX);
        let live_arrays: BTreeSet<u32> = core
            .book
            .iter()
            .filter(|(_, tracked)| !tracked.over() && tracked.is_task)
            .map(|(run, _)| run.job_id)
            .collect();
        let old: Vec<RunKey> = core
            .book
            .iter()
            .filter(|(run, tracked)| {
                let ended = match &tracked.end {
                    Some(end) => end.at < oldest,
                    // An array has no end of its own once its last task has become a job.
                    None => {
                        tracked.is_array
                            && tracked.remaining.is_none()
                            && tracked.left.is_none()
                            && !live_arrays.contains(&run.job_id)
                    }
                };
                ended && tracked.last_seen < oldest
            })
            .map(|(run, _)| run.clone())
            .collect();
        for run in old {
            if let Some(tracked) = core.book.remove(&run) {
                core.dirty.insert(Store::shard_of(&tracked));
                core.last.remove(&run);
            }
        }
        metrics::runs(core.book.len());
    }
}

/// An event with its span, before it is published.
struct Told {
    run: RunKey,
    sampled: bool,
    event: Event,
    span: Span,
}

impl Told {
    fn new(fact: &Fact, event: Event, raw_id: u32, links: &[Span]) -> Self {
        metrics::fact(fact.kind);
        // The trace of a fact begins here; what led to it is linked.
        let span = tracing::info_span!(
            parent: None,
            "ingest.fact",
            event.id = event.id,
            event.r#type = event.r#type,
            cluster = event.cluster,
            job.id = raw_id,
        );
        for link in links {
            span.follows_from(link);
        }
        tracing::debug!(parent: &span, run = fact.run.entity_key(), "fact");
        Self {
            run: fact.run.clone(),
            sampled: matches!(fact.id, FactId::Sampled(_)),
            event,
            span,
        }
    }

    fn into_parts(self) -> (Event, Span) {
        (self.event, self.span)
    }
}
