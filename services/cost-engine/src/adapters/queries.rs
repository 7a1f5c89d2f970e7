//! Queries of reports: groupings, filters, and sums of final costs.

use mesh_db::sql::{Row, Sql};
use mesh_runtime::api::Visibility;

use super::Store;
use crate::domain::waste::LOST_KINDS;
use crate::domain::{Interval, Micros, RunsCost};
use crate::error::Error;

/// Grouping of a cost report.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CostGroup {
    /// Person: all Unix users of an OIDC identity, on all clusters.
    Identity,
    /// Unix user.
    User,
    /// Slurm account.
    Account,
    /// Month of the run's end, UTC.
    Month,
    /// Day. Only for slices.
    Day,
    /// Job, with all its runs.
    Job,
    /// Partition.
    Partition,
    /// QOS.
    Qos,
}

impl CostGroup {
    const fn column(self) -> &'static str {
        match self {
            // The users' sums are added up by person afterwards.
            Self::Identity | Self::User => "user_name",
            Self::Account => "account",
            // The slices are the days.
            Self::Month | Self::Day => "month",
            Self::Job => "display_id",
            Self::Partition => "partition_name",
            Self::Qos => "qos",
        }
    }
}

/// Filter of a cost report.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Only what the caller may see.
    pub visibility: Visibility,
    /// Only this cluster.
    pub cluster: Option<String>,
    /// Only jobs of this user.
    pub user: Option<String>,
    /// Only runs that ended at or after this time, Unix seconds.
    pub since: Option<i64>,
    /// Only runs that ended before this time, Unix seconds.
    pub until: Option<i64>,
}

impl Filter {
    /// Everything.
    pub const fn all() -> Self {
        Self {
            visibility: Visibility::All,
            cluster: None,
            user: None,
            since: None,
            until: None,
        }
    }
}

/// Sums of final costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostSum {
    /// Cluster.
    pub cluster: String,
    /// Value of the grouping.
    pub key: String,
    /// Currency.
    pub currency: String,
    /// Cost of runs that ended COMPLETED.
    pub completed: RunsCost,
    /// Cost of runs that ended otherwise.
    pub not_completed: RunsCost,
    /// Part of both costs that adjustments added after the final costs; negative if they lowered them.
    pub adjustments: i64,
    /// Charged seconds.
    pub seconds: i64,
    /// Cost of what completed runs held and did not use, as far as it is known.
    pub unused: i64,
    /// Cost of runs that did not complete, by [`LOST_KINDS`].
    pub lost: [i64; LOST_KINDS.len()],
}

/// What runs are grouped and selected by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKeys {
    /// Cluster.
    pub cluster: String,
    /// Owner's Unix user name.
    pub user: String,
    /// Account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// QOS.
    pub qos: String,
    /// Tags of the job, `key=value`, one per line.
    pub tags: String,
}

impl RunKeys {
    /// Value of a grouping. `None` for the month and the day, which the run does not have.
    pub fn of<'a>(&'a self, by: CostGroup, display_id: &'a str) -> Option<&'a str> {
        Some(match by {
            CostGroup::Identity | CostGroup::User => &self.user,
            CostGroup::Account => &self.account,
            CostGroup::Month | CostGroup::Day => return None,
            CostGroup::Job => display_id,
            CostGroup::Partition => &self.partition,
            CostGroup::Qos => &self.qos,
        })
    }
}

impl Store {
    /// Sums of final costs, by cluster, key and currency.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn sums(&self, by: CostGroup, filter: &Filter) -> Result<Vec<CostSum>, Error> {
        const ACTION: &str = "sum costs";
        let rows = self.database.rows(ACTION, &sums(by, filter, None)).await?;
        let sums: Result<_, sqlx::Error> = rows.iter().map(read_sum).collect();
        sums.map_err(Error::database(ACTION))
    }
}

/// Sums of final costs: of runs that ended within the bounds of the filter, or of those within each of the slices.
pub(super) fn sums(by: CostGroup, filter: &Filter, slices: Option<&[Interval]>) -> Sql {
    let sql = Sql::new("SELECT cluster, ").push(by.column()).push(
        " AS key, currency,
          CAST(SUM(CASE WHEN class = 'completed' AND current_micros IS NOT NULL THEN 1 ELSE 0 END) AS BIGINT) AS completed_priced,
          CAST(SUM(CASE WHEN class = 'completed' AND current_micros IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS completed_unpriced,
          CAST(SUM(CASE WHEN class = 'completed' OR current_micros IS NULL THEN 0 ELSE 1 END) AS BIGINT) AS not_completed_priced,
          CAST(SUM(CASE WHEN class = 'completed' OR current_micros IS NOT NULL THEN 0 ELSE 1 END) AS BIGINT) AS not_completed_unpriced,
          CAST(SUM(CASE WHEN class = 'completed' THEN COALESCE(current_micros, 0) ELSE 0 END) AS BIGINT) AS completed,
          CAST(SUM(CASE WHEN class = 'completed' THEN 0 ELSE COALESCE(current_micros, 0) END) AS BIGINT) AS not_completed,
          CAST(SUM(CASE WHEN current_micros = total_micros THEN 0 ELSE COALESCE(current_micros, 0) - COALESCE(total_micros, 0) END)
               AS BIGINT) AS adjustments,
          CAST(SUM(charged_seconds) AS BIGINT) AS seconds,
          CAST(SUM(COALESCE(unused_micros, 0)) AS BIGINT) AS unused",
    );
    let sql = LOST_KINDS.into_iter().fold(sql, |sql, kind| {
        sql.push(", CAST(SUM(CASE WHEN lost = '")
            .push(kind)
            .push("' THEN COALESCE(current_micros, 0) ELSE 0 END) AS BIGINT) AS lost_")
            .push(kind)
    });
    let all = " WHERE kind = 'finalized'";
    let (sql, slice) = match slices {
        Some(slices) => {
            let sql = of_slices(sql.push(", s.column3 AS slice FROM "), slices).push(
                " JOIN costs ON costs.at >= s.column1 AND costs.at <= s.column2
                  AND costs.at - charged_seconds >= s.column1 AND costs.at - charged_seconds < s.column2",
            );
            (filtered(sql.push(all), filter), ", s.column3")
        }
        None => {
            let mut sql = filtered(sql.push(" FROM costs").push(all), filter);
            if let Some(since) = filter.since {
                sql = sql.push(" AND at >= ").bind(since);
            }
            if let Some(until) = filter.until {
                sql = sql.push(" AND at < ").bind(until);
            }
            (sql, "")
        }
    };
    [" GROUP BY", " ORDER BY"]
        .into_iter()
        .fold(sql, |sql, by_key| {
            let sql = sql.push(by_key).push(" cluster, ").push(by.column());
            sql.push(", currency").push(slice)
        })
}

/// Slices with their positions, as a table `s`.
pub(super) fn of_slices(mut sql: Sql, slices: &[Interval]) -> Sql {
    sql = sql.push("(VALUES ");
    for (position, (from, to)) in slices.iter().enumerate() {
        let position = i64::try_from(position).unwrap_or_default();
        sql = sql
            .push(if position == 0 { "(" } else { ", (" })
            .list([(*from).into(), (*to).into(), position.into()])
            .push(")");
    }
    sql.push(") AS s")
}

pub(super) fn read_sum(row: &Row) -> Result<CostSum, sqlx::Error> {
    let count = |column: &str| row.get::<i64>(column).map(i64::unsigned_abs);
    Ok(CostSum {
        cluster: row.get("cluster")?,
        key: row.get("key")?,
        currency: row.get("currency")?,
        completed: RunsCost {
            known: Micros(row.get("completed")?),
            priced: count("completed_priced")?,
            unpriced: count("completed_unpriced")?,
        },
        not_completed: RunsCost {
            known: Micros(row.get("not_completed")?),
            priced: count("not_completed_priced")?,
            unpriced: count("not_completed_unpriced")?,
        },
        adjustments: row.get("adjustments")?,
        seconds: row.get("seconds")?,
        unused: row.get("unused")?,
        lost: {
            let mut lost = [0; LOST_KINDS.len()];
            for (amount, kind) in lost.iter_mut().zip(LOST_KINDS) {
                *amount = row.get(&format!("lost_{kind}"))?;
            }
            lost
        },
    })
}

pub(super) fn run_of(row: &Row) -> Result<(String, String), sqlx::Error> {
    Ok((row.get("cluster")?, row.get("run")?))
}

/// Applies the caller's visibility and the filter.
pub(super) fn filtered(sql: Sql, filter: &Filter) -> Sql {
    let mut sql = visible(sql, &filter.visibility);
    if let Some(cluster) = &filter.cluster {
        sql = sql.push(" AND cluster = ").bind(cluster);
    }
    if let Some(user) = &filter.user {
        sql = sql.push(" AND user_name = ").bind(user);
    }
    sql
}

fn visible(sql: Sql, visibility: &Visibility) -> Sql {
    let Visibility::Restricted { users, accounts } = visibility else {
        return sql;
    };
    let users: Vec<String> = users.iter().cloned().collect();
    let mut sql = sql.push(" AND (user_name").any_of(users);
    for (cluster, accounts) in accounts {
        let accounts: Vec<String> = accounts.iter().cloned().collect();
        sql = sql.push(" OR (account").any_of(accounts);
        if let Some(cluster) = cluster {
            sql = sql.push(" AND cluster = ").bind(cluster);
        }
        sql = sql.push(")");
    }
    sql.push(")")
}
