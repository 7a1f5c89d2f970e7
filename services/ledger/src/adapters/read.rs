//! Queries over the history.

use mesh_runtime::api::Sight;
use slurm_types::JobRef;

use super::sql::{Row as DbRow, Sql};
use super::store::Store;
use crate::domain::fact::AUDIT;
use crate::domain::query::{Query, TypePattern};
use crate::error::Error;

/// A stored entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Sequence.
    pub seq: i64,
    /// Category word; tells events from audit entries.
    pub category: String,
    /// Body as received.
    pub body: Vec<u8>,
}

impl Store {
    /// A page of entries, and one more if there is a next page.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn list(&self, query: &Query, sight: &Sight) -> Result<Vec<Row>, Error> {
        let mut sql = visible(select(), sight);
        if let Some(cluster) = &query.cluster {
            sql = sql.push(" AND i.cluster = ").bind(cluster);
        }
        sql = types(sql, &query.types);
        if let Some(job) = &query.job {
            sql = job_is(sql, job);
        }
        if let Some(user) = &query.user {
            sql = sql.push(" AND i.user_name = ").bind(user);
        }
        if let Some(since) = query.since {
            sql = sql.push(" AND i.occurred_at >= ").bind(since);
        }
        if let Some(until) = query.until {
            sql = sql.push(" AND i.occurred_at < ").bind(until);
        }
        if let Some(after) = query.after {
            sql = sql
                .push(if query.descending {
                    " AND i.seq < "
                } else {
                    " AND i.seq > "
                })
                .bind(after);
        }
        sql = sql
            .push(" ORDER BY i.seq")
            .push(if query.descending { " DESC" } else { "" })
            .push(" LIMIT ")
            .bind(i64::from(query.limit) + 1);
        self.fetch(&sql).await
    }

    /// Everything about a job, oldest entry first, up to a limit.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn story(
        &self,
        cluster: &str,
        job: &JobRef,
        sight: &Sight,
        limit: u32,
    ) -> Result<Vec<Row>, Error> {
        let sql = visible(select(), sight)
            .push(" AND i.cluster = ")
            .bind(cluster);
        let sql = job_is(sql, job).push(" ORDER BY i.seq LIMIT ").bind(limit);
        self.fetch(&sql).await
    }

    async fn fetch(&self, sql: &Sql) -> Result<Vec<Row>, Error> {
        let rows = self.readers.rows(sql).await.map_err(Error::Read)?;
        rows.iter()
            .map(row)
            .collect::<Result<_, _>>()
            .map_err(Error::Read)
    }
}

fn row(row: &DbRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        seq: row.get("seq")?,
        category: row.get("category")?,
        body: row.get("body")?,
    })
}

/// Joined on the time of recording as well: PostgreSQL then looks into the one partition that has the payload.
fn select() -> Sql {
    Sql::new(
        "SELECT i.seq, i.category, p.body FROM event_index i
         JOIN payloads p ON p.seq = i.seq AND p.recorded_at = i.recorded_at WHERE 1 = 1",
    )
}

/// Only what the caller may see. Audit entries and nodes belong to nobody.
fn visible(sql: Sql, sight: &Sight) -> Sql {
    let Sight::Of { users, accounts } = sight else {
        return sql;
    };
    let mut sql = sql
        .push(" AND (i.user_name")
        .any_of(users.iter().cloned().collect::<Vec<_>>());
    for (cluster, accounts) in accounts {
        sql = sql
            .push(" OR (i.account")
            .any_of(accounts.iter().cloned().collect::<Vec<_>>());
        if let Some(cluster) = cluster {
            sql = sql.push(" AND i.cluster = ").bind(cluster);
        }
        sql = sql.push(")");
    }
    sql.push(")")
}

fn types(mut sql: Sql, patterns: &[TypePattern]) -> Sql {
    if patterns.is_empty() {
        return sql.push(" AND i.category <> ").bind(AUDIT);
    }
    for (n, pattern) in patterns.iter().enumerate() {
        sql = sql.push(if n == 0 { " AND (" } else { " OR " });
        sql = match pattern {
            TypePattern::Category(category) => sql.push("i.category = ").bind(category),
            TypePattern::Exactly(kind) => sql.push("i.type = ").bind(kind),
        };
    }
    sql.push(")")
}

/// The number of an array stands for all its tasks, that of a heterogeneous job's leader for all its components.
fn job_is(sql: Sql, job: &JobRef) -> Sql {
    let root = job.root().get();
    match job {
        JobRef::Job(_) | JobRef::ArrayTasks { .. } => sql
            .push(" AND (i.job_id = ")
            .bind(root)
            .push(" OR i.array_job_id = ")
            .bind(root)
            .push(" OR i.het_job_id = ")
            .bind(root)
            .push(")"),
        JobRef::ArrayTask { task, .. } => sql
            .push(" AND i.array_job_id = ")
            .bind(root)
            .push(" AND i.task_id = ")
            .bind(*task),
        JobRef::HetComponent { offset, .. } => sql
            .push(" AND i.het_job_id = ")
            .bind(root)
            .push(" AND i.het_offset = ")
            .bind(*offset),
    }
}
