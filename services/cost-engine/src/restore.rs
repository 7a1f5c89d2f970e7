//! Restores the rows of a lost database from what was published: costs as they were, without computing them again, so an edited
//! price book changes none of them; and of each run what late facts are priced by.

use std::path::PathBuf;

use chrono::DateTime;
use mesh_db::Location;
use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, from_timestamp};

use crate::adapters::{AdjustmentRow, CostRow, Store, Transaction};
use crate::costing::{self, WasteColumns};
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::handlers::{Change, run_of};
use crate::usage::seconds;

/// Writes recorded events into a database that no process uses.
pub struct Restore {
    store: Store,
    /// Of costs without a price, whose events have no amount.
    currency: String,
    /// Restored cost events.
    pub costs: u64,
}

impl Restore {
    /// Opens the database.
    ///
    /// # Errors
    /// If it cannot be used.
    pub async fn open(file: PathBuf, currency: String) -> Result<Self, Error> {
        Ok(Self {
            store: Store::open(&Location::Sqlite(file)).await?,
            currency,
            costs: 0,
        })
    }

    /// Adds `cost.*` and `job.*` events, in the order in which they were recorded. What is there already stays.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn add(&mut self, events: &[Event]) -> Result<(), Error> {
        let mut transaction = self.store.begin().await?;
        for event in events {
            let Some(run) = run_of(event) else { continue };
            let key = run.entity_key();
            match &event.payload {
                Some(Payload::Cost(cost)) => {
                    self.cost(&mut transaction, event, cost, &key).await?;
                    self.costs += 1;
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

    /// Closes the database.
    pub async fn close(self) {
        self.store.database.close().await;
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
    state.note(seconds(cost.as_of.as_ref()).unwrap_or_default(), threshold);
    transaction.store_accruals(cluster, run, &state).await
}

/// What a job event changes of a run apart from its costs.
async fn job(transaction: &mut Transaction, event: &Event, run: &str) -> Result<(), Error> {
    let (Ok(kind), Some(job)) = (event.kind(), event.job()) else {
        return Ok(());
    };
    let change = match kind {
        EventType::JobSuspended => Change::Suspended,
        EventType::JobResumed => Change::Resumed,
        EventType::JobResized => Change::Resized,
        // Also an end without a cost: the run is not open.
        end if end.is_end() => return transaction.close_run(&event.cluster, run).await,
        _ => return Ok(()),
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
