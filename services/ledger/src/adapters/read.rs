//! Queries over the history.

use mesh_runtime::api::Sight;
use slurm_types::JobRef;
use sqlx::{FromRow, QueryBuilder, Sqlite};

use super::sqlite::Store;
use crate::domain::fact::AUDIT;
use crate::domain::query::{Query, TypePattern};
use crate::error::Error;

/// A stored entry.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
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
        let mut sql = select();
        visible(&mut sql, sight);
        if let Some(cluster) = &query.cluster {
            sql.push(" AND i.cluster = ").push_bind(cluster);
        }
        types(&mut sql, &query.types);
        if let Some(job) = &query.job {
            job_is(&mut sql, job);
        }
        if let Some(user) = &query.user {
            sql.push(" AND i.user_name = ").push_bind(user);
        }
        if let Some(since) = query.since {
            sql.push(" AND i.occurred_at >= ").push_bind(since);
        }
        if let Some(until) = query.until {
            sql.push(" AND i.occurred_at < ").push_bind(until);
        }
        if let Some(after) = query.after {
            sql.push(if query.descending {
                " AND i.seq < "
            } else {
                " AND i.seq > "
            })
            .push_bind(after);
        }
        sql.push(" ORDER BY i.seq")
            .push(if query.descending { " DESC" } else { "" })
            .push(" LIMIT ")
            .push_bind(i64::from(query.limit) + 1);
        sql.build_query_as()
            .fetch_all(&self.readers)
            .await
            .map_err(Error::Read)
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
        let mut sql = select();
        visible(&mut sql, sight);
        sql.push(" AND i.cluster = ").push_bind(cluster);
        job_is(&mut sql, job);
        sql.push(" ORDER BY i.seq LIMIT ")
            .push_bind(i64::from(limit));
        sql.build_query_as()
            .fetch_all(&self.readers)
            .await
            .map_err(Error::Read)
    }
}

fn select() -> QueryBuilder<Sqlite> {
    QueryBuilder::new(
        "SELECT i.seq, i.category, p.body FROM event_index i JOIN payloads p ON p.seq = i.seq WHERE 1 = 1",
    )
}

/// Only what the caller may see. Audit entries and nodes belong to nobody.
fn visible(sql: &mut QueryBuilder<Sqlite>, sight: &Sight) {
    let Sight::Of { users, accounts } = sight else {
        return;
    };
    sql.push(" AND (i.user_name IN (");
    let mut list = sql.separated(", ");
    for user in users {
        list.push_bind(user.clone());
    }
    sql.push(")");
    for (cluster, accounts) in accounts {
        sql.push(" OR (i.account IN (");
        let mut list = sql.separated(", ");
        for account in accounts {
            list.push_bind(account.clone());
        }
        sql.push(")");
        if let Some(cluster) = cluster {
            sql.push(" AND i.cluster = ").push_bind(cluster.clone());
        }
        sql.push(")");
    }
    sql.push(")");
}

fn types(sql: &mut QueryBuilder<Sqlite>, patterns: &[TypePattern]) {
    if patterns.is_empty() {
        sql.push(" AND i.category <> ").push_bind(AUDIT);
        return;
    }
    sql.push(" AND (");
    let mut any = sql.separated(" OR ");
    for pattern in patterns {
        match pattern {
            TypePattern::Category(category) => any
                .push("i.category = ")
                .push_bind_unseparated(category.clone()),
            TypePattern::Exactly(kind) => any.push("i.type = ").push_bind_unseparated(kind.clone()),
        };
    }
    sql.push(")");
}

/// The number of an array stands for all its tasks, that of a heterogeneous job's leader for all its components.
fn job_is(sql: &mut QueryBuilder<Sqlite>, job: &JobRef) {
    let root = job.root().get();
    match job {
        JobRef::Job(_) | JobRef::ArrayTasks { .. } => {
            sql.push(" AND (i.job_id = ")
                .push_bind(root)
                .push(" OR i.array_job_id = ")
                .push_bind(root)
                .push(" OR i.het_job_id = ")
                .push_bind(root)
                .push(")");
        }
        JobRef::ArrayTask { task, .. } => {
            sql.push(" AND i.array_job_id = ")
                .push_bind(root)
                .push(" AND i.task_id = ")
                .push_bind(*task);
        }
        JobRef::HetComponent { offset, .. } => {
            sql.push(" AND i.het_job_id = ")
                .push_bind(root)
                .push(" AND i.het_offset = ")
                .push_bind(*offset);
        }
    }
}
