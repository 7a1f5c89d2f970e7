//! `scontrol -o -d show job`.
//!
//! The line mixes Slurm's own fields with texts of users (name, comment, paths), and nothing quotes them. A job's name may be
//! `x UserId=root(0) … JobState=COMPLETED`, or contain a newline and a whole forged record. The order of fields tells them apart:
//!
//! ```text
//! JobId … JobName=<user's text> UserId … (Slurm's own fields) … Network= Command= <user's texts> StdOut= TresPer…
//! ```
//!
//! - Name, comment, command and working directory come from squeue, whose columns cannot be forged (see `delimited`). After the known name
//!   Slurm's own fields follow. Without the name, a record in which the end of the name is uncertain is unclear.
//! - Between the name and `Network=` the last of two equal keys counts: a forged `WCKey` precedes the fields that matter.
//! - A line that looks like a record is ignored inside a known text, and an id that still occurs twice is unclear.

use std::collections::HashMap;

use slurm_types::{
    ExitCode, HostList, JobId, JobState, TimeLimit, Tres, UnixTime, parse_duration_secs,
    parse_mem_mib,
};

use super::cut::{FreeTexts, NAME, follows_name, records};
use super::{gres_gpus, keys::pairs, leading, text};
use crate::record::{ArrayTasks, JobRecord, NodeAlloc, Oddities};
use crate::shape::shape;

pub(crate) const NO_ID: &str = "its job_id is missing or cannot be read";
pub(crate) const NO_NAME: &str = "it has no JobName";
pub(crate) const NO_STATE: &str = "its state (JobState) is missing or cannot be read";
pub(crate) const NO_OWNER: &str = "its owner (UserId) is missing or cannot be read";
pub(crate) const NO_SUBMIT: &str = "its submit time (SubmitTime) is missing or cannot be read";
pub(crate) const DUPLICATE_ID: &str = "its id is duplicate in the answer";

/// The parsed records, and the ids for which the output proves nothing.
#[derive(Debug, Default)]
pub(crate) struct ParsedJobs {
    pub(crate) records: Vec<JobRecord>,
    pub(crate) unclear: Vec<(JobId, Rejected)>,
}

/// Why a record is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    pub(crate) problem: &'static str,
    /// Shape of what was printed, without anything about a person; empty if nothing was.
    pub(crate) example: String,
}

impl Rejected {
    /// By what Slurm printed for the field of the problem.
    pub(crate) fn of(problem: &'static str, printed: &str) -> Self {
        Self {
            problem,
            example: shape(printed),
        }
    }
}

/// A problem without an example.
impl From<&'static str> for Rejected {
    fn from(problem: &'static str) -> Self {
        Self::of(problem, "")
    }
}

/// The first field without which a record is rejected: the problem, and the field's names in text and in JSON.
pub(crate) fn missing(job: &JobRecord) -> Option<(&'static str, [&'static str; 2])> {
    if job.state == JobState::default() {
        return Some((NO_STATE, ["JobState", "job_state"]));
    }
    if job.uid.is_none() {
        return Some((NO_OWNER, ["UserId", "user_id"]));
    }
    let is_missing = job.submit.is_none();
    is_missing.then_some((NO_SUBMIT, ["SubmitTime", "submit_time"]))
}

/// Parses every record of the output.
pub(crate) fn jobs(output: &str, texts: &HashMap<JobId, FreeTexts>) -> ParsedJobs {
    let mut answer = ParsedJobs::default();
    let mut count: HashMap<JobId, u32> = HashMap::new();
    for (id, range) in records(output, texts) {
        let line = output[range].trim_end_matches('\n');
        *count.entry(id).or_default() += 1;
        match job(id, line, texts.get(&id)) {
            Ok(record) => answer.records.push(record),
            Err(problem) => answer.unclear.push((id, problem)),
        }
    }
    reject_duplicates(&mut answer, count);
    answer
}

/// Ids that occur twice are unclear.
pub(crate) fn reject_duplicates(answer: &mut ParsedJobs, count: HashMap<JobId, u32>) {
    answer
        .records
        .retain(|record| record.job_id.is_none_or(|id| count.get(&id) == Some(&1)));
    for (id, _) in count.into_iter().filter(|(_, times)| *times > 1) {
        answer.unclear.retain(|(unclear, _)| *unclear != id);
        answer.unclear.push((id, DUPLICATE_ID.into()));
    }
}

pub(super) fn job(id: JobId, line: &str, texts: Option<&FreeTexts>) -> Result<JobRecord, Rejected> {
    let Parts {
        head,
        name,
        own,
        tail,
    } = parts(line, texts)?;
    let mut job = JobRecord {
        job_id: Some(id),
        name,
        ..JobRecord::default()
    };
    let mut nodes = Allocations::default();
    let mut exclusive_key = false;
    for (key, value) in pairs(head).into_iter().chain(pairs(own)) {
        exclusive_key |= key == "Exclusive";
        if !nodes.take(key, value) {
            field(&mut job, key, value);
        }
    }
    job.node_allocs = nodes.finish();
    if let Some((problem, [name, _])) = missing(&job) {
        let mut printed = pairs(head).into_iter().chain(pairs(own));
        let printed = printed.find(|(key, _)| *key == name);
        return Err(Rejected::of(
            problem,
            printed.map_or("", |(_, value)| value),
        ));
    }
    user_texts(&mut job, tail, texts);
    settle(&mut job, exclusive_key);
    if texts.is_some_and(|texts| texts.uid.is_some() && texts.uid != job.uid) {
        return Err("squeue and scontrol report different owners".into());
    }
    Ok(job)
}

/// A record, divided by who wrote it.
struct Parts<'a> {
    /// Slurm's fields before the name.
    head: &'a str,
    name: String,
    /// Slurm's fields after the name.
    own: &'a str,
    /// Texts of the user.
    tail: &'a str,
}

fn parts<'a>(line: &'a str, texts: Option<&FreeTexts>) -> Result<Parts<'a>, Rejected> {
    let no_name = || Rejected::of(NO_NAME, line);
    let (head, rest) = line.split_once(NAME).ok_or_else(no_name)?;
    let (name, rest) = split_name(rest, texts)?;
    let own_end = rest
        .find(" Network=")
        .or_else(|| rest.find(" Command="))
        .unwrap_or(rest.len());
    let (own, tail) = rest.split_at(own_end);
    Ok(Parts {
        head,
        name,
        own,
        tail,
    })
}

/// The id of each record of the output, and its fields that Slurm wrote itself. None if a record is unclear.
pub(crate) fn own_fields(output: &str) -> Vec<(JobId, Vec<(&str, &str)>)> {
    let fields = |line| {
        let parts = parts(line, None).ok()?;
        Some([pairs(parts.head), pairs(parts.own)].concat())
    };
    let records = records(output, &HashMap::new()).into_iter();
    records
        .map(|(id, range)| (id, fields(&output[range]).unwrap_or_default()))
        .collect()
}

/// The name, and the text after it.
fn split_name<'a>(
    rest: &'a str,
    texts: Option<&FreeTexts>,
) -> Result<(String, &'a str), &'static str> {
    if let Some(texts) = texts
        && let Some(after) = rest.strip_prefix(texts.name.as_str())
        && follows_name(after)
    {
        return Ok((texts.name.clone(), after));
    }
    let mut ends = rest.match_indices(" UserId=").map(|(at, _)| at);
    let (Some(end), None) = (ends.next(), ends.next()) else {
        return Err("the end of its name is ambiguous");
    };
    let before = |key: &str, end: usize| rest[..end].rfind(key).unwrap_or(end);
    let end = before(" SLUID=", before(" HetJobIdSet=", end));
    Ok((rest[..end].to_owned(), &rest[end..]))
}

fn field(job: &mut JobRecord, key: &str, value: &str) {
    match key {
        "ArrayJobId" => job.array_job_id = value.parse().ok(),
        "ArrayTaskId" => job.array_tasks = ArrayTasks::parse(value),
        "ArrayTaskThrottle" => job.array_throttle = leading(value),
        "HetJobId" | "PackJobId" => job.het_job_id = value.parse().ok(),
        "HetJobOffset" | "PackJobOffset" => job.het_job_offset = leading(value),
        "HetJobIdSet" | "PackJobIdSet" => job.het_job_id_set = text(value),
        "SLUID" | "Sluid" => job.sluid = text(value),
        "UserId" => (job.user, job.uid) = name_and_number(value),
        "GroupId" => (job.group, job.gid) = name_and_number(value),
        "Account" => job.account = text(value),
        "Partition" => job.partition = text(value),
        "QOS" => job.qos = text(value),
        "WCKey" => job.wckey = text(value),
        "JobState" => job.state = JobState::parse(value),
        "Reason" => job.reason = value.to_owned(),
        "FailedNode" => job.failed_node = text(value),
        "Priority" => job.priority = leading(value),
        "Nice" => job.nice = value.parse().unwrap_or(0),
        "Restarts" => job.restarts = leading(value).unwrap_or(0),
        "Requeue" => job.requeue = value == "1",
        "BatchFlag" => job.batch = value != "0",
        "SubmitTime" => job.submit = UnixTime::parse(value),
        "EligibleTime" => job.eligible = UnixTime::parse(value),
        "AccrueTime" => job.accrue = UnixTime::parse(value),
        "StartTime" => job.start = UnixTime::parse(value),
        "EndTime" => job.end = UnixTime::parse(value),
        "SuspendTime" => job.suspend_time = UnixTime::parse(value),
        "ResizeTime" => job.resize_time = UnixTime::parse(value),
        "SecsPreSuspend" => job.pre_suspend_secs = leading(value),
        "RunTime" => job.run_secs = parse_duration_secs(value),
        "TimeLimit" => job.time_limit = TimeLimit::parse(value),
        "Deadline" => job.deadline = UnixTime::parse(value),
        "PreemptTime" => job.preempt_time = UnixTime::parse(value),
        "PreemptEligibleTime" => job.preempt_eligible = UnixTime::parse(value),
        "LastSchedEval" => job.last_sched_eval = UnixTime::parse(value),
        "Scheduler" => job.scheduler = text(value),
        "SchedNodeList" => job.sched_nodes = text(value),
        "NodeList" => job.nodes = text(value),
        "NumNodes" => job.node_count = leading(value),
        "BatchHost" => job.batch_host = text(value),
        "NumCPUs" => job.num_cpus = leading(value),
        "NumTasks" => job.num_tasks = leading(value),
        "CPUs/Task" => job.cpus_per_task = leading(value),
        "MinMemoryNode" => job.min_mem_node_mib = parse_mem_mib(value).filter(|mib| *mib > 0),
        "MinMemoryCPU" => job.min_mem_cpu_mib = parse_mem_mib(value).filter(|mib| *mib > 0),
        "TRES" | "ReqTRES" => job.req_tres = tres(key, value, &mut job.oddities),
        "AllocTRES" => job.alloc_tres = tres(key, value, &mut job.oddities),
        "OverSubscribe" => job.oversubscribe = text(value),
        "Exclusive" => job.exclusive = value != "NO",
        "Dependency" => job.dependency = text(value),
        "Reservation" => job.reservation = text(value),
        "Features" => job.features = text(value),
        "Licenses" => job.licenses = text(value),
        "ReqNodeList" => job.req_nodes = text(value),
        "ExcNodeList" => job.exc_nodes = text(value),
        "ExitCode" => job.exit_code = exit_code(key, value, &mut job.oddities),
        "DerivedExitCode" => job.derived_exit_code = exit_code(key, value, &mut job.oddities),
        _ => {}
    }
}

/// The user's texts at the end of the line: from squeue where it has them, else as far as the line is unambiguous. Of Slurm's own fields
/// only the `TresPer…` keys after the last path are read here.
fn user_texts(job: &mut JobRecord, tail: &str, texts: Option<&FreeTexts>) {
    /// Their order in `_sprint_job_info`/`slurm_sprint_job_info`; most of them are left out when empty.
    const KEYS: [&str; 9] = [
        " Command=",
        " SubmitLine=",
        " WorkDir=",
        " AdminComment=",
        " SystemComment=",
        " Comment=",
        " StdErr=",
        " StdIn=",
        " StdOut=",
    ];
    let mut found: Vec<(&str, usize)> = Vec::new();
    let mut end = tail.len();
    // From the end: a text may contain the key of a later one, but the last occurrence is Slurm's own.
    for key in KEYS.into_iter().rev() {
        if let Some(at) = tail[..end].rfind(key) {
            found.push((key, at));
            end = at;
        }
    }
    let mut end = tail.len();
    for (key, at) in found {
        let value = text(&tail[at + key.len()..end]);
        match key {
            " Command=" => job.command = value,
            " WorkDir=" => job.work_dir = value,
            " AdminComment=" => job.admin_comment = value,
            " SystemComment=" => job.system_comment = value,
            " Comment=" => job.comment = value,
            " StdErr=" => job.stderr = value,
            " StdIn=" => job.stdin = value,
            " StdOut=" => {
                let tokens = tail[at..]
                    .split_once(" Power=")
                    .map_or(&tail[at..], |(_, tokens)| tokens);
                job.tres_per = pairs(tokens)
                    .into_iter()
                    .filter(|(key, _)| {
                        key.starts_with("Tres")
                            || key.starts_with("CpusPer")
                            || key.starts_with("MemPer")
                    })
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect();
                job.stdout = text(before_trailing_keys(&value));
            }
            _ => {}
        }
        end = at;
    }
    if let Some(texts) = texts {
        job.comment.clone_from(&texts.comment);
        job.command.clone_from(&texts.command);
        job.work_dir.clone_from(&texts.work_dir);
    }
}

/// `StdOut` is the last text; `Power=`, `TresPerNode=`, `MailUser=` and the like may follow.
fn before_trailing_keys(value: &str) -> &str {
    const NEXT: [&str; 9] = [
        " Power=",
        " CpusPerTres=",
        " MemPerTres=",
        " TresPer",
        " TresBind=",
        " TresFreq=",
        " MailUser=",
        " MailType=",
        " NtasksPerTRES=",
    ];
    let end = NEXT
        .iter()
        .filter_map(|key| value.find(key))
        .min()
        .unwrap_or(value.len());
    value[..end].trim_end()
}

/// Derives values that depend on several fields.
fn settle(job: &mut JobRecord, exclusive_key: bool) {
    if job.was_allocated() {
        if job.alloc_tres.is_empty() {
            // 22.05 to 23.02 print one list, the allocated one once there are nodes.
            job.alloc_tres = std::mem::take(&mut job.req_tres);
        }
    } else {
        job.alloc_tres = Tres::default();
    }
    // On 22.05 and 24.11 `OverSubscribe=NO` is what `--exclusive` prints, and an ordinary job has `OK`. 26.05 has a separate key, and
    // `OverSubscribe=NO` is the ordinary value there.
    if !exclusive_key {
        job.exclusive = job.oversubscribe == "NO";
    }
}

/// The `Nodes= CPU_IDs= Mem= GRES=` groups of `-d`.
#[derive(Default)]
struct Allocations {
    groups: Vec<NodeAlloc>,
    open: bool,
}

impl Allocations {
    /// Takes the pair if it belongs to a group.
    fn take(&mut self, key: &str, value: &str) -> bool {
        match (key, self.groups.last_mut()) {
            ("Nodes", _) => {
                self.groups.push(NodeAlloc {
                    nodes: value.to_owned(),
                    ..NodeAlloc::default()
                });
                self.open = true;
            }
            ("CPU_IDs", Some(group)) if self.open => group.cpus = cpu_count(value),
            ("Mem", Some(group)) if self.open => group.mem_mib = parse_mem_mib(value).unwrap_or(0),
            ("GRES" | "GRES_IDX", Some(group)) if self.open => {
                group.gres = text(value);
                group.gpus = u32::try_from(gres_gpus(value)).unwrap_or(u32::MAX);
                self.open = false;
            }
            _ => return false,
        }
        true
    }

    fn finish(self) -> Vec<NodeAlloc> {
        self.groups
    }
}

/// Number of CPUs in `0-3,6`.
fn cpu_count(ids: &str) -> u32 {
    HostList::expand(&format!("[{ids}]"))
        .map_or(0, |cpus| u32::try_from(cpus.len()).unwrap_or(u32::MAX))
}

fn tres(field: &str, value: &str, oddities: &mut Oddities) -> Tres {
    let (tres, odd) = Tres::parse_lossy(value);
    oddities.note_tres(field, &odd);
    tres
}

fn exit_code(field: &str, value: &str, oddities: &mut Oddities) -> Option<ExitCode> {
    let code = value.parse().ok();
    if code.is_none() {
        oddities.note(field, value);
    }
    code
}

/// `alice(20001)`.
fn name_and_number(value: &str) -> (String, Option<u32>) {
    match value.rsplit_once('(') {
        Some((name, number)) => (text(name), leading(number)),
        None => (text(value), None),
    }
}
