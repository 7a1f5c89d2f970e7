//! Applies one job event to the costs of its run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::DateTime;
use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, IdSource, Identity};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId, EventType, RunKey, Slot, from_timestamp};
use prost::Message as _;

use super::{BatchOutcome, Change, JobChange, run_of, step};
use crate::adapters::{AdjustmentRow, CostRow, FinalCost, Transaction, WasteColumns};
use crate::costing;
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::metrics;
use crate::node_view;
use crate::price_book::PriceBook;
use crate::spending::publisher::NewestEnds;
use crate::usage::{RunHistory, has_started, pricing_facts, seconds};

/// One transaction with the price books it needs.
pub(super) struct Batch {
    transaction: Transaction,
    book: Arc<PriceBook>,
    /// Earlier books by label. `None` if the text was never stored.
    books: HashMap<String, Option<Arc<PriceBook>>>,
    /// The newest identity of each owner, by cluster and user, with the time of its event in Unix seconds.
    people: BTreeMap<(String, String), (i64, Identity)>,
    /// The owners of runs with new final costs and adjustments.
    ends: NewestEnds,
}

impl Batch {
    /// `book` prices new costs.
    pub fn new(transaction: Transaction, book: Arc<PriceBook>) -> Self {
        Self {
            transaction,
            book,
            books: HashMap::new(),
            people: BTreeMap::new(),
            ends: NewestEnds::new(),
        }
    }

    /// Locks these runs against other processes.
    pub async fn lock(&mut self, runs: &[(String, String)]) -> Result<(), Error> {
        self.transaction.lock(runs).await
    }

    /// Stores the people of the batch and commits the transaction. Returns the owners of runs with new final costs and adjustments.
    pub async fn commit(mut self) -> Result<NewestEnds, Error> {
        // Last and in a fixed order, because other processes may store the same people.
        for ((cluster, user), (at, identity)) in &self.people {
            self.transaction
                .store_person(cluster, user, identity, *at)
                .await?;
        }
        self.transaction.commit().await?;
        Ok(self.ends)
    }

    /// Notes that the cost of an ended run of the owner has changed.
    fn note_end(&mut self, cause: &JobEvent<'_>, end: i64) {
        let user = owner(cause.event).0.to_owned();
        let newest = self
            .ends
            .entry((cause.run.cluster.clone(), user))
            .or_insert(end);
        *newest = end.max(*newest);
    }

    /// Stores the change of a job event, with the resulting cost event.
    pub async fn apply(&mut self, event: &Event, traceparent: &str) -> Result<BatchOutcome, Error> {
        if let Some(change) = node_view::change_of(event) {
            let is_new = self.transaction.store_node(&change).await?;
            return Ok(if is_new {
                BatchOutcome::Stored
            } else {
                BatchOutcome::Repeated
            });
        }
        let (Ok(kind), Some(job)) = (event.kind(), event.job()) else {
            return Ok(BatchOutcome::Nothing);
        };
        let at = event
            .occurred_at
            .as_ref()
            .map(|time| time.seconds)
            .unwrap_or_default();
        let step = step(kind, job, event.confidence() == Confidence::Inferred);
        if matches!(step, JobChange::Nothing) {
            return Ok(BatchOutcome::Nothing);
        }
        let Some(run) = run_of(event) else {
            return Ok(BatchOutcome::Nothing);
        };
        let cause = JobEvent {
            run: &run,
            key: &run.entity_key(),
            event,
            job,
            at,
            traceparent,
        };
        let (cluster, key) = (run.cluster.as_str(), cause.key);
        self.note_person(&cause);
        if matches!(step, JobChange::Pending) {
            let (user, account) = owner(event);
            let is_new = self
                .transaction
                .store_pending((cluster, key), user, account, job)
                .await?;
            return Ok(if is_new {
                BatchOutcome::Stored
            } else {
                BatchOutcome::Nothing
            });
        }
        if !matches!(step, JobChange::Changed(_)) {
            self.transaction.remove_pending(cluster, key).await?;
        }
        let settled = self.transaction.final_cost(cluster, key).await?;
        match step {
            JobChange::Nothing | JobChange::Pending => Ok(BatchOutcome::Nothing),
            JobChange::Start => self.start(&cause, settled).await,
            JobChange::Changed(kind) => self.changed(&cause, kind, settled).await,
            JobChange::Inferred => {
                // The run has ended, so its open cost must not grow until a record arrives.
                self.transaction.close_run(cluster, key).await?;
                Ok(BatchOutcome::Nothing)
            }
            JobChange::Settled { .. } if job.end_time.is_none() => Ok(BatchOutcome::Nothing),
            JobChange::Settled { class, is_better } => match settled {
                Some(settled) if is_better => self.corrected(&cause, class, settled).await,
                Some(settled) => self.used(&cause, settled).await,
                None => self.end(&cause, class).await,
            },
            JobChange::End(_) if settled.is_some() => Ok(BatchOutcome::Repeated),
            JobChange::End(class) => self.end(&cause, class).await,
        }
    }

    /// Notes the person that the event names as the owner.
    fn note_person(&mut self, cause: &JobEvent<'_>) {
        let owner = cause.event.owner.as_ref();
        let Some((owner, identity)) =
            owner.and_then(|owner| Some((owner, owner.identity.as_ref()?)))
        else {
            return;
        };
        let key = (cause.run.cluster.clone(), owner.user.clone());
        let known = self.people.get(&key);
        if known.is_none_or(|(at, _)| *at <= cause.at) {
            self.people.insert(key, (cause.at, identity.clone()));
        }
    }

    async fn start(
        &mut self,
        cause: &JobEvent<'_>,
        settled: Option<FinalCost>,
    ) -> Result<BatchOutcome, Error> {
        let cluster = cause.run.cluster.as_str();
        if !has_started(cause.job) {
            return Ok(BatchOutcome::Nothing);
        }
        if self
            .transaction
            .has_cost(cluster, cause.key, "estimated")
            .await?
        {
            return Ok(BatchOutcome::Repeated);
        }
        let (user, account) = owner(cause.event);
        self.transaction
            .store_start(cluster, user, account, cause.job)
            .await?;
        if let Some(settled) = settled {
            let class = settled.class();
            self.adjust(cause, class, settled).await?;
        }
        let payload = costing::estimated(&self.book, cause.job, account);
        self.add(
            cause,
            EventType::CostEstimated,
            Slot::CostEstimated,
            payload,
        )
        .await
    }

    /// Handles a suspension, resumption or resize.
    async fn changed(
        &mut self,
        cause: &JobEvent<'_>,
        kind: Change,
        settled: Option<FinalCost>,
    ) -> Result<BatchOutcome, Error> {
        let cluster = cause.run.cluster.as_str();
        let job = (kind == Change::Resized).then_some(cause.job);
        let is_new = self
            .transaction
            .store_mark(cluster, cause.key, kind.as_str(), cause.at, job)
            .await?;
        if !is_new {
            return Ok(BatchOutcome::Repeated);
        }
        if let Some(settled) = settled {
            let class = settled.class();
            return self.adjust(cause, class, settled).await;
        }
        let (Change::Resized, Some(id)) = (kind, derived(cause.event, EventType::CostEstimated))
        else {
            return Ok(BatchOutcome::Stored);
        };
        let history = self.history(cause).await?;
        let payload = costing::estimated_after_resize(&self.book, &history, cause.job, cause.at);
        let made = costing::event(id, EventType::CostEstimated, cause.event, payload);
        self.publish(&made, cause.traceparent).await?;
        Ok(BatchOutcome::Cost)
    }

    /// The stored history of a run.
    async fn history(&mut self, cause: &JobEvent<'_>) -> Result<RunHistory, Error> {
        let cluster = cause.run.cluster.as_str();
        let mut history = self.transaction.history(cluster, cause.key).await?;
        if history.account.is_empty() {
            // Nothing is stored yet of a run whose end is its first event.
            owner(cause.event).1.clone_into(&mut history.account);
        }
        Ok(history)
    }

    async fn end(&mut self, cause: &JobEvent<'_>, class: Class) -> Result<BatchOutcome, Error> {
        let cluster = cause.run.cluster.as_str();
        let history = self.history(cause).await?;
        if !has_started(cause.job) && history.start.is_none() {
            // The run never started, so there is no cost and no event.
            return Ok(BatchOutcome::Nothing);
        }
        let end = seconds(cause.job.end_time.as_ref()).unwrap_or(cause.at);
        match costing::finalized(&self.book, &history, cause.job, end, class) {
            Ok(payload) => {
                let (user, account) = owner(cause.event);
                self.transaction
                    .store_end(cluster, user, account, cause.job, end)
                    .await?;
                self.add(
                    cause,
                    EventType::CostFinalized,
                    Slot::CostFinalized,
                    payload,
                )
                .await
            }
            Err(error) => {
                // The run has ended, even if its cost cannot be computed.
                self.transaction.close_run(cluster, cause.key).await?;
                Ok(BatchOutcome::Refused(error.problem()))
            }
        }
    }

    /// Handles a record of a run that has a final cost: it may say for the first time what the run used.
    async fn used(
        &mut self,
        cause: &JobEvent<'_>,
        settled: FinalCost,
    ) -> Result<BatchOutcome, Error> {
        let Some(usage) = pricing_facts(cause.job).usage else {
            return Ok(BatchOutcome::Nothing);
        };
        let mut history = self.history(cause).await?;
        let (Some((end, record)), Some(total)) = (&mut history.end, settled.current) else {
            return Ok(BatchOutcome::Nothing);
        };
        if record.usage.as_ref() == Some(&usage) {
            return Ok(BatchOutcome::Repeated);
        }
        record.usage = Some(usage);
        let (cluster, (user, account)) = (&cause.run.cluster, owner(cause.event));
        self.transaction
            .store_end(cluster, user, account, record, *end)
            .await?;
        let Some(book) = self.book_of(&settled.price_book).await? else {
            return Ok(BatchOutcome::Stored);
        };
        let Some(id) = derived(cause.event, EventType::CostAdjusted) else {
            return Ok(BatchOutcome::Refused("its id is not a UUID".to_owned()));
        };
        let now = (total, settled.class());
        let payload = match costing::adjusted_by_usage(&book, &history, cause.job, now) {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(BatchOutcome::Stored),
            Err(error) => return Ok(BatchOutcome::Refused(error.problem())),
        };
        let made = costing::event(id, EventType::CostAdjusted, cause.event, payload);
        let waste = WasteColumns::of(&made);
        self.transaction
            .store_waste(cluster, cause.key, &waste)
            .await?;
        let body = made.encode_to_vec();
        self.transaction
            .add_event(&made.id, &body, cause.traceparent)
            .await?;
        metrics::cost(EventType::CostAdjusted.event(), true);
        Ok(BatchOutcome::Cost)
    }

    /// Handles a better record of a run that has a final cost.
    async fn corrected(
        &mut self,
        cause: &JobEvent<'_>,
        class: Class,
        settled: FinalCost,
    ) -> Result<BatchOutcome, Error> {
        let (user, account) = owner(cause.event);
        let end = seconds(cause.job.end_time.as_ref()).unwrap_or(cause.at);
        self.transaction
            .store_end(&cause.run.cluster, user, account, cause.job, end)
            .await?;
        self.adjust(cause, class, settled).await
    }

    /// Recomputes a final cost from the stored history with its original price book, and publishes the difference.
    async fn adjust(
        &mut self,
        cause: &JobEvent<'_>,
        class: Class,
        settled: FinalCost,
    ) -> Result<BatchOutcome, Error> {
        let cluster = cause.run.cluster.as_str();
        let history = self.history(cause).await?;
        let Some((ended_at, _)) = history.end else {
            tracing::warn!(
                job.id = cause.job.display_id,
                event.id = cause.event.id,
                "late fact ignored: history of run not stored"
            );
            return Ok(BatchOutcome::Stored);
        };
        let Some(book) = self.book_of(&settled.price_book).await? else {
            tracing::warn!(
                job.id = cause.job.display_id,
                event.id = cause.event.id,
                price_book = settled.price_book,
                "late fact ignored: price book of run not stored"
            );
            return Ok(BatchOutcome::Stored);
        };
        let Some(id) = derived(cause.event, EventType::CostAdjusted) else {
            return Ok(BatchOutcome::Refused("its id is not a UUID".to_owned()));
        };
        if self.transaction.has_adjustment(&id.0.to_string()).await? {
            return Ok(BatchOutcome::Repeated);
        }
        let before = (settled.current, settled.class());
        let payload = match costing::adjusted(&book, &history, cause.job, before, class) {
            Ok(Some(payload)) => payload,
            Ok(None) => return Ok(BatchOutcome::Stored),
            Err(error) => return Ok(BatchOutcome::Refused(error.problem())),
        };
        let micros = |money: &Option<Money>| money.as_ref().map(|money| Micros(money.micros));
        let made = costing::event(id, EventType::CostAdjusted, cause.event, payload);
        let Some(Payload::Cost(payload)) = &made.payload else {
            return Ok(BatchOutcome::Nothing);
        };
        let row = AdjustmentRow {
            cluster,
            run: cause.key,
            event_id: &made.id,
            cause_id: &cause.event.id,
            previous: settled.current,
            delta: micros(&payload.delta).unwrap_or_default(),
            total: micros(&payload.total).unwrap_or_default(),
            class,
            charged_seconds: payload.charged_seconds,
            at: DateTime::from_timestamp(ended_at, 0).unwrap_or_default(),
            waste: WasteColumns::of(&made),
        };
        self.transaction
            .add_adjustment(&row, &made.encode_to_vec(), cause.traceparent)
            .await?;
        self.note_end(cause, ended_at);
        metrics::cost(EventType::CostAdjusted.event(), true);
        Ok(BatchOutcome::Cost)
    }

    /// The book of this label: the present one, or the stored text of an earlier one.
    async fn book_of(&mut self, label: &str) -> Result<Option<Arc<PriceBook>>, Error> {
        if label == self.book.label() {
            return Ok(Some(Arc::clone(&self.book)));
        }
        if let Some(known) = self.books.get(label) {
            return Ok(known.clone());
        }
        let text = self.transaction.price_book(label).await?;
        let book = text
            .map(|text| PriceBook::parse(&text, label))
            .transpose()?;
        let book = book.map(Arc::new);
        self.books.insert(label.to_owned(), book.clone());
        Ok(book)
    }

    /// Adds a cost event with its row.
    async fn add(
        &mut self,
        cause: &JobEvent<'_>,
        kind: EventType,
        slot: Slot,
        payload: CostEvent,
    ) -> Result<BatchOutcome, Error> {
        let made = costing::event(
            // The type determines the slot.
            (EventId::recorded(cause.run, slot), None),
            kind,
            cause.event,
            payload,
        );
        let Some(Payload::Cost(payload)) = &made.payload else {
            return Ok(BatchOutcome::Nothing);
        };
        let time = if kind == EventType::CostEstimated {
            cause.job.start_time.as_ref()
        } else {
            cause.job.end_time.as_ref()
        };
        let (user, account) = owner(cause.event);
        let row = CostRow {
            cluster: &cause.run.cluster,
            run: cause.key,
            kind: kind.event(),
            event_id: &made.id,
            cause_id: &cause.event.id,
            job: cause.job,
            user,
            account,
            class: match payload.class() {
                CostClass::Completed => Class::Completed,
                CostClass::NotCompleted => Class::NotCompleted,
                CostClass::Open | CostClass::Unspecified => Class::Open,
            },
            currency: &self.book.currency,
            total: payload.total.as_ref().map(|total| Micros(total.micros)),
            charged_seconds: payload.charged_seconds,
            price_book: &payload.price_book,
            problem: &payload.problem,
            waste: WasteColumns::of(&made),
            at: time
                .or(cause.event.occurred_at.as_ref())
                .and_then(from_timestamp)
                .unwrap_or_default(),
        };
        self.transaction
            .add_cost(&row, &made.encode_to_vec(), cause.traceparent)
            .await?;
        if kind == EventType::CostFinalized {
            self.note_end(cause, row.at.timestamp());
        }
        metrics::cost(kind.event(), payload.problem.is_empty());
        if !payload.problem.is_empty() {
            tracing::warn!(
                job.id = cause.job.display_id,
                cluster = cause.run.cluster,
                problem = payload.problem,
                "run has no price"
            );
        }
        Ok(BatchOutcome::Cost)
    }

    /// Adds an event without a row of its own.
    async fn publish(&mut self, event: &Event, traceparent: &str) -> Result<(), Error> {
        let body = event.encode_to_vec();
        self.transaction
            .add_event(&event.id, &body, traceparent)
            .await?;
        metrics::cost(EventType::CostEstimated.event(), true);
        Ok(())
    }
}

/// A job event that causes costs.
struct JobEvent<'a> {
    run: &'a RunKey,
    /// Entity key of the run.
    key: &'a str,
    event: &'a Event,
    job: &'a Job,
    /// Time of the event, Unix seconds.
    at: i64,
    traceparent: &'a str,
}

/// Id of the event derived from a job event, with the source of the id. `None` if no id can be derived.
fn derived(cause: &Event, kind: EventType) -> Option<(EventId, Option<IdSource>)> {
    let cause: EventId = cause.id.parse().ok()?;
    Some((
        EventId::derived(cause, kind, 0),
        IdSource::derived(cause, 0),
    ))
}

fn owner(event: &Event) -> (&str, &str) {
    event.owner.as_ref().map_or(("", ""), |owner| {
        (owner.user.as_str(), owner.account.as_str())
    })
}
