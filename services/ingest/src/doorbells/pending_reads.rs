//! Pending read requests: which doorbells wait, and what their evidence adds to the controller's record.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use mesh_events::RunKey;
use tokio::time::Instant;

use super::JobReadRequest;
use crate::collector::{CollectorState, TracedObservation};
use crate::domain::{
    Confirmation, KindSource, Observation, RECORD_DELAY, RunState, RunStore, confirm, contradict,
};

/// A job to be read, with its doorbells.
pub(super) struct PendingRead {
    pub(super) requests: Vec<JobReadRequest>,
    pub(super) due: Instant,
    pub(super) reads: u32,
    /// Whether the run store does not have the job; `None` until that is checked.
    pub(super) is_unknown: Option<bool>,
    /// The array whose task it claims to be, until the claim is checked.
    pub(super) admitted_by: Option<u32>,
    /// When a record first showed an end of which only the doorbell says how it came about.
    unproven_since: Option<Instant>,
    /// When accounting was last asked, if it has answered.
    accounting_asked_at: Option<Instant>,
}

/// Which records may still show how a run ended.
#[derive(Clone, Copy)]
pub(super) struct AvailableRecords {
    /// Whether accounting is enabled.
    pub(super) accounting: bool,
    /// How long to wait for an answer of accounting.
    pub(super) max_wait: Duration,
}

/// Maximum number of jobs per request. Others wait for the next one.
const MAX_JOBS_PER_READ: usize = 2_000;
/// Of these, the maximum number of jobs that are not urgent. Starts reported meanwhile wait until all of them are published.
const MAX_ENDS_PER_READ: usize = 500;

impl PendingRead {
    /// Whether any hook reports something other than an end.
    fn is_urgent(&self) -> bool {
        let hooks = self
            .requests
            .iter()
            .filter_map(|request| request.hook.as_deref());
        hooks.into_iter().any(|hook| !END_HOOKS.contains(&hook))
    }

    /// Whether to wait for a record that shows how the run ended: [`RECORD_DELAY`], and then for an answer that accounting was asked for
    /// after that time, because an earlier one proves nothing. Without such an answer the wait ends after `max_wait`.
    fn awaits_record(&mut self, shown_by: Option<KindSource>, records: AvailableRecords) -> bool {
        match shown_by {
            None => return false,
            Some(KindSource::Accounting) if !records.accounting => return false,
            Some(KindSource::Accounting | KindSource::Any) => {}
        }
        let since = *self.unproven_since.get_or_insert_with(Instant::now);
        let is_answered = || {
            let asked_at = self.accounting_asked_at;
            asked_at.is_some_and(|at| at >= since + RECORD_DELAY)
        };
        let waited = since.elapsed();
        waited < RECORD_DELAY
            || records.accounting && !is_answered() && waited < records.max_wait.max(RECORD_DELAY)
    }
}

/// Hooks that ring when a run has ended, which is less urgent than a start.
const END_HOOKS: [&str; 5] = [
    "JobComp",
    "EpilogSlurmctld",
    "Epilog",
    "SrunEpilog",
    "TaskEpilog",
];

/// Selects the jobs of the next request. Starts that are due get a request of their own, but not twice in a row while ends wait: then the
/// ends share the request with them.
pub(super) fn next(
    waiting: &HashMap<u32, PendingRead>,
    now: Instant,
    ends_have_waited: &mut bool,
) -> Vec<u32> {
    let due = waiting.iter().filter(|(_, job)| job.due <= now);
    let (starts, ends): (Vec<_>, Vec<_>) = due.partition(|(_, job)| job.is_urgent());
    let alone = !starts.is_empty() && !ends.is_empty() && !*ends_have_waited;
    *ends_have_waited = alone;
    let limit = if alone { 0 } else { MAX_ENDS_PER_READ };
    let ends = ends.into_iter().take(limit);
    let all = starts.into_iter().chain(ends).map(|(id, _)| *id);
    all.take(MAX_JOBS_PER_READ).collect()
}

/// Whether all doorbells are redeliveries whose end was published meanwhile, not only inferred from other records.
pub(super) fn is_settled(job: &PendingRead, run_store: &RunStore) -> bool {
    let is_final = |run: &RunState| run.has_certain_end() || run.hook_only && run.over();
    let is_published = |end: &Observation| run_store.get(&end.run).is_some_and(is_final);
    let settled = |request: &JobReadRequest| {
        request.is_redelivery && request.end.as_deref().is_some_and(is_published)
    };
    !job.requests.is_empty() && job.requests.iter().all(settled)
}

pub(super) fn note(waiting: &mut HashMap<u32, PendingRead>, request: JobReadRequest) {
    let job = waiting
        .entry(request.job_id)
        .or_insert_with(|| PendingRead {
            requests: Vec::new(),
            due: Instant::now(),
            reads: 0,
            is_unknown: None,
            admitted_by: None,
            unproven_since: None,
            accounting_asked_at: None,
        });
    job.due = Instant::now();
    job.accounting_asked_at = job.accounting_asked_at.max(request.accounting_asked_at);
    // An answer of accounting does not make the pauses between reads shorter.
    if request.hook.is_some() {
        job.reads = 0;
    }
    job.requests.push(request);
}

/// The controller's records, merged with jobcomp's evidence.
#[derive(Default)]
pub(super) struct MergedRecords {
    /// Oldest run first.
    pub(super) readings: Vec<TracedObservation>,
    /// Whether a doorbell waits for a record that shows how a run ended.
    pub(super) unproven: bool,
    /// Of these, the ends that accounting may show as overwritten by a requeue.
    pub(super) evidence: Vec<Observation>,
    /// Ends that the controller's record contradicts.
    pub(super) contradicted: Vec<Observation>,
    /// Doorbells with ends of runs that no available record knows.
    pub(super) unknown: Vec<JobReadRequest>,
}

/// Merges ends reported by jobcomp into the controller's records, as far as the records confirm them. Unresolved ends are retained for the
/// next read.
pub(super) fn merge(
    job: &mut PendingRead,
    found: Vec<Observation>,
    state: &CollectorState,
    records: AvailableRecords,
) -> MergedRecords {
    let mut merged = MergedRecords::default();
    let mut observations = found;
    let ends = job
        .requests
        .iter()
        .filter_map(|request| request.end.as_deref());
    let ends: Vec<&Observation> = ends.collect();
    let disputed: BTreeSet<RunKey> = ends
        .iter()
        .filter(|end| ends.iter().any(|other| contradict(end, other)))
        .map(|end| end.run.clone())
        .collect();
    for mut request in std::mem::take(&mut job.requests) {
        let Some(end) = request.end.take() else {
            job.requests.push(request);
            continue;
        };
        let owner = |run: &RunKey| state.owner_of(run);
        match confirm(&state.run_store, &observations, owner, &end) {
            Confirmation::Confirmed(_) | Confirmation::Unproven { .. }
                if disputed.contains(&end.run) =>
            {
                request.end = Some(end);
            }
            Confirmation::Unproven { shown_by, .. } if job.awaits_record(shown_by, records) => {
                merged.unproven = true;
                if shown_by == Some(KindSource::Accounting) {
                    merged.evidence.push((*end).clone());
                }
                request.end = Some(end);
            }
            Confirmation::Confirmed(observation)
            | Confirmation::Unproven {
                end: observation, ..
            } => {
                let is_completed = |seen: &Observation| seen.run == end.run && seen.in_flux();
                observations.retain(|seen| !is_completed(seen));
                // Before the run that follows under the same submit time.
                observations.insert(0, *observation);
            }
            Confirmation::Known => {}
            Confirmation::Open => request.end = Some(end),
            Confirmation::UnknownRun => {
                request.end = Some(end);
                merged.unknown.push(request);
                continue;
            }
            Confirmation::Contradicted => merged.contradicted.push(*end),
        }
        job.requests.push(request);
    }
    observations.sort_by_key(|observation| observation.run.submit_time);
    let links = || {
        job.requests
            .iter()
            .map(|request| request.span.clone())
            .collect()
    };
    let readings = observations
        .into_iter()
        .map(|observation| TracedObservation {
            links: links(),
            ..TracedObservation::new(observation)
        });
    merged.readings = readings.collect();
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_doorbells(
        jobs: impl IntoIterator<Item = u32>,
        hook: &str,
        waiting: &mut HashMap<u32, PendingRead>,
    ) {
        for job_id in jobs {
            let hook = Some(hook.to_owned());
            note(
                waiting,
                JobReadRequest {
                    hook,
                    ..JobReadRequest::for_job(job_id)
                },
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn starts_are_read_before_earlier_ends_which_are_not_starved() {
        let mut waiting = HashMap::new();
        add_doorbells(1..=2_000, "JobComp", &mut waiting);
        add_doorbells([3_001, 3_002], "PrologSlurmctld", &mut waiting);
        // A job that ended at once rings for both.
        add_doorbells([7], "Prolog", &mut waiting);
        let (now, mut waited) = (Instant::now(), false);
        let mut first = next(&waiting, now, &mut waited);
        first.sort_unstable();
        assert_eq!(first, [7, 3_001, 3_002]);
        // Starts that arrive meanwhile come first in the next request, but get no request of their own.
        waiting.retain(|id, _| !first.contains(id));
        add_doorbells([3_003], "PrologSlurmctld", &mut waiting);
        let second = next(&waiting, now, &mut waited);
        assert_eq!((second[0], second.len()), (3_003, 1 + MAX_ENDS_PER_READ));
        waiting.retain(|id, _| !second.contains(id));
        add_doorbells([3_004], "PrologSlurmctld", &mut waiting);
        assert_eq!(next(&waiting, now, &mut waited), [3_004]);
        waiting.remove(&3_004);
        while !waiting.is_empty() {
            let ends = next(&waiting, now, &mut waited);
            assert!((1..=MAX_ENDS_PER_READ).contains(&ends.len()));
            waiting.retain(|id, _| !ends.contains(id));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn entries_that_are_not_due_are_not_looked_up() {
        let mut waiting = HashMap::new();
        add_doorbells([1], "JobComp", &mut waiting);
        add_doorbells([2], "PrologSlurmctld", &mut waiting);
        let now = Instant::now();
        for job in waiting.values_mut() {
            job.due += Duration::from_secs(1);
        }
        assert_eq!(next(&waiting, now, &mut false), [] as [u32; 0]);
    }

    /// An answer that accounting was asked for before a record could be expected proves nothing.
    #[tokio::test(start_paused = true)]
    async fn an_end_is_inferred_only_after_a_late_answer_of_accounting() {
        let enabled = AvailableRecords {
            accounting: true,
            max_wait: Duration::from_secs(30),
        };
        let disabled = AvailableRecords {
            accounting: false,
            ..enabled
        };
        let pending = || {
            let mut waiting = HashMap::new();
            add_doorbells([1], "JobComp", &mut waiting);
            waiting.remove(&1).unwrap()
        };
        // For each case, when accounting was asked for its answers, and when the wait ends.
        for (shown_by, records, answers, expected) in [
            (Some(KindSource::Any), disabled, &[][..], 10),
            (Some(KindSource::Accounting), disabled, &[], 0),
            (None, enabled, &[], 0),
            (Some(KindSource::Any), enabled, &[1, 5, 9], 30),
            (Some(KindSource::Any), enabled, &[1, 13], 14),
            (Some(KindSource::Accounting), enabled, &[1, 10], 11),
            (Some(KindSource::Accounting), enabled, &[], 30),
        ] {
            let (mut waiting, began) = (HashMap::from([(1, pending())]), Instant::now());
            for second in 0.. {
                // An answer takes a second.
                if let Some(at) = answers.iter().find(|at| *at + 1 == second) {
                    let asked_at = began + Duration::from_secs(*at);
                    note(&mut waiting, JobReadRequest::after_accounting(1, asked_at));
                }
                let job = waiting.get_mut(&1).unwrap();
                if !job.awaits_record(shown_by, records) {
                    assert_eq!(second, expected, "{shown_by:?} {answers:?}");
                    break;
                }
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
    }
}
