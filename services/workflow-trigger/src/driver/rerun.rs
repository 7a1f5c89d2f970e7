//! Runs a job again: back into the queue and held, changed, then released. Each step may be repeated, except the first: a job that Slurm, its
//! owner or an earlier attempt has requeued already has more restarts than the event's.

use chrono::Utc;
use slurm_submit::{Acted, Action, Confirmation, JobUpdate, SubmitError};
use slurm_types::{JobId, JobRef};

use super::{Driver, Step};
use crate::domain::intent::{Intent, IntentState};
use crate::error::Error;

impl Driver {
    pub(super) async fn rerun(
        &self,
        intent: &Intent,
        job: &JobRef,
        restarts: u32,
        changes: &JobUpdate,
    ) -> Result<Step, Error> {
        let owner = &intent.user;
        if intent.state != IntentState::Confirmed {
            if let Err(step) = self.requeue_held(intent, job, restarts).await? {
                return Ok(step);
            }
            if *changes != JobUpdate::default() {
                let action = Action::Update(changes.clone());
                let updated = self.submitter.act(owner, job, &action).await;
                match self.answer(updated) {
                    Ok(Acted::Done) => {}
                    Ok(Acted::Absent | Acted::OtherKey) => {
                        return self.refuse(intent, "Slurm has no such job").await;
                    }
                    Err(SubmitError::Refused { words, .. }) => {
                        let words = format!("the job is held and not changed: {words}");
                        return self.refuse(intent, &words).await;
                    }
                    Err(error) => return Ok(Step::Retry(error.to_string())),
                }
            }
            if !self.store.confirmed(intent, Utc::now()).await? {
                return Ok(Step::Stored);
            }
        }
        let released = self.submitter.act(owner, job, &Action::Release).await;
        match self.answer(released) {
            Ok(Acted::Done) => self.end(intent, IntentState::Done, "").await,
            Ok(Acted::Absent | Acted::OtherKey) => {
                self.refuse(intent, "Slurm has no such job").await
            }
            Err(SubmitError::Refused { words, .. }) => self.refuse(intent, &words).await,
            Err(error) => Ok(Step::Retry(error.to_string())),
        }
    }

    /// Puts the job back into the queue, held, or finds that an earlier attempt has. The inner error is what to do instead.
    async fn requeue_held(
        &self,
        intent: &Intent,
        job: &JobRef,
        restarts: u32,
    ) -> Result<Result<(), Step>, Error> {
        let shown = match job {
            JobRef::ArrayTask { array, task } => self.shown_task(intent, *array, *task).await?,
            other => self.shown_job(intent, other.root()).await?,
        };
        let now = match shown {
            Ok(shown) => shown,
            Err(step) => return Ok(Err(step)),
        };
        // Ours, if an earlier attempt was sent.
        if now.restarts == restarts.saturating_add(1) && now.is_held && intent.sent_at.is_some() {
            return Ok(Ok(()));
        }
        if now.restarts != restarts {
            let words = format!(
                "the job runs again already: it has {} restarts, and had {restarts} at the event",
                now.restarts
            );
            return self.refuse(intent, &words).await.map(Err);
        }
        if !self.store.sending(intent, Utc::now()).await? {
            return Ok(Err(Step::Stored));
        }
        let owner = &intent.user;
        let requeued = self.submitter.act(owner, job, &Action::RequeueHold).await;
        match self.answer(requeued) {
            Ok(Acted::Done) => Ok(Ok(())),
            Ok(Acted::Absent | Acted::OtherKey) => {
                self.refuse(intent, "Slurm has no such job").await.map(Err)
            }
            Err(SubmitError::Refused { words, .. }) => self.refuse(intent, &words).await.map(Err),
            Err(error) => Ok(Err(Step::Retry(error.to_string()))),
        }
    }

    async fn shown_job(
        &self,
        intent: &Intent,
        job_id: JobId,
    ) -> Result<Result<ShownJob, Step>, Error> {
        let status = self.submitter.status(&intent.user, job_id).await;
        let words = match self.answer(status) {
            Ok(Confirmation::Present(status)) if status.from_accounting => {
                "the controller no longer has the job: MinJobAge is over"
            }
            Ok(Confirmation::Present(status)) => {
                return Ok(Ok(ShownJob {
                    restarts: status.restarts.unwrap_or(0),
                    is_held: status.held,
                }));
            }
            Ok(Confirmation::Absent) => "Slurm has no such job",
            Ok(Confirmation::OtherKey) => "the job is another user's",
            Ok(Confirmation::Unknown(words)) => return Ok(Err(Step::Retry(words))),
            Err(error) => return Ok(Err(Step::Retry(error.to_string()))),
        };
        self.refuse(intent, words).await.map(Err)
    }

    async fn shown_task(
        &self,
        intent: &Intent,
        array: JobId,
        task: u32,
    ) -> Result<Result<ShownJob, Step>, Error> {
        let records = self.submitter.tasks(&intent.user, array).await;
        let records = match self.answer(records) {
            Ok(records) => records,
            Err(error) => return Ok(Err(Step::Retry(error.to_string()))),
        };
        let record = records.iter().find(|record| record.task == Some(task));
        let Some(record) = record else {
            let words =
                "the owner has no such task, or the controller no longer has it: MinJobAge is over";
            return self.refuse(intent, words).await.map(Err);
        };
        Ok(Ok(ShownJob {
            restarts: record.restarts,
            is_held: record.held,
        }))
    }
}

/// What the controller shows of a job or task.
struct ShownJob {
    restarts: u32,
    is_held: bool,
}
