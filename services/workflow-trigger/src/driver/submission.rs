//! The steps of a submission.

use chrono::{TimeDelta, Utc};
use slurm_submit::{Acted, Confirmation, Submission, SubmitError};
use slurm_types::JobId;

use super::{Driver, Step};
use crate::adapters::replaced;
use crate::domain::intent::{Intent, IntentState};
use crate::error::Error;
use crate::metrics;

/// The default MinJobAge, for which the controller has an ended job, less a margin.
const MIN_JOB_AGE: TimeDelta = TimeDelta::seconds(240);

impl Driver {
    pub(super) async fn submission(
        &self,
        intent: &Intent,
        submission: &Submission,
    ) -> Result<Step, Error> {
        if let (Some(by), Some(id)) = (&intent.replaced_by, intent.job_id) {
            return self.cancel_replaced(intent, submission, id, by).await;
        }
        match (intent.state, intent.job_id) {
            (IntentState::Accepted, Some(id)) => self.confirm(intent, submission, id).await,
            (IntentState::Confirmed, Some(id)) => self.release(intent, submission, id).await,
            (IntentState::Released, Some(id)) => self.check(intent, submission, id).await,
            _ => self.submit(intent, submission).await,
        }
    }

    async fn submit(&self, intent: &Intent, submission: &Submission) -> Result<Step, Error> {
        // An earlier attempt may have been accepted. It is adopted, which saves a copy. One that is still on its way is held when it arrives
        // and never released, since another job is recorded.
        if intent.sent_at.is_some() {
            let found = self
                .submitter
                .find(&submission.owner, &submission.key)
                .await;
            match self.answer(found) {
                Ok(jobs) => {
                    let held = jobs.into_iter().filter(|found| found.status.held);
                    if let Some(found) = held.min_by_key(|found| found.job_id) {
                        return self.record(intent, submission, found.job_id).await;
                    }
                }
                Err(error) => return Ok(Step::Retry(error.to_string())),
            }
        }
        if !self.store.sending(intent, Utc::now()).await? {
            return Ok(Step::Stored);
        }
        let submitted = self.submitter.submit(submission).await;
        match self.answer(submitted) {
            Ok(id) => self.record(intent, submission, id).await,
            Err(SubmitError::Refused { words, .. }) => self.refuse(intent, &words).await,
            Err(SubmitError::Transient { words } | SubmitError::Unknown { words }) => {
                Ok(Step::Retry(words))
            }
        }
    }

    /// Records the job that is to run. There is one per run: any other with the same key is a copy.
    async fn record(
        &self,
        intent: &Intent,
        submission: &Submission,
        id: JobId,
    ) -> Result<Step, Error> {
        let now = Utc::now();
        let confirm_at = now + self.config.confirm_after;
        if self.store.accepted(intent, id, confirm_at, now).await? {
            let seconds = (now - intent.created_at).as_seconds_f64();
            metrics::accepted_after(seconds.max(0.0));
            tracing::info!(job.id = id.get(), "job accepted");
            self.due_runs.notify();
            return Ok(Step::Stored);
        }
        // The claim is lost. Whoever has it now may have found this very job, or is about to.
        let stored = self.store.run(&intent.key).await?;
        let recorded = stored.and_then(|run| run.job_id);
        if recorded.is_none_or(|recorded| recorded == id) {
            return Ok(Step::Stored);
        }
        let cancelled = self
            .submitter
            .cancel(&submission.owner, id, &submission.key)
            .await;
        if let Err(error) = self.answer(cancelled) {
            tracing::warn!(job.id = id.get(), %error, "copy of a job not cancelled; it stays held");
        }
        Ok(Step::Stored)
    }

    /// Checks that the controller still has the held job, some time after it accepted it.
    async fn confirm(
        &self,
        intent: &Intent,
        submission: &Submission,
        id: JobId,
    ) -> Result<Step, Error> {
        match self.confirmation(submission, id).await {
            Ok(Confirmation::Present(status)) if status.state.is_terminal() => {
                let words = "the job was cancelled while it was held";
                self.end(intent, IntentState::GivenUp, words).await
            }
            Ok(Confirmation::Present(_)) => {
                if !self.store.confirmed(intent, Utc::now()).await? {
                    return Ok(Step::Stored);
                }
                self.release(intent, submission, id).await
            }
            // It was never released, so it has not run.
            Ok(Confirmation::Absent | Confirmation::OtherKey) => {
                let words = format!("the controller lost job {id} before its release");
                tracing::warn!(
                    job.id = id.get(),
                    "held job lost by the controller, submitting again"
                );
                self.store.lost(intent, &words, Utc::now()).await?;
                self.due_runs.notify();
                Ok(Step::Stored)
            }
            Ok(Confirmation::Unknown(words)) => Ok(Step::Retry(words)),
            Err(error) => Ok(Step::Retry(error.to_string())),
        }
    }

    /// Checks a released job once more: a controller that crashed before it saved the release has the job on hold again, or lost it.
    async fn check(
        &self,
        intent: &Intent,
        submission: &Submission,
        id: JobId,
    ) -> Result<Step, Error> {
        let is_recent = intent
            .released_at
            .is_none_or(|at| Utc::now() - at < MIN_JOB_AGE);
        match self.confirmation(submission, id).await {
            Ok(Confirmation::Present(status)) if status.held && is_recent => {
                tracing::warn!(job.id = id.get(), "released job is held, releasing again");
                self.release(intent, submission, id).await
            }
            Ok(Confirmation::OtherKey) => self.lost_after_release(intent, id).await,
            Ok(Confirmation::Absent) if is_recent => self.lost_after_release(intent, id).await,
            // Without accounting an ended job is gone after MinJobAge.
            Ok(Confirmation::Present(_) | Confirmation::Absent) => {
                self.store.settled(intent).await?;
                Ok(Step::Stored)
            }
            Ok(Confirmation::Unknown(words)) => Ok(Step::Retry(words)),
            Err(error) => Ok(Step::Retry(error.to_string())),
        }
    }

    /// Cancels the job of a run that another one replaces. That one waits until the job has ended.
    async fn cancel_replaced(
        &self,
        intent: &Intent,
        submission: &Submission,
        id: JobId,
        by: &str,
    ) -> Result<Step, Error> {
        let cancelled = self
            .submitter
            .cancel(&submission.owner, id, &submission.key)
            .await;
        let is_released = intent.state == IntentState::Released;
        match self.answer(cancelled) {
            Ok(Acted::Done) if is_released => {
                tracing::info!(job.id = id.get(), by, "job cancelled, its run is replaced");
                self.store.replaced(intent, by, Utc::now()).await?;
                Ok(Step::Stored)
            }
            Ok(Acted::Absent | Acted::OtherKey) if is_released => {
                self.lost_after_release(intent, id).await
            }
            Ok(_) => {
                let words = replaced::words(by);
                self.end(intent, IntentState::Refused, &words).await
            }
            Err(error) => Ok(Step::Retry(error.to_string())),
        }
    }

    async fn confirmation(
        &self,
        submission: &Submission,
        id: JobId,
    ) -> Result<Confirmation, SubmitError> {
        let (owner, key) = (&submission.owner, &submission.key);
        self.answer(self.submitter.confirm(owner, id, key).await)
    }

    async fn lost_after_release(&self, intent: &Intent, id: JobId) -> Result<Step, Error> {
        let words = format!(
            "the controller lost job {id} after its release: it may have run; redrive it if it has not"
        );
        tracing::warn!(job.id = id.get(), "released job lost by the controller");
        self.store
            .lost_after_release(intent, &words, Utc::now())
            .await?;
        metrics::run(IntentState::GivenUp.as_str());
        Ok(Step::Stored)
    }

    async fn release(
        &self,
        intent: &Intent,
        submission: &Submission,
        id: JobId,
    ) -> Result<Step, Error> {
        let released = self
            .submitter
            .release(&submission.owner, id, &submission.key)
            .await;
        match self.answer(released) {
            Ok(Acted::Done) => {
                let now = Utc::now();
                // Again after the first release only: whoever holds the job after that means it.
                let is_first = intent.released_at.is_none();
                let check_at = is_first.then_some(now + self.config.confirm_after);
                if self.store.released(intent, check_at, now).await? {
                    tracing::info!(job.id = id.get(), "job released");
                    metrics::run(IntentState::Released.as_str());
                }
                Ok(Step::Stored)
            }
            // An earlier attempt may have released it.
            Ok(Acted::Absent | Acted::OtherKey) if intent.state != IntentState::Accepted => {
                self.lost_after_release(intent, id).await
            }
            // Between the confirmation and now. The next confirmation says what it is.
            Ok(Acted::Absent | Acted::OtherKey) => {
                let now = Utc::now();
                let again = now + self.config.confirm_after;
                self.store.unconfirmed(intent, again, now).await?;
                Ok(Step::Stored)
            }
            Err(SubmitError::Refused { words, .. }) => {
                let words = format!("release refused: {words}");
                self.end(intent, IntentState::GivenUp, &words).await
            }
            Err(error) => Ok(Step::Retry(error.to_string())),
        }
    }
}
