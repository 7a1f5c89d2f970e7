//! Reads observations from Slurm's records.

use mesh_events::RunKey;
use slurm_client::{AccountingRecord, ArrayTasks, JobRecord};
use slurm_types::{JobBaseState, JobFlag, Reason, TaskSet};

use super::{Canceller, EntityKind, Observation, Owner, Record, Returned};
use crate::domain::payload;

impl Observation {
    /// Reads the controller's record; `None` if it lacks an id or a submit time, which no record of Slurm does.
    pub fn from_controller(cluster: &str, record: &JobRecord) -> Option<Self> {
        let raw_id = record.job_id?.get();
        let submit_time = record.submit?.as_secs();
        let allocated = record.was_allocated();
        let pending = record.state.is(JobBaseState::Pending);
        // While the last nodes of a run are cleaned up, its record may name none (22.05).
        let completing = record.state.has(JobFlag::Completing);
        let never_ran = !allocated && !completing && record.restarts == 0;
        let tasks = record.array_tasks.as_ref();
        let position = record.array_job_id.map(|id| (id.get(), tasks));
        let identity = RunIdentity::of(raw_id, position, never_ran);
        let run = identity.run_key(cluster, submit_time);
        let reason = Reason::lookup(&record.reason);
        let job = payload::from_controller(record, &run, &identity.tasks);
        Some(Self {
            run,
            raw_id,
            entity: identity.entity,
            tasks: identity.tasks,
            record: Record::Controller,
            base: record.state.base,
            completing,
            configuring: record.state.has(JobFlag::Configuring),
            revoked: record.state.has(JobFlag::Revoked),
            requeued: false,
            allocated,
            nodes_at_end: false,
            ended_by_hook: false,
            end_is_inferred: false,
            own_end: None,
            exit_code: record.exit_code,
            start: record.start.map(slurm_types::UnixTime::as_secs),
            end: record.end.map(slurm_types::UnixTime::as_secs),
            suspend_time: record.suspend_time.map(slurm_types::UnixTime::as_secs),
            pre_suspend: record
                .pre_suspend_secs
                .and_then(|secs| i64::try_from(secs).ok()),
            // A resize before the start belongs to an earlier run.
            resizes: record
                .resize_time
                .filter(|at| allocated && !pending && Some(*at) >= record.start)
                .map(slurm_types::UnixTime::as_secs)
                .into_iter()
                .collect(),
            parts: Vec::new(),
            restarts: Some(record.restarts),
            returned: Returned::No,
            // A suspended job has priority 0, too (seen on 22.05), so this counts only while pending.
            held: pending && record.priority == Some(0),
            class: reason.class(),
            cancelled_by: None,
            owner: Owner {
                user: record.user.clone(),
                uid: record.uid,
                account: record.account.clone(),
            },
            job,
        })
    }

    /// Reads a row of accounting; `None` if it lacks an id or a submit time.
    pub fn from_accounting(cluster: &str, row: &AccountingRecord) -> Option<Self> {
        let raw_id = row.job_id?.get();
        let submit_time = row.submit?.as_secs();
        let allocated = row.was_allocated();
        let position = row
            .array
            .as_ref()
            .map(|array| (array.array_job_id.get(), Some(&array.tasks)));
        let identity = RunIdentity::of(raw_id, position, !allocated);
        let run = identity.run_key(cluster, submit_time);
        let job = payload::from_accounting(row, &run, &identity.tasks);
        // A finished state without an end time is not the end yet.
        let ended = row.ended();
        Some(Self {
            run,
            raw_id,
            entity: identity.entity,
            tasks: identity.tasks,
            record: Record::Accounting,
            base: row
                .state
                .base
                .filter(|base| (ended || !base.finished()) && !row.put_back()),
            completing: false,
            configuring: false,
            revoked: row.state.has(JobFlag::Revoked) && row.end.is_some(),
            requeued: ended && (row.state.base.is_none() || row.put_back()),
            allocated,
            nodes_at_end: false,
            ended_by_hook: false,
            end_is_inferred: false,
            own_end: None,
            exit_code: None,
            start: row.start.map(slurm_types::UnixTime::as_secs),
            end: row
                .end
                .filter(|_| !row.has_end_of_run_before())
                .map(slurm_types::UnixTime::as_secs),
            suspend_time: None,
            pre_suspend: None,
            resizes: Vec::new(),
            parts: Vec::new(),
            restarts: None,
            returned: Returned::No,
            held: false,
            class: Reason::lookup(&row.reason).class(),
            cancelled_by: Canceller::of(row),
            owner: Owner {
                user: row.user.clone(),
                uid: row.uid,
                account: row.account.clone(),
            },
            job,
        })
    }
}

/// The run to which a record belongs.
struct RunIdentity {
    root: u32,
    task: Option<u32>,
    entity: EntityKind,
    tasks: Option<TaskSet>,
}

impl RunIdentity {
    /// The last task of an array keeps the array's own id, and Slurm prints a remainder of one task like a task (22.05). A record with the
    /// array's id that never ran is the array.
    fn of(raw_id: u32, array: Option<(u32, Option<&ArrayTasks>)>, never_ran: bool) -> Self {
        let Some((root, tasks)) = array else {
            return Self {
                root: raw_id,
                task: None,
                entity: EntityKind::Job,
                tasks: None,
            };
        };
        match tasks {
            Some(ArrayTasks::Task(task)) if !(raw_id == root && never_ran) => Self {
                root,
                task: Some(*task),
                entity: EntityKind::Task,
                tasks: None,
            },
            tasks => Self {
                root,
                task: None,
                entity: EntityKind::Array,
                tasks: tasks.and_then(ArrayTasks::set),
            },
        }
    }

    /// Returns the run with this submit time, in its first attempt.
    fn run_key(&self, cluster: &str, submit_time: i64) -> RunKey {
        RunKey {
            cluster: cluster.to_owned(),
            job_id: self.root,
            task_id: self.task,
            submit_time,
            attempt: 0,
        }
    }
}
