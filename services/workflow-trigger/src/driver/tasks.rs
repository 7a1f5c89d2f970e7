//! Runs the failed tasks of an array again. Each goes back into the queue, held, as soon as this service sees it. All are changed and released
//! once no other task of the array can fail. Every step may be repeated, see [`Comparison`].

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use slurm_submit::{Acted, Action, SubmitError};
use slurm_types::JobId;

use super::{Driver, Step};
use crate::domain::array::{self, Comparison, StoredTask};
use crate::domain::intent::{Intent, IntentState};
use crate::error::Error;

/// Longest time between two looks at an array: much shorter than MinJobAge, after which a failed task that is not requeued is gone.
pub(super) const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(60);

impl Driver {
    pub(super) async fn rerun_tasks(&self, intent: &Intent, array: JobId) -> Result<Step, Error> {
        let mut tasks = self.store.tasks_of(intent).await?;
        let mut now = match self.compare(intent, array, &tasks).await {
            Ok(comparison) => comparison,
            Err(error) => return Ok(Step::Retry(error.to_string())),
        };
        let mut words = Vec::new();
        if intent.state == IntentState::Confirmed {
            // Released before this service stopped.
            now.running_again.clear();
            return self.release_tasks(intent, array, &tasks, now, words).await;
        }
        if !now.failed.is_empty() {
            if !self
                .store
                .requeueing(intent, &now.failed, Utc::now())
                .await?
            {
                return Ok(Step::Stored);
            }
            let requeued = self.act_on_tasks(intent, array, &now.failed, &Action::RequeueHold);
            match requeued.await {
                Ok(()) => {}
                // It may be so for some of them only.
                Err(SubmitError::Refused { words: refusal, .. }) => words.push(refusal),
                Err(error) => return Ok(Step::Retry(error.to_string())),
            }
            for task in &mut tasks {
                task.is_sent |= now.failed.contains(&task.failed.task);
            }
            now = match self.compare(intent, array, &tasks).await {
                Ok(comparison) => comparison,
                Err(error) => return Ok(Step::Retry(error.to_string())),
            };
        }
        let age = (Utc::now() - intent.created_at)
            .to_std()
            .unwrap_or_default();
        let is_over = age >= self.config.array_wait;
        // An epilog that never ends keeps the others for no longer than anything that Slurm does not do.
        let is_given_up = age >= self.config.array_wait + self.config.give_up_after;
        let is_ending = !now.ending.is_empty() && !is_given_up;
        if is_ending || !(now.is_complete() || is_over) {
            let wait = (age / 10).max(self.config.retry_initial_interval);
            let wait = wait.min(MAX_LOOK_INTERVAL);
            return self
                .wait_for_tasks(intent, tasks.len(), wait, &now.awaited())
                .await;
        }
        if !self.store.close(intent, tasks.len(), Utc::now()).await? {
            let wait = self.config.retry_initial_interval;
            return self
                .wait_for_tasks(intent, tasks.len(), wait, "another task failed")
                .await;
        }
        self.release_tasks(intent, array, &tasks, now, words).await
    }

    /// Changes and releases the tasks that are held, each with what its cause needs.
    async fn release_tasks(
        &self,
        intent: &Intent,
        array: JobId,
        tasks: &[StoredTask],
        mut now: Comparison,
        mut words: Vec<String>,
    ) -> Result<Step, Error> {
        let is_resumed = intent.state == IntentState::Confirmed;
        let mut is_refused = now.held.is_empty() && !is_resumed;
        for (numbers, changes) in array::changes_by_cause(tasks, &now.held) {
            let action = Action::Update(changes);
            match self.act_on_tasks(intent, array, &numbers, &action).await {
                Ok(()) => {}
                Err(SubmitError::Refused { words: refusal, .. }) => {
                    words.push(format!("tasks are held and not changed: {refusal}"));
                    is_refused = true;
                    now.held.retain(|number| !numbers.contains(number));
                }
                Err(error) => return Ok(Step::Retry(error.to_string())),
            }
        }
        match self
            .act_on_tasks(intent, array, &now.held, &Action::Release)
            .await
        {
            Ok(()) => {}
            Err(SubmitError::Refused { words: refusal, .. }) => {
                words.push(refusal);
                is_refused = true;
            }
            Err(error) => return Ok(Step::Retry(error.to_string())),
        }
        let not_retried = now.not_retried();
        words.extend((!not_retried.is_empty()).then_some(not_retried));
        let words = words.join("; ");
        match is_refused {
            true => self.refuse(intent, &words).await,
            false => self.end(intent, IntentState::Done, &words).await,
        }
    }

    async fn compare(
        &self,
        intent: &Intent,
        array: JobId,
        tasks: &[StoredTask],
    ) -> Result<Comparison, SubmitError> {
        let shown = self.submitter.tasks(&intent.user, array).await;
        let shown = self.answer(shown)?;
        let since = intent.created_at.max(self.started_at);
        Ok(Comparison::new(tasks, &shown, since, Utc::now()))
    }

    async fn act_on_tasks(
        &self,
        intent: &Intent,
        array: JobId,
        numbers: &BTreeSet<u32>,
        action: &Action,
    ) -> Result<(), SubmitError> {
        let mut result = Ok(());
        for reference in array::references(array, numbers) {
            if !self.store.renew(intent, Utc::now()).await.unwrap_or(false) {
                let words = "another replica has the run, or the database does not answer";
                return Err(SubmitError::Transient {
                    words: words.to_owned(),
                });
            }
            let owner = &intent.user;
            let acted = self.submitter.act(owner, &reference, action).await;
            match self.answer(acted) {
                Ok(Acted::Done) => {}
                Ok(Acted::Absent | Acted::OtherKey) => {
                    let words = "Slurm has no such task".to_owned();
                    result = Err(SubmitError::Refused { words, errno: None });
                }
                // Not the others, too.
                Err(error @ SubmitError::Refused { .. }) => result = Err(error),
                Err(error) => return Err(error),
            }
        }
        result
    }

    async fn wait_for_tasks(
        &self,
        intent: &Intent,
        tasks: usize,
        wait: Duration,
        words: &str,
    ) -> Result<Step, Error> {
        let now = Utc::now();
        let next = now + wait;
        self.store.wait(intent, tasks, next, words, now).await?;
        Ok(Step::Stored)
    }
}
