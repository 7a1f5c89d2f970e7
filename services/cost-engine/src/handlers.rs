//! Handles job events and adds costs: one transaction per batch, in stream order.
//!
//! The database allows at most one cost of each kind per run. A duplicate job event finds its cost and changes nothing. An event that
//! arrives after the final cost and would change it produces `cost.adjusted`. The final cost and its adjustments add up to the cost by
//! all known facts.
//!
//! Inferred starts and ends, without a Slurm record, are not charged. When a record arrives (`job.updated`, `job.corrected`), the run
//! is charged by it.

mod batch;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::{BatchHandler, Disposition, Message};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, RunKey};
use mesh_runtime::Condition;
use tokio::sync::{Notify, watch};

use crate::accrual::AccrualRules;
use crate::accrual::handled::HandledMessages;
use crate::adapters::Store;
use crate::domain::Class;
use crate::error::Error;
use crate::metrics;
use crate::outbox::Outbox;
use crate::price_book::PriceBook;
use crate::spending::publisher::ChangedUsers;
use batch::Batch;

/// Delay before a batch is retried after a database error.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one attempt, which detects a server that is gone silently. Well within the consumer's ack wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct JobEvents {
    pub store: Store,
    pub book: watch::Receiver<Arc<PriceBook>>,
    /// When accrued costs are due.
    pub rules: Arc<AccrualRules>,
    pub outbox: Outbox,
    /// Until when job events are handled.
    pub handled: HandledMessages,
    /// Notified when costs, or what they are computed from, were committed.
    pub committed: Arc<Notify>,
    /// The users whose final costs were committed.
    pub changed_users: ChangedUsers,
    /// Condition: the database accepts writes.
    pub database: Condition,
}

impl BatchHandler for JobEvents {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        match self.handle_all(messages).await {
            Ok(outcomes) => {
                self.database.ok();
                outcomes
            }
            Err(error) => {
                // Nothing of the batch was written, so all of it is redelivered.
                let reason = mesh_runtime::error_chain(&error);
                tracing::warn!(
                    error = reason,
                    messages = messages.len(),
                    "commit of costs failed, retrying"
                );
                self.database.fail(reason);
                vec![Disposition::Nak { after: RETRY_DELAY }; messages.len()]
            }
        }
    }
}

impl JobEvents {
    async fn handle_all(&self, messages: &[Message]) -> Result<Vec<Disposition>, Error> {
        // Boxed: it holds decoded events of a batch.
        let handled = Box::pin(self.try_handle(messages));
        let handled = tokio::time::timeout(ATTEMPT_TIMEOUT, handled).await;
        handled.unwrap_or(Err(Error::TooSlow(ATTEMPT_TIMEOUT)))
    }

    async fn try_handle(&self, messages: &[Message]) -> Result<Vec<Disposition>, Error> {
        // The same book for the whole batch.
        let book = Arc::clone(&self.book.borrow());
        let events: Vec<_> = messages.iter().map(Message::event).collect();
        let mut batch = Batch::new(self.store.begin().await?, book, Arc::clone(&self.rules));
        let runs: Vec<_> = events.iter().flatten().filter_map(run_of).collect();
        let keys: Vec<_> = runs
            .iter()
            .map(|run| (run.cluster.clone(), run.entity_key()))
            .collect();
        batch.lock(&keys).await?;
        let mut outcomes = Vec::with_capacity(messages.len());
        let (mut made, mut stored) = (false, false);
        for (message, event) in messages.iter().zip(events) {
            let traceparent = message.header("traceparent").unwrap_or_default();
            let applied = match event {
                Ok(event) => batch.apply(&event, traceparent).await?,
                Err(error) => BatchOutcome::Refused(mesh_runtime::error_chain(&error)),
            };
            made |= applied == BatchOutcome::Cost;
            stored |= applied == BatchOutcome::Stored;
            metrics::job_event(applied.as_str());
            let outcome = match applied {
                BatchOutcome::Refused(reason) => Disposition::DeadLetter { reason },
                BatchOutcome::Cost
                | BatchOutcome::Stored
                | BatchOutcome::Nothing
                | BatchOutcome::Repeated => Disposition::Ack,
            };
            outcomes.push(outcome);
        }
        let changed = batch.commit().await?;
        self.handled.note(messages);
        self.changed_users.add(changed);
        // The costs are committed. The outbox publishes them, now or after a crash.
        if made {
            self.outbox.notify();
        }
        if made || stored {
            self.committed.notify_one();
        }
        Ok(outcomes)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum BatchOutcome {
    /// A cost was added.
    Cost,
    /// A change of the run was stored.
    Stored,
    /// The event does not affect costs.
    Nothing,
    /// The cost exists already.
    Repeated,
    /// No cost can be computed from this event.
    Refused(String),
}

impl BatchOutcome {
    const fn as_str(&self) -> &'static str {
        match self {
            Self::Cost | Self::Stored => "used",
            Self::Nothing => "ignored",
            Self::Repeated => "repeated",
            Self::Refused(_) => "rejected",
        }
    }
}

/// Effect of a job event on costs.
enum JobChange {
    Pending,
    Start,
    Changed(Change),
    End(Class),
    /// Ended, without a Slurm record.
    Inferred,
    /// A Slurm record of an ended run, whose end may have been inferred before. A correction supersedes earlier events.
    Settled {
        class: Class,
        is_better: bool,
    },
    Nothing,
}

/// A change of a running job that affects its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Suspended,
    Resumed,
    Resized,
}

impl Change {
    /// The change that an event of this type tells; `None` if it tells another.
    pub(crate) const fn of(kind: EventType) -> Option<Self> {
        match kind {
            EventType::JobSuspended => Some(Self::Suspended),
            EventType::JobResumed => Some(Self::Resumed),
            EventType::JobResized => Some(Self::Resized),
            _ => None,
        }
    }

    /// Name in the database.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Suspended => "suspended",
            Self::Resumed => "resumed",
            Self::Resized => "resized",
        }
    }
}

fn job_change(kind: EventType, job: &Job, is_inferred: bool) -> JobChange {
    match kind {
        EventType::JobStarted | EventType::JobBaseline if is_inferred => JobChange::Nothing,
        end if end.is_end() && is_inferred => JobChange::Inferred,
        EventType::JobUpdated | EventType::JobCorrected if !is_inferred => {
            match Class::of_state(&job.state) {
                Class::Open => JobChange::Nothing,
                class => JobChange::Settled {
                    class,
                    is_better: kind == EventType::JobCorrected,
                },
            }
        }
        EventType::JobSubmitted
        | EventType::JobPending
        | EventType::JobHeld
        | EventType::JobReleased
        | EventType::JobBaseline
            if job.state.starts_with("PENDING") =>
        {
            JobChange::Pending
        }
        EventType::JobStarted => JobChange::Start,
        // A job that was running when capture started is estimated from then on. Its start is in the record.
        EventType::JobBaseline if Class::of_state(&job.state) == Class::Open => JobChange::Start,
        EventType::JobCompleted => JobChange::End(Class::Completed),
        end if end.is_end() => JobChange::End(Class::NotCompleted),
        other => Change::of(other).map_or(JobChange::Nothing, JobChange::Changed),
    }
}

/// The run of a job event. Arrays have the key of a run but never run themselves, only their tasks do. Other entities have no run key.
pub(crate) fn run_of(event: &Event) -> Option<RunKey> {
    if event.entity.as_ref()?.kind == "array" {
        return None;
    }
    RunKey::parse(&event.cluster, event.entity_key()).ok()
}
