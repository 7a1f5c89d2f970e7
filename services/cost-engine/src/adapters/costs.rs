//! Reads and writes costs and adjustments for a batch of job events.

use chrono::{DateTime, Utc};
use mesh_db::sql::{Row, Sql};
use mesh_events::proto::mesh::job::v1::Job;

use super::transaction::Transaction;
use crate::costing::WasteColumns;
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::usage::tags;

/// Row of a cost event, without its bytes.
#[derive(Clone, Debug)]
pub struct CostRow<'a> {
    /// Cluster.
    pub cluster: &'a str,
    /// Entity key of the run.
    pub run: &'a str,
    /// `estimated` or `finalized`.
    pub kind: &'static str,
    /// Id of the event.
    pub event_id: &'a str,
    /// Id of the job event that caused it.
    pub cause_id: &'a str,
    /// Job.
    pub job: &'a Job,
    /// Owner's Unix user name.
    pub user: &'a str,
    /// Account charged.
    pub account: &'a str,
    /// Class of the cost.
    pub class: Class,
    /// Currency of the price book, set also without a price.
    pub currency: &'a str,
    /// Final total. `None` without a price, and for an estimate.
    pub total: Option<Micros>,
    /// Charged seconds.
    pub charged_seconds: u64,
    /// Name and version of the price book.
    pub price_book: &'a str,
    /// Why there is no price. Empty if there is one.
    pub problem: &'a str,
    /// Start of the run for an estimate, end for a final cost.
    pub at: DateTime<Utc>,
    /// What of it is lost or unused.
    pub waste: WasteColumns,
}

/// Present state of a final cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalCost {
    /// Cost after all adjustments. `None` without a price.
    pub current: Option<Micros>,
    class: String,
    /// Name and version of the price book.
    pub price_book: String,
    /// What of it is lost or unused.
    pub waste: WasteColumns,
}

impl FinalCost {
    /// Class of the cost.
    pub fn class(&self) -> Class {
        Class::of_final(&self.class)
    }
}

/// Row of a `cost.adjusted` event.
#[derive(Clone, Debug)]
pub struct AdjustmentRow<'a> {
    /// Cluster.
    pub cluster: &'a str,
    /// Entity key of the run.
    pub run: &'a str,
    /// Id of the event.
    pub event_id: &'a str,
    /// Id of the late job event.
    pub cause_id: &'a str,
    /// `late_fact` or `usage`.
    pub reason: &'static str,
    /// Previous cost. `None` if there was no price.
    pub previous: Option<Micros>,
    /// Difference to the previous cost.
    pub delta: Micros,
    /// New cost.
    pub total: Micros,
    /// New class.
    pub class: Class,
    /// New number of charged seconds.
    pub charged_seconds: u64,
    /// End of the run.
    pub at: DateTime<Utc>,
    /// What of the cost is lost or unused now.
    pub waste: WasteColumns,
}

impl Transaction {
    /// True if the run has a cost of this kind.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn has_cost(&mut self, cluster: &str, run: &str, kind: &str) -> Result<bool, Error> {
        let sql = cost("event_id", cluster, run, kind);
        Ok(self.first("look up cost", &sql).await?.is_some())
    }

    /// The run's final cost, if there is one.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn final_cost(
        &mut self,
        cluster: &str,
        run: &str,
    ) -> Result<Option<FinalCost>, Error> {
        const ACTION: &str = "read final cost";
        let sql = cost(
            "current_micros, class, price_book, lost, unused_micros",
            cluster,
            run,
            "finalized",
        );
        let row = self.first(ACTION, &sql).await?;
        let read = |row: Row| {
            Ok(FinalCost {
                current: row.get::<Option<i64>>("current_micros")?.map(Micros),
                class: row.get("class")?,
                price_book: row.get("price_book")?,
                waste: WasteColumns {
                    lost: row.get("lost")?,
                    unused: row.get::<Option<i64>>("unused_micros")?.map(Micros),
                },
            })
        };
        row.map(read).transpose().map_err(Error::database(ACTION))
    }

    /// Adds a cost, and its event to the outbox.
    ///
    /// # Errors
    /// If the database refuses, or the cost exists already.
    pub async fn add_cost(
        &mut self,
        row: &CostRow<'_>,
        body: &[u8],
        traceparent: &str,
    ) -> Result<(), Error> {
        self.store_cost(row).await?;
        self.add_event(row.event_id, body, traceparent).await
    }

    /// Adds a cost, unless it exists.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_cost(&mut self, row: &CostRow<'_>) -> Result<(), Error> {
        let total = row.total.map(|total| total.0);
        let sql = Sql::new(
            "INSERT INTO costs (cluster, run, kind, event_id, cause_id, display_id, user_name, account, partition_name, class, currency,
                                total_micros, current_micros, charged_seconds, price_book, problem, at, month, qos, tags,
                                lost, unused_micros) VALUES (",
        )
        .list([
            row.cluster.into(),
            row.run.into(),
            row.kind.into(),
            row.event_id.into(),
            row.cause_id.into(),
            (&row.job.display_id).into(),
            row.user.into(),
            row.account.into(),
            (&row.job.partition).into(),
            row.class.as_str().into(),
            row.currency.into(),
            total.into(),
            total.into(),
            seconds(row.charged_seconds).into(),
            row.price_book.into(),
            row.problem.into(),
            row.at.timestamp().into(),
            month(row.at).as_str().into(),
            (&row.job.qos).into(),
            tags(row.job).as_str().into(),
            row.waste.lost.as_str().into(),
            row.waste.unused.map(|unused| unused.0).into(),
        ])
        .push(") ON CONFLICT DO NOTHING");
        self.run("add cost", &sql).await.map(drop)
    }

    /// Adds an adjustment, updates the final cost, and adds the event to the outbox.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn add_adjustment(
        &mut self,
        row: &AdjustmentRow<'_>,
        body: &[u8],
        traceparent: &str,
    ) -> Result<(), Error> {
        self.store_adjustment(row).await?;
        self.add_event(row.event_id, body, traceparent).await
    }

    /// Adds what a run used, unless it is known, and its event to the outbox. The cost stays the same.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn add_usage(
        &mut self,
        row: &AdjustmentRow<'_>,
        body: &[u8],
        traceparent: &str,
    ) -> Result<(), Error> {
        self.store_usage(row).await?;
        self.add_event(row.event_id, body, traceparent).await
    }

    /// Adds what a run used, unless it is known. The cost stays the same.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_usage(&mut self, row: &AdjustmentRow<'_>) -> Result<(), Error> {
        self.insert_adjustment(row).await?;
        self.store_waste(row).await
    }

    async fn insert_adjustment(&mut self, row: &AdjustmentRow<'_>) -> Result<(), Error> {
        let sql = Sql::new(
            "INSERT INTO adjustments (event_id, cluster, run, cause_id, reason, previous_micros, delta_micros, total_micros) VALUES (",
        )
        .list([
            row.event_id.into(),
            row.cluster.into(),
            row.run.into(),
            row.cause_id.into(),
            row.reason.into(),
            row.previous.map(|previous| previous.0).into(),
            row.delta.0.into(),
            row.total.0.into(),
        ])
        .push(") ON CONFLICT DO NOTHING");
        self.run("add adjustment", &sql).await.map(drop)
    }

    /// Adds an adjustment, unless it exists, and updates the final cost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_adjustment(&mut self, row: &AdjustmentRow<'_>) -> Result<(), Error> {
        self.insert_adjustment(row).await?;
        let sql = Sql::new("UPDATE costs SET problem = '', current_micros = ")
            .bind(row.total.0)
            .push(", class = ")
            .bind(row.class.as_str())
            .push(", charged_seconds = ")
            .bind(seconds(row.charged_seconds))
            .push(", at = ")
            .bind(row.at.timestamp())
            .push(", month = ")
            .bind(month(row.at).as_str())
            .push(" WHERE kind = 'finalized' AND cluster = ")
            .bind(row.cluster)
            .push(" AND run = ")
            .bind(row.run);
        self.run("adjust cost", &sql).await?;
        self.store_waste(row).await
    }

    async fn store_waste(&mut self, row: &AdjustmentRow<'_>) -> Result<(), Error> {
        let sql = Sql::new("UPDATE costs SET lost = ")
            .bind(row.waste.lost.as_str())
            .push(", unused_micros = ")
            .bind(row.waste.unused.map(|unused| unused.0))
            .push(" WHERE kind = 'finalized' AND cluster = ")
            .bind(row.cluster)
            .push(" AND run = ")
            .bind(row.run);
        self.run("store waste", &sql).await.map(drop)
    }

    /// True if the adjustment exists.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn has_adjustment(&mut self, event_id: &str) -> Result<bool, Error> {
        let sql = Sql::new("SELECT event_id FROM adjustments WHERE event_id = ").bind(event_id);
        Ok(self.first("look up adjustment", &sql).await?.is_some())
    }

    /// Adds an event to the outbox.
    ///
    /// # Errors
    /// If the database refuses, or the event exists already.
    pub async fn add_event(
        &mut self,
        id: &str,
        body: &[u8],
        traceparent: &str,
    ) -> Result<(), Error> {
        let sql =
            Sql::new("INSERT INTO outbox (event_id, body, traceparent, made_by, made_at) VALUES (")
                .list([
                    id.into(),
                    body.into(),
                    traceparent.into(),
                    (&*self.instance).into(),
                    Utc::now().timestamp_millis().into(),
                ])
                .push(")");
        self.run("add cost to outbox", &sql).await.map(drop)
    }
}

fn cost(columns: &'static str, cluster: &str, run: &str, kind: &str) -> Sql {
    Sql::new("SELECT ")
        .push(columns)
        .push(" FROM costs WHERE cluster = ")
        .bind(cluster)
        .push(" AND run = ")
        .bind(run)
        .push(" AND kind = ")
        .bind(kind)
}

fn seconds(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn month(at: DateTime<Utc>) -> String {
    at.format("%Y-%m").to_string()
}
