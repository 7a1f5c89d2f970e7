//! What accounting is to be asked: which lookups wait for an answer, and which doorbells are redelivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mesh_events::RunKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::domain::{Observation, contradict};
use crate::doorbells::{JobReadRequest, postpone};

/// Room for questions; who finds it full waits.
const CHANNEL_CAPACITY: usize = 4_096;

/// Jobs whose doorbells may wait for answers at the same time. What others report is retained, but they come again: who waits keeps all those
/// from being handled that ring after it.
const MAX_WAITING_DOORBELLS: usize = 128;

/// What became of doorbells that found too many others waiting.
const BUSY_DELAY: &str = "accounting_busy";

/// A question for accounting.
pub struct LookupRequest {
    /// Slurm's id of the record.
    pub(super) job_id: u32,
    /// What jobcomp reported of the job.
    pub(super) evidence: Vec<Observation>,
    /// Doorbells that wait for the answer.
    pub(super) rings: Vec<JobReadRequest>,
    /// Asked for what the controller's record left open: that is looked at again after the answer. Who rings for a job that the
    /// controller does not have would ask the same again and again.
    pub(super) look: bool,
    /// A place among those who wait.
    place: Option<OwnedSemaphorePermit>,
}

/// Takes questions. Cheap to clone.
#[derive(Clone)]
pub struct LookupQueue {
    sender: mpsc::Sender<LookupRequest>,
    places: Arc<Semaphore>,
}

impl LookupQueue {
    /// What takes questions, and where they come out.
    pub fn new() -> (Self, mpsc::Receiver<LookupRequest>) {
        let (sender, receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let places = Arc::new(Semaphore::new(MAX_WAITING_DOORBELLS));
        (Self { sender, places }, receiver)
    }

    /// Asks for a job that the controller's record leaves open.
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

    /// Asks for a job that the controller does not have. Its doorbells wait for the answer if there is room. They are not waited with: a
    /// question takes accounting seconds, and those that ring for others come behind them.
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
            // Who comes again brings the same along.
            postpone(error.into_inner().rings, BUSY_DELAY);
        }
    }
}

/// What is known of a job that is asked for.
#[derive(Default)]
pub(super) struct OpenRequest {
    pub(super) evidence: Vec<Observation>,
    /// Runs of which doorbells reported different ends.
    disputed: BTreeSet<RunKey>,
    pub(super) rings: Vec<JobReadRequest>,
    pub(super) asked: u32,
    pub(super) look: bool,
    /// Since when an end is known, but not all of it.
    pub(super) incomplete: Option<Instant>,
    places: Vec<OwnedSemaphorePermit>,
}

impl OpenRequest {
    /// The doorbells that wait for what becomes of a run's end, which do so no longer.
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

    /// Whether doorbells reported different ends of a run.
    pub(super) fn is_disputed(&self, run: &RunKey) -> bool {
        self.disputed.contains(run)
    }
}

/// Puts a question to those that are open.
pub(super) fn note(open: &mut BTreeMap<u32, OpenRequest>, question: LookupRequest) {
    let entry = open.entry(question.job_id).or_default();
    entry.look |= question.look;
    for end in question.evidence {
        // Who comes again brings the same along.
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
        // What they report is retained, and an answer makes room.
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
