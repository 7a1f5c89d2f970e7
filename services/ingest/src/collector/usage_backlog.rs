//! Schedule of ended runs whose usage accounting has not reported yet: when to ask, and when to stop asking.
//!
//! The backlog itself is part of the stored run states. This module has the due time of each entry.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use chrono::Utc;
use mesh_events::RunKey;
use slurm_types::{JobId, JobRef};
use tokio::time::Instant;

use super::accounting_wait::AccountingWait;
use super::gaps::{gap_event, keys, names};
use super::outbox::PreviousRunStates;
use super::{Collector, CollectorState, TracedObservation};
use crate::adapters::shards::shard_of;
use crate::config::Config;
use crate::domain::{LocalRunKey, Owner, RunState, RunStore, RunUsage};
use crate::envelope::Cause;
use crate::{Error, metrics};

/// Shortest pause between two lookups of one run.
const MIN_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause between two lookups of one run.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Interval at which waits and answers are stored. A restart repeats at most this much of them.
const WAIT_STORE_INTERVAL: Duration = Duration::from_secs(10);

/// A run whose usage is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueUsageLookup {
    /// Run key.
    pub run: RunKey,
    /// Job reference for accounting.
    pub job: JobRef,
}

#[derive(Clone, Copy, Debug)]
struct UsageBacklogEntry {
    due: Instant,
    wait: AccountingWait,
    answers: u32,
}

/// Runs whose usage is missing, ordered by due time.
#[derive(Debug, Default)]
pub(super) struct UsageBacklog {
    runs: HashMap<LocalRunKey, UsageBacklogEntry>,
    by_due: BTreeSet<(Instant, LocalRunKey)>,
}

impl UsageBacklog {
    /// Schedules the runs of the run store.
    pub(super) fn of(run_store: &RunStore, now: i64, config: &Config) -> Self {
        let mut usage_backlog = Self::default();
        if config.accounting {
            for (run, tracked) in run_store.iter() {
                usage_backlog.note(&run, tracked, now, config);
            }
        }
        usage_backlog
    }

    /// Schedules or removes a run according to its stored state.
    pub(super) fn note(&mut self, run: &RunKey, tracked: &RunState, now: i64, config: &Config) {
        let run = LocalRunKey::from(run);
        if !tracked.accounting_pending() {
            if let Some(entry) = self.runs.remove(&run) {
                self.by_due.remove(&(entry.due, run));
            }
        } else if !self.runs.contains_key(&run) {
            // Slurm's clock may differ from the local one: due neither before now nor later than `usage_delay` from now.
            let since = now.saturating_sub(tracked.end.as_ref().map_or(now, |end| end.at));
            let since = Duration::from_secs(u64::try_from(since).unwrap_or_default());
            let (start, before) = (Instant::now(), tracked.rare.waited_for_accounting);
            let entry = UsageBacklogEntry {
                due: start + config.usage_delay.saturating_sub(since),
                wait: AccountingWait::continued(Duration::from_secs(before), start),
                answers: 0,
            };
            self.put(run, entry);
        }
    }

    fn put(&mut self, run: LocalRunKey, entry: UsageBacklogEntry) {
        if let Some(before) = self.runs.insert(run, entry) {
            self.by_due.remove(&(before.due, run));
        }
        self.by_due.insert((entry.due, run));
    }

    fn due(&self, now: Instant) -> impl Iterator<Item = LocalRunKey> {
        let due = self.by_due.iter().take_while(move |(due, _)| *due <= now);
        due.map(|(_, run)| *run)
    }

    /// Returns the wait for the usage of a run; `None` if the run is not scheduled.
    fn wait(&self, run: &RunKey) -> Option<AccountingWait> {
        Some(self.runs.get(&run.into())?.wait)
    }

    /// Returns how long accounting was waited for; `None` if the run is not scheduled.
    fn waited(&self, run: &RunKey, now: Instant) -> Option<Duration> {
        Some(self.wait(run)?.waited(now))
    }

    /// Returns every wait.
    pub(super) fn waits(&mut self) -> impl Iterator<Item = &mut AccountingWait> {
        self.runs.values_mut().map(|entry| &mut entry.wait)
    }

    /// Reschedules a run after an answer without the usage, for its last lookup at the latest.
    fn postpone(&mut self, run: &RunKey, now: Instant, config: &Config) {
        let run = LocalRunKey::from(run);
        if let Some(entry) = self.runs.get(&run).copied() {
            let mut wait = entry.wait;
            wait.answered(now);
            let left = wait.left(config.resolution_timeout, now, config);
            let pause = Duration::from_secs(2 << entry.answers.min(5)).min(MAX_PAUSE);
            let pause = pause.min(left.max(MIN_PAUSE));
            let entry = UsageBacklogEntry {
                due: now + pause,
                wait,
                answers: entry.answers.saturating_add(1),
            };
            self.put(run, entry);
        }
    }
}

impl Collector {
    /// Returns the number of runs that accounting must still be asked about.
    pub async fn usage_backlog_len(&self) -> usize {
        self.state.lock().await.usage_backlog.runs.len()
    }

    /// Returns at most `limit` runs that are due now.
    pub async fn usage_due(&self, limit: usize) -> Vec<DueUsageLookup> {
        let state = self.state.lock().await;
        let due = state.usage_backlog.due(Instant::now()).take(limit);
        due.filter_map(|run| {
            let (run, tracked) = state.run_store.entry(run)?;
            let job = job_of(&run, tracked)?;
            Some(DueUsageLookup { run, job })
        })
        .collect()
    }

    /// Applies accounting's answer about runs that were due.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn usage_answered(
        &self,
        due: &[DueUsageLookup],
        answer: Vec<RunUsage>,
    ) -> Result<(), Error> {
        let owners = answer.iter().map(|settled| &settled.observation);
        let owners: HashMap<RunKey, Owner> = owners
            .map(|row| (row.run.clone(), row.owner.clone()))
            .collect();
        let readings = {
            let (state, now) = (self.state.lock().await, Instant::now());
            let usable = |settled: &RunUsage| {
                let runs = state.run_store.runs_of(&settled.observation.run);
                let waited = runs
                    .filter(|(run, _)| run.submit_time == settled.observation.run.submit_time)
                    .filter_map(|(run, _)| state.usage_backlog.waited(&run, now))
                    .max();
                waited.is_some_and(|waited| {
                    settled.complete || waited >= self.config.missing_record_timeout
                })
            };
            let ended = answer
                .into_iter()
                .filter(|settled| settled.observation.end_kind().is_some() && usable(settled));
            ended
                .map(|settled| TracedObservation::new(settled.observation))
                .collect()
        };
        self.apply(&Cause::Accounting, readings).await?;
        let mut state = self.state.lock().await;
        let now = Instant::now();
        let mut given_up = Vec::new();
        for DueUsageLookup { run, .. } in due {
            let within = self.config.resolution_timeout;
            match state.usage_backlog.wait(run) {
                Some(wait) if wait.is_over(within, now, &self.config) => given_up.push(run.clone()),
                Some(wait) => {
                    state.usage_backlog.postpone(run, now, &self.config);
                    state.store_wait(run, wait.waited(now));
                }
                None => {}
            }
        }
        self.without_usage(&mut state, &given_up, &owners).await?;
        // While many runs are due, each answer is about runs of nearly every shard: they are stored by the last one, and from time to time. A
        // crash before that repeats lookups and events, which the bus drops.
        let is_last = state.usage_backlog.due(now).next().is_none();
        let is_due = is_last || state.stored_at.elapsed() >= WAIT_STORE_INTERVAL;
        drop(state);
        if is_due {
            self.flush().await?;
        }
        Ok(())
    }

    /// Publishes that accounting lacks the usage of these runs. `owners` are those that its rows name.
    async fn without_usage(
        &self,
        state: &mut CollectorState,
        runs: &[RunKey],
        owners: &HashMap<RunKey, Owner>,
    ) -> Result<(), Error> {
        // An unknown canceller of a run that never started is no lost usage: its event already reports the actor as unknown.
        let now = Utc::now().timestamp();
        let mut lost = Vec::new();
        for run in runs {
            let Some(tracked) = state.run_store.get_mut(run) else {
                continue;
            };
            state.dirty.insert(shard_of(tracked));
            tracked.canceller_pending = false;
            if tracked.usage_pending {
                lost.push(run.clone());
            } else {
                let tracked = tracked.clone();
                state.usage_backlog.note(run, &tracked, now, &self.config);
                state.last.remove(run);
            }
        }
        let runs = lost.as_slice();
        let Some(first) = runs.first() else {
            return Ok(());
        };
        let mut before = PreviousRunStates::new();
        for run in runs {
            if let Some(tracked) = state.run_store.get_mut(run) {
                before.insert(run.clone(), Some(tracked.clone()));
                tracked.usage_pending = false;
                state.dirty.insert(shard_of(tracked));
            }
        }
        let owner_of = |run: &RunKey| state.known_owner(run).or_else(|| owners.get(run).cloned());
        let named = runs
            .iter()
            .map(|run| (run.clone(), owner_of(run).unwrap_or_default()));
        let named: Vec<(RunKey, Owner)> = named.collect();
        let message = format!("accounting has no ended record of {}", names(&named));
        let not_recoverable = format!("resource usage of {}", keys(&named));
        let gap = gap_event(message, not_recoverable);
        let emitted = self.gap(state, first, gap, before).await?;
        for run in runs {
            if !emitted {
                state
                    .usage_backlog
                    .postpone(run, Instant::now(), &self.config);
            } else if let Some(tracked) = state.run_store.get(run) {
                state.usage_backlog.note(run, tracked, now, &self.config);
                state.last.remove(run);
            }
        }
        if emitted {
            metrics::usage_lost(runs.len());
        }
        Ok(())
    }
}

impl CollectorState {
    /// Stores with each run how long accounting was waited for. Between two answers up to a minute passes, which a restart would lose.
    pub(super) fn store_waits(&mut self) {
        let now = Instant::now();
        self.unseen_waits.store(&mut self.capture.unseen, now);
        let answered = self.usage_backlog.runs.iter();
        let answered: Vec<LocalRunKey> = answered
            .filter(|(_, entry)| entry.wait.has_answered())
            .map(|(run, _)| *run)
            .collect();
        for run in answered {
            let run = self.run_store.entry(run).map(|(run, _)| run);
            if let Some(run) = run
                && let Some(waited) = self.usage_backlog.waited(&run, now)
            {
                self.store_wait(&run, waited);
            }
        }
        for (run, waited) in self.array_waits(now) {
            self.store_wait(&run, waited);
        }
    }

    /// Stores with a run how long accounting was waited for.
    pub(super) fn store_wait(&mut self, run: &RunKey, waited: Duration) {
        let Some(tracked) = self.run_store.get_mut(run) else {
            return;
        };
        let stored = Duration::from_secs(tracked.rare.waited_for_accounting);
        if waited >= stored + WAIT_STORE_INTERVAL {
            tracked.rare.waited_for_accounting = waited.as_secs();
            self.dirty.insert(shard_of(tracked));
        }
    }
}

/// Returns the job reference for a usage request.
pub(super) fn job_of(run: &RunKey, tracked: &RunState) -> Option<JobRef> {
    let id = JobId::new(tracked.raw_id)?;
    // The last task has the array's own id, for which accounting would report every task.
    Some(match run.task_id {
        Some(task) if tracked.raw_id == run.job_id => JobRef::ArrayTask { array: id, task },
        _ => JobRef::Job(id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_events::EventType;

    use crate::domain::End;

    fn run(job_id: u32) -> RunKey {
        RunKey {
            cluster: "c".to_owned(),
            job_id,
            task_id: None,
            submit_time: 100,
            attempt: 0,
        }
    }

    fn key(job_id: u32) -> LocalRunKey {
        LocalRunKey::from(&run(job_id))
    }

    fn ended(at: i64) -> RunState {
        RunState {
            usage_pending: true,
            end: Some(End {
                event: Some(EventType::JobCompleted),
                at,
                inferred: false,
            }),
            ..RunState::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn usage_is_due_after_the_end_and_then_with_backoff() {
        let config = Config::default();
        let (began, mut usage_backlog) = (Instant::now(), UsageBacklog::default());
        let at = |seconds| began + Duration::from_secs(seconds);
        usage_backlog.note(&run(1), &ended(1_000), 1_000, &config);
        // An end long ago, and one in the future due to a wrong clock.
        usage_backlog.note(&run(2), &ended(5), 1_000, &config);
        usage_backlog.note(&run(3), &ended(9_000), 1_000, &config);
        let due = |usage_backlog: &UsageBacklog, seconds| {
            usage_backlog.due(at(seconds)).collect::<Vec<_>>()
        };
        assert_eq!(due(&usage_backlog, 0), [key(2)]);
        assert_eq!(due(&usage_backlog, 10), [key(2), key(1), key(3)]);
        usage_backlog.postpone(&run(2), at(10), &config);
        usage_backlog.postpone(&run(2), at(12), &config);
        assert_eq!(due(&usage_backlog, 15), [key(1), key(3)]);
        assert_eq!(
            usage_backlog.waited(&run(2), at(16)),
            Some(Duration::from_secs(6))
        );
        let emitted = RunState {
            usage_pending: false,
            ..ended(1_000)
        };
        usage_backlog.note(&run(1), &emitted, 1_000, &config);
        usage_backlog.note(&run(3), &emitted, 1_000, &config);
        // Another observation does not reset the schedule.
        usage_backlog.note(&run(2), &ended(5), 1_000, &config);
        assert_eq!(due(&usage_backlog, 16), [key(2)]);
        assert_eq!(
            (usage_backlog.runs.len(), usage_backlog.by_due.len()),
            (1, 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_continues_the_wait() {
        let config = Config::default();
        let (began, mut usage_backlog) = (Instant::now(), UsageBacklog::default());
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut waited = ended(5);
        waited.rare.waited_for_accounting = 310;
        usage_backlog.note(&run(1), &waited, 1_000, &config);
        // The wait goes on at the restart, not at the next answer.
        assert_eq!(
            usage_backlog.waited(&run(1), at(100)),
            Some(Duration::from_secs(410))
        );
        usage_backlog.postpone(&run(1), at(100), &config);
        usage_backlog.postpone(&run(1), at(107), &config);
        // The last lookup is no later than the timeout.
        assert_eq!(usage_backlog.due(at(109)).next(), None);
        assert_eq!(usage_backlog.due(at(110)).next(), Some(key(1)));
        assert_eq!(
            usage_backlog.waited(&run(1), at(110)),
            Some(config.resolution_timeout)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_past_its_limit_is_not_asked_for_all_the_time_after_an_outage() {
        let config = Config::default();
        let (began, mut usage_backlog) = (Instant::now(), UsageBacklog::default());
        let mut waited = ended(5);
        waited.rare.waited_for_accounting = config.resolution_timeout.as_secs() + 10;
        usage_backlog.note(&run(1), &waited, 1_000, &config);
        usage_backlog
            .waits()
            .for_each(|wait| wait.interrupted(began));
        let returned = began + Duration::from_secs(900);
        usage_backlog
            .waits()
            .for_each(|wait| wait.resumed(returned));
        let (mut now, mut lookups) = (returned, 1);
        let is_over = |usage_backlog: &UsageBacklog, now| {
            let wait = usage_backlog.wait(&run(1)).unwrap();
            wait.is_over(config.resolution_timeout, now, &config)
        };
        while !is_over(&usage_backlog, now) {
            usage_backlog.postpone(&run(1), now, &config);
            now = usage_backlog.by_due.first().unwrap().0;
            lookups += 1;
        }
        // 2, 4, 8 and 16 s apart, and the last one when slurmctld has had the time to report the run.
        assert_eq!(
            (lookups, now - returned),
            (5, config.missing_record_timeout)
        );
    }
}
