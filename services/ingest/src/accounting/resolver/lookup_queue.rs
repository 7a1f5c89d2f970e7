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
    pub(super) rings: Vec<JobReadRequest>,
    /// Whether to read the controller's record again after the answer. Set for lookups that this record caused, but not for doorbells of
    /// jobs that the controller does not have: those would repeat the same lookup for ever.
    pub(super) look: bool,
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
        let question = LookupRequest {
            job_id,
            evidence: Vec::new(),
            rings: Vec::new(),
            look: true,
            place: None,
        };
        if self.sender.send(question).await.is_err() {
            tracing::debug!("accounting lookup deferred: shutting down");
        }
    }

    /// Looks up a job that the controller does not have. Its doorbells wait for the answer if there is room, without blocking the caller: a
    /// lookup takes seconds, and other doorbells queue behind it.
    pub fn ask_for(&self, job_id: u32, mut rings: Vec<JobReadRequest>) {
        let evidence = rings.iter_mut().filter_map(|ring| ring.end.take());
        let evidence = evidence.map(|end| *end).collect();
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        if place.is_none() {
            postpone(std::mem::take(&mut rings), BUSY_DELAY);
        }
        let question = LookupRequest {
            job_id,
            evidence,
            rings,
            look: false,
            place,
        };
        if let Err(error) = self.sender.try_send(question) {
            // The redelivered doorbell brings the same evidence.
            postpone(error.into_inner().rings, BUSY_DELAY);
        }
    }
}

/// An open lookup of one job.
#[derive(Default)]
pub(super) struct OpenRequest {
    pub(super) evidence: Vec<Observation>,
    /// Runs whose doorbells reported different ends.
    disputed: BTreeSet<RunKey>,
    pub(super) rings: Vec<JobReadRequest>,
    pub(super) asked: u32,
    pub(super) look: bool,
    /// When an incomplete end was first found.
    pub(super) incomplete: Option<Instant>,
    places: Vec<OwnedSemaphorePermit>,
}

impl OpenRequest {
    /// Removes and returns the doorbells that wait for the end of a run.
    pub(super) fn take_rings_of(&mut self, run: &RunKey) -> Vec<JobReadRequest> {
        let rings = std::mem::take(&mut self.rings);
        let (taken, left) = rings
            .into_iter()
            .partition(|ring| ring.ended_run.as_ref() == Some(run));
        self.rings = left;
        if self.rings.is_empty() {
            self.places.clear();
        }
        taken
    }

    pub(super) fn is_disputed(&self, run: &RunKey) -> bool {
        self.disputed.contains(run)
    }
}

/// Merges a lookup into the open ones.
pub(super) fn note(open: &mut BTreeMap<u32, OpenRequest>, question: LookupRequest) {
    let entry = open.entry(question.job_id).or_default();
    entry.look |= question.look;
    for end in question.evidence {
        // A redelivered doorbell brings the same evidence.
        match entry.evidence.iter().find(|known| known.run == end.run) {
            Some(known) if contradict(known, &end) => {
                entry.disputed.insert(end.run);
            }
            Some(_) => {}
            None => entry.evidence.push(end),
        }
    }
    entry.rings.extend(question.rings);
    entry.places.extend(question.place);
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::doorbells::DoorbellOutcome;

    fn end_of(job_id: u32) -> (Vec<JobReadRequest>, oneshot::Receiver<DoorbellOutcome>) {
        let (done, answer) = oneshot::channel();
        let ring = JobReadRequest {
            hook: Some("JobComp".to_owned()),
            ended_run: Some(RunKey {
                cluster: "c".to_owned(),
                job_id,
                task_id: None,
                submit_time: 100,
                attempt: 0,
            }),
            done: Some(done),
            ..JobReadRequest::look(job_id)
        };
        (vec![ring], answer)
    }

    #[test]
    fn who_finds_no_place_is_sent_away_before_accounting_is_asked() {
        let (questions, mut receiver) = LookupQueue::new();
        let mut answers = Vec::new();
        for job_id in 1..=2_000 {
            let (rings, answer) = end_of(job_id);
            questions.ask_for(job_id, rings);
            answers.push(answer);
        }
        let mut sent_away = answers.iter_mut().map(|answer| answer.try_recv());
        assert!(
            sent_away
                .by_ref()
                .take(MAX_WAITING_DOORBELLS)
                .all(|answer| answer.is_err())
        );
        assert!(sent_away.all(|answer| answer == Ok(DoorbellOutcome::Later)));
        // Their evidence is retained, and an answer makes room.
        let mut open = BTreeMap::new();
        while let Ok(question) = receiver.try_recv() {
            note(&mut open, question);
        }
        assert_eq!(open.len(), 2_000);
        drop(open.remove(&1));
        let (rings, mut answer) = end_of(2_001);
        questions.ask_for(2_001, rings);
        assert!(answer.try_recv().is_err());
    }

    #[test]
    fn who_finds_the_questions_full_is_sent_away_too() {
        let (questions, _receiver) = LookupQueue::new();
        for job_id in 0..u32::try_from(CHANNEL_CAPACITY).unwrap() {
            questions.ask_for(job_id, Vec::new());
        }
        let (rings, mut answer) = end_of(7);
        questions.ask_for(7, rings);
        assert_eq!(answer.try_recv(), Ok(DoorbellOutcome::Later));
    }
}
