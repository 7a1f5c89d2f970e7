//! Job events in, costs out: one transaction per batch, in stream order.
//!
//! Each run has at most one cost of each kind; the database says so. A job event that comes again finds its cost there and changes nothing.
//!
//! Nobody pays for what is only inferred: a start or an end that no record of Slurm has. When a record comes (`job.updated`,
//! `job.corrected`), the run is charged by that.

use std::sync::Arc;
use std::time::Duration;

use mesh_bus::{BatchHandler, Message, Outcome};
use mesh_events::proto::mesh::cost::v1::CostClass;
use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, RunKey, from_timestamp};
use prost::Message as _;
use tokio::sync::watch;

use crate::adapters::{CostRow, Store, Transaction};
use crate::costing;
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::metrics;
use crate::outbox::Outbox;
use crate::price_book::PriceBook;
use crate::usage::{has_started, seconds};

/// How long a batch waits when the database refuses.
const RETRY: Duration = Duration::from_secs(1);

/// Handles job events.
pub(crate) struct JobEvents {
    pub store: Store,
    pub book: watch::Receiver<Arc<PriceBook>>,
    pub outbox: Outbox,
}

impl BatchHandler for JobEvents {
    async fn handle(&self, messages: &[Message]) -> Vec<Outcome> {
        match self.handle_all(messages).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                // Nothing of the batch was written, so all of it comes again.
                tracing::warn!(
                    error = mesh_runtime::chain(&error),
                    messages = messages.len(),
                    "write costs, trying again"
                );
                vec![Outcome::Retry { after: RETRY }; messages.len()]
            }
        }
    }
}

impl JobEvents {
    async fn handle_all(&self, messages: &[Message]) -> Result<Vec<Outcome>, Error> {
        // One book for the whole batch.
        let book = Arc::clone(&self.book.borrow());
        let mut transaction = self.store.begin().await?;
        let mut outcomes = Vec::with_capacity(messages.len());
        let mut made = false;
        for message in messages {
            let traceparent = message.header("traceparent").unwrap_or_default();
            let applied = match message.event() {
                Ok(event) => apply(&book, &mut transaction, &event, traceparent).await?,
                Err(error) => Applied::Refused(mesh_runtime::chain(&error)),
            };
            made |= applied == Applied::Cost;
            metrics::job_event(applied.word());
            let outcome = match applied {
                Applied::Refused(reason) => Outcome::Reject { reason },
                Applied::Cost | Applied::Remembered | Applied::Nothing | Applied::Repeated => {
                    Outcome::Done
                }
            };
            outcomes.push(outcome);
        }
        transaction.commit().await?;
        // From here on the costs are facts; publishing them is the outbox's work, now or after a crash.
        if made {
            self.outbox.ring();
        }
        Ok(outcomes)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Applied {
    /// A cost was added.
    Cost,
    /// Something about the run was remembered.
    Remembered,
    /// The event says nothing about costs.
    Nothing,
    /// The cost was there already.
    Repeated,
    /// No cost can be made of this.
    Refused(String),
}

impl Applied {
    const fn word(&self) -> &'static str {
        match self {
            Self::Cost | Self::Remembered => "used",
            Self::Nothing => "ignored",
            Self::Repeated => "repeated",
            Self::Refused(_) => "rejected",
        }
    }
}

/// What a job event means for costs.
enum Step {
    Start,
    Suspended,
    Resumed,
    Resized,
    End(Class),
    /// It is over, and no record of Slurm says how.
    Inferred,
    /// A record of a run that is over, whose end may have been inferred before.
    Settled(Class),
    Nothing,
}

fn step(kind: EventType, job: &Job, is_inferred: bool) -> Step {
    match kind {
        EventType::JobStarted | EventType::JobBaseline if is_inferred => Step::Nothing,
        end if end.is_end() && is_inferred => Step::Inferred,
        EventType::JobUpdated | EventType::JobCorrected if !is_inferred => {
            match Class::of_state(&job.state) {
                Class::Open => Step::Nothing,
                class => Step::Settled(class),
            }
        }
        EventType::JobStarted => Step::Start,
        // What already runs when capture starts is estimated from there; its start is in the record.
        EventType::JobBaseline if Class::of_state(&job.state) == Class::Open => Step::Start,
        EventType::JobSuspended => Step::Suspended,
        EventType::JobResumed => Step::Resumed,
        EventType::JobResized => Step::Resized,
        EventType::JobCompleted => Step::End(Class::Completed),
        end if end.is_end() => Step::End(Class::NotCompleted),
        _ => Step::Nothing,
    }
}

async fn apply(
    book: &PriceBook,
    transaction: &mut Transaction,
    event: &Event,
    traceparent: &str,
) -> Result<Applied, Error> {
    let (Ok(kind), Some(job)) = (event.kind(), event.job()) else {
        return Ok(Applied::Nothing);
    };
    let at = event
        .occurred_at
        .as_ref()
        .map(|time| time.seconds)
        .unwrap_or_default();
    let step = step(kind, job, event.confidence() == Confidence::Inferred);
    if matches!(step, Step::Nothing) {
        return Ok(Applied::Nothing);
    }
    // The remainder of an array, and other entities that never run themselves, have no run key.
    let Ok(run) = RunKey::parse(&event.cluster, event.entity_key()) else {
        return Ok(Applied::Nothing);
    };
    let (cluster, key) = (run.cluster.as_str(), run.entity_key());
    let ended = transaction.has_cost(cluster, &key, "finalized").await?;
    match step {
        Step::Nothing => Ok(Applied::Nothing),
        Step::Start => {
            if !has_started(job) {
                return Ok(Applied::Nothing);
            }
            if transaction.has_cost(cluster, &key, "estimated").await? {
                return Ok(Applied::Repeated);
            }
            if !ended {
                let (user, account) = owner(event);
                transaction
                    .remember_start(cluster, user, account, job)
                    .await?;
            }
            let payload = costing::estimated(book, job);
            let made = costing::event(&run, EventType::CostEstimated, event, payload);
            add(transaction, book, &run, &made, event, traceparent).await
        }
        Step::Suspended | Step::Resumed | Step::Resized if ended => {
            tracing::warn!(
                job.id = job.display_id,
                event.id = event.id,
                "came after the final cost, which stays as it is"
            );
            Ok(Applied::Nothing)
        }
        Step::Suspended => mark(transaction, cluster, &key, "suspended", at, None).await,
        Step::Resumed => mark(transaction, cluster, &key, "resumed", at, None).await,
        Step::Resized => mark(transaction, cluster, &key, "resized", at, Some(job)).await,
        Step::Inferred => {
            // What it costs until a record says so does not grow any more.
            transaction.forget(cluster, &key).await?;
            Ok(Applied::Nothing)
        }
        Step::Settled(_) if ended || job.end_time.is_none() => Ok(Applied::Nothing),
        Step::End(_) if ended => Ok(Applied::Repeated),
        Step::End(class) | Step::Settled(class) => {
            let memory = transaction.memory(cluster, &key).await?;
            if !has_started(job) && memory.start.is_none() {
                // Never ran: nothing to pay, nothing to say.
                return Ok(Applied::Nothing);
            }
            let end = seconds(job.end_time.as_ref()).unwrap_or(at);
            match costing::finalized(book, &memory, job, end, class) {
                Ok(payload) => {
                    transaction.forget(cluster, &key).await?;
                    let made = costing::event(&run, EventType::CostFinalized, event, payload);
                    add(transaction, book, &run, &made, event, traceparent).await
                }
                Err(error) => {
                    // It runs no longer, although nobody can say what it cost.
                    transaction.forget(cluster, &key).await?;
                    Ok(Applied::Refused(error.problem()))
                }
            }
        }
    }
}

async fn mark(
    transaction: &mut Transaction,
    cluster: &str,
    run: &str,
    kind: &'static str,
    at: i64,
    job: Option<&Job>,
) -> Result<Applied, Error> {
    transaction
        .remember_mark(cluster, run, kind, at, job)
        .await?;
    Ok(Applied::Remembered)
}

fn owner(event: &Event) -> (&str, &str) {
    event.owner.as_ref().map_or(("", ""), |owner| {
        (owner.user.as_str(), owner.account.as_str())
    })
}

/// Adds a cost event and what is kept of it.
async fn add(
    transaction: &mut Transaction,
    book: &PriceBook,
    run: &RunKey,
    event: &Event,
    cause: &Event,
    traceparent: &str,
) -> Result<Applied, Error> {
    let (Ok(kind), Some(Payload::Cost(payload)), Some(job)) =
        (event.kind(), &event.payload, cause.job())
    else {
        return Ok(Applied::Nothing);
    };
    let time = if kind == EventType::CostEstimated {
        job.start_time.as_ref()
    } else {
        job.end_time.as_ref()
    };
    let (user, account) = owner(cause);
    let class = match payload.class() {
        CostClass::Completed => Class::Completed,
        CostClass::NotCompleted => Class::NotCompleted,
        CostClass::Open | CostClass::Unspecified => Class::Open,
    };
    let row = CostRow {
        cluster: &run.cluster,
        run: &run.entity_key(),
        kind: kind.event(),
        event_id: &event.id,
        cause_id: &cause.id,
        job,
        user,
        account,
        class,
        currency: &book.currency,
        total: payload.total.as_ref().map(|total| Micros(total.micros)),
        charged_seconds: payload.charged_seconds,
        price_book: &payload.price_book,
        problem: &payload.problem,
        at: time
            .or(cause.occurred_at.as_ref())
            .and_then(from_timestamp)
            .unwrap_or_default(),
    };
    transaction
        .add_cost(&row, &event.encode_to_vec(), traceparent)
        .await?;
    metrics::cost(kind.event(), payload.problem.is_empty());
    if !payload.problem.is_empty() {
        tracing::warn!(
            job.id = job.display_id,
            cluster = run.cluster,
            problem = payload.problem,
            "run has no price"
        );
    }
    Ok(Applied::Cost)
}
