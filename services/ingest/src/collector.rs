//! Where everything comes together: readings in, events out, memory kept.
//!
//! One lock orders it all. What a record of Slurm goes on showing is published first and remembered afterwards: after a crash it is told
//! again with the same id. Everything else is written to the outbox of its shard, then published, so that it is told again with the same
//! id and the same count: what was sampled, what carries the time at which ingest noticed it, and suspends, resumes and resizes, of which
//! Slurm keeps the last.

mod capture;
mod debt;
mod gaps;
mod ids;
mod last;
mod outbox;
mod settle;
mod usage;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use mesh_bus::Bus;
use mesh_events::proto::mesh::job::v1::ExitCode;
use mesh_events::{EventType, RunKey};
use mesh_runtime::Condition;
use slurm_types::TaskSet;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio_util::sync::CancellationToken;
use tracing::Span;

pub use self::debt::Debt;
use self::gaps::lost;
pub use self::ids::{Newest, Unseen};
use self::last::Last;
use self::outbox::{Before, Told};
pub use self::usage::Due;
use self::usage::Owing;
use crate::adapters::store::{Meta, Store};
use crate::config::Config;
use crate::domain::{self, Ask, Book, Look, Record, Sighting, observe, snapshot};
use crate::envelope::{Cause, Frame, other_run};
use crate::identity::IdentityMap;
use crate::{Error, metrics};

/// An outbox must fit into a value of a bucket, together with the runs of its shard: 1 MiB.
const MOST_IN_OUTBOX: usize = 256 * 1_024;
/// All outboxes together, as long as they are in memory only.
const MOST_IN_OUTBOXES: usize = 16 << 20;

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
    /// How many starts were told.
    pub starts: usize,
}

/// A job whose earlier run, or whose end, must be proven.
struct Unproven {
    since: Instant,
    /// Answers of accounting since.
    answers: u32,
    /// Whether the last of them has it as alive: with that nothing is proven.
    alive: bool,
}

impl Unproven {
    fn now() -> Self {
        Self {
            since: Instant::now(),
            answers: 0,
            alive: false,
        }
    }
}

/// Tasks that left an array's record and have not turned up.
struct UnprovenTasks {
    unproven: Unproven,
    /// Those that were missing when the wait began. Later ones wait for themselves.
    tasks: TaskSet,
}

/// What readings told, before it is published.
#[derive(Default)]
struct Batch {
    told: Vec<Told>,
    /// What the books had of runs of which something is told that must be stored first.
    before: Before,
    /// What goes through outboxes, by shard.
    outbox_bytes: HashMap<u32, usize>,
    /// The same in all of them.
    outboxes_bytes: usize,
    /// The same in the fullest.
    fullest_bytes: usize,
}

impl Batch {
    /// Whether it must be told before more is taken in.
    const fn is_full(&self) -> bool {
        self.outboxes_bytes > MOST_IN_OUTBOXES || self.fullest_bytes > MOST_IN_OUTBOX
    }
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
    last: Last,
    unproven: HashMap<u32, Unproven>,
    /// By array: reading its record, which goes on, says nothing about the tasks that left it.
    unproven_tasks: HashMap<RunKey, UnprovenTasks>,
    /// Ended runs of which accounting has not told yet what they used.
    owing: Owing,
    /// The newest job that sweeps have shown.
    newest: Option<Newest>,
    /// Set when something was decided but not published: the books are ahead of the bus and must not be stored.
    ahead: bool,
    /// How often time that is owed to accounting was added.
    debts: u64,
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
    owing: Arc<Notify>,
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
        condition: Condition,
        shutdown: CancellationToken,
    ) -> Result<Self, Error> {
        let (store, loaded) = Store::load(&bus, cluster, condition, &shutdown).await?;
        let now = Utc::now().timestamp();
        let mut meta = loaded.meta.unwrap_or_else(|| Meta {
            capture_since: now,
            watermark: now,
            ..Meta::default()
        });
        capture::count_outbox(&mut meta, &loaded.outbox);
        let republished = loaded.outbox.len();
        bus.publish_all(loaded.outbox, &shutdown).await?;
        // Before the first sweep moves the watermark; both are stored with one write.
        meta.owed_from = debt::at_start(&meta, &config);
        tracing::info!(
            runs = loaded.book.len(),
            republished,
            first_start = !meta.baseline_done,
            "state loaded"
        );
        let owing = Owing::of(&loaded.book, now, &config);
        let core = Core {
            book: loaded.book,
            meta,
            store,
            dirty: BTreeSet::new(),
            last: Last::default(),
            unproven: HashMap::new(),
            unproven_tasks: HashMap::new(),
            owing,
            newest: None,
            ahead: false,
            debts: 0,
        };
        let core = Arc::new(Mutex::new(core));
        Ok(Self {
            cluster: cluster.to_owned(),
            config,
            bus,
            identities,
            core,
            owing: Arc::default(),
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
        let mut batch = Batch::default();
        for reading in readings {
            self.take_in(&mut core, cause, now, reading, &mut asks, &mut batch);
            if batch.is_full() {
                let full = std::mem::take(&mut batch);
                self.publish(&mut core, full.told, full.before).await?;
            }
        }
        metrics::unproven(core.unproven.len() + core.unproven_tasks.len());
        self.publish(&mut core, batch.told, batch.before).await?;
        Ok(asks)
    }

    fn take_in(
        &self,
        core: &mut Core,
        cause: &Cause,
        now: DateTime<Utc>,
        reading: Reading,
        asks: &mut Asks,
        batch: &mut Batch,
    ) {
        let Reading {
            mut sighting,
            digest,
            inferred,
            links,
        } = reading;
        if let Some((last, owner)) = core.last.get(&sighting.run) {
            // The controller's record is complete while the job runs; what the others leave open was seen before.
            if sighting.record != Record::Controller {
                snapshot::fill(&mut sighting.job, &last);
                if sighting.owner.user.is_empty() {
                    sighting.owner = owner;
                }
            } else if sighting.completing {
                let in_flux = sighting.in_flux();
                snapshot::keep_allocation(&mut sighting.job, &last, in_flux);
            }
        }
        if let Some(told) = core.book.get(&sighting.run)
            && sighting.end_kind().is_some()
        {
            // Also where what was seen last is not remembered any more.
            let code = told
                .exit_code
                .map(|(code, signal)| ExitCode { code, signal });
            sighting.job.exit_code = sighting.job.exit_code.or(code);
        }
        let sweep = if let Cause::Sweep(number) = cause {
            Some(*number)
        } else {
            None
        };
        if sweep.is_some() {
            core.note_id(&sighting);
        }
        let accounting = self.accounting_says(core.unproven.get(&sighting.raw_id));
        let look = Look {
            now: now.timestamp(),
            sweep,
            // What was submitted since then is told in full, also by the very first sweep.
            first_start: !core.meta.baseline_done
                && sweep.is_some()
                && sighting.run.submit_time < core.meta.capture_since,
            given_up: core
                .unproven
                .get(&sighting.raw_id)
                .is_some_and(|unproven| self.given_up(unproven)),
            inferred,
        };
        let decision = observe(&core.book, &sighting, &look);
        if decision.asks.contains(&Ask::Accounting) {
            asks.accounting.insert(sighting.raw_id);
            core.unproven
                .entry(sighting.raw_id)
                .or_insert_with(Unproven::now);
        } else if !decision.changes.is_empty() && sighting.end_kind().is_none() {
            core.unproven.remove(&sighting.raw_id);
        }
        if decision.asks.contains(&Ask::Again) {
            asks.again.insert(sighting.raw_id);
        }
        let frame = Frame {
            now,
            cause,
            late_after: self.late_after(),
            usage_after: self.usage_after(),
            identities: &self.identities,
        };
        let before = batch.told.len();
        let started = |fact: &&domain::Fact| fact.kind == EventType::JobStarted;
        asks.starts += decision.facts.iter().filter(started).count();
        for fact in &decision.facts {
            let own = fact.run == sighting.run
                || (fact.run.attempt > 0 && fact.run.submit_time == sighting.run.submit_time);
            let (job, owner) = if own {
                (sighting.job.clone(), sighting.owner.clone())
            } else {
                let last = core.last.get(&fact.run);
                last.unwrap_or_else(|| (other_run(fact, &sighting), sighting.owner.clone()))
            };
            batch.told.push(Told::new(
                fact,
                frame.event(fact, &sighting, job, &owner),
                sighting.raw_id,
                &links,
            ));
        }
        for run in &decision.lost {
            let message = format!(
                "{} is over, its id belongs to another job, and {accounting}",
                run.entity_key()
            );
            // In one write with the run, which the books have as over.
            let gap = self.counted(core, EventType::CaptureGapClosed, lost(run, message));
            batch.told.push(Told::capture(run.clone(), gap));
        }
        let new = &batch.told[before..];
        if new.iter().any(Told::is_stored_first) {
            let bytes = new.iter().map(Told::outbox_bytes).sum::<usize>();
            batch.outboxes_bytes += bytes;
            let shard = Store::shard_of_record(sighting.raw_id);
            let in_shard = batch.outbox_bytes.entry(shard).or_default();
            *in_shard += bytes;
            batch.fullest_bytes = batch.fullest_bytes.max(*in_shard);
        }
        for (run, mut tracked) in decision.changes {
            batch
                .before
                .entry(run.clone())
                .or_insert_with(|| core.book.get(&run).cloned());
            if let Some(digest) = digest.filter(|_| {
                run.job_id == sighting.run.job_id && run.task_id == sighting.run.task_id
            }) {
                tracked.digest = digest;
            }
            if tracked.over() {
                core.unproven.remove(&tracked.raw_id);
            }
            if tracked.closed() {
                core.last.remove(&run);
                core.unproven_tasks.remove(&run);
            } else if run == sighting.run && !is_known_to_accounting_only(core, &sighting) {
                // Accounting knows less of a run than was seen of it.
                core.last
                    .insert(run.clone(), &sighting.job, &sighting.owner);
            }
            core.dirty.insert(Store::shard_of(&tracked));
            if self.config.accounting {
                core.owing
                    .note(&run, &tracked, now.timestamp(), &self.config);
            }
            core.book.put(run, tracked);
        }
    }

    /// Whether the proof of something was waited for long enough.
    fn given_up(&self, unproven: &Unproven) -> bool {
        let waited = unproven.since.elapsed();
        waited >= self.config.settle_within
            || (self.asked_in_vain(unproven) && waited >= self.config.proof_patience)
    }

    /// Whether accounting need not be asked any more.
    fn asked_in_vain(&self, unproven: &Unproven) -> bool {
        unproven.answers >= 3 || !self.config.accounting
    }

    fn late_after(&self) -> i64 {
        let limit = self.config.sweep_interval.saturating_mul(2) + Duration::from_secs(20);
        i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
    }

    fn usage_after(&self) -> i64 {
        let limit = self.config.usage_after + self.config.proof_patience;
        i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
    }
}

/// Whether accounting, which has told the end of a run, will tell what it used no less completely than all that was seen of it.
fn is_known_to_accounting_only(core: &Core, sighting: &Sighting) -> bool {
    let over = sighting.record == Record::Accounting && sighting.end_kind().is_some();
    over && !core.last.has(&sighting.run)
}
