//! What a filter and a caller's sight leave, as conditions on the columns for queries.

use chrono::{DateTime, Utc};
use mesh_runtime::api::Sight;
use slurm_types::JobRef;

use super::sql::Sql;
use crate::domain::fact::AUDIT;
use crate::domain::filter::{NamePattern, Selection, TypePattern};

impl Sql {
    /// Only what the caller may see. Audit entries and nodes belong to nobody.
    pub(super) fn visible(self, sight: &Sight) -> Self {
        let Sight::Of { users, accounts } = sight else {
            return self;
        };
        let mut sql = self
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

    /// Only what a selection chooses.
    pub(super) fn chosen(mut self, selection: &Selection) -> Self {
        self = self.of_types(&selection.types);
        if let Some(job) = &selection.job {
            self = self.of_job(job);
        }
        for (condition, value) in [
            (" AND i.cluster = ", &selection.cluster),
            (" AND i.run = ", &selection.run),
            (" AND i.user_name = ", &selection.user),
            (" AND i.account = ", &selection.account),
            (" AND i.partition = ", &selection.partition),
            (" AND i.node = ", &selection.node),
        ] {
            if let Some(value) = value {
                self = self.push(condition).bind(value);
            }
        }
        if let Some(identity) = &selection.identity {
            self = self
                .push(" AND (i.subject = ")
                .bind(identity)
                .push(" OR i.email = ")
                .bind(identity)
                .push(")");
        }
        if let Some(name) = &selection.name {
            self = self.named(name);
        }
        for (condition, bound) in [
            (" AND i.array_job_id = ", selection.array.map(i64::from)),
            (" AND i.occurred_at >= ", selection.since),
            (" AND i.occurred_at < ", selection.until),
            (" AND i.seq >= ", selection.from_seq),
            (" AND i.seq <= ", selection.to_seq),
        ] {
            if let Some(bound) = bound {
                self = self.push(condition).bind(bound);
            }
        }
        self
    }

    /// A job name, or every name that begins so: between the prefix and the first text after all that begin with it, so that an index helps.
    fn named(self, name: &NamePattern) -> Self {
        match name {
            NamePattern::Exactly(name) => self.push(" AND i.name = ").bind(name),
            NamePattern::Prefix(prefix) => self
                .push(" AND i.name >= ")
                .bind(prefix)
                .push(" AND i.name < ")
                .bind(&format!("{prefix}\u{10FFFF}")),
        }
    }

    /// Only what occurred up to a time.
    pub(super) fn up_to(self, at: Option<DateTime<Utc>>) -> Self {
        match at {
            Some(at) => self
                .push(" AND i.occurred_at <= ")
                .bind(at.timestamp_micros()),
            None => self,
        }
    }

    /// Only entries of a job. The number of an array stands for all its tasks, that of a heterogeneous job's leader for all its
    /// components.
    pub(super) fn of_job(self, job: &JobRef) -> Self {
        let root = job.root().get();
        match job {
            JobRef::Job(_) | JobRef::ArrayTasks { .. } => self
                .push(" AND (i.job_id = ")
                .bind(root)
                .push(" OR i.array_job_id = ")
                .bind(root)
                .push(" OR i.het_job_id = ")
                .bind(root)
                .push(")"),
            JobRef::ArrayTask { task, .. } => self
                .push(" AND i.array_job_id = ")
                .bind(root)
                .push(" AND i.task_id = ")
                .bind(*task),
            JobRef::HetComponent { offset, .. } => self
                .push(" AND i.het_job_id = ")
                .bind(root)
                .push(" AND i.het_offset = ")
                .bind(*offset),
        }
    }

    fn of_types(self, patterns: &[TypePattern]) -> Self {
        if patterns.is_empty() {
            return self.push(" AND i.category <> ").bind(AUDIT);
        }
        let mut sql = self;
        for (n, pattern) in patterns.iter().enumerate() {
            sql = sql.push(if n == 0 { " AND (" } else { " OR " });
            sql = match pattern {
                TypePattern::Category(category) => sql.push("i.category = ").bind(category),
                TypePattern::Exactly(kind) => sql.push("i.type = ").bind(kind),
            };
        }
        sql.push(")")
    }
}
