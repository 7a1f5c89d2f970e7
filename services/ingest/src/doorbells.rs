//! Doorbells: hooks request that a job be read now.
//!
//! Doorbells of one job collapse, and those of many jobs share one request to Slurm. There is always a pause between two requests, whatever
//! rings. A job that is about to change is read again after 50, 100, 200 … ms. A doorbell is acknowledged once its facts are stored, or
//! once it is certain that there is nothing to publish, or that a poll will publish it. While nothing can be stored, it is redelivered.
//!
//! Any holder of the doorbell credential may forge doorbells, so a doorbell is never an event by itself. [`job_reader`] asks Slurm, and
//! [`unknown_jobs`] limits requests for jobs and runs that no poll has shown. A doorbell with the end of a run that no record of Slurm
//! knows is published as a dead letter.

mod job_reader;
mod pending_reads;
mod unknown_jobs;

use std::time::Duration;

use mesh_bus::{Backoff, Disposition, Handler, Message};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{RunKey, from_timestamp, hooks};
use mesh_runtime::ask;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::Span;

pub use self::job_reader::JobReader;
pub use self::unknown_jobs::UnknownJobLimiter;
use crate::domain::{Evidence, Observation};
use crate::metrics;
use crate::users::{Logins, StepNotices, login};

/// Stands for new jobs without an id: requests a poll.
const NEW_JOBS: u32 = 0;

/// First redelivery delay of a doorbell that could be neither confirmed nor refused. It doubles with each delivery.
const REDELIVERY_DELAY: Duration = Duration::from_secs(5);
/// Longest redelivery delay.
const MAX_REDELIVERY_DELAY: Duration = Duration::from_secs(60);

/// Request to read a job.
pub struct JobReadRequest {
    /// Slurm's id of the job.
    pub job_id: u32,
    /// Name of the hook; `None` if no hook rang.
    pub hook: Option<String>,
    /// Array of the task, if the hook reports it.
    pub array: Option<u32>,
    /// End of a run that the hook reports.
    pub end: Option<Box<Observation>>,
    /// Run of that end. Remains set when `end` is taken out.
    pub ended_run: Option<RunKey>,
    /// Whether the doorbell is a redelivery.
    pub is_redelivery: bool,
    /// When accounting was asked whose answer led to this request.
    pub accounting_asked_at: Option<Instant>,
    /// Receives the outcome once everything is published.
    pub done: Option<oneshot::Sender<DoorbellOutcome>>,
    /// Span of the doorbell.
    pub span: Span,
}

impl JobReadRequest {
    /// Creates a request without a doorbell.
    pub fn for_job(job_id: u32) -> Self {
        Self {
            job_id,
            hook: None,
            array: None,
            end: None,
            ended_run: None,
            is_redelivery: false,
            accounting_asked_at: None,
            done: None,
            span: Span::none(),
        }
    }

    /// Creates a request after an answer of accounting that was asked at this time.
    pub fn after_accounting(job_id: u32, asked_at: Instant) -> Self {
        Self {
            accounting_asked_at: Some(asked_at),
            ..Self::for_job(job_id)
        }
    }
}

/// Outcome of a doorbell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoorbellOutcome {
    /// Its facts are stored, there is nothing to publish, or a poll will publish it.
    Recorded,
    /// To be redelivered: its evidence can be neither confirmed nor refused yet.
    Postponed,
    /// No record confirms its evidence, with the reason.
    Refused(String),
}

/// Handles doorbells from the bus.
pub struct Doorbells {
    cluster: String,
    requests: mpsc::Sender<JobReadRequest>,
    logins: Logins,
    steps: StepNotices,
}

impl Doorbells {
    /// Creates the handler. `requests` receives the read requests; logins and reports of steps are published at once.
    pub const fn new(
        cluster: String,
        requests: mpsc::Sender<JobReadRequest>,
        logins: Logins,
        steps: StepNotices,
    ) -> Self {
        Self {
            cluster,
            requests,
            logins,
            steps,
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
            return self.logins.request(&doorbell).await;
        }
        if doorbell.hook == hooks::SPANK_HOOK {
            return self.steps.request(&doorbell, message.delivery).await;
        }
        // job_submit.lua reports a submission before the job has an id.
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
        let request = |done| JobReadRequest {
            job_id: evidence.job_id,
            hook: Some(evidence.hook),
            array: array_of(&doorbell),
            ended_run: evidence.end.as_ref().map(|end| end.run.clone()),
            end: evidence.end,
            is_redelivery: message.delivery > 1,
            accounting_asked_at: None,
            done: Some(done),
            span: Span::current(),
        };
        match ask(&self.requests, request).await {
            Some(DoorbellOutcome::Recorded) => {}
            Some(DoorbellOutcome::Postponed) => {
                let after = retry_delay(message.delivery);
                return Disposition::Nak { after };
            }
            Some(DoorbellOutcome::Refused(reason)) => return Disposition::DeadLetter { reason },
            // During shutdown: the doorbell is redelivered after the restart.
            None => {
                let after = Duration::from_secs(1);
                return Disposition::Nak { after };
            }
        }
        if let Some(called) = doorbell.called_at.as_ref().and_then(from_timestamp)
            && let Ok(after) = (chrono::Utc::now() - called).to_std()
        {
            metrics::answered_after(after);
        }
        Disposition::Ack
    }
}

/// Redelivery delay after this number of deliveries.
fn retry_delay(deliveries: u64) -> Duration {
    let earlier = u32::try_from(deliveries.saturating_sub(1)).unwrap_or(u32::MAX);
    Backoff::doubling(REDELIVERY_DELAY, MAX_REDELIVERY_DELAY).nth_delay(earlier)
}

/// Acknowledges doorbells.
pub fn finish(requests: Vec<JobReadRequest>, outcome: &'static str) {
    for request in requests {
        answer(request, outcome, DoorbellOutcome::Recorded);
    }
}

/// Answers doorbells that must not wait. Those with the end of a job are redelivered. The others only name a job, which a poll or the
/// catch-up will read.
pub fn postpone(requests: Vec<JobReadRequest>, outcome: &'static str) {
    for request in requests {
        let retry_delay = if request.ended_run.is_some() {
            DoorbellOutcome::Postponed
        } else {
            DoorbellOutcome::Recorded
        };
        answer(request, outcome, retry_delay);
    }
}

/// Has doorbells redelivered whose job was read, while what was read could not be stored.
pub fn redeliver(requests: Vec<JobReadRequest>, outcome: &'static str) {
    for request in requests {
        answer(request, outcome, DoorbellOutcome::Postponed);
    }
}

/// Refuses doorbells with an end that no record confirms. Those with nothing but a job id are acknowledged.
pub fn refuse(requests: Vec<JobReadRequest>, outcome: &'static str, reason: &str) {
    for request in requests {
        let refused = if request.ended_run.is_some() {
            DoorbellOutcome::Refused(reason.to_owned())
        } else {
            DoorbellOutcome::Recorded
        };
        answer(request, outcome, refused);
    }
}

/// Returns the array of a task, from the variables of slurmctld's scripts or of jobcomp.
fn array_of(doorbell: &Doorbell) -> Option<u32> {
    let names = ["SLURM_ARRAY_JOB_ID", "ARRAYJOBID"];
    let mut values = names
        .iter()
        .filter_map(|name| doorbell.environment.get(*name));
    values.find_map(|id| id.parse().ok())
}

fn answer(request: JobReadRequest, outcome: &'static str, answer: DoorbellOutcome) {
    metrics::doorbell(outcome);
    if let Some(done) = request.done
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
    fn postponed_doorbells_are_redelivered_only_with_an_end() {
        let (requests, answers): (Vec<JobReadRequest>, Vec<_>) = [true, false]
            .into_iter()
            .map(|has_end: bool| {
                let (done, answer) = oneshot::channel();
                let request = JobReadRequest {
                    ended_run: has_end.then(some_run),
                    done: Some(done),
                    ..JobReadRequest::for_job(7)
                };
                (request, answer)
            })
            .unzip();
        postpone(requests, "limited");
        let answers: Vec<DoorbellOutcome> = answers
            .into_iter()
            .map(|answer| answer.blocking_recv().unwrap())
            .collect();
        assert_eq!(
            answers,
            [DoorbellOutcome::Postponed, DoorbellOutcome::Recorded]
        );
    }

    #[test]
    fn fruitless_lookups_back_off() {
        let pauses = [0, 1, 2, 3, 4, 5, 100, u64::MAX].map(|n| retry_delay(n).as_secs());
        assert_eq!(pauses, [5, 5, 10, 20, 40, 60, 60, 60]);
    }

    #[test]
    fn a_task_contains_its_array() {
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
