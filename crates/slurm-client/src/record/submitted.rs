//! The tasks that an array was submitted with.

use std::collections::{BTreeMap, BTreeSet};

use slurm_types::{JobId, TaskSet, UnixTime};

use super::{AccountingRecord, ArrayTasks};

/// Accounting's view of an array. slurmctld's own record loses a waiting task without a trace when it alone is cancelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySubmission {
    /// The array's id.
    pub array: JobId,
    /// When it was submitted.
    pub submit: UnixTime,
    /// Tasks with rows of their own: they became jobs.
    pub jobs: TaskSet,
    /// Tasks of the array's own row. slurmctld reports changes seconds later; 22.05 may list tasks that became jobs, too.
    pub rest: TaskSet,
    /// Tasks of the option `--array` of the submit command, if its position in the line is unambiguous.
    pub ordered: Option<TaskSet>,
}

impl ArraySubmission {
    /// From whole rows, which lack the submit command.
    pub(crate) fn of_rows(rows: &[AccountingRecord]) -> Vec<Self> {
        let mut arrays = BTreeMap::<(JobId, UnixTime), [BTreeSet<u32>; 2]>::new();
        for row in rows {
            let (Some(array), Some(submit)) = (&row.array, row.submit) else {
                continue;
            };
            let [jobs, rest] = arrays.entry((array.array_job_id, submit)).or_default();
            match &array.tasks {
                ArrayTasks::Task(task) => drop(jobs.insert(*task)),
                tasks => rest.extend(tasks.set().unwrap_or_default().iter()),
            }
        }
        let arrays = arrays.into_iter();
        arrays
            .map(|((array, submit), [jobs, rest])| Self {
                array,
                submit,
                jobs: TaskSet::new(jobs),
                rest: TaskSet::new(rest),
                ordered: None,
            })
            .collect()
    }
}
