//! Looks up runs in accounting that the controller cannot answer: earlier runs of a job, and jobs that the controller has purged.
//!
//! All jobs share one request at a time, at most one per second. An end that only a doorbell reports is finally published as inferred.
//! Without any record of the run in Slurm it is refused, provided that accounting answers.

mod lookup_queue;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use slurm_client::{AccountingQuery, Slurm};
use slurm_types::JobId;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::lookup_queue::{LookupQueue, LookupRequest};
use self::lookup_queue::{OpenRequest, compare_again, note};
use self::verdict::{EndVerdict, MAX_ANSWERS, Records, is_same_run, judge};
use crate::accounting::batch_step_ends::BatchStepEnds;
use crate::accounting::exit_codes::{CompletedRuns, ExitCodeReader};
use crate::accounting::rate_limit::{AccountingPermit, AccountingRateLimit};
use crate::collector::{Collector, TracedObservation};
use crate::domain::{Observation, fold, provisional, run_of};
use crate::doorbells::{JobReadRequest, finish, postpone, refuse};
use crate::envelope::Cause;
use crate::job_queries::JobQueries;
use crate::sources::{RequestCost, SlurmSource, unless_stopped};
use crate::{Error, metrics};

/// Outcome of doorbells that could not be answered while accounting is unavailable.
const ACCOUNTING_UNAVAILABLE: &str = "accounting_away";

/// Dead-letter reason for an end that only its doorbell reports.
const UNKNOWN_RUN: &str = "neither slurmctld nor accounting has a record of this run: the doorbell is forged, or of another cluster";

/// Looks up runs in accounting.
pub struct AccountingResolver<S = Slurm> {
    /// Slurm client.
    pub slurm: S,
    /// Applies observations and holds the run store.
    pub collector: Collector,
    /// Availability of slurmdbd.
    pub slurmdbd: Arc<SlurmSource>,
    /// Rate limit of accounting requests.
    pub rate_limit: Arc<AccountingRateLimit>,
    /// Requests another read of the controller after an answer.
    pub job_reads: mpsc::Sender<JobReadRequest>,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

/// Ends from doorbells after an answer of accounting.
#[derive(Default)]
struct JudgedEnds {
    /// Published as inferred.
    inferred: Vec<TracedObservation>,
    /// Those of which accounting has the end.
    recorded: Vec<Observation>,
}

impl<S: JobQueries> AccountingResolver<S> {
    /// Answers lookups until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn run(self, mut lookups: mpsc::Receiver<LookupRequest>) -> Result<(), Error> {
        let mut open: BTreeMap<u32, OpenRequest> = BTreeMap::new();
        let mut not_before = Instant::now();
        loop {
            let unavailable = not_before > Instant::now();
            if open.is_empty() || unavailable {
                tokio::select! {
                    () = self.shutdown.cancelled() => return Ok(()),
                    () = sleep_until(not_before), if unavailable => {}
                    // It has answered another request.
                    () = self.slurmdbd.available(), if unavailable => not_before = Instant::now(),
                    lookup = lookups.recv() => match lookup {
                        Some(lookup) if unavailable && !lookup.read_job => {
                            postpone(lookup.requests, ACCOUNTING_UNAVAILABLE);
                        }
                        Some(lookup) => note(&mut open, lookup),
                        None => return Ok(()),
                    },
                }
                continue;
            }
            let permit = tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                permit = self.rate_limit.next() => permit,
            };
            while let Ok(lookup) = lookups.try_recv() {
                note(&mut open, lookup);
            }
            not_before = match self.ask(&mut open, permit).await {
                Ok(pause) => Instant::now() + pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
        }
    }

    async fn ask(
        &self,
        open: &mut BTreeMap<u32, OpenRequest>,
        permit: AccountingPermit<'_>,
    ) -> Result<Duration, Error> {
        let ids: Vec<JobId> = open.keys().filter_map(|id| JobId::new(*id)).collect();
        let asked_at = Instant::now();
        let rows = if self.collector.config.accounting {
            let query = AccountingQuery::Jobs(ids);
            let answer = unless_stopped(&self.shutdown, self.slurm.accounting(&query)).await?;
            drop(permit);
            match answer {
                Ok(rows) => {
                    self.slurmdbd.up(RequestCost::Light).await?;
                    rows
                }
                Err(error) => {
                    // Nothing is proven. Waiting doorbells would block all others, so they are postponed. Unproven jobs are resolved by
                    // their deadline, and unknown ones by catching up.
                    for lookup in std::mem::take(open).into_values() {
                        postpone(lookup.requests, ACCOUNTING_UNAVAILABLE);
                    }
                    return self.slurmdbd.down(RequestCost::Light, &error).await;
                }
            }
        } else {
            Vec::new()
        };
        let mut observations = fold(&self.collector.cluster, &rows);
        let stand_ins = provisional(&rows);
        metrics::provisional(stand_ins.len());
        // A stand-in row is no answer.
        let asked: BTreeSet<u32> = open
            .keys()
            .copied()
            .filter(|job_id| !stand_ins.contains(job_id))
            .collect();
        let alive = observations
            .iter()
            .filter(|run| run.end_kind().is_none())
            .map(|run| run.run.clone())
            .collect();
        self.collector.accounting_answered(&asked, &alive).await;
        let ends: Vec<Observation> = open
            .values()
            .flat_map(|lookup| lookup.evidence.iter().cloned())
            .collect();
        let (mut readings, mut recorded) = (Vec::new(), Vec::new());
        let mut answered = Vec::new();
        for (job_id, lookup) in open.iter_mut() {
            lookup.asked += 1;
            lookup.since.get_or_insert(asked_at);
            for end in &lookup.evidence {
                let same = observations.iter_mut().filter(|row| is_same_run(row, end));
                same.filter(|row| row.end == end.end)
                    .for_each(|row| row.take_code(end));
            }
            let judged = self.judged((*job_id, asked_at), lookup, &observations, &stand_ins);
            let judged = judged.await;
            readings.extend(judged.inferred);
            recorded.extend(judged.recorded);
            let retry = stand_ins.contains(job_id) && lookup.asked < MAX_ANSWERS;
            if lookup.evidence.is_empty() && !retry {
                answered.push(*job_id);
            }
        }
        // Accounting's rows of live runs are no news, and up to a second old (22.05).
        let known = observations
            .into_iter()
            .filter(|row| row.end_kind().is_some() || !row.resizes.is_empty());
        let known = self.complete(known.collect(), &ends, open).await?;
        compare_again(open, recorded);
        answered.retain(|job_id| open.get(job_id).is_some_and(|one| one.incomplete.is_none()));
        let known = self.after_capture_start(known).await;
        let applied = self.collector.apply(&Cause::Accounting, known).await?;
        let mut not_stored = applied.not_stored;
        let cause = Cause::Hook("JobComp".to_owned());
        let applied = self.collector.apply(&cause, readings.clone()).await?;
        for TracedObservation { observation, .. } in readings {
            let lookup = open.get_mut(&observation.raw_id);
            if applied.not_stored.contains(&observation.raw_id)
                && let Some(lookup) = lookup
            {
                lookup.evidence.push(observation);
            }
        }
        not_stored.extend(applied.not_stored);
        // Their doorbells wait, too.
        answered.retain(|job_id| !not_stored.contains(job_id));
        for job_id in answered {
            if let Some(lookup) = open.remove(&job_id) {
                finish(lookup.requests, "answered");
                // A newer run that waited for this answer can be published now.
                if lookup.read_job
                    && self
                        .job_reads
                        .try_send(JobReadRequest::after_accounting(job_id, asked_at))
                        .is_err()
                {
                    metrics::drift("look_dropped", 1);
                }
            }
        }
        Ok(Duration::ZERO)
    }

    /// Judges the ends from doorbells. Those that Slurm may still record stay open.
    async fn judged(
        &self,
        (job_id, asked_at): (u32, Instant),
        lookup: &mut OpenRequest,
        rows: &[Observation],
        stand_ins: &BTreeSet<u32>,
    ) -> JudgedEnds {
        let state = self.collector.state().await;
        let mut judged = JudgedEnds::default();
        for end in std::mem::take(&mut lookup.evidence) {
            let run = run_of(&state.run_store, &end);
            let known = state.run_store.get(&run);
            let records = Records {
                rows: self.collector.config.accounting.then_some(rows),
                has_stand_in: stand_ins.contains(&job_id),
                was_observed: known.is_some_and(|run| !run.hook_only),
                is_disputed: lookup.is_disputed(&end.run),
                answers: lookup.asked,
                waited: lookup
                    .since
                    .map_or(Duration::ZERO, |since| asked_at - since),
                now: Utc::now().timestamp(),
            };
            match judge(&end, records) {
                EndVerdict::Recorded => judged.recorded.push(end),
                EndVerdict::Open => lookup.evidence.push(end),
                EndVerdict::Inferred(mut end) => {
                    // The controller has shown the owner.
                    if let Some(owner) = state.known_owner(&run) {
                        end.owner = owner;
                    }
                    tracing::info!(
                        run = end.run.entity_key(),
                        "job end reported by hook has no record in Slurm, published as inferred"
                    );
                    let requests = lookup.requests.iter();
                    judged.inferred.push(TracedObservation {
                        inferred: true,
                        links: requests.map(|request| request.span.clone()).collect(),
                        ..TracedObservation::new(*end)
                    });
                }
                EndVerdict::Refused => {
                    tracing::warn!(
                        run = end.run.entity_key(),
                        "job end reported by hook is of an unknown run, sent to dead letters"
                    );
                    refuse(lookup.take_requests_of(&end.run), "unknown", UNKNOWN_RUN);
                }
            }
        }
        judged
    }

    /// Completes ends with what accounting has lost. Waits a limited time for slurmctld or a doorbell to report it.
    async fn complete(
        &self,
        known: Vec<Observation>,
        ended_by_hooks: &[Observation],
        open: &mut BTreeMap<u32, OpenRequest>,
    ) -> Result<Vec<Observation>, Error> {
        let codes = ExitCodeReader {
            slurm: &self.slurm,
            collector: &self.collector,
            shutdown: &self.shutdown,
            republish: false,
        };
        let own_ends = BatchStepEnds {
            slurm: &self.slurm,
            collector: &self.collector,
            rate_limit: Some(&self.rate_limit),
            shutdown: &self.shutdown,
            republish: false,
        };
        let CompletedRuns {
            runs: mut ends,
            open: waiting,
        } = own_ends
            .complete(codes.complete(known).await?, ended_by_hooks)
            .await?;
        let now = Instant::now();
        // The next run of the job waits for an end that a requeue has overwritten. It is published without that end after
        // `missing_record_timeout`.
        let max_wait = |run: &Observation| match run.own_end {
            Some(_) => self.collector.config.missing_record_timeout / 2,
            None => self.collector.config.missing_record_timeout,
        };
        let since: BTreeMap<u32, Instant> = waiting
            .iter()
            .map(|run| run.raw_id)
            .filter_map(|id| Some((id, open.get(&id)?.incomplete.unwrap_or(now))))
            .collect();
        let (wait, give_up): (Vec<Observation>, Vec<Observation>) =
            waiting.into_iter().partition(|run| {
                let since = since.get(&run.raw_id);
                since.is_some_and(|since| now - *since < max_wait(run))
            });
        ends.extend(give_up.into_iter().map(Observation::with_own_end));
        ends.sort_by_key(|run| (run.raw_id, run.run.submit_time));
        let wait: BTreeSet<u32> = wait.iter().map(|run| run.raw_id).collect();
        for (job_id, lookup) in open {
            let waits = wait.contains(job_id);
            lookup.incomplete = since.get(job_id).copied().filter(|_| waits);
        }
        Ok(ends)
    }

    /// Drops runs that ended before capture began.
    async fn after_capture_start(&self, runs: Vec<Observation>) -> Vec<TracedObservation> {
        let state = self.collector.state().await;
        let since = state.capture.capture_since;
        runs.into_iter()
            .filter(|run| {
                state.run_store.get(&run.run).is_some() || run.end.is_none_or(|end| end >= since)
            })
            .map(TracedObservation::new)
            .collect()
    }
}
