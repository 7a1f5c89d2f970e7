//! Accounting's rows: `jobs` of `/slurmdb/v0.0.NN/jobs` and of `sacct --json`.
//!
//! - 22.05 loses exit codes: a job that `sacct -P` shows as `FAILED 3:0` has `SUCCESS`, 0 here (seen on 22.05.8, v0.0.36 to v0.0.38).
//!   Signals survive, and `COMPLETED` means 0 by itself; every other exit code is unknown.
//! - It also has no uid, and names the canceller by user name, so the uid has to be looked up. A name that this host does not know stays a
//!   name.
//! - `array.task` is a bitmap on 24.11 and later: `0xC` is tasks 2 and 3.

use serde_json::Value;
use slurm_types::{ExitCode, JobBaseState, JobFlag, JobState, TaskSet, TimeLimit};

use super::{Fields, job::id};
use crate::record::{AccountingRecord, ArrayPosition, ArrayTasks};

/// Whether a response has the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCodes {
    /// True values.
    Reported,
    /// 22.05: always 0.
    Lost,
}

impl ExitCodes {
    /// By the API's version, the number after `v0.0.`.
    pub(crate) const fn of_api(version: u32) -> Self {
        match version {
            0..=38 => Self::Lost,
            _ => Self::Reported,
        }
    }
}

/// One row; `None` if it has no job id. `uid` looks up the users of this host.
pub(crate) fn accounting(
    value: &Value,
    codes: ExitCodes,
    uid: impl Fn(&str) -> Option<u32>,
) -> Option<AccountingRecord> {
    let mut fields = Fields::new(value);
    let strings = fields.strings("state.current");
    let user = fields.first(&["user", "association.user"]);
    let mut row = AccountingRecord {
        job_id: Some(id(&mut fields, "job_id")?),
        het_job_id: id(&mut fields, "het.job_id"),
        cluster: fields.text("cluster"),
        name: fields.raw("name"),
        uid: uid(&user),
        user,
        group: fields.text("group"),
        account: fields.text("account"),
        partition: fields.text("partition"),
        qos: fields.text("qos"),
        wckey: fields.text("wckey.wckey"),
        state: JobState::from_names(strings.iter().map(String::as_str)),
        reason: fields.text("state.reason"),
        submit: fields.time("time.submission"),
        eligible: fields.time("time.eligible"),
        start: fields.time("time.start"),
        end: fields.time("time.end"),
        elapsed_secs: fields.number("time.elapsed"),
        suspended_secs: fields.number("time.suspended"),
        node_count: fields.number("allocation_nodes"),
        nodes: fields.text("nodes"),
        req_tres: fields.tres_list("tres.requested"),
        alloc_tres: fields.tres_list("tres.allocated"),
        priority: fields.number("priority"),
        flags: flags(&fields.strings("flags")),
        constraints: fields.strings("constraints").join(","),
        work_dir: fields.raw("working_directory"),
        comment: fields.raw("comment.job"),
        admin_comment: fields.raw("comment.administrator"),
        system_comment: fields.raw("comment.system"),
        ..AccountingRecord::default()
    };
    if row.het_job_id.is_some() {
        row.het_job_offset = fields.number("het.job_offset");
    }
    // 22.05 has the number 0 in place of a name.
    if fields.get("reservation.name").is_some_and(Value::is_string) {
        row.reservation = fields.text("reservation.name");
    }
    row.time_limit = match fields.number("time.limit") {
        _ if fields.infinite("time.limit") => Some(TimeLimit::Unlimited),
        limit => limit.map(TimeLimit::Minutes),
    };
    row.array = array(&mut fields);
    if row.state.is(JobBaseState::Cancelled) {
        let canceller = fields.text("kill_request_user");
        row.cancelled_by = uid(&canceller);
        if row.cancelled_by.is_none() {
            row.canceller = canceller;
        }
    }
    if row.end.is_some() && row.state.is(JobBaseState::Pending) && row.state.has(JobFlag::Requeued)
    {
        // `["PENDING", "REQUEUED"]` (24.11 and later) is what sacct prints as REQUEUED: the end of a run by a requeue.
        row.state.base = None;
    }
    row.exit_code = exit_code(&mut fields, codes, &row.state);
    row.derived_exit_code = match codes {
        ExitCodes::Reported => fields.exit_code("derived_exit_code"),
        ExitCodes::Lost => None,
    };
    if row.node_count == Some(0) {
        // Without nodes the text form has the number of requested nodes.
        row.node_count = u32::try_from(row.req_tres.nodes())
            .ok()
            .filter(|nodes| *nodes > 0);
    }
    row.provisional =
        row.name == "allocation" && row.req_tres.is_empty() && row.partition.is_empty();
    row.oddities = fields.oddities;
    Some(row)
}

fn exit_code(fields: &mut Fields, codes: ExitCodes, state: &JobState) -> Option<ExitCode> {
    let printed = fields.exit_code("exit_code");
    match codes {
        ExitCodes::Reported => printed,
        // "Job has terminated all processes on all nodes with an exit code of zero" (sacct's manual, JOB STATE CODES).
        ExitCodes::Lost if state.is(JobBaseState::Completed) => Some(ExitCode::SUCCESS),
        ExitCodes::Lost => printed.filter(|code| code.signal != 0),
    }
}

fn array(fields: &mut Fields) -> Option<ArrayPosition> {
    let array_job_id = id(fields, "array.job_id")?;
    let task = fields.number("array.task_id").map(ArrayTasks::Task);
    let tasks = task.or_else(|| {
        let printed = fields.text("array.task");
        let Some(bitmap) = printed.strip_prefix("0x") else {
            return ArrayTasks::parse(&printed);
        };
        let Ok(mut tasks) = format!("0x{bitmap}").parse::<TaskSet>() else {
            fields.oddities.note("array.task", &printed);
            return None;
        };
        tasks.throttle = fields.positive("array.limits.max.running.tasks");
        Some(ArrayTasks::Remainder(tasks.to_string()))
    })?;
    Some(ArrayPosition {
        array_job_id,
        tasks,
    })
}

/// The flags by the names that sacct prints.
fn flags(strings: &[String]) -> String {
    let printed = strings.iter().filter_map(|string| match string.as_str() {
        "STARTED_ON_SCHEDULE" => Some("SchedMain"),
        "STARTED_ON_BACKFILL" => Some("SchedBackfill"),
        "STARTED_ON_SUBMIT" => Some("SchedSubmit"),
        "START_RECEIVED" => Some("StartReceived"),
        // "No flag" under a misleading name.
        "CLEAR_SCHEDULING" => None,
        other => Some(other),
    });
    printed.collect::<Vec<_>>().join(",")
}
