//! Translates a selection and the caller's visibility into SQL conditions on `event_index`.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;
use mesh_events::RunKey;
use mesh_runtime::api::Visibility;
use slurm_types::JobRef;

use crate::domain::filter::{NamePattern, Selection, TypeSelector};
use crate::domain::nodes::covering;
use crate::domain::record::AUDIT;

/// Conditions on the columns of `event_index`, aliased `i`.
pub(super) trait Conditions {
    /// Restricts to what the caller may see. Audit entries and nodes have no owner.
    fn visible(self, visibility: &Visibility) -> Self;
    /// Restricts to a selection.
    fn chosen(self, selection: &Selection) -> Self;
    /// Restricts to a run, by the index of its job or array.
    fn of_run(self, run: &str) -> Self;
    /// Restricts to a node and the jobs that ran on it, by one index lookup.
    fn of_node(self, node: &str) -> Self;
    /// Restricts to the name pattern of the selection.
    fn named(self, selection: &Selection) -> Self;
    /// Restricts to the time range of the selection.
    fn of_time(self, selection: &Selection) -> Self;
    /// Restricts to entries that occurred up to a time.
    fn up_to(self, at: Option<DateTime<Utc>>) -> Self;
    /// Restricts to a job. The id of an array includes all its tasks; the id of a heterogeneous
    /// job's leader includes all its components.
    fn of_job(self, job: &JobRef) -> Self;
}

impl Conditions for Sql {
    fn visible(self, visibility: &Visibility) -> Self {
        let Visibility::Restricted { users, accounts } = visibility else {
            return self;
        };
        let mut sql = self.push(" AND (");
        let mut or = "";
        if !users.is_empty() || accounts.is_empty() {
            sql = one_of(sql.push("i.user_name"), users);
            or = " OR ";
        }
        for (cluster, accounts) in accounts {
            sql = one_of(sql.push(or).push("(i.account"), accounts);
            if let Some(cluster) = cluster {
                sql = sql.push(" AND i.cluster = ").bind(cluster);
            }
            sql = sql.push(")");
            or = " OR ";
        }
        sql.push(")")
    }

    fn chosen(mut self, selection: &Selection) -> Self {
        self = of_types(self, selection);
        if let Some(job) = &selection.job {
            self = self.of_job(job);
        }
        for (condition, value) in [
            (" AND i.cluster = ", &selection.cluster),
            (" AND i.user_name = ", &selection.user),
            (" AND i.account = ", &selection.account),
            (" AND i.partition = ", &selection.partition),
        ] {
            if let Some(value) = value {
                self = self.push(condition).bind(value);
            }
        }
        if let Some(run) = &selection.run {
            self = self.of_run(run);
        }
        if let Some(users) = &selection.identity_users {
            self = one_of(self.push(" AND i.user_name"), users);
        }
        if let Some(identity) = &selection.identity {
            self = self
                .push(" AND (i.subject = ")
                .bind(identity)
                .push(" OR i.email = ")
                .bind(identity)
                .push(")");
        }
        if let Some(node) = &selection.node {
            // Checked per entry: a node with many entries then does not slow down a job with few
            // entries, or a page in order.
            self = self
                .push(" AND EXISTS (SELECT 1 FROM event_nodes n WHERE n.seq = i.seq AND n.block")
                .any_of(covering(node))
                .push(")");
        }
        self = self.named(selection);
        for (condition, bound) in [
            (" AND i.array_job_id = ", selection.array.map(i64::from)),
            (" AND i.seq >= ", selection.from_seq),
            (" AND i.seq <= ", selection.to_seq),
        ] {
            if let Some(bound) = bound {
                self = self.push(condition).bind(bound);
            }
        }
        self.of_time(selection)
    }

    fn of_run(self, run: &str) -> Self {
        let sql = match RunKey::parse("", run) {
            Ok(RunKey {
                job_id,
                task_id: Some(task),
                ..
            }) => self
                .push(" AND i.array_job_id = ")
                .bind(job_id)
                .push(" AND i.task_id = ")
                .bind(task),
            // An ordinary job, or the record of the array itself.
            Ok(RunKey { job_id, .. }) => self
                .push(" AND (i.job_id = ")
                .bind(job_id)
                .push(" OR i.array_job_id = ")
                .bind(job_id)
                .push(")"),
            // No such run exists.
            Err(_) => self.push(" AND 1 = 0"),
        };
        sql.push(" AND i.run = ").bind(run)
    }

    fn of_node(self, node: &str) -> Self {
        self.push(" AND i.seq IN (SELECT n.seq FROM event_nodes n WHERE n.block")
            .any_of(covering(node))
            .push(")")
    }

    fn named(self, selection: &Selection) -> Self {
        match &selection.name {
            None => self,
            Some(NamePattern::Exactly(name)) => self.push(" AND i.name = ").bind(name),
            // A range from the prefix to the first text after all texts with this prefix, so that
            // an index can be used.
            Some(NamePattern::Prefix(prefix)) => self
                .push(" AND i.name >= ")
                .bind(prefix)
                .push(" AND i.name < ")
                .bind(&format!("{prefix}\u{10FFFF}")),
        }
    }

    fn of_time(mut self, selection: &Selection) -> Self {
        for (condition, bound) in [
            (" AND i.occurred_at >= ", selection.since),
            (" AND i.occurred_at < ", selection.until),
        ] {
            if let Some(bound) = bound {
                self = self.push(condition).bind(bound);
            }
        }
        self
    }

    fn up_to(self, at: Option<DateTime<Utc>>) -> Self {
        match at {
            Some(at) => self
                .push(" AND i.occurred_at <= ")
                .bind(at.timestamp_micros()),
            None => self,
        }
    }

    fn of_job(self, job: &JobRef) -> Self {
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
}

/// A single value is compared with `=`, so that an index returns the entries in order.
fn one_of(sql: Sql, values: &BTreeSet<String>) -> Sql {
    match values.first() {
        Some(only) if values.len() == 1 => sql.push(" = ").bind(only),
        _ => sql.any_of(values.iter().cloned().collect::<Vec<_>>()),
    }
}

fn of_types(mut sql: Sql, selection: &Selection) -> Sql {
    if selection.types.is_empty() {
        // These conditions already exclude audit entries. Without this condition, an index alone
        // may be sufficient.
        if selection.is_narrow() || selection.has_a_column() || selection.identity.is_some() {
            return sql;
        }
        return sql.push(" AND i.category <> ").bind(AUDIT);
    }
    for (n, pattern) in selection.types.iter().enumerate() {
        sql = sql.push(if n == 0 { " AND (" } else { " OR " });
        sql = match pattern {
            TypeSelector::Category(category) => sql.push("i.category = ").bind(category),
            TypeSelector::Exactly(kind) => sql.push("i.type = ").bind(kind),
        };
    }
    sql.push(")")
}
