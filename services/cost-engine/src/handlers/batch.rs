//! Applies one job event to the costs of its run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::Utc;
use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, IdSource, Identity};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId, EventType, RunKey, Slot, from_timestamp};
use prost::Message as _;

use super::{BatchOutcome, Change, JobChange, job_change, run_of};
use crate::accrual::publisher::{MISSED_SECONDS, RunTicks};
use crate::accrual::{self, AccrualRules};
use crate::adapters::{CostRow, FinalCost, NodeChange, NodePartitions, Transaction};
use crate::costing::{self, WasteColumns};
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::metrics;
use crate::node_costs;
use crate::price_book::PriceBook;
use crate::spending::publisher::ChangedRuns;
use crate::usage::{RunHistory, has_started, seconds};

/// One transaction with the price books it needs.
pub(super) struct Batch {
    pub(super) transaction: Transaction,
    book: Arc<PriceBook>,
    /// When accrued costs are due.
    rules: Arc<AccrualRules>,
    /// Earlier books by label. `None` if the text was never stored.
    books: HashMap<String, Option<Arc<PriceBook>>>,
    /// The newest identity of each owner, by cluster and user, with the time of its event in Unix seconds.
    people: BTreeMap<(String, String), (i64, Identity)>,
    /// The newest partitions of each node, by cluster and node.
    nodes: BTreeMap<(String, String), NodePartitions>,
    /// Runs with new final costs and adjustments, by owner.
    changed: ChangedRuns,
}

impl Batch {
    /// `book` prices new costs.
    pub fn new(transaction: Transaction, book: Arc<PriceBook>, rules: Arc<AccrualRules>) -> Self {
        Self {
            transaction,
            book,
            rules,
            books: HashMap::new(),
            people: BTreeMap::new(),
            nodes: BTreeMap::new(),
            changed: ChangedRuns::default(),
        }
    }

    /// Locks these runs against other processes.
    pub async fn lock(&mut self, runs: &[(String, String)]) -> Result<(), Error> {
        self.transaction.lock(runs).await
    }

    /// Stores the people and nodes of the batch, and commits the transaction. Returns the runs with new final costs and adjustments.
    pub async fn commit(mut self) -> Result<ChangedRuns, Error> {
        // Last and in a fixed order, because other processes may store the same people and nodes.
        for ((cluster, user), (at, identity)) in &self.people {
            self.transaction
                .store_person(cluster, user, identity, *at)
                .await?;
        }
        for ((cluster, node), known) in &self.nodes {
            self.transaction
                .store_node_partitions(cluster, node, known)
                .await?;
        }
        self.transaction.commit().await?;
        Ok(self.changed)
    }

    /// Notes the partitions that a node event says.
    fn note_partitions(&mut self, event: &Event, change: &NodeChange) {
        let Some(Payload::Node(payload)) = &event.payload else {
            return;
        };
        let is_removed = event
            .kind()
            .is_ok_and(|kind| kind == EventType::NodeRemoved);
        let node = payload.node.as_ref().filter(|_| !is_removed);
        let partitions = NodePartitions {
            at: change.at,
            seq: change.seq,
            partitions: node.map(|node| node.partitions.clone()).unwrap_or_default(),
        };
        let key = (change.cluster.clone(), change.node.clone());
        let newest = self.nodes.entry(key).or_default();
        if partitions > *newest {
            *newest = partitions;
        }
    }

    /// Notes that the cost of an ended run of the owner has changed.
    pub(super) fn note_changed(&mut self, cause: &JobEvent<'_>) {
        let user = owner(cause.event).0.to_owned();
        self.changed
            .add((cause.run.cluster.clone(), user), [cause.key.to_owned()]);
    }

    /// Stores the change of a job event, with the resulting cost event.
    pub async fn apply(&mut self, event: &Event, traceparent: &str) -> Result<BatchOutcome, Error> {
        if let Some(change) = node_costs::change_of(event) {
            self.note_partitions(event, &change);
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
        let change = job_change(kind, job, event.confidence() == Confidence::Inferred);
        if matches!(change, JobChange::Nothing) {
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
        if matches!(change, JobChange::Pending) {
            let stored = self
                .transaction
                .store_pending((cluster, key, event.run_seq), owner(event), job)
                .await?;
            return Ok(if stored {
                BatchOutcome::Stored
            } else {
                BatchOutcome::Nothing
            });
        }
        let is_pending_no_more = !matches!(change, JobChange::Changed(_));
        let outcome = self.change_cost(&cause, change).await?;
        if is_pending_no_more {
            // Afterwards, because a run that has started is known by its row.
            let removed = self.transaction.remove_pending(cluster, key, event.run_seq);
            removed.await?;
        }
        Ok(outcome)
    }

    async fn change_cost(
        &mut self,
        cause: &JobEvent<'_>,
        change: JobChange,
    ) -> Result<BatchOutcome, Error> {
        let cluster = cause.run.cluster.as_str();
        let settled = self.transaction.final_cost(cluster, cause.key).await?;
        match change {
            JobChange::Nothing | JobChange::Pending => Ok(BatchOutcome::Nothing),
            JobChange::Start => self.start(cause, settled).await,
            JobChange::Changed(kind) => self.changed(cause, kind, settled).await,
            JobChange::Inferred => {
                // The run has ended, so its open cost must not grow until a record arrives.
                self.transaction.close_run(cluster, cause.key).await?;
                Ok(BatchOutcome::Nothing)
            }
            JobChange::Settled { .. } if cause.job.end_time.is_none() => Ok(BatchOutcome::Nothing),
            JobChange::Settled { class, is_better } => match settled {
                Some(settled) if is_better => self.corrected(cause, class, settled).await,
                Some(settled) => self.record_usage(cause, settled).await,
                None => self.end(cause, class).await,
            },
            JobChange::End(_) if settled.is_some() => Ok(BatchOutcome::Repeated),
            JobChange::End(class) => self.end(cause, class).await,
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
            .store_start(cause.event, (user, account), cause.job)
            .await?;
        if let Some(settled) = settled {
            self.late_fact(cause, settled).await?;
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
            .store_mark(
                (cluster, cause.key),
                kind.as_str(),
                (cause.at, cause.event.run_seq),
                job,
            )
            .await?;
        if !is_new {
            return Ok(BatchOutcome::Repeated);
        }
        if let Some(settled) = settled {
            return self.late_fact(cause, settled).await;
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
    pub(super) async fn history(&mut self, cause: &JobEvent<'_>) -> Result<RunHistory, Error> {
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
                self.accrued_before_end(cause, &history, end, &payload)
                    .await?;
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

    /// Publishes what is due of a run until its end, before its final cost.
    async fn accrued_before_end(
        &mut self,
        cause: &JobEvent<'_>,
        history: &RunHistory,
        end: i64,
        payload: &CostEvent,
    ) -> Result<(), Error> {
        let Some(total) = &payload.total else {
            return Ok(());
        };
        let has_one_rate = payload.lines.len() <= 1 && history.resizes.is_empty();
        let concerns = self
            .rules
            .concerns(payload.charged_seconds, Micros(total.micros));
        // Without a start there was no estimate. Most runs are too short and too cheap.
        if self.rules.is_off() || history.start.is_none() || (has_one_rate && !concerns) {
            return Ok(());
        }
        let ticks = accrual::of_ended(&self.rules, &self.book, history, cause.job, end);
        let published = RunTicks {
            book: &self.book,
            history,
            job: cause.job,
            is_running: false,
            now: Utc::now().timestamp(),
            since: end - MISSED_SECONDS,
            // The amounts, and those of a day or two.
            max_events: usize::MAX,
        };
        let ticks = ticks.unwrap_or_default();
        published
            .add(&mut self.transaction, cause.run, &ticks, cause.traceparent)
            .await?;
        Ok(())
    }

    /// The book of this label: the present one, or the stored text of an earlier one.
    pub(super) async fn book_of(&mut self, label: &str) -> Result<Option<Arc<PriceBook>>, Error> {
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
            waste: WasteColumns::of(payload),
            at: time
                .or(cause.event.occurred_at.as_ref())
                .and_then(from_timestamp)
                .unwrap_or_default(),
        };
        self.transaction
            .add_cost(&row, &made.encode_to_vec(), cause.traceparent)
            .await?;
        if kind == EventType::CostFinalized {
            self.note_changed(cause);
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
pub(super) struct JobEvent<'a> {
    pub run: &'a RunKey,
    /// Entity key of the run.
    pub key: &'a str,
    pub event: &'a Event,
    pub job: &'a Job,
    /// Time of the event, Unix seconds.
    pub at: i64,
    pub traceparent: &'a str,
}

/// Id of the event derived from a job event, with the source of the id. `None` if no id can be derived.
pub(super) fn derived(cause: &Event, kind: EventType) -> Option<(EventId, Option<IdSource>)> {
    let cause: EventId = cause.id.parse().ok()?;
    Some((
        EventId::derived(cause, kind, 0),
        IdSource::derived(cause, 0),
    ))
}

pub(super) fn owner(event: &Event) -> (&str, &str) {
    event.owner.as_ref().map_or(("", ""), |owner| {
        (owner.user.as_str(), owner.account.as_str())
    })
}
