//! Doorbells: somebody says "look at this job now".
//!
//! Rings of one job collapse; rings of many jobs become one question to Slurm; between two questions there is always a pause, whatever
//! rings. A job that is about to change is read again at 50, 100, 200 … ms. A doorbell is acknowledged once its facts are stored, or
//! once it is certain that there is nothing to publish, or that a sweep will.
//!
//! Anybody who may publish doorbells may forge them. One is never an event by itself: [`job_reader`] asks Slurm, for so many jobs and runs per
//! minute that no poll has shown ([`unknown_jobs`]). A doorbell with the end of a run that no record of Slurm knows is parked as a dead letter.

mod job_reader;
mod pending_reads;
mod unknown_jobs;

use std::time::Duration;

use mesh_bus::{Disposition, Handler, Message};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{RunKey, from_timestamp, hooks};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tracing::Span;

pub use self::job_reader::JobReader;
pub use self::unknown_jobs::UnknownJobLimiter;
use crate::domain::{Evidence, Observation};
use crate::metrics;
use crate::users::{Logins, login};

/// Stands for jobs that have no id yet: a sweep is to look for them.
const NEW_JOBS: u32 = 0;

/// When a doorbell comes again that could be neither confirmed nor refused; twice as much later each time, up to the longest.
const REDELIVERY_DELAY: Duration = Duration::from_secs(5);
/// The longest of these pauses.
const MAX_REDELIVERY_DELAY: Duration = Duration::from_secs(60);

/// A request to look at a job.
pub struct JobReadRequest {
    /// Slurm's id of the record.
    pub job_id: u32,
    /// Which hook rang; `None` if it was no hook.
    pub hook: Option<String>,
    /// The array whose task it is, if the hook says so.
    pub array: Option<u32>,
    /// the end of a run that the hook reports.
    pub end: Option<Box<Observation>>,
    /// The run that ended so; `end` is taken out once it is used.
    pub ended_run: Option<RunKey>,
    /// Whether it was sent away before.
    pub comes_again: bool,
    /// Answered once everything is published.
    pub done: Option<oneshot::Sender<DoorbellOutcome>>,
    /// Span of the doorbell.
    pub span: Span,
}

impl JobReadRequest {
    /// A look that nobody rang for.
    pub fn look(job_id: u32) -> Self {
        Self {
            job_id,
            hook: None,
            array: None,
            end: None,
            ended_run: None,
            comes_again: false,
            done: None,
            span: Span::none(),
        }
    }
}

/// What became of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoorbellOutcome {
    /// Its facts are stored, or there is nothing to publish, or a sweep will.
    Recorded,
    /// Redelivered: what it reports can be neither confirmed nor refused yet.
    Later,
    /// No record confirms what it reports, for this reason.
    Refused(String),
}

/// Takes doorbells off the bus.
pub struct Doorbells {
    cluster: String,
    rings: mpsc::Sender<JobReadRequest>,
    logins: Logins,
}

impl Doorbells {
    /// Reads are requested through a channel; logins are published at once.
    pub const fn new(cluster: String, rings: mpsc::Sender<JobReadRequest>, logins: Logins) -> Self {
        Self {
            cluster,
            rings,
            logins,
        }
    }
}

impl Handler for Doorbells {
    async fn handle(&self, message: &Message) -> Disposition {
        message.link_current_span();
        let doorbell = match Doorbell::decode(message.body.clone()) {
            Ok(doorbell) => doorbell,
            Err(error) => {
                metrics::doorbell("unusable");
                return Disposition::DeadLetter {
                    reason: format!("decode doorbell: {error}"),
                };
            }
        };
        if doorbell.probe || doorbell.hook == hooks::DOCTOR_HOOK {
            metrics::doorbell("probe");
            return Disposition::Ack;
        }
        if doorbell.hook == login::HOOK_NAME {
            return self.logins.ring(&doorbell).await;
        }
        // job_submit.lua: a job was submitted, and has no id yet.
        let submission = doorbell.job_id == 0
            && doorbell.hook == "JobSubmit"
            && doorbell.cluster == self.cluster;
        let evidence = match Evidence::read(&self.cluster, &doorbell) {
            _ if submission => Evidence {
                job_id: NEW_JOBS,
                hook: doorbell.hook.clone(),
                end: None,
            },
            Ok(evidence) => evidence,
            Err(error) => {
                metrics::doorbell("unusable");
                return Disposition::DeadLetter {
                    reason: mesh_runtime::error_chain(&error),
                };
            }
        };
        let (done, reply) = oneshot::channel();
        let ring = JobReadRequest {
            job_id: evidence.job_id,
            hook: Some(evidence.hook),
            array: array_of(&doorbell),
            ended_run: evidence.end.as_ref().map(|end| end.run.clone()),
            end: evidence.end,
            comes_again: message.delivery > 1,
            done: Some(done),
            span: Span::current(),
        };
        // Stopping: the doorbell comes again after the restart.
        let again = Disposition::Nak {
            after: Duration::from_secs(1),
        };
        if self.rings.send(ring).await.is_err() {
            return again;
        }
        match reply.await {
            Ok(DoorbellOutcome::Recorded) => {}
            Ok(DoorbellOutcome::Later) => {
                let after = later(message.delivery);
                return Disposition::Nak { after };
            }
            Ok(DoorbellOutcome::Refused(reason)) => return Disposition::DeadLetter { reason },
            Err(_) => return again,
        }
        if let Some(called) = doorbell.called_at.as_ref().and_then(from_timestamp)
            && let Ok(after) = (chrono::Utc::now() - called).to_std()
        {
            metrics::answered_after(after);
        }
        Disposition::Ack
    }
}

/// The pause after so many deliveries.
fn later(deliveries: u64) -> Duration {
    let doubled = u32::try_from(deliveries.saturating_sub(1)).unwrap_or(u32::MAX);
    REDELIVERY_DELAY
        .saturating_mul(1 << doubled.min(8))
        .min(MAX_REDELIVERY_DELAY)
}

/// Answers the doorbells.
pub fn finish(rings: Vec<JobReadRequest>, outcome: &'static str) {
    for ring in rings {
        answer(ring, outcome, DoorbellOutcome::Recorded);
    }
}

/// Answers doorbells that must not be waited with. Those that bring the end of a job along come again; the others said only where to
/// look, and a sweep or catching up publishes what is there.
pub fn postpone(rings: Vec<JobReadRequest>, outcome: &'static str) {
    for ring in rings {
        let later = if ring.ended_run.is_some() {
            DoorbellOutcome::Later
        } else {
            DoorbellOutcome::Recorded
        };
        answer(ring, outcome, later);
    }
}

/// Answers doorbells of ends that no record confirms. Those that bring nothing along but the id of a job are done with.
pub fn refuse(rings: Vec<JobReadRequest>, outcome: &'static str, reason: &str) {
    for ring in rings {
        let refused = if ring.ended_run.is_some() {
            DoorbellOutcome::Refused(reason.to_owned())
        } else {
            DoorbellOutcome::Recorded
        };
        answer(ring, outcome, refused);
    }
}

/// The array of a task, in the words of slurmctld's and of jobcomp's scripts.
fn array_of(doorbell: &Doorbell) -> Option<u32> {
    let names = ["SLURM_ARRAY_JOB_ID", "ARRAYJOBID"];
    let mut values = names
        .iter()
        .filter_map(|name| doorbell.environment.get(*name));
    values.find_map(|id| id.parse().ok())
}

fn answer(ring: JobReadRequest, outcome: &'static str, answer: DoorbellOutcome) {
    metrics::doorbell(outcome);
    if let Some(done) = ring.done
        && done.send(answer).is_err()
    {
        tracing::trace!("doorbell dropped: its handler has stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_run() -> RunKey {
        RunKey {
            cluster: "c".to_owned(),
            job_id: 7,
            task_id: None,
            submit_time: 100,
            attempt: 0,
        }
    }

    #[test]
    fn what_is_postponed_comes_again_only_if_it_brings_an_end() {
        let (rings, answers): (Vec<JobReadRequest>, Vec<_>) = [true, false]
            .into_iter()
            .map(|has_end: bool| {
                let (done, answer) = oneshot::channel();
                let ring = JobReadRequest {
                    ended_run: has_end.then(some_run),
                    done: Some(done),
                    ..JobReadRequest::look(7)
                };
                (ring, answer)
            })
            .unzip();
        postpone(rings, "limited");
        let answers: Vec<DoorbellOutcome> = answers
            .into_iter()
            .map(|answer| answer.blocking_recv().unwrap())
            .collect();
        assert_eq!(answers, [DoorbellOutcome::Later, DoorbellOutcome::Recorded]);
    }

    #[test]
    fn who_comes_in_vain_comes_less_and_less_often() {
        let pauses = [0, 1, 2, 3, 4, 5, 100, u64::MAX].map(|n| later(n).as_secs());
        assert_eq!(pauses, [5, 5, 10, 20, 40, 60, 60, 60]);
    }

    #[test]
    fn a_task_says_which_array_it_is_of() {
        let doorbell = |name: &str, value: &str| Doorbell {
            environment: [(name.to_owned(), value.to_owned())].into(),
            ..Doorbell::default()
        };
        assert_eq!(array_of(&doorbell("SLURM_ARRAY_JOB_ID", "12")), Some(12));
        assert_eq!(array_of(&doorbell("ARRAYJOBID", "12")), Some(12));
        assert_eq!(array_of(&doorbell("ARRAYJOBID", "")), None);
        assert_eq!(array_of(&doorbell("JOBID", "12")), None);
    }
}
