//! The rows of `sacct -D -X -P --noconvert` with a separator of our own.

use slurm_types::{JobRef, JobState, TimeLimit, Tres, UnixTime};

use super::{Separator, delimited, leading, text};
use crate::drift::Unread;
use crate::record::{AccountingRecord, ArrayPosition, ArrayTasks};

/// Requested columns. Every one exists on 22.05 and on 26.05 (`sacct -e`); the first never contains a newline.
pub(crate) const FIELDS: [&str; 36] = [
    "JobIDRaw",
    "JobID",
    "Cluster",
    "DBIndex",
    "User",
    "UID",
    "Group",
    "Account",
    "Partition",
    "QOS",
    "WCKey",
    "State",
    "ExitCode",
    "DerivedExitCode",
    "Reason",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "ElapsedRaw",
    "Suspended",
    "TimelimitRaw",
    "Timelimit",
    "NNodes",
    "NodeList",
    "ReqTRES",
    "AllocTRES",
    "Priority",
    "Flags",
    "Reservation",
    "Constraints",
    "WorkDir",
    "Comment",
    "AdminComment",
    "SystemComment",
    "JobName",
];

/// The rows, and those that could not be parsed; `None` if the output does not have these columns.
pub(crate) fn accounting(
    output: &str,
    separator: &Separator,
) -> Option<(Vec<AccountingRecord>, Unread)> {
    let mut unread = Unread::default();
    let records = delimited(output, separator, FIELDS.len())?
        .into_iter()
        .filter_map(|row| {
            let record = record(&row);
            if record.is_none() {
                unread.note(&row.join("|"));
            }
            record
        })
        .collect();
    Some((records, unread))
}

/// One row with the columns of [`FIELDS`].
pub(crate) fn record(row: &[&str]) -> Option<AccountingRecord> {
    let get = |field: &str| {
        FIELDS
            .iter()
            .position(|name| *name == field)
            .and_then(|at| row.get(at))
            .copied()
            .unwrap_or_default()
    };
    let time = |field| UnixTime::parse(get(field));
    let (state, cancelled_by) = JobState::parse_accounting(get("State"));
    let mut record = AccountingRecord {
        job_id: Some(get("JobIDRaw").parse().ok()?),
        cluster: text(get("Cluster")),
        db_index: leading(get("DBIndex")),
        name: get("JobName").to_owned(),
        user: text(get("User")),
        uid: leading(get("UID")),
        group: text(get("Group")),
        account: text(get("Account")),
        partition: text(get("Partition")),
        qos: text(get("QOS")),
        wckey: text(get("WCKey")),
        state,
        cancelled_by,
        exit_code: get("ExitCode").parse().ok(),
        derived_exit_code: get("DerivedExitCode").parse().ok(),
        reason: text(get("Reason")),
        submit: time("Submit"),
        eligible: time("Eligible"),
        start: time("Start"),
        end: time("End"),
        elapsed_secs: leading(get("ElapsedRaw")),
        suspended_secs: slurm_types::parse_duration_secs(
            get("Suspended").split('.').next().unwrap_or_default(),
        ),
        time_limit: leading(get("TimelimitRaw"))
            .map(TimeLimit::Minutes)
            .or_else(|| TimeLimit::parse(get("Timelimit"))),
        node_count: leading(get("NNodes")),
        nodes: text(get("NodeList")),
        priority: leading(get("Priority")),
        flags: text(get("Flags")),
        reservation: text(get("Reservation")),
        constraints: text(get("Constraints")),
        work_dir: text(get("WorkDir")),
        comment: text(get("Comment")),
        admin_comment: text(get("AdminComment")),
        system_comment: text(get("SystemComment")),
        ..AccountingRecord::default()
    };
    for (field, into) in [
        ("ReqTRES", &mut record.req_tres),
        ("AllocTRES", &mut record.alloc_tres),
    ] {
        let (tres, odd) = Tres::parse_lossy(get(field));
        *into = tres;
        record.oddities.note_tres(field, &odd);
    }
    match get("JobID").parse() {
        Ok(JobRef::ArrayTask { array, task }) => {
            record.array = Some(ArrayPosition {
                array_job_id: array,
                tasks: ArrayTasks::Task(task),
            })
        }
        Ok(JobRef::ArrayTasks { array, .. }) => {
            let printed = get("JobID")
                .split_once("_[")
                .and_then(|(_, rest)| rest.strip_suffix(']'))
                .unwrap_or_default();
            record.array = Some(ArrayPosition {
                array_job_id: array,
                tasks: ArrayTasks::Remainder(printed.to_owned()),
            });
        }
        Ok(JobRef::HetComponent { leader, offset }) => {
            (record.het_job_id, record.het_job_offset) = (Some(leader), Some(offset))
        }
        Ok(JobRef::Job(_)) => {}
        Err(_) => record.oddities.note("JobID", get("JobID")),
    }
    record.provisional =
        record.uid == Some(0) && record.name == "allocation" && record.req_tres.is_empty();
    Some(record)
}
