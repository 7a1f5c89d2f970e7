//! Reads jobs from the controller on demand, with few requests for many doorbells.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mesh_events::RunKey;
use slurm_client::{JobLookup, Slurm};
use slurm_types::JobId;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::pending_reads::{AvailableRecords, PendingRead, is_settled, merge, next, note};
use super::{JobReadRequest, NEW_JOBS, UnknownJobLimiter, finish, postpone, redeliver};
use crate::accounting::resolver::LookupQueue;
use crate::collector::{Collector, TracedObservation};
use crate::domain::Observation;
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::poll::HookHealth;
use crate::sources::{RequestCost, SlurmSource, unless_stopped};
use crate::{Error, metrics};

/// Maximum number of jobs that no poll has shown and that are read by id when a list of all jobs lacks them.
const MAX_UNLISTED_LOOKUPS: usize = 4;
/// Maximum number of reads of a job that is still about to change: after 50 ms … 6.4 s, 13 s in all. Then it is left to the poller.
const MAX_READS: u32 = 8;
/// Number of reads after which accounting is asked how a run ended: after 150 ms most epilogs have run, and the record shows it.
const READS_BEFORE_ACCOUNTING: u32 = 2;

/// Reads jobs from the controller on demand.
pub struct JobReader<S = Slurm> {
    /// Slurm client.
    pub slurm: S,
    /// Applies observations and holds the run store.
    pub collector: Collector,
    /// Availability of slurmctld.
    pub slurmctld: Arc<SlurmSource>,
    /// Queue of accounting lookups.
    pub lookups: LookupQueue,
    /// Limits requests for jobs that no poll has shown.
    pub unknown_jobs: UnknownJobLimiter,
    /// Whether hooks ring.
    pub hooks: Arc<HookHealth>,
    /// Requests a poll soon.
    pub nudge: Arc<Notify>,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

impl<S: JobQueries> JobReader<S> {
    /// Handles read requests until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn run(mut self, mut requests: mpsc::Receiver<JobReadRequest>) -> Result<(), Error> {
        let mut waiting: HashMap<u32, PendingRead> = HashMap::new();
        let mut not_before = Instant::now();
        let mut ends_have_waited = false;
        loop {
            let due = waiting
                .values()
                .map(|job| job.due)
                .min()
                .map(|due| due.max(not_before));
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                request = requests.recv() => match request {
                    Some(request) => { note(&mut waiting, request); continue }
                    None => return Ok(()),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            // Doorbells that have arrived meanwhile join this request.
            while let Ok(request) = requests.try_recv() {
                note(&mut waiting, request);
            }
            let ids = next(&waiting, Instant::now(), &mut ends_have_waited);
            let ids = self.admit(ids, &mut waiting).await;
            if ids.is_empty() {
                continue;
            }
            let pause = match self.read(&ids, &mut waiting).await {
                Ok(pause) => pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
            not_before = Instant::now() + pause;
        }
    }

    /// Drops doorbells of jobs that no poll has shown, if there are too many of them. The next poll finds the actual state.
    async fn admit(&mut self, ids: Vec<u32>, waiting: &mut HashMap<u32, PendingRead>) -> Vec<u32> {
        let state = self.collector.state().await;
        let now = Instant::now();
        let mut refused = false;
        let mut admitted = Vec::with_capacity(ids.len());
        for id in ids {
            if id == NEW_JOBS {
                self.nudge.notify_one();
                if let Some(job) = waiting.remove(&id) {
                    finish(job.requests, "left_to_sweep");
                }
                continue;
            }
            let Some(job) = waiting.get_mut(&id) else {
                continue;
            };
            if is_settled(job, &state.run_store) {
                if let Some(job) = waiting.remove(&id) {
                    finish(job.requests, "answered");
                }
                continue;
            }
            // Once per wait, however often the job is read.
            let is_admitted = job.is_unknown.is_some();
            let is_unknown = *job
                .is_unknown
                .get_or_insert_with(|| !state.run_store.knows(id));
            if is_unknown && !is_admitted {
                let mut arrays = job.requests.iter().filter_map(|request| request.array);
                job.admitted_by = arrays
                    .find(|array| state.run_store.knows(*array))
                    .filter(|array| self.unknown_jobs.array_admits(*array, now));
            }
            let is_welcome = is_admitted || !is_unknown || job.admitted_by.is_some();
            if is_welcome || self.unknown_jobs.admit(now) {
                admitted.push(id);
            } else if let Some(job) = waiting.remove(&id) {
                refused = true;
                postpone(job.requests, "limited");
            }
        }
        if refused {
            self.nudge.notify_one();
        }
        admitted
    }

    /// Reads some jobs with one request. Returns how long to wait before the next one.
    async fn read(
        &mut self,
        ids: &[u32],
        waiting: &mut HashMap<u32, PendingRead>,
    ) -> Result<Duration, Error> {
        let jobs: Vec<JobId> = ids.iter().filter_map(|id| JobId::new(*id)).collect();
        let is_unlisted = |id: &&u32| {
            waiting
                .get(id)
                .is_some_and(|job| job.is_unknown == Some(true))
        };
        let began = Instant::now();
        let crowd = ids.iter().filter(is_unlisted).count() > MAX_UNLISTED_LOOKUPS;
        let lookup = async {
            match crowd {
                true => self.slurm.jobs_from_list(&jobs).await,
                false => self.slurm.jobs(&jobs).await,
            }
        };
        let answer = match unless_stopped(&self.shutdown, lookup).await? {
            Ok(answer) => {
                self.slurmctld.up(RequestCost::Light).await?;
                answer
            }
            Err(error) => return self.slurmctld.down(RequestCost::Light, &error).await,
        };
        let asked = began.elapsed();
        let (missing, unlisted): (Vec<JobId>, Vec<JobId>) = {
            let is_unknown = |id: &JobId| {
                let job = waiting.get(&id.get());
                job.is_some_and(|job| job.is_unknown == Some(true))
            };
            // The absence of a job that no poll has shown proves nothing, so it needs no second request.
            let (mut missing, unlisted) = answer.unlisted.iter().partition(|id| is_unknown(id));
            Vec::extend(&mut missing, &answer.missing);
            (missing, unlisted)
        };
        let unclear = answer.unclear.iter().map(|(unclear, _)| unclear);
        let unclear: BTreeSet<u32> = unclear.chain(&unlisted).map(|id| id.get()).collect();
        let mut reread = BTreeSet::new();
        let mut readings: Vec<TracedObservation> = Vec::new();
        let mut hook = None;
        let mut doorbells = 0;
        let mut unknown = Vec::new();
        let (mut unproven, mut asked_of_accounting) = (BTreeSet::new(), BTreeMap::new());
        let collector = self.collector.clone();
        let records = AvailableRecords {
            accounting: collector.config.accounting,
            max_wait: collector.config.missing_record_timeout,
        };
        let state = collector.state().await;
        for id in ids {
            let Some(job) = waiting.get_mut(id) else {
                continue;
            };
            hook = hook.or_else(|| job.requests.iter().find_map(|request| request.hook.clone()));
            let found = self.observations_of(*id, &answer);
            if !unclear.contains(id)
                && let Some(array) = job.admitted_by.take()
            {
                let is_its_own = found
                    .iter()
                    .any(|observation| observation.run.job_id == array);
                // Slurm may have purged a task that has ended.
                let may_be_purged = found.is_empty() && self.unknown_jobs.admit(Instant::now());
                self.judge(array, is_its_own || may_be_purged);
            }
            if found.is_empty() {
                if unclear.contains(id) {
                    reread.insert(*id);
                }
                continue;
            }
            doorbells += usize::from(job.requests.iter().any(|request| request.hook.is_some()));
            let merged = merge(job, found, &state, records);
            if merged.unproven {
                unproven.insert(*id);
                if records.accounting
                    && (job.reads >= READS_BEFORE_ACCOUNTING || !merged.evidence.is_empty())
                {
                    asked_of_accounting.insert(*id, merged.evidence);
                }
            }
            for end in &merged.contradicted {
                metrics::doorbell("contradicted");
                tracing::warn!(
                    job.id = id,
                    run = end.run.entity_key(),
                    state = end.job.state,
                    start = end.start,
                    end = end.end,
                    "slurmctld's record does not show the job end that a hook reported, so it is not published: slurmctld lost it in a restart, or the report is not genuine"
                );
            }
            readings.extend(merged.readings);
            if !merged.unknown.is_empty() {
                unknown.push((*id, merged.unknown));
            }
        }
        drop(state);
        self.hooks.doorbells(doorbells);
        let cause = hook.map_or(Cause::Lookup, Cause::Hook);
        let follow_ups = self.collector.apply(&cause, readings).await?;
        tracing::debug!(jobs = ids.len(), ?asked, all = ?began.elapsed(), "jobs read for doorbells");
        reread.extend(&follow_ups.reread);
        for id in &follow_ups.accounting {
            asked_of_accounting.entry(*id).or_default();
        }
        for (id, evidence) in asked_of_accounting {
            self.lookups.ask_with(id, evidence).await;
        }
        for id in missing {
            // Slurm has purged it. Accounting has the job, or the evidence is all there is.
            if let Some(job) = waiting.remove(&id.get()) {
                // Unless no hook rang: then an answer of accounting has led to this read.
                if job.requests.iter().all(|request| request.hook.is_none()) {
                    continue;
                }
                unknown.push((id.get(), job.requests));
            }
        }
        for (id, requests) in unknown {
            self.ask_accounting(id, requests).await;
        }
        for id in ids {
            let Some(job) = waiting.get_mut(id) else {
                continue;
            };
            // The evidence of its doorbells is used up, so a further read would not repeat what was not stored.
            let is_stored = !follow_ups.not_stored.contains(id);
            let is_read_again = reread.contains(id) && job.reads < MAX_READS;
            if is_stored && (is_read_again || unproven.contains(id)) {
                let doubled = job.reads.min(MAX_READS - 1);
                job.due = Instant::now() + Duration::from_millis(50 << doubled);
                job.reads += 1;
            } else if let Some(job) = waiting.remove(id) {
                match reread.contains(id) {
                    _ if !is_stored => redeliver(job.requests, "not_stored"),
                    true => finish(job.requests, "left_to_sweep"),
                    false => finish(job.requests, "answered"),
                }
            }
        }
        Ok(self.collector.config.read_interval)
    }

    /// Looks up runs in accounting that the controller does not show. Runs that no record has shown so far are limited per minute.
    async fn ask_accounting(&mut self, job_id: u32, requests: Vec<JobReadRequest>) {
        let is_unheard_of: Vec<bool> = {
            let state = self.collector.state().await;
            let observed =
                |run: &RunKey| state.run_store.get(run).is_some_and(|run| !run.hook_only);
            // Doorbells of jobs that no poll has shown were already limited before the read.
            let is_limited = |request: &JobReadRequest| {
                request.ended_run.as_ref().is_some_and(|run| !observed(run))
            };
            let known = state.run_store.knows(job_id);
            requests
                .iter()
                .map(|request| known && is_limited(request))
                .collect()
        };
        let now = Instant::now();
        let (mut admitted, mut limited) = (Vec::new(), Vec::new());
        for (request, is_unheard_of) in requests.into_iter().zip(is_unheard_of) {
            match is_unheard_of && !self.unknown_jobs.admit(now) {
                true => limited.push(request),
                false => admitted.push(request),
            }
        }
        postpone(limited, "limited");
        if !admitted.is_empty() {
            self.lookups.ask_for(job_id, admitted);
        }
    }

    /// Records whether a job that was read as a task of an array is one.
    fn judge(&mut self, array: u32, is_its_own: bool) {
        if !is_its_own {
            metrics::doorbell("contradicted");
        }
        if self
            .unknown_jobs
            .record_admission(array, is_its_own, Instant::now())
        {
            tracing::warn!(
                job.id = array,
                "array limited: doorbells name tasks that Slurm does not have"
            );
        }
    }

    /// Returns the observations of one id. An array's id also finds its tasks; those with ids of their own ring for themselves.
    fn observations_of(&self, id: u32, answer: &JobLookup) -> Vec<Observation> {
        let own = answer
            .found
            .iter()
            .filter(|record| record.job_id.is_some_and(|found| found.get() == id));
        own.filter_map(|record| Observation::from_controller(&self.collector.cluster, record))
            .collect()
    }
}
