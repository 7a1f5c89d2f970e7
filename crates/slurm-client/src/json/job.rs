//! The controller's jobs: `jobs` of `/slurm/v0.0.NN/jobs`, `squeue --json` and `scontrol show job --json`.
//!
//! `fields` handles different shapes of the same meaning in 22.05, 24.11 and later. These are the differences in meaning:
//! - `array_job_id` is 0 for a job without an array, on 24.11 and later with `set: true`.
//! - A time 0 with `set: true` is "not known".
//! - 22.05 shows one keyword as the state, a flag before the base state; newer versions a list of both.
//! - `exclusive` jobs have `shared: "none"` (22.05 to v0.0.44); v0.0.45 does not report it.

use serde_json::Value;
use slurm_types::{HostList, JobBaseState, JobFlag, JobId, JobState, TimeLimit};

use super::Fields;
use crate::{
    parse::{self, Rejected, StringInterner, gres_gpus},
    record::{ArrayTasks, JobRecord, NodeAlloc, QueueRow, RunningRow},
};

/// One job, or its id and the reason why it proves nothing.
pub(crate) fn job(value: &Value) -> Result<JobRecord, (Option<JobId>, Rejected)> {
    let mut fields = Fields::new(value);
    let job_id = id(&mut fields, "job_id");
    let mut job = JobRecord {
        job_id,
        name: fields.raw("name"),
        comment: fields.raw("comment"),
        admin_comment: fields.raw("admin_comment"),
        system_comment: fields.raw("system_comment"),
        command: fields.raw("command"),
        work_dir: fields.raw("current_working_directory"),
        stdin: fields.first(&["stdin_expanded", "standard_input"]),
        stdout: fields.first(&["stdout_expanded", "standard_output"]),
        stderr: fields.first(&["stderr_expanded", "standard_error"]),
        ..JobRecord::default()
    };
    identity(&mut job, &mut fields);
    state(&mut job, &mut fields);
    times(&mut job, &mut fields);
    resources(&mut job, &mut fields);
    job.oddities = fields.oddities;
    let rejected = |problem, key: &str| {
        let printed = value.get(key).map(Value::to_string);
        Rejected::of(problem, &printed.unwrap_or_default())
    };
    if job_id.is_none() {
        return Err((None, rejected(parse::NO_ID, "job_id")));
    }
    if let Some((problem, [_, key])) = parse::missing(&job) {
        return Err((job_id, rejected(problem, key)));
    }
    Ok(job)
}

/// The job's row of a queue listing.
pub(crate) fn queue_row(job: &JobRecord, strings: &mut StringInterner) -> Option<QueueRow> {
    let limit = match job.time_limit {
        Some(TimeLimit::Minutes(minutes)) => minutes_text(minutes),
        Some(TimeLimit::Unlimited) => "UNLIMITED".to_owned(),
        Some(TimeLimit::PartitionDefault) | None => String::new(),
    };
    parse::row_of_record(job, &limit, strings)
}

/// The job among those that hold an allocation; `None` if it holds none.
pub(crate) fn running_row(job: &JobRecord) -> Option<RunningRow> {
    let configuring = job.state.flags.contains(JobFlag::Configuring);
    // 22.05 prints the flag in place of the base state.
    let state = match job.state.base {
        _ if configuring => "CONFIGURING".to_owned(),
        Some(base @ (JobBaseState::Running | JobBaseState::Suspended)) => base.to_string(),
        _ => return None,
    };
    Some(RunningRow {
        job_id: job.job_id?.get(),
        display_id: job.job_ref().map_or_else(String::new, |id| id.to_string()),
        user: job.user.clone(),
        account: job.account.clone(),
        qos: job.qos.clone(),
        partition: job.partition.clone(),
        state,
        start: job.start,
        end: job.end,
        tres: job.alloc_tres.clone(),
        nodes: job.nodes.clone(),
        licenses: job.licenses.clone(),
        reservation: job.reservation.clone(),
    })
}

/// Minutes as Slurm prints a time limit: `10:00`, `1-00:00:00`.
pub(super) fn minutes_text(minutes: u32) -> String {
    let (days, hours, minutes) = (minutes / 1440, minutes / 60 % 24, minutes % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:00"),
        (0, _) => format!("{hours}:{minutes:02}:00"),
        _ => format!("{days}-{hours:02}:{minutes:02}:00"),
    }
}

pub(super) fn id(fields: &mut Fields, path: &str) -> Option<JobId> {
    fields.positive(path).and_then(JobId::new)
}

fn identity(job: &mut JobRecord, fields: &mut Fields) {
    job.array_job_id = id(fields, "array_job_id");
    if job.array_job_id.is_some() {
        let task = fields.number("array_task_id").map(ArrayTasks::Task);
        job.array_tasks = task.or_else(|| ArrayTasks::parse(&fields.text("array_task_string")));
        job.array_throttle = fields.positive("array_max_tasks");
    }
    job.het_job_id = id(fields, "het_job_id");
    if job.het_job_id.is_some() {
        job.het_job_offset = fields.number("het_job_offset");
        job.het_job_id_set = fields.text("het_job_id_set");
    }
    job.sluid = fields.text("step_id.sluid");
    job.user = fields.text("user_name");
    job.uid = fields.number("user_id");
    job.group = fields.text("group_name");
    job.gid = fields.number("group_id");
    job.account = fields.text("account");
    job.partition = fields.text("partition");
    job.qos = fields.text("qos");
    job.wckey = fields.text("wckey");
}

fn state(job: &mut JobRecord, fields: &mut Fields) {
    let strings = fields.strings("job_state");
    job.state = JobState::from_names(strings.iter().map(String::as_str));
    // As scontrol prints it: the description in place of the keyword, with underscores.
    let description = fields.text("state_description");
    job.reason = match description.is_empty() {
        true => fields.raw("state_reason"),
        false => description.replace(' ', "_"),
    };
    job.failed_node = fields.text("failed_node");
    job.priority = fields.number("priority");
    job.nice = fields.signed("nice").unwrap_or(0);
    job.restarts = fields.number("restart_cnt").unwrap_or(0);
    job.requeue = fields.flag("requeue");
    job.batch = fields.flag("batch_flag");
    job.exit_code = fields.exit_code("exit_code");
    job.derived_exit_code = fields.exit_code("derived_exit_code");
    job.dependency = fields.text("dependency");
    job.reservation = fields.text("resv_name");
}

fn times(job: &mut JobRecord, fields: &mut Fields) {
    job.submit = fields.time("submit_time");
    job.eligible = fields.time("eligible_time");
    job.accrue = fields.time("accrue_time");
    job.start = fields.time("start_time");
    job.end = fields.time("end_time");
    job.suspend_time = fields.time("suspend_time");
    job.pre_suspend_secs = fields.number("pre_sus_time");
    job.deadline = fields.time("deadline");
    job.preempt_time = fields.time("preempt_time");
    job.preempt_eligible = fields.time("preemptable_time");
    job.last_sched_eval = fields.time("last_sched_evaluation");
    job.sched_nodes = fields.text("scheduled_nodes");
    job.time_limit = match fields.number("time_limit") {
        _ if fields.infinite("time_limit") => Some(TimeLimit::Unlimited),
        Some(minutes) => Some(TimeLimit::Minutes(minutes)),
        // 22.05 has null both for "unlimited" and for the partition's limit.
        None => fields
            .has("time_limit")
            .then_some(TimeLimit::PartitionDefault),
    };
}

fn resources(job: &mut JobRecord, fields: &mut Fields) {
    job.nodes = fields.text("nodes");
    job.node_count = fields.number("node_count");
    job.batch_host = fields.text("batch_host");
    job.num_cpus = fields.number("cpus");
    job.num_tasks = fields.number("tasks");
    job.cpus_per_task = fields.number("cpus_per_task");
    job.req_tres = fields.tres("tres_req_str");
    if job.was_allocated() {
        job.alloc_tres = fields.tres("tres_alloc_str");
        job.node_allocs = node_allocs(job, fields);
    }
    for (field, name) in [
        ("tres_per_job", "TresPerJob"),
        ("tres_per_node", "TresPerNode"),
        ("tres_per_socket", "TresPerSocket"),
        ("tres_per_task", "TresPerTask"),
        ("cpus_per_tres", "CpusPerTres"),
        ("memory_per_tres", "MemPerTres"),
    ] {
        let value = fields.text(field);
        if !value.is_empty() {
            job.tres_per.push((name.to_owned(), value));
        }
    }
    job.min_mem_node_mib = fields.positive("memory_per_node");
    job.min_mem_cpu_mib = fields.positive("memory_per_cpu");
    let shared = fields.strings("shared");
    job.exclusive = shared.iter().any(|string| string == "none")
        || fields.flag("job_resources.nodes.whole")
        || fields.flag("exclusive");
    job.oversubscribe = match shared.first().map(String::as_str) {
        None => "OK".to_owned(),
        Some("none") => "NO".to_owned(),
        Some("shared" | "oversubscribe") => "YES".to_owned(),
        Some(other) => other.to_ascii_uppercase(),
    };
    job.features = fields.text("features");
    job.licenses = fields.text("licenses");
    job.req_nodes = fields.text("required_nodes");
    job.exc_nodes = fields.text("excluded_nodes");
}

/// Resources on each node; equal neighbours are joined, as scontrol does.
fn node_allocs(job: &JobRecord, fields: &mut Fields) -> Vec<NodeAlloc> {
    let list = fields
        .get("job_resources.nodes.allocation")
        .or_else(|| fields.get("job_resources.allocated_nodes"));
    // v0.0.36 has an object by index here, without names.
    let Some(items) = list.and_then(Value::as_array) else {
        return Vec::new();
    };
    let gres = fields.strings("gres_detail");
    let mut allocs: Vec<NodeAlloc> = Vec::new();
    let mut last = None;
    for (index, item) in items.iter().enumerate() {
        let mut node = Fields::new(item);
        let name = node.first(&["name", "nodename"]);
        let gres = gres.get(index).cloned().unwrap_or_default();
        let cores = cores(item);
        // v0.0.40 and older count cores only; with threads each has several CPUs.
        let per_core = match (items.len(), job.num_cpus) {
            (1, Some(cpus)) if cores > 0 => (cpus / cores).max(1),
            _ => 1,
        };
        let alloc = NodeAlloc {
            nodes: name,
            cpus: node.number("cpus.count").unwrap_or(cores * per_core),
            mem_mib: node
                .number("memory.allocated")
                .or_else(|| node.number("memory_allocated"))
                .unwrap_or(0),
            gpus: u32::try_from(gres_gpus(&gres)).unwrap_or(u32::MAX),
            gres,
        };
        let field = "job_resources.nodes";
        fields.oddities.note_within(field, &node.oddities);
        let alike = (item.get("sockets"), alloc.mem_mib, alloc.gres.clone());
        match allocs.last_mut() {
            Some(before) if last.as_ref() == Some(&alike) => {
                before.nodes = format!("{},{}", before.nodes, alloc.nodes);
            }
            _ => allocs.push(alloc),
        }
        last = Some(alike);
    }
    for alloc in &mut allocs {
        if let Ok(nodes) = HostList::expand(&alloc.nodes) {
            alloc.nodes = HostList::compress(&nodes);
        }
    }
    allocs
}

/// Allocated cores: `{"0": {"cores": {"1": "allocated"}}}` or `[{cores: [{index: 1, status: ["ALLOCATED"]}]}]`.
fn cores(node: &Value) -> u32 {
    let allocated = |core: &Value| match core {
        Value::String(status) => status.eq_ignore_ascii_case("allocated"),
        core => core["status"].as_array().is_some_and(|strings| {
            strings
                .iter()
                .any(|string| string.as_str() == Some("ALLOCATED"))
        }),
    };
    let children = |value: &Value| -> Vec<Value> {
        match value {
            Value::Array(items) => items.clone(),
            Value::Object(items) => items.values().cloned().collect(),
            _ => Vec::new(),
        }
    };
    let count = children(&node["sockets"])
        .iter()
        .flat_map(|socket| children(&socket["cores"]))
        .filter(allocated)
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}
