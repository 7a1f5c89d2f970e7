//! Restores the rows of a lost database from what was published: costs as they were, without computing them again, so an edited
//! price book changes none of them; and of each run what late facts are priced by. [`budgets`]: what was published of budgets.
//! [`audit`]: budgets of the API and closed periods.

mod audit;
mod budgets;

use std::path::PathBuf;

use chrono::DateTime;
use mesh_db::Location;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, from_timestamp};
use prost::Message as _;

use self::audit::AuditedActs;
use self::budgets::PublishedBudgets;
use crate::adapters::{AdjustmentRow, BudgetState, CostRow, Store, Transaction};
use crate::budgets::Budget;
use crate::costing::{self, WasteColumns};
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::handlers::{Change, run_of};
use crate::usage::seconds;

/// Types of the recorded events and audit entries that [`Restore`] takes.
pub const TYPES: &[&str] = &[
    "job.*",
    "cost.*",
    "user.quota_high",
    "user.quota_exceeded",
    "user.quota_cleared",
    "audit.cost",
];

/// Number of restored rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoredRows {
    /// Cost events.
    pub costs: u64,
    /// Budgets of the API.
    pub budgets: u64,
    /// Closed periods.
    pub periods: u64,
    /// Closed periods whose reports were not recorded.
    pub lost_periods: u64,
}

/// Writes recorded events into a database that no process uses.
pub struct Restore {
    store: Store,
    /// Of costs without a price, whose events have no amount.
    currency: String,
    budgets: PublishedBudgets,
    audit: AuditedActs,
    rows: RestoredRows,
}

impl Restore {
    /// Opens the database.
    ///
    /// # Errors
    /// If it cannot be used.
    pub async fn open(
        file: PathBuf,
        currency: String,
        budgets_of_files: Option<Vec<Budget>>,
    ) -> Result<Self, Error> {
        Ok(Self {
            store: Store::open(&Location::Sqlite(file)).await?,
            currency,
            budgets: PublishedBudgets::new(budgets_of_files.unwrap_or_default()),
            audit: AuditedActs::default(),
            rows: RestoredRows::default(),
        })
    }

    /// Adds events, in the order in which they were recorded. What is there already stays.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn add(&mut self, events: &[Event]) -> Result<(), Error> {
        let mut transaction = self.store.begin().await?;
        for event in events {
            if let Some(Payload::User(payload)) = &event.payload {
                self.budgets.add(event, payload);
            }
            let Some(run) = run_of(event) else { continue };
            let key = run.entity_key();
            match &event.payload {
                Some(Payload::Cost(cost)) => {
                    self.cost(&mut transaction, event, cost, &key).await?;
                    self.rows.costs += 1;
                }
                Some(Payload::Job(_)) => job(&mut transaction, event, &key).await?,
                _ => {}
            }
            let owner = event.owner.as_ref();
            if let Some((owner, identity)) = owner.and_then(|of| Some((of, of.identity.as_ref()?)))
            {
                let at = seconds(event.occurred_at.as_ref()).unwrap_or_default();
                transaction
                    .store_person(&event.cluster, &owner.user, identity, at)
                    .await?;
            }
        }
        transaction.commit().await
    }

    /// Adds audit entries, in the order in which they were recorded.
    pub fn add_audit(&mut self, entries: &[AuditEntry]) {
        for entry in entries {
            self.audit.add(entry);
        }
    }

    /// Writes what is known after the last entry, and closes the database.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn finish(mut self) -> Result<RestoredRows, Error> {
        // Those that were not published before the stop are newer than all others.
        for row in self.store.unpublished_audit_entries().await? {
            if let Ok(entry) = AuditEntry::decode(row.body.as_slice()) {
                self.audit.add(&entry);
            }
        }
        let stored = self.store.api_budgets().await?;
        let contents = stored.iter().map(|(_, content)| content.as_str());
        let contents = contents.chain(self.audit.contents());
        let states = self.budgets.states(contents);
        self.audit.write(&self.store, &mut self.rows).await?;
        let mut transaction = self.store.begin().await?;
        let names = states.iter().map(|state| state.budget.clone()).collect();
        let known = transaction.lock_budgets(names).await?;
        for state in states {
            let known = known.get(&state.budget).map_or(&[][..], Vec::as_slice);
            let is_known =
                |known: &BudgetState| known.period == state.period && known.events >= state.events;
            if !known.iter().any(is_known) {
                transaction.store_budget_state(&state).await?;
            }
        }
        transaction.commit().await?;
        self.store.database.close().await;
        Ok(self.rows)
    }

    async fn cost(
        &self,
        transaction: &mut Transaction,
        event: &Event,
        cost: &CostEvent,
        run: &str,
    ) -> Result<(), Error> {
        let (Ok(kind), Some(job)) = (event.kind(), &cost.job) else {
            return Ok(());
        };
        let cluster = event.cluster.as_str();
        let owner = event.owner.as_ref();
        let (user, account) = owner.map_or(("", ""), |of| (of.user.as_str(), of.account.as_str()));
        let occurred = seconds(event.occurred_at.as_ref()).unwrap_or_default();
        let ended_at = seconds(job.end_time.as_ref()).unwrap_or(occurred);
        // The estimate after a resize has an id of its own, and no row.
        if kind == EventType::CostEstimated && event.id_source.is_some() {
            let resized = Change::Resized.as_str();
            let at = (occurred, event.run_seq);
            let stored = transaction.store_mark((cluster, run), resized, at, Some(job));
            return stored.await.map(drop);
        }
        if kind == EventType::CostAccrued {
            return accrued(transaction, cluster, run, cost).await;
        }
        let amounts = [&cost.total, &cost.estimated, &cost.burn_rate];
        let currency = amounts.into_iter().flatten().next();
        let class = match cost.class() {
            CostClass::Completed => Class::Completed,
            CostClass::NotCompleted => Class::NotCompleted,
            CostClass::Open | CostClass::Unspecified => Class::Open,
        };
        let row = CostRow {
            cluster,
            run,
            kind: kind.event(),
            event_id: &event.id,
            cause_id: &event.source_detail,
            job,
            user,
            account,
            class,
            currency: currency.map_or(&self.currency, |money| &money.currency),
            total: micros(&cost.total),
            charged_seconds: cost.charged_seconds,
            price_book: &cost.price_book,
            problem: &cost.problem,
            at: match kind {
                EventType::CostEstimated => job.start_time.as_ref(),
                _ => job.end_time.as_ref(),
            }
            .or(event.occurred_at.as_ref())
            .and_then(from_timestamp)
            .unwrap_or_default(),
            waste: WasteColumns::of(cost),
        };
        match kind {
            EventType::CostEstimated => {
                transaction.store_cost(&row).await?;
                transaction.store_start(event, (user, account), job).await
            }
            EventType::CostFinalized => {
                transaction.store_cost(&row).await?;
                transaction
                    .store_end(cluster, user, account, job, ended_at)
                    .await
            }
            EventType::CostAdjusted => {
                let is_usage = cost.reason == costing::USAGE;
                let adjustment = AdjustmentRow {
                    cluster,
                    run,
                    event_id: &event.id,
                    cause_id: &event.source_detail,
                    reason: if is_usage {
                        costing::USAGE
                    } else {
                        costing::LATE_FACT
                    },
                    previous: micros(&cost.previous),
                    delta: micros(&cost.delta).unwrap_or_default(),
                    total: micros(&cost.total).unwrap_or_default(),
                    class,
                    charged_seconds: cost.charged_seconds,
                    at: DateTime::from_timestamp(ended_at, 0).unwrap_or_default(),
                    waste: row.waste,
                };
                if is_usage {
                    transaction.store_usage(&adjustment).await?;
                } else {
                    transaction.store_adjustment(&adjustment).await?;
                }
                transaction
                    .store_end(cluster, user, account, job, ended_at)
                    .await
            }
            _ => Ok(()),
        }
    }
}

/// What is published of a run's accrued cost, so that it is not published again.
async fn accrued(
    transaction: &mut Transaction,
    cluster: &str,
    run: &str,
    cost: &CostEvent,
) -> Result<(), Error> {
    let Some(known) = transaction.accruals(cluster, run).await? else {
        return Ok(());
    };
    let mut state = known.state;
    let threshold = micros(&cost.threshold).unwrap_or_default();
    state.restore(seconds(cost.as_of.as_ref()).unwrap_or_default(), threshold);
    transaction.store_accruals(cluster, run, &state).await
}

/// What a job event changes of a run apart from its costs.
async fn job(transaction: &mut Transaction, event: &Event, run: &str) -> Result<(), Error> {
    let (Ok(kind), Some(job)) = (event.kind(), event.job()) else {
        return Ok(());
    };
    if kind.is_end() {
        // Also an end without a cost: the run is not open.
        return transaction.close_run(&event.cluster, run).await;
    }
    let Some(change) = Change::of(kind) else {
        return Ok(());
    };
    let at = seconds(event.occurred_at.as_ref()).unwrap_or_default();
    let job = (change == Change::Resized).then_some(job);
    let (run, at) = ((event.cluster.as_str(), run), (at, event.run_seq));
    let stored = transaction.store_mark(run, change.as_str(), at, job);
    stored.await.map(drop)
}

fn micros(money: &Option<Money>) -> Option<Micros> {
    money.as_ref().map(|money| Micros(money.micros))
}
