//! Turns observations into events and stores the run state.
//!
//! One lock orders everything. A fact that Slurm's record continues to show is published first and stored afterwards: after a crash it is
//! republished with the same id, or, if the record shows something else by then, restored from the bus. All other facts are first
//! written to the outbox of their shard, so that they are republished with the same id and count. These are sampled facts, facts that carry
//! the time at which ingest noticed them, and suspends, resumes and resizes, of which Slurm keeps only the last.

mod accounting_backlog;
mod accounting_wait;
mod apply;
mod array_reconcile;
mod array_submissions;
mod capture;
mod deferred;
mod drift;
mod gaps;
mod lost_state;
mod open_lookups;
mod outbox;
mod payload_cache;
mod published;
mod republish;
mod traced_observation;
mod unpublished_runs;
mod unreadable;
mod unseen_ids;
mod usage_backlog;
mod waiting_jobs;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use mesh_bus::Bus;
use mesh_events::{EventType, RunKey};
use mesh_runtime::Condition;
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio_util::sync::CancellationToken;

pub use self::accounting_backlog::BacklogWindow;
use self::accounting_backlog::{BacklogProgress, Clock};
pub use self::array_reconcile::ArrayPresence;
use self::array_submissions::ArraySubmissionBacklog;
pub use self::gaps::MissingJob;
pub(crate) use self::gaps::names;
use self::open_lookups::{OpenLookup, OpenTaskLookup};
use self::outbox::StoredProgress;
use self::payload_cache::PayloadCache;
pub use self::republish::{RepublishWindow, without_usage};
pub use self::traced_observation::TracedObservation;
use self::unreadable::Rebuilder;
pub(crate) use self::unseen_ids::MAX_CLOCK_SKEW_SECS;
use self::unseen_ids::UnseenWaits;
pub use self::usage_backlog::DueUsageLookup;
use self::usage_backlog::UsageBacklog;
use self::waiting_jobs::WaitingJobs;
use crate::Error;
use crate::adapters::capture_state::{CaptureState, NewestJob};
use crate::adapters::fenced::NO_TIMEOUT;
use crate::adapters::store::Store;
use crate::config::Config;
use crate::domain::{Owner, RunStore};
use crate::identity::IdentityResolver;

/// Timeout of writes made under the lock.
const BLOCKING_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Lookups that applied observations require, by Slurm's job ids.
#[derive(Debug, Default)]
pub struct FollowUpLookups {
    /// Jobs to read from the controller again, soon.
    pub reread: BTreeSet<u32>,
    /// Jobs to look up in accounting.
    pub accounting: BTreeSet<u32>,
    /// Number of published starts.
    pub starts: usize,
    /// Jobs of which something could not be stored: facts, which were not published then, or what waits for the end of an earlier run.
    pub not_stored: BTreeSet<u32>,
}

/// Run store and publication state, behind one lock.
pub struct CollectorState {
    /// All stored runs.
    pub run_store: RunStore,
    /// Stored state of the cluster.
    pub capture: CaptureState,
    store: Store,
    dirty: BTreeSet<u32>,
    /// What the last complete write has stored of the progress.
    stored: StoredProgress,
    /// When it was.
    stored_at: tokio::time::Instant,
    /// Newest payload of each run that has not ended.
    last: PayloadCache,
    /// Open lookups of run ends, by Slurm's job id.
    lookups: HashMap<u32, OpenLookup>,
    /// What waits for the end of an earlier run.
    waiting: WaitingJobs,
    /// Open lookups of tasks that left their array, by array. The array's record, which continues, says nothing about them.
    task_lookups: HashMap<RunKey, OpenTaskLookup>,
    /// Ended runs whose usage accounting has not reported yet.
    usage_backlog: UsageBacklog,
    /// Arrays whose submitted tasks accounting has not reported yet.
    array_submission_backlog: ArraySubmissionBacklog,
    /// Waits for the rows of jobs that no poll has shown.
    unseen_waits: UnseenWaits,
    /// Newest job that polls have shown.
    newest: Option<NewestJob>,
    /// Whether something was decided but not published: the run store is ahead of the bus and must not be stored.
    ahead: bool,
    /// Stream sequence of the newest event that was published before its state was stored.
    published: u64,
    /// The same when the last poll was recorded.
    published_by_poll: u64,
    backlog_progress: BacklogProgress,
    clock: Clock,
}

impl CollectorState {
    /// Returns the owner of a run, if it was seen since this ingest became leader.
    pub fn owner_of(&self, run: &RunKey) -> Option<Owner> {
        self.last.get(run).map(|(_, owner)| owner)
    }
}

/// Handle of the collector. Cheap to clone.
#[derive(Clone)]
pub struct Collector {
    /// Cluster name.
    pub cluster: String,
    /// Configuration of ingest.
    pub config: Arc<Config>,
    /// Whether Slurm is read through slurmrestd.
    over_rest: bool,
    bus: Bus,
    identities: Arc<IdentityResolver>,
    state: Arc<Mutex<CollectorState>>,
    backlog_changed: Arc<Notify>,
    shutdown: CancellationToken,
}

impl Collector {
    /// Loads the stored state and republishes events whose publication was not confirmed.
    ///
    /// # Errors
    /// On shutdown, or if the stored state is of a newer version.
    pub async fn load(
        bus: Bus,
        cluster: &str,
        over_rest: bool,
        config: Arc<Config>,
        identities: Arc<IdentityResolver>,
        condition: Condition,
        shutdown: CancellationToken,
    ) -> Result<Self, Error> {
        let (mut store, mut loaded) =
            Store::load(&bus, cluster, condition.clone(), &shutdown).await?;
        let (unreadable, mut recovered) = (loaded.unreadable, 0);
        let rebuilder = Rebuilder {
            bus: &bus,
            cluster,
            unreadable: &unreadable,
            retention: config.ended_run_retention,
            condition: &condition,
            shutdown: &shutdown,
        };
        let rebuilding = rebuilder.rebuild(&mut loaded.run_store, &mut recovered);
        let rebuilt = Box::pin(rebuilding).await?;
        let now = Utc::now().timestamp();
        let stored_capture = loaded.capture.or(rebuilt);
        let is_new = stored_capture.is_none();
        let mut capture = stored_capture.unwrap_or_else(|| CaptureState {
            capture_since: now,
            watermark: now,
            ..CaptureState::default()
        });
        capture::count_outbox(&mut capture, &loaded.outbox);
        let republished = loaded.outbox.len();
        bus.publish_outbox(loaded.outbox, &shutdown).await?;
        if is_new {
            // Else a start after a kill during the very first poll would take what was submitted meanwhile for older than capture.
            store.write_capture_state(&capture, &[], NO_TIMEOUT).await?;
        }
        let published = capture.published;
        let mut stored = StoredProgress::of(&capture);
        let run_store = &mut loaded.run_store;
        let restored = published::restore_published(
            &bus,
            cluster,
            &capture,
            run_store,
            config.ended_run_retention,
            &condition,
            &shutdown,
        );
        let mut dirty = restored.await?;
        // Else each start would publish these again, until something else in their shard changes.
        dirty.extend(loaded.unconfirmed);
        dirty.extend(&unreadable.shards);
        let since = capture.watermark;
        // Before the first poll moves the watermark; both are stored with one write.
        let newest = loaded.run_store.newest_time(now);
        capture.backlog_from = accounting_backlog::at_start(&mut capture, &config, now, newest);
        stored.note_backlog(&capture);
        tracing::info!(
            runs = loaded.run_store.len(),
            republished,
            first_start = !capture.baseline_done,
            "state loaded"
        );
        let usage_backlog = UsageBacklog::of(&loaded.run_store, now, &config);
        let array_submission_backlog = ArraySubmissionBacklog::of(&loaded.run_store);
        let unseen_waits = UnseenWaits::of(&capture.unseen, tokio::time::Instant::now());
        let mut waiting = WaitingJobs::default();
        waiting.restore(cluster, loaded.waiting);
        let mut state = CollectorState {
            run_store: loaded.run_store,
            capture,
            store,
            dirty,
            stored,
            stored_at: tokio::time::Instant::now(),
            last: PayloadCache::default(),
            lookups: HashMap::new(),
            waiting,
            task_lookups: HashMap::new(),
            usage_backlog,
            array_submission_backlog,
            unseen_waits,
            newest: None,
            ahead: false,
            published,
            published_by_poll: published,
            backlog_progress: BacklogProgress::default(),
            clock: Clock::new(Instant::now(), now),
        };
        state.restore_lookups();
        let state = Arc::new(Mutex::new(state));
        let collector = Self {
            cluster: cluster.to_owned(),
            config,
            over_rest,
            bus,
            identities,
            state,
            backlog_changed: Arc::default(),
            shutdown,
        };
        if !unreadable.is_empty() {
            // Before the keys are written again: a start after a crash must find them unreadable.
            let gap = unreadable.gap(since, recovered);
            let closed = EventType::CaptureGapClosed;
            Box::pin(collector.capture(closed, gap)).await?;
        }
        Ok(collector)
    }

    /// Locks the run store.
    pub async fn state(&self) -> MutexGuard<'_, CollectorState> {
        self.state.lock().await
    }

    fn late_after(&self) -> i64 {
        let limit = self.config.poll_interval.saturating_mul(2) + Duration::from_secs(20);
        i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
    }

    fn usage_after(&self) -> i64 {
        let limit = self.config.usage_delay + self.config.missing_record_timeout;
        i64::try_from(limit.as_secs()).unwrap_or(i64::MAX)
    }
}
