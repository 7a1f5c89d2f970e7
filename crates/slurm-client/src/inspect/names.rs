//! Detects the command that printed a table from its column names.
//!
//! The names are those of every format of squeue, sinfo and `sacct -e` on 22.05.8, and the additional ones of the captures of 24.11 and
//! 26.05. A name may be truncated to the width of its column. A table with any other name is refused: it is of another command or an
//! unknown version.

/// A command whose tables the collectors know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// `sacct`
    Sacct,
    /// `squeue`
    Squeue,
    /// `sinfo`
    Sinfo,
}

impl Command {
    /// Its name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Sacct => "sacct",
            Self::Squeue => "squeue",
            Self::Sinfo => "sinfo",
        }
    }

    fn knows(self, name: &str) -> bool {
        match self {
            // No collector shows step values and newer columns, but their form identifies sacct.
            Self::Sacct => name.chars().all(|c| c.is_ascii_alphanumeric()),
            Self::Squeue => knows(SQUEUE, name),
            Self::Sinfo => knows(SINFO, name),
        }
    }
}

/// The command of a table with these names; `None` if they are not column names.
pub(super) fn command(names: &[String]) -> Option<Result<Command, (Command, String)>> {
    let has = |known: &[&str]| names.iter().any(|name| known.contains(&name.as_str()));
    let command = if has(&["JobID", "JobIDRaw"]) {
        Command::Sacct
    } else if has(&["JOBID"]) {
        Command::Squeue
    } else if has(&["NODELIST", "HOSTNAMES", "PARTITION"]) {
        Command::Sinfo
    } else {
        return None;
    };
    let found = command.as_str();
    for (at, name) in names.iter().enumerate() {
        if !name.is_empty() && !command.knows(name) {
            let problem = format!(
                "unknown column {name:?} for {found}: this is a table of another command or a newer version"
            );
            return Some(Err((command, problem)));
        }
        if !name.is_empty() && names[..at].contains(name) {
            let problem = format!("column {name:?} is duplicate; request it once");
            return Some(Err((command, problem)));
        }
    }
    Some(Ok(command))
}

/// The whole name of a column of squeue, whose header may be truncated to its width. The name itself if it is not known.
pub(super) fn of_squeue(name: &str) -> &str {
    let whole = SQUEUE.iter().find(|one| **one == name);
    let cut = || SQUEUE.iter().find(|one| is_cut(one, name));
    whole.or_else(cut).copied().unwrap_or(name)
}

/// True if the name is known, or a known name begins with it where the column was too narrow.
fn knows(known: &[&str], name: &str) -> bool {
    let mut known = known.iter();
    known.any(|one| *one == name || is_cut(one, name))
}

fn is_cut(whole: &str, name: &str) -> bool {
    const SHORTEST_CUT: usize = 3;
    name.len() >= SHORTEST_CUT && whole.starts_with(name)
}

#[rustfmt::skip]
const SQUEUE: &[&str] = &[
    "ACCOUNT", "ACCRUE_TIME", "ACTIVE_SIBLINGS", "ACTIVE_SIBLINGS_RAW", "ADMIN_COMMENT", "ALLOC_NODES", "ALLOC_SID",
    "ARRAY_JOB_ID", "ARRAY_TASK_ID", "ASSOC_ID", "BATCH_FLAG", "BOARDS_PER_NODE", "BURST_BUFFER", "BURST_BUFFER_STATE",
    "CLUSTER", "CLUSTER_FEATURES", "COMMAND", "COMMENT", "CONTAINER", "CONTAINER_ID", "CONTIGUOUS", "CORES_PER_SOCKET",
    "CORE_SPEC", "CPUS", "CPUS_PER_TASK", "CPUS_PER_TRES", "DEADLINE", "DELAY_BOOT", "DEPENDENCY", "DERIVED_EC",
    "ELIGIBLE_TIME", "END_TIME", "EXC_NODES", "EXEC_HOST", "EXIT_CODE", "FEATURES", "GROUP", "HET_JOB_ID",
    "HET_JOB_ID_SET", "HET_JOB_OFFSET", "JOBID", "LAST_SCHED_EVAL", "LICENSES", "LICENSES_ALLOC", "MAX_CPUS", "MAX_NODES",
    "MCSLABEL", "MEM_PER_TRES", "MIN_CPUS", "MIN_MEMORY", "MIN_TMP_DISK", "NAME", "NETWORK", "NICE", "NODELIST",
    "NODELIST(REASON)", "NODES", "NTASKS_PER_BOARD", "NTASKS_PER_CORE", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET", "ORIGIN",
    "ORIGIN_RAW", "OVER_SUBSCRIBE", "PARTITION", "PENDING_TIME", "PREEMPT_TIME", "PREFER", "PRIORITY", "PROFILE", "QOS",
    "REASON", "REBOOT", "REQUEUE", "REQ_NODES", "REQ_SWITCH", "RESERVATION", "RESIZE_TIME", "RESTART_COUNT", "S:C:T",
    "SCHEDNODES", "SOCKETS_PER_BOARD", "SOCKETS_PER_NODE", "ST", "START_TIME", "STATE", "STDERR", "STDIN", "STDOUT",
    "SUBMIT_TIME", "SYSTEM_COMMENT", "TASKS", "THREADS_PER_CORE", "TIME", "TIME_LEFT", "TIME_LIMIT", "TIME_MIN",
    "TRES_ALLOC", "TRES_BIND", "TRES_FREQ", "TRES_PER_JOB", "TRES_PER_NODE", "TRES_PER_SOCKET", "TRES_PER_TASK", "UID",
    "USER", "VIABLE_SIBLINGS", "VIALBLE_SIBLINGS_RAW", "WAIT4SWITCH", "WCKEY", "WORK_DIR",
];

#[rustfmt::skip]
const SINFO: &[&str] = &[
    "ACTIVE_FEATURES", "ALLOCMEM", "ALLOCNODES", "AVAIL", "AVAIL_FEATURES", "CLUSTER", "COMMENT", "CORES", "CPUS",
    "CPUS(A/I/O/T)", "CPU_LOAD", "DEFAULTTIME", "EXTRA", "FREE_MEM", "GRES", "GRES_USED", "GROUPS", "HOSTNAMES",
    "JOB_SIZE", "MAX_CPUS_PER_NODE", "MEMORY", "NODELIST", "NODES", "NODES(A/I)", "NODES(A/I/O/T)", "NODE_ADDR",
    "OVERSUBSCRIBE", "PARTITION", "PORT", "PREEMPT_MODE", "PRIO_JOB_FACTOR", "PRIO_TIER", "REASON", "ROOT", "S:C:T",
    "SOCKETS", "STATE", "STATECOMPLETE", "THREADS", "TIMELIMIT", "TIMESTAMP", "TMP_DISK", "USER", "VERSION", "WEIGHT",
];
