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
        job_id: JobId,
        restarts: u32,
        changes: &JobUpdate,
    ) -> Result<Step, Error> {
        let owner = &intent.rule.owner;
        if intent.state != IntentState::Confirmed {
            if let Err(step) = self.requeue_held(intent, job_id, restarts).await? {
                return Ok(step);
            }
            if *changes != JobUpdate::default() {
                let action = Action::Update(changes.clone());
                let reference = JobRef::Job(job_id);
                let updated = self.submitter.act(owner, &reference, &action).await;
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
        let reference = JobRef::Job(job_id);
        let released = self
            .submitter
            .act(owner, &reference, &Action::Release)
            .await;
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
        job_id: JobId,
        restarts: u32,
    ) -> Result<Result<(), Step>, Error> {
        let owner = &intent.rule.owner;
        let status = self.submitter.status(owner, job_id).await;
        let status = match self.answer(status) {
            Ok(Confirmation::Present(status)) if status.from_accounting => {
                let words = "the controller no longer has the job: MinJobAge is over";
                return self.refuse(intent, words).await.map(Err);
            }
            Ok(Confirmation::Present(status)) => status,
            Ok(Confirmation::Absent) => {
                return self.refuse(intent, "Slurm has no such job").await.map(Err);
            }
            Ok(Confirmation::OtherKey) => {
                return self
                    .refuse(intent, "the job is another user's")
                    .await
                    .map(Err);
            }
            Ok(Confirmation::Unknown(words)) => return Ok(Err(Step::Retry(words))),
            Err(error) => return Ok(Err(Step::Retry(error.to_string()))),
        };
        let now = status.restarts.unwrap_or(0);
        // Ours, if an earlier attempt was sent.
        if now == restarts.saturating_add(1) && status.held && intent.sent_at.is_some() {
            return Ok(Ok(()));
        }
        if now != restarts {
            let words = format!(
                "the job runs again already: it has {now} restarts, and had {restarts} at the event"
            );
            return self.refuse(intent, &words).await.map(Err);
        }
        if !self.store.sending(intent, Utc::now()).await? {
            return Ok(Err(Step::Stored));
        }
        let reference = JobRef::Job(job_id);
        let requeued = self
            .submitter
            .act(owner, &reference, &Action::RequeueHold)
            .await;
        match self.answer(requeued) {
            Ok(Acted::Done) => Ok(Ok(())),
            Ok(Acted::Absent | Acted::OtherKey) => {
                self.refuse(intent, "Slurm has no such job").await.map(Err)
            }
            Err(SubmitError::Refused { words, .. }) => self.refuse(intent, &words).await.map(Err),
            Err(error) => Ok(Err(Step::Retry(error.to_string()))),
        }
    }
}
