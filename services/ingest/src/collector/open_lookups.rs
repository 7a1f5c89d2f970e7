//! Open lookups: how long they have been open, what accounting answered, and how they survive a restart.

mod task_lookups;

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_events::RunKey;
use slurm_types::JobId;
use tokio::time::Instant;

pub(super) use self::task_lookups::{OpenTaskLookup, TaskWave, tasks_of};
use super::accounting_wait::AccountingWait;
use super::{Collector, CollectorState};
use crate::adapters::shards::{shard_of, shard_of_record, unpack};
use crate::config::Config;
use crate::domain::{
    EndLookup, LookupAnswers, LookupLimits, Owner, Resolution, StoredLookup, settle,
};

/// Digest that no row has.
const NO_DIGEST: u64 = 0;

/// Interval at which the wait of a lookup is stored. A restart loses at most this much of it.
pub(super) const WAIT_STORE_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct OpenLookup {
    /// When this process began to wait. Uses the monotonic clock: setting the wall clock would end or prolong the wait.
    since: Instant,
    /// Time that earlier processes waited, as far as they stored it.
    before: Duration,
    /// Number of earlier processes. Each may have waited longer than it stored.
    restarts: u32,
    answers: LookupAnswers,
    /// Whether slurmctld does not have the job.
    pub(super) is_missing: bool,
    /// When accounting answered again after an outage. What it lacked before proves nothing: slurmctld had still to send it.
    accounting_back: Option<Instant>,
}

impl OpenLookup {
    pub(super) fn now() -> Self {
        Self {
            since: Instant::now(),
            before: Duration::ZERO,
            restarts: 0,
            answers: LookupAnswers::default(),
            is_missing: false,
            accounting_back: None,
        }
    }

    /// A wait that another lookup has begun. Only time from now on proves an absence.
    pub(super) fn continued(before: Duration) -> Self {
        Self {
            before,
            accounting_back: Some(Instant::now()),
            ..Self::now()
        }
    }

    /// A run that the last answer reported as alive may have ended meanwhile.
    fn of(stored: &StoredLookup) -> Self {
        Self {
            before: Duration::from_secs(stored.waited),
            restarts: stored.restarts.saturating_add(1),
            answers: LookupAnswers {
                count: stored.answers,
                ..LookupAnswers::default()
            },
            is_missing: stored.is_missing,
            ..Self::now()
        }
    }

    /// The time that it has been open, as far as that was stored.
    pub(super) fn age(&self) -> Duration {
        self.before + self.since.elapsed()
    }

    /// The time that counts for a proof of absence.
    fn waited(&self) -> Duration {
        self.accounting_back
            .map_or_else(|| self.age(), |back| back.elapsed())
    }

    /// The longest time that it may have been open.
    fn waited_at_most(&self) -> Duration {
        self.age() + WAIT_STORE_INTERVAL * self.restarts
    }

    fn restart_proof(&mut self) {
        self.accounting_back = Some(Instant::now());
        self.answers = LookupAnswers::default();
    }

    pub(super) fn answered(&mut self, alive: bool, config: &Config) {
        self.answers = LookupAnswers {
            count: self.answers.count.saturating_add(1),
            is_late: self.waited() >= config.missing_record_timeout,
            alive,
        };
    }

    fn stored(&self) -> StoredLookup {
        StoredLookup {
            waited: self.age().as_secs(),
            answers: self.answers.count,
            restarts: self.restarts,
            is_missing: self.is_missing,
            ..StoredLookup::default()
        }
    }
}

impl Collector {
    /// Resolves a lookup from its age and answers. Without a lookup, it is still to be made.
    pub(super) fn settled(&self, lookup: EndLookup, open: Option<&OpenLookup>) -> Resolution {
        let limits = LookupLimits {
            max_wait: self.config.missing_record_timeout,
            within: self.config.resolution_timeout,
            accounting: self.config.accounting,
        };
        open.map_or(Resolution::Open { ask: true }, |open| {
            let waited = (open.waited(), open.waited_at_most());
            settle(lookup, waited, open.answers, limits)
        })
    }

    /// Returns the jobs among these whose absence is concluded if the next answer lacks them, too.
    pub async fn due_jobs(&self, ids: &BTreeSet<JobId>) -> BTreeSet<JobId> {
        let state = self.state.lock().await;
        let is_due = |id: &&JobId| {
            let open = state.lookups.get(&id.get());
            open.is_some_and(|open| self.is_over(EndLookup::End, open))
        };
        ids.iter().filter(is_due).copied().collect()
    }

    /// The same of arrays.
    pub async fn due_arrays(&self, ids: &BTreeSet<JobId>) -> BTreeSet<JobId> {
        let state = self.state.lock().await;
        let is_over = |wave: &TaskWave| self.is_over(EndLookup::TasksOfUnlisted, &wave.open);
        let due = state
            .task_lookups
            .iter()
            .filter(|(_, lookup)| lookup.waves().iter().any(is_over));
        let due = due.filter_map(|(array, _)| JobId::new(array.job_id));
        due.filter(|id| ids.contains(id)).collect()
    }

    fn is_over(&self, lookup: EndLookup, open: &OpenLookup) -> bool {
        !matches!(self.settled(lookup, Some(open)), Resolution::Open { .. })
    }

    /// Describes accounting's answers for the message of a gap.
    pub(super) fn accounting_result(&self, open: Option<&OpenLookup>) -> &'static str {
        let answers = open.map(|open| open.answers).unwrap_or_default();
        if !self.config.accounting {
            "accounting is disabled (ingest.accounting)"
        } else if answers.alive {
            "accounting lists it as not ended"
        } else if answers.count > 0 {
            "accounting does not have its end"
        } else {
            "accounting did not answer"
        }
    }

    /// Begins every wait for a record again, as accounting answers after an outage.
    pub async fn accounting_returned(&self) {
        let mut state = self.state.lock().await;
        let state = &mut *state;
        let tasks = state
            .task_lookups
            .values_mut()
            .flat_map(OpenTaskLookup::open_lookups);
        for open in state.lookups.values_mut().chain(tasks) {
            open.restart_proof();
        }
    }

    /// Stops every wait for a record that only accounting has.
    pub async fn accounting_failed(&self) {
        let now = Instant::now();
        let mut state = self.state.lock().await;
        state
            .accounting_waits()
            .for_each(|wait| wait.interrupted(now));
    }

    /// Goes on with the waits for a record that only accounting has.
    pub async fn accounting_answers(&self) {
        let now = Instant::now();
        let mut state = self.state.lock().await;
        state.accounting_waits().for_each(|wait| wait.resumed(now));
    }

    /// Records an answer of accounting about these jobs. `alive` are the runs that have not ended according to it.
    pub async fn accounting_answered(&self, ids: &BTreeSet<u32>, alive: &BTreeSet<RunKey>) {
        let mut state = self.state.lock().await;
        state.waiting.unpublished.answered(ids);
        for (array, lookup) in &mut state.task_lookups {
            if ids.contains(&array.job_id) {
                let is_alive = alive.contains(array);
                let waves = lookup.open_lookups();
                waves.for_each(|open| open.answered(is_alive, &self.config));
            }
        }
        let CollectorState {
            run_store, lookups, ..
        } = &mut *state;
        for id in ids {
            if let Some(open) = lookups.get_mut(id) {
                let is_alive = run_store.by_raw_id(*id).iter().any(|known| {
                    alive.iter().any(|run| {
                        (run.job_id, run.task_id, run.submit_time)
                            == (known.job_id, known.task_id, known.submit_time)
                    })
                });
                open.answered(is_alive, &self.config);
            }
        }
    }
}

impl CollectorState {
    /// Ends the waits for missing jobs that a poll shows again, for example after a failover to a slurmctld with an older state. A row that
    /// has not changed is not read.
    pub(super) fn end_waits_of_shown(&mut self, raw_ids: &BTreeSet<u32>) {
        let shown = self.lookups.iter();
        let shown = shown.filter(|(id, open)| open.is_missing && raw_ids.contains(id));
        for raw_id in shown.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close_lookup(raw_id);
            for run in self.run_store.by_raw_id(raw_id) {
                if let Some(tracked) = self.run_store.get_mut(&run)
                    && !tracked.is_array
                    && tracked.lookup.take().is_some()
                {
                    self.dirty.insert(shard_of(tracked));
                }
            }
        }
    }

    fn accounting_waits(&mut self) -> impl Iterator<Item = &mut AccountingWait> {
        let usage = self.usage_backlog.waits();
        usage
            .chain(self.array_submission_backlog.waits())
            .chain(self.unseen_waits.all())
            .chain(self.waiting.unpublished.waits())
    }

    /// Restores the lookups that were open when the last process ended.
    pub(super) fn restore_lookups(&mut self) {
        let arrays = self.run_store.iter();
        let arrays = arrays.filter(|(_, tracked)| tracked.ask_submitted);
        for array in arrays.map(|(run, _)| run).collect::<Vec<_>>() {
            // A gap about an array names its owner, so its record is read again though its row has not changed.
            if let Some(tracked) = self.run_store.get_mut(&array) {
                tracked.digest = NO_DIGEST;
            }
        }
        let of_jobs = self.waiting.lookups.iter();
        self.lookups
            .extend(of_jobs.map(|(raw_id, stored)| (*raw_id, OpenLookup::of(stored))));
        for (run, tracked) in self.run_store.iter() {
            let Some(stored) = &tracked.lookup else {
                continue;
            };
            if tracked.is_array {
                self.task_lookups
                    .insert(run.clone(), OpenTaskLookup::of(stored));
                if let Some(job) = unpack(&stored.job) {
                    self.last.insert(&run, &job, &stored.owner);
                }
            } else if !tracked.over() {
                let open = OpenLookup::of(stored);
                self.lookups.insert(tracked.raw_id, open);
            }
        }
    }

    /// Stores the lookup of a job's end with its runs, or beside them if no run of it is open.
    pub(super) fn store_lookup(&mut self, raw_id: u32) {
        let Some(stored) = self.lookups.get(&raw_id).map(OpenLookup::stored) else {
            return;
        };
        let mut has_open_run = false;
        for run in self.run_store.by_raw_id(raw_id) {
            let owner = self.owner_of(&run);
            let Some(tracked) = self.run_store.get_mut(&run) else {
                continue;
            };
            if tracked.over() || tracked.is_array {
                continue;
            }
            has_open_run = true;
            if !is_news(tracked.lookup.as_deref(), &stored) {
                continue;
            }
            let known = tracked.lookup.take().map(|known| known.owner);
            tracked.lookup = Some(Box::new(StoredLookup {
                owner: owner.or(known).unwrap_or_default(),
                ..stored.clone()
            }));
            self.dirty.insert(shard_of(tracked));
        }
        let lookups = &mut self.waiting.lookups;
        let is_changed = if has_open_run {
            lookups.remove(&raw_id).is_some()
        } else {
            let is_news = is_news(lookups.get(&raw_id), &stored);
            if is_news {
                lookups.insert(raw_id, stored);
            }
            is_news
        };
        if is_changed {
            self.dirty.insert(shard_of_record(raw_id));
        }
    }

    /// Returns the owner of a run, from its payload or from a stored lookup.
    pub fn known_owner(&self, run: &RunKey) -> Option<Owner> {
        let stored = || Some(self.run_store.get(run)?.lookup.as_ref()?.owner.clone());
        self.owner_of(run).or_else(stored)
    }
}

fn is_news(known: Option<&StoredLookup>, stored: &StoredLookup) -> bool {
    known.is_none_or(|known| {
        (&known.tasks, known.restarts, known.is_missing)
            != (&stored.tasks, stored.restarts, stored.is_missing)
            || stored.waited < known.waited
            || stored.waited - known.waited >= WAIT_STORE_INTERVAL.as_secs()
            || stored.later.len() != known.later.len()
            || std::iter::zip(&known.later, &stored.later)
                .any(|(known, stored)| is_news(Some(known), stored))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_accounting_lacked_before_an_outage_proves_nothing() {
        let limits = LookupLimits {
            max_wait: Duration::from_secs(30),
            within: Duration::from_secs(600),
            accounting: true,
        };
        let resolution = |open: &OpenLookup| {
            let waited = (open.waited(), open.waited_at_most());
            settle(EndLookup::EarlierEnd, waited, open.answers, limits)
        };
        let mut open = OpenLookup::now();
        let wait_and_answer = async |open: &mut OpenLookup| {
            tokio::time::advance(Duration::from_secs(31)).await;
            for _ in 0..3 {
                open.answered(false, &Config::default());
            }
        };
        wait_and_answer(&mut open).await;
        assert_eq!(resolution(&open), Resolution::Absent);
        open.restart_proof();
        assert_eq!(resolution(&open), Resolution::Open { ask: true });
        wait_and_answer(&mut open).await;
        assert_eq!(resolution(&open), Resolution::Absent);
        // Outages do not prolong it permanently.
        tokio::time::advance(Duration::from_secs(540)).await;
        open.restart_proof();
        open.answered(false, &Config::default());
        assert_eq!(resolution(&open), Resolution::Absent);
    }
}
