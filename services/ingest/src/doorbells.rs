//! Doorbells: somebody says "look at this job now".
//!
//! Rings of one job collapse; rings of many jobs become one question to Slurm; between two questions there is always a pause, whatever
//! rings. A job that is about to change is read again at 50, 100, 200 … ms. A doorbell is acknowledged once its facts are stored, or
//! once it is certain that there is nothing to tell, or that a sweep will.

use std::collections::HashMap;
use std::time::Duration;

use mesh_bus::{Handler, Message, Outcome};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{from_timestamp, hooks};
use prost::Message as _;
use slurm_client::{JobsAnswer, Slurm};
use slurm_types::{JobBaseState, JobId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::collector::{Collector, Reading};
use crate::domain::{Evidence, Sighting};
use crate::envelope::Cause;
use crate::proof::Question;
use crate::sources::SlurmSource;
use crate::{Error, metrics};

/// Jobs per question; more wait for the next one.
const MOST_AT_ONCE: usize = 2_000;
/// A job that is still about to change after this many looks is left to the sweeps: 50 ms … 6.4 s, 13 s in all.
const LOOKS: u32 = 8;

/// A request to look at a job.
pub struct Ring {
    /// Slurm's id of the record.
    pub job_id: u32,
    /// Which hook rang; `None` if it was no hook.
    pub hook: Option<String>,
    /// The end of a run that the hook tells.
    pub end: Option<Box<Sighting>>,
    /// To be answered once everything is told.
    pub done: Option<oneshot::Sender<()>>,
    /// Span of the doorbell.
    pub span: Span,
}

/// Takes doorbells off the bus.
pub struct Doorbells {
    cluster: String,
    rings: mpsc::Sender<Ring>,
}

impl Doorbells {
    /// Rings into a channel.
    pub const fn new(cluster: String, rings: mpsc::Sender<Ring>) -> Self {
        Self { cluster, rings }
    }
}

impl Handler for Doorbells {
    async fn handle(&self, message: &Message) -> Outcome {
        message.link_current_span();
        let bell = match Doorbell::decode(message.body.clone()) {
            Ok(bell) => bell,
            Err(error) => {
                metrics::doorbell("unusable");
                return Outcome::Reject {
                    reason: format!("decode doorbell: {error}"),
                };
            }
        };
        if bell.probe || bell.hook == hooks::DOCTOR {
            metrics::doorbell("probe");
            return Outcome::Done;
        }
        let evidence = match Evidence::read(&self.cluster, &bell) {
            Ok(evidence) => evidence,
            Err(error) => {
                metrics::doorbell("unusable");
                return Outcome::Reject {
                    reason: mesh_runtime::chain(&error),
                };
            }
        };
        let (done, told) = oneshot::channel();
        let ring = Ring {
            job_id: evidence.job_id,
            hook: Some(evidence.hook),
            end: evidence.end,
            done: Some(done),
            span: Span::current(),
        };
        if self.rings.send(ring).await.is_err() || told.await.is_err() {
            // Stopping: the doorbell comes again after the restart.
            return Outcome::Retry {
                after: Duration::from_secs(1),
            };
        }
        if let Some(called) = bell.called_at.as_ref().and_then(from_timestamp)
            && let Ok(after) = (chrono::Utc::now() - called).to_std()
        {
            metrics::answered_after(after);
        }
        Outcome::Done
    }
}

/// A job somebody waits for.
struct Waiting {
    rings: Vec<Ring>,
    due: Instant,
    looks: u32,
}

/// Reads jobs from the controller on demand.
pub struct Reader {
    /// Slurm.
    pub slurm: Slurm,
    /// The books.
    pub collector: Collector,
    /// The controller's health.
    pub slurmctld: std::sync::Arc<SlurmSource>,
    /// Questions for accounting.
    pub questions: mpsc::Sender<Question>,
    /// Stop.
    pub shutdown: CancellationToken,
}

impl Reader {
    /// Answers rings until told to stop.
    ///
    /// # Errors
    /// If another ingest took over.
    pub async fn run(self, mut rings: mpsc::Receiver<Ring>) -> Result<(), Error> {
        let mut waiting: HashMap<u32, Waiting> = HashMap::new();
        let mut not_before = Instant::now();
        loop {
            let due = waiting
                .values()
                .map(|job| job.due)
                .min()
                .map(|due| due.max(not_before));
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                ring = rings.recv() => match ring {
                    Some(ring) => { note(&mut waiting, ring); continue }
                    None => return Ok(()),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            // What has rung in the meantime joins this question.
            while let Ok(ring) = rings.try_recv() {
                note(&mut waiting, ring);
            }
            let now = Instant::now();
            let ids: Vec<u32> = waiting
                .iter()
                .filter(|(_, job)| job.due <= now)
                .map(|(id, _)| *id)
                .take(MOST_AT_ONCE)
                .collect();
            let pause = match self.look(&ids, &mut waiting).await {
                Ok(pause) => pause,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
            not_before = Instant::now() + pause;
        }
    }

    /// Asks once for some jobs. Returns how long to wait before the next question.
    async fn look(
        &self,
        ids: &[u32],
        waiting: &mut HashMap<u32, Waiting>,
    ) -> Result<Duration, Error> {
        let asked: Vec<JobId> = ids.iter().filter_map(|id| JobId::new(*id)).collect();
        let answer = match self.slurm.jobs(&asked).await {
            Ok(answer) => {
                self.slurmctld.up().await?;
                answer
            }
            Err(error) => return self.slurmctld.down(&error).await,
        };
        let mut again = Vec::new();
        let mut readings: Vec<Reading> = Vec::new();
        let mut hook = None;
        for id in ids {
            let Some(job) = waiting.get_mut(id) else {
                continue;
            };
            hook = hook.or_else(|| job.rings.iter().find_map(|ring| ring.hook.clone()));
            let found = self.sightings_of(*id, &answer);
            if found.is_empty() {
                let unclear = answer.unclear.iter().map(|(unclear, _)| unclear);
                if unclear
                    .chain(&answer.unlisted)
                    .any(|unclear| unclear.get() == *id)
                {
                    again.push(*id);
                }
                continue;
            }
            let (merged, contradicted) = merge(job, found);
            if contradicted {
                metrics::doorbell("contradicted");
                tracing::warn!(
                    job.id = id,
                    "a hook tells an end that the controller's record contradicts; not believed"
                );
            }
            readings.extend(merged);
        }
        let cause = hook.map_or(Cause::Look, Cause::Hook);
        let asks = self.collector.absorb(&cause, readings).await?;
        again.extend(asks.again);
        for id in &asks.accounting {
            self.ask(Question {
                job_id: *id,
                evidence: Vec::new(),
                rings: Vec::new(),
            })
            .await;
        }
        for id in &answer.missing {
            // Slurm has forgotten it: accounting knows, or else the evidence is all there is.
            if let Some(job) = waiting.remove(&id.get()) {
                self.ask_with(id.get(), job).await;
            }
        }
        for id in ids {
            let Some(job) = waiting.get_mut(id) else {
                continue;
            };
            if again.contains(id) && job.looks < LOOKS {
                job.due = Instant::now() + Duration::from_millis(50 << job.looks);
                job.looks += 1;
            } else if let Some(job) = waiting.remove(id) {
                finish(
                    job.rings,
                    if again.contains(id) {
                        "left_to_sweep"
                    } else {
                        "answered"
                    },
                );
            }
        }
        Ok(self.collector.config.read_interval)
    }

    /// The records of one id. An array's id also finds its tasks; those that have ids of their own ring for themselves.
    fn sightings_of(&self, id: u32, answer: &JobsAnswer) -> Vec<Sighting> {
        let own = answer
            .found
            .iter()
            .filter(|record| record.job_id.is_some_and(|found| found.get() == id));
        own.filter_map(|record| {
            if !record.state.unknown.is_empty() {
                metrics::drift("job_state");
            }
            Sighting::from_controller(&self.collector.cluster, record)
        })
        .collect()
    }

    async fn ask_with(&self, job_id: u32, job: Waiting) {
        let mut rings = job.rings;
        let evidence = rings
            .iter_mut()
            .filter_map(|ring| ring.end.take())
            .map(|end| *end)
            .collect();
        self.ask(Question {
            job_id,
            evidence,
            rings,
        })
        .await;
    }

    async fn ask(&self, question: Question) {
        if self.questions.send(question).await.is_err() {
            tracing::debug!("stopping, the question is asked again at the next start");
        }
    }
}

fn note(waiting: &mut HashMap<u32, Waiting>, ring: Ring) {
    let job = waiting.entry(ring.job_id).or_insert_with(|| Waiting {
        rings: Vec::new(),
        due: Instant::now(),
        looks: 0,
    });
    job.due = Instant::now();
    job.looks = 0;
    job.rings.push(ring);
}

/// Answers the doorbells.
pub fn finish(rings: Vec<Ring>, outcome: &'static str) {
    for ring in rings {
        metrics::doorbell(outcome);
        if let Some(done) = ring.done
            && done.send(()).is_err()
        {
            tracing::trace!("nobody waits for this doorbell any more");
        }
    }
}

/// Puts the controller's records and jobcomp's evidence together, oldest run first. Also tells whether they contradict each other: then
/// the evidence counts for nothing, since slurmctld writes its own record before it calls jobcomp, and this one was read afterwards.
fn merge(job: &mut Waiting, found: Vec<Sighting>) -> (Vec<Reading>, bool) {
    let mut contradicted = false;
    let mut sightings = found;
    for ring in &mut job.rings {
        // Used once: a later look must not meet it again.
        let Some(end) = ring.end.take() else { continue };
        let Some(position) = sightings
            .iter()
            .position(|sighting| sighting.run == end.run)
        else {
            // The job is already in another run; this is the end of the one before. A run that the controller
            // should still have is not there: not believed.
            if sightings
                .iter()
                .any(|sighting| sighting.run.submit_time > end.run.submit_time)
            {
                sightings.push(*end);
            } else {
                contradicted = true;
            }
            continue;
        };
        if sightings[position].in_flux() {
            let sighting = sightings.swap_remove(position);
            sightings.push(sighting.completed_by(&end));
        } else if sightings[position].end_kind().is_none() {
            // A run that was requeued in its first second may keep its submit time (22.05).
            let restarted = end.requeued
                && sightings[position]
                    .restarts
                    .is_some_and(|restarts| restarts > 0);
            match sightings[position].base {
                Some(JobBaseState::Pending) if restarted => sightings.insert(position, *end),
                _ => contradicted = true,
            }
        }
    }
    sightings.sort_by_key(|sighting| sighting.run.submit_time);
    let links = || job.rings.iter().map(|ring| ring.span.clone()).collect();
    let readings = sightings
        .into_iter()
        .map(|sighting| Reading {
            links: links(),
            ..Reading::new(sighting)
        })
        .collect();
    (readings, contradicted)
}
