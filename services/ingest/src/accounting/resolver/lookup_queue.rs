//! Queue of accounting lookups: which requests are open, and which doorbells wait for an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mesh_events::RunKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::domain::{Observation, contradict};
use crate::doorbells::{JobReadRequest, postpone};

/// Capacity of the channel. Senders wait while it is full.
const CHANNEL_CAPACITY: usize = 4_096;

/// Maximum number of jobs whose doorbells wait for an answer. Further doorbells are redelivered, as waiting ones block those behind them.
/// The evidence of both is retained.
const MAX_WAITING_DOORBELLS: usize = 128;

/// Outcome of doorbells that exceed [`MAX_WAITING_DOORBELLS`].
const BUSY_DELAY: &str = "accounting_busy";

/// A lookup in accounting.
pub struct LookupRequest {
    pub(super) job_id: u32,
    /// Ends that jobcomp reported of the job.
    pub(super) evidence: Vec<Observation>,
    /// Doorbells that wait for the answer.
    pub(super) requests: Vec<JobReadRequest>,
    /// Whether to read the controller's record again after the answer. Set for lookups that this record caused, but not for doorbells of
    /// jobs that the controller does not have: those would repeat the same lookup without end.
    pub(super) read_job: bool,
    /// Permit counted against [`MAX_WAITING_DOORBELLS`].
    place: Option<OwnedSemaphorePermit>,
}

/// Sender of accounting lookups. Cheap to clone.
#[derive(Clone)]
pub struct LookupQueue {
    sender: mpsc::Sender<LookupRequest>,
    places: Arc<Semaphore>,
}

impl LookupQueue {
    /// Returns the queue and its receiver.
    pub fn new() -> (Self, mpsc::Receiver<LookupRequest>) {
        let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let places = Arc::new(Semaphore::new(MAX_WAITING_DOORBELLS));
        (Self { sender, places }, receiver)
    }

    /// Looks up a job whose run the controller's record leaves open.
    pub async fn ask(&self, job_id: u32) {
        self.ask_with(job_id, Vec::new()).await;
    }

    /// Like [`Self::ask`], with ends that jobcomp reported of the job.
    pub async fn ask_with(&self, job_id: u32, evidence: Vec<Observation>) {
        let lookup = LookupRequest {
            job_id,
            evidence,
            requests: Vec::new(),
            read_job: true,
            place: None,
        };
        if self.sender.send(lookup).await.is_err() {
            tracing::debug!("accounting lookup deferred: shutting down");
        }
    }

    /// Looks up a job that the controller does not have. Its doorbells wait for the answer if there is room, without blocking the caller: a
    /// lookup takes seconds, and other doorbells queue behind it.
    pub fn ask_for(&self, job_id: u32, mut requests: Vec<JobReadRequest>) {
        let evidence = requests.iter_mut().filter_map(|request| request.end.take());
        let evidence = evidence.map(|end| *end).collect();
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            postpone(std::mem::take(&mut requests), BUSY_DELAY);
        }
        let lookup = LookupRequest {
            job_id,
            evidence,
            requests,
            read_job: false,
            place,
        };
        if let Err(error) = self.sender.try_send(lookup) {
            // The redelivered doorbell brings the same evidence.
            postpone(error.into_inner().requests, BUSY_DELAY);
        }
    }
}

/// An open lookup of one job.
#[derive(Default)]
pub(super) struct OpenRequest {
    pub(super) evidence: Vec<Observation>,
    /// Runs whose doorbells reported different ends.
    disputed: BTreeSet<RunKey>,
    pub(super) requests: Vec<JobReadRequest>,
    pub(super) asked: u32,
    /// When accounting was first asked, if it has answered.
    pub(super) since: Option<Instant>,
    pub(super) read_job: bool,
    /// When an incomplete end was first found.
    pub(super) incomplete: Option<Instant>,
    places: Vec<OwnedSemaphorePermit>,
}

impl OpenRequest {
    /// Removes and returns the doorbells that wait for the end of a run.
    pub(super) fn take_requests_of(&mut self, run: &RunKey) -> Vec<JobReadRequest> {
        let requests = std::mem::take(&mut self.requests);
        let (taken, left) = requests
            .into_iter()
            .partition(|request| request.ended_run.as_ref() == Some(run));
        self.requests = left;
        if self.requests.is_empty() {
            self.places.clear();
        }
        taken
    }

    pub(super) fn is_disputed(&self, run: &RunKey) -> bool {
        self.disputed.contains(run)
    }
}

/// Merges a lookup into the open ones.
pub(super) fn note(open: &mut BTreeMap<u32, OpenRequest>, lookup: LookupRequest) {
    let entry = open.entry(lookup.job_id).or_default();
    entry.read_job |= lookup.read_job;
    for end in lookup.evidence {
        // A redelivered doorbell brings the same evidence.
        match entry.evidence.iter().find(|known| known.run == end.run) {
            Some(known) if contradict(known, &end) => {
                entry.disputed.insert(end.run);
            }
            Some(_) => {}
            None => entry.evidence.push(end),
        }
    }
    entry.requests.extend(lookup.requests);
    entry.places.extend(lookup.place);
}

/// Returns ends that accounting has to their lookups, if it has them incompletely so far: the next answer is compared with them again. Ends
/// that were refused or inferred are not judged a second time.
pub(super) fn compare_again(open: &mut BTreeMap<u32, OpenRequest>, recorded: Vec<Observation>) {
    for end in recorded {
        let lookup = open.get_mut(&end.raw_id);
        if let Some(lookup) = lookup.filter(|lookup| lookup.incomplete.is_some()) {
            lookup.evidence.push(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::doorbells::DoorbellOutcome;

    fn end_of(job_id: u32) -> (Vec<JobReadRequest>, oneshot::Receiver<DoorbellOutcome>) {
        let (done, answer) = oneshot::channel();
        let request = JobReadRequest {
            hook: Some("JobComp".to_owned()),
            ended_run: Some(RunKey {
                cluster: "c".to_owned(),
                job_id,
                task_id: None,
                submit_time: 100,
                attempt: 0,
            }),
            done: Some(done),
            ..JobReadRequest::for_job(job_id)
        };
        (vec![request], answer)
    }

    #[test]
    fn lookups_over_the_limit_are_postponed_before_accounting_is_queried() {
        let (lookups, mut receiver) = LookupQueue::new();
        let mut answers = Vec::new();
        for job_id in 1..=2_000 {
            let (requests, answer) = end_of(job_id);
            lookups.ask_for(job_id, requests);
            answers.push(answer);
        }
        let mut rejected = answers.iter_mut().map(|answer| answer.try_recv());
        assert!(
            rejected
                .by_ref()
                .take(MAX_WAITING_DOORBELLS)
                .all(|answer| answer.is_err())
        );
        assert!(rejected.all(|answer| answer == Ok(DoorbellOutcome::Postponed)));
        // Their evidence is retained, and an answer makes room.
        let mut open = BTreeMap::new();
        while let Ok(lookup) = receiver.try_recv() {
            note(&mut open, lookup);
        }
        assert_eq!(open.len(), 2_000);
        drop(open.remove(&1));
        let (requests, mut answer) = end_of(2_001);
        lookups.ask_for(2_001, requests);
        assert!(answer.try_recv().is_err());
    }

    #[test]
    fn lookups_are_postponed_while_the_queue_is_full() {
        let (lookups, _receiver) = LookupQueue::new();
        for job_id in 0..u32::try_from(CHANNEL_CAPACITY).unwrap() {
            lookups.ask_for(job_id, Vec::new());
        }
        let (requests, mut answer) = end_of(7);
        lookups.ask_for(7, requests);
        assert_eq!(answer.try_recv(), Ok(DoorbellOutcome::Postponed));
    }

    #[test]
    fn only_recorded_ends_are_compared_with_the_next_answer() {
        let end = |job_id, submit_time| {
            let row = slurm_client::AccountingRecord {
                job_id: slurm_types::JobId::new(job_id),
                submit: Some(slurm_types::UnixTime::from_secs(submit_time)),
                state: slurm_types::JobState::parse("FAILED"),
                ..slurm_client::AccountingRecord::default()
            };
            Observation::from_accounting("c", &row).unwrap()
        };
        let mut open = BTreeMap::new();
        for job_id in [7, 8] {
            open.insert(job_id, OpenRequest::default());
        }
        // Job 7 has an end that accounting has incompletely, and another one that was refused.
        open.get_mut(&7).unwrap().incomplete = Some(Instant::now());
        compare_again(&mut open, vec![end(7, 200), end(8, 200), end(9, 200)]);
        let kept = |job_id| -> Vec<i64> {
            let evidence = open[&job_id].evidence.iter();
            evidence.map(|end| end.run.submit_time).collect()
        };
        assert_eq!((kept(7), kept(8)), (vec![200], Vec::new()));
    }
}
