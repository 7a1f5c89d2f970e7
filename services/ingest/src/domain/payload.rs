//! Payloads of job events, from each source.
//!
//! The controller's record is complete. Accounting and jobcomp have less, so the last payload of the run fills the rest. Never contains
//! the script or the environment.

mod before;

use mesh_events::RunKey;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, HetInfo, Job, NodeAllocation};
use pbjson_types::Timestamp;
use slurm_client::{AccountingRecord, ArrayTasks, JobRecord};
use slurm_types::{JobBaseState, JobFlag, JobState, Reason, TaskSet, TimeLimit, UnixTime};

pub(super) use self::before::complete;
pub use self::before::{clear_allocation, copy_allocation, fill};

/// Builds a payload from slurmctld's record.
pub(super) fn from_controller(
    record: &JobRecord,
    run: &RunKey,
    remainder: &Option<TaskSet>,
) -> Job {
    let pending = record.state.is(JobBaseState::Pending);
    let allocated = record.was_allocated();
    let over = record.state.finished();
    let reason = Reason::lookup(&record.reason);
    let described = reason.reason() != record.reason;
    Job {
        job_id: record.job_id.map_or(0, |id| id.get()),
        run: run.entity_key(),
        // The record's count is not the run's: see `RunState::restart_count`.
        restarts: None,
        array: array_info(
            record.array_job_id.map(|id| id.get()),
            record.array_tasks.as_ref(),
            remainder,
            record.array_throttle,
        ),
        het: het_info(record.het_job_id.map(|id| id.get()), record.het_job_offset),
        name: record.name.clone(),
        partition: record.partition.clone(),
        qos: record.qos.clone(),
        reservation: record.reservation.clone(),
        state: state_name(&record.state),
        state_flags: state_flags(&record.state),
        reason: reason.reason().to_owned(),
        reason_description: if described {
            record.reason.replace('_', " ")
        } else {
            String::new()
        },
        reason_class: if pending {
            reason.class().as_str().to_owned()
        } else {
            String::new()
        },
        priority: record.priority.unwrap_or_default(),
        submit_time: time(record.submit),
        eligible_time: time(record.eligible),
        // For a pending job these are plans. A job that ended while waiting has its end in both.
        start_time: time(record.start.filter(|_| allocated && !pending)),
        end_time: time(record.end.filter(|_| over)),
        expected_start_time: time(record.start.filter(|_| pending)),
        time_limit_minutes: record.time_limit.and_then(TimeLimit::minutes),
        suspended_seconds: suspended_seconds(record),
        nodes: record.nodes.clone(),
        node_count: record.node_count.unwrap_or_default(),
        scheduled_nodes: record.sched_nodes.clone(),
        batch_host: record.batch_host.clone(),
        failed_node: record.failed_node.clone(),
        req_tres: record.req_tres.to_string(),
        alloc_tres: record.alloc_tres.to_string(),
        allocations: record
            .node_allocs
            .iter()
            .map(|alloc| NodeAllocation {
                nodes: alloc.nodes.clone(),
                cpus: alloc.cpus,
                memory_mib: (alloc.mem_mib > 0).then_some(alloc.mem_mib),
                gpus: alloc.gpus,
                gpu_indices: alloc.gpu_indices(),
            })
            .collect(),
        exclusive: record.exclusive,
        exit_code: record.exit_code.filter(|_| over).map(exit_code),
        derived_exit_code: record.derived_exit_code.filter(|_| over).map(exit_code),
        dependency: record.dependency.clone(),
        features: record.features.clone(),
        licenses: record.licenses.clone(),
        work_dir: record.work_dir.clone(),
        std_out: record.stdout.clone(),
        std_err: record.stderr.clone(),
        comment: record.comment.clone(),
        admin_comment: record.admin_comment.clone(),
        requeueable: record.requeue,
        batch: record.batch,
        group: record.group.clone(),
        wckey: record.wckey.clone(),
        deadline: time(record.deadline),
        display_id: record
            .job_ref()
            .map_or_else(String::new, |job| job.to_string()),
        attempt: run.attempt,
        usage: None,
        system_comment: String::new(),
    }
}

/// Builds a payload from a row of accounting.
pub(super) fn from_accounting(
    row: &AccountingRecord,
    run: &RunKey,
    remainder: &Option<TaskSet>,
) -> Job {
    let allocated = row.was_allocated();
    let array = row.array.as_ref();
    let job = Job {
        job_id: row.job_id.map_or(0, |id| id.get()),
        run: run.entity_key(),
        array: array_info(
            array.map(|array| array.array_job_id.get()),
            array.map(|array| &array.tasks),
            remainder,
            None,
        ),
        het: het_info(row.het_job_id.map(|id| id.get()), row.het_job_offset),
        name: row.name.clone(),
        partition: row.partition.clone(),
        qos: row.qos.clone(),
        reservation: row.reservation.clone(),
        state: state_name(&row.state),
        state_flags: state_flags(&row.state),
        reason: row.reason.clone(),
        priority: row.priority.unwrap_or_default(),
        submit_time: time(row.submit),
        eligible_time: time(row.eligible),
        start_time: time(row.start.filter(|_| allocated)),
        end_time: time(row.end.filter(|_| !row.has_end_of_run_before())),
        time_limit_minutes: row.time_limit.and_then(TimeLimit::minutes),
        suspended_seconds: row.suspended_secs.unwrap_or_default(),
        nodes: row.nodes.clone(),
        node_count: row.node_count.unwrap_or_default(),
        req_tres: row.req_tres.to_string(),
        alloc_tres: row.alloc_tres.to_string(),
        exit_code: row.exit_code.filter(|_| row.ended()).map(exit_code),
        derived_exit_code: row.derived_exit_code.filter(|_| row.ended()).map(exit_code),
        features: row.constraints.clone(),
        work_dir: row.work_dir.clone(),
        comment: row.comment.clone(),
        admin_comment: row.admin_comment.clone(),
        system_comment: row.system_comment.clone(),
        group: row.group.clone(),
        wckey: row.wckey.clone(),
        attempt: run.attempt,
        ..Job::default()
    };
    Job {
        display_id: display_id(&job),
        ..job
    }
}

/// Returns Slurm's job id in its printed form.
pub(super) fn display_id(job: &Job) -> String {
    match (&job.array, &job.het) {
        (Some(array), _) => match array.task_id {
            Some(task) => format!("{}_{task}", array.job_id),
            // The record of an array may lose its tasks with its end.
            None if array.tasks.is_empty() => array.job_id.to_string(),
            None => format!("{}_[{}]", array.job_id, array.tasks),
        },
        (None, Some(het)) => format!("{}+{}", het.job_id, het.offset),
        (None, None) => job.job_id.to_string(),
    }
}

/// Longest text of a user in an event. A message on the bus has at most 1 MiB, and Slurm accepts longer comments.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// Truncates texts that users may make as long as they like, so that every event fits on the bus.
pub fn limit(job: &mut Job) {
    let texts = [
        &mut job.name,
        &mut job.comment,
        &mut job.admin_comment,
        &mut job.system_comment,
        &mut job.dependency,
        &mut job.features,
        &mut job.licenses,
        &mut job.work_dir,
        &mut job.std_out,
        &mut job.std_err,
        &mut job.reason_description,
    ];
    for text in texts {
        if text.len() > MAX_TEXT_BYTES {
            let end = (0..=MAX_TEXT_BYTES)
                .rev()
                .find(|end| text.is_char_boundary(*end))
                .unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
    }
}

/// Builds the payload of an array from that of one of its tasks.
pub fn array_of_task(task: &Job, array: &RunKey) -> Job {
    let mut job = task.clone();
    job.job_id = array.job_id;
    job.run = array.entity_key();
    job.display_id = array.job_id.to_string();
    job.array = Some(ArrayInfo {
        job_id: array.job_id,
        task_id: None,
        ..ArrayInfo::default()
    });
    JobBaseState::Pending.name().clone_into(&mut job.state);
    job.state_flags.clear();
    for text in [
        &mut job.reason,
        &mut job.reason_class,
        &mut job.nodes,
        &mut job.batch_host,
        &mut job.alloc_tres,
    ] {
        text.clear();
    }
    job.allocations.clear();
    (
        job.start_time,
        job.end_time,
        job.exit_code,
        job.derived_exit_code,
    ) = (None, None, None, None);
    job
}

/// Converts Slurm's time to a protobuf timestamp.
pub fn time(time: Option<UnixTime>) -> Option<Timestamp> {
    time.map(|time| seconds(time.as_secs()))
}

/// Converts Unix seconds to a protobuf timestamp.
pub const fn seconds(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

pub(super) fn exit_code(code: slurm_types::ExitCode) -> ExitCode {
    ExitCode {
        code: u32::from(code.exit),
        signal: u32::from(code.signal),
    }
}

fn state_name(state: &JobState) -> String {
    state
        .base
        .map_or_else(String::new, |base| base.name().to_owned())
}

fn state_flags(state: &JobState) -> Vec<String> {
    let known = JobFlag::ALL
        .iter()
        .filter(|(flag, ..)| state.has(*flag))
        .map(|(_, name, _)| (*name).to_owned());
    known.chain(state.unknown.iter().cloned()).collect()
}

/// Wall time since the start minus the running time. Slurm prints no such number for a live job.
fn suspended_seconds(record: &JobRecord) -> u64 {
    let (Some(start), Some(suspended)) = (record.start, record.suspend_time) else {
        return 0;
    };
    // `SuspendTime` is the last suspend while suspended, the last resume afterwards.
    let ran = record.pre_suspend_secs.unwrap_or_default();
    u64::try_from(suspended.as_secs() - start.as_secs())
        .unwrap_or_default()
        .saturating_sub(ran)
}

fn array_info(
    root: Option<u32>,
    tasks: Option<&ArrayTasks>,
    remainder: &Option<TaskSet>,
    throttle: Option<u32>,
) -> Option<ArrayInfo> {
    let job_id = root?;
    let task_id = if remainder.is_some() {
        None
    } else {
        tasks.and_then(ArrayTasks::task)
    };
    let listed = remainder
        .as_ref()
        .map(|set| TaskSet::new(set.iter()).to_string());
    Some(ArrayInfo {
        job_id,
        task_id,
        tasks: listed.unwrap_or_default(),
        max_running: throttle
            .or_else(|| remainder.as_ref()?.throttle)
            .unwrap_or_default(),
    })
}

fn het_info(leader: Option<u32>, offset: Option<u32>) -> Option<HetInfo> {
    Some(HetInfo {
        job_id: leader?,
        offset: offset?,
    })
}
