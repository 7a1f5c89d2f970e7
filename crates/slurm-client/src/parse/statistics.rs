//! Output of `sdiag` and `sshare`. Seen alike on 22.05, 24.11 and 26.05, apart from lines that newer ones add.

use slurm_types::UnixTime;

use super::{leading, text};
use crate::drift::Unread;
use crate::record::{CallStats, SchedulerStats, ShareRecord};

/// sshare's columns.
pub(crate) const SHARE_FORMAT: &str =
    "Account,User,RawShares,NormShares,RawUsage,NormUsage,FairShare,LevelFS";

/// Figure by the heading of its part and its label. Lines of the first part have no heading.
const LINES: [(&str, &str, &str); 50] = [
    ("", "sdiag output at", "req_time"),
    ("", "Data since", "req_time_start"),
    ("", "Server thread count", "server_thread_count"),
    ("", "Agent queue size", "agent_queue_size"),
    ("", "Agent count", "agent_count"),
    ("", "Agent thread count", "agent_thread_count"),
    ("", "DBD Agent queue size", "dbd_agent_queue_size"),
    ("", "Jobs submitted", "jobs_submitted"),
    ("", "Jobs started", "jobs_started"),
    ("", "Jobs completed", "jobs_completed"),
    ("", "Jobs canceled", "jobs_canceled"),
    ("", "Jobs failed", "jobs_failed"),
    ("", "Job states ts", "job_states_ts"),
    ("", "Jobs pending", "jobs_pending"),
    ("", "Jobs running", "jobs_running"),
    (MAIN, "Last cycle", "schedule_cycle_last"),
    (MAIN, "Max cycle", "schedule_cycle_max"),
    (MAIN, "Total cycles", "schedule_cycle_total"),
    (MAIN, "Mean cycle", "schedule_cycle_mean"),
    (MAIN, "Mean depth cycle", "schedule_cycle_mean_depth"),
    (MAIN, "Cycles per minute", "schedule_cycle_per_minute"),
    (MAIN, "Last queue length", "schedule_queue_length"),
    (MAIN_EXIT, "End of job queue", "schedule_exit.end_job_queue"),
    (
        MAIN_EXIT,
        "Hit default_queue_depth",
        "schedule_exit.default_queue_depth",
    ),
    (
        MAIN_EXIT,
        "Hit sched_max_job_start",
        "schedule_exit.max_job_start",
    ),
    (MAIN_EXIT, "Blocked on licenses", "schedule_exit.licenses"),
    (MAIN_EXIT, "Hit max_rpc_cnt", "schedule_exit.max_rpc_cnt"),
    (
        MAIN_EXIT,
        "Timeout (max_sched_time)",
        "schedule_exit.max_sched_time",
    ),
    (
        BACKFILL,
        "Total backfilled jobs (since last slurm start)",
        "bf_backfilled_jobs",
    ),
    (
        BACKFILL,
        "Total backfilled jobs (since last stats cycle start)",
        "bf_last_backfilled_jobs",
    ),
    (
        BACKFILL,
        "Total backfilled heterogeneous job components",
        "bf_backfilled_het_jobs",
    ),
    (BACKFILL, "Total cycles", "bf_cycle_counter"),
    (BACKFILL, "Last cycle when", "bf_when_last_cycle"),
    (BACKFILL, "Last cycle", "bf_cycle_last"),
    (BACKFILL, "Max cycle", "bf_cycle_max"),
    (BACKFILL, "Mean cycle", "bf_cycle_mean"),
    (BACKFILL, "Last depth cycle", "bf_last_depth"),
    (
        BACKFILL,
        "Last depth cycle (try sched)",
        "bf_last_depth_try",
    ),
    (BACKFILL, "Depth Mean", "bf_depth_mean"),
    (BACKFILL, "Depth Mean (try depth)", "bf_depth_mean_try"),
    (BACKFILL, "Last queue length", "bf_queue_len"),
    (BACKFILL, "Queue length mean", "bf_queue_len_mean"),
    (BACKFILL, "Last table size", "bf_table_size"),
    (BACKFILL, "Mean table size", "bf_table_size_mean"),
    (BACKFILL_EXIT, "End of job queue", "bf_exit.end_job_queue"),
    (
        BACKFILL_EXIT,
        "Hit bf_max_job_start",
        "bf_exit.bf_max_job_start",
    ),
    (
        BACKFILL_EXIT,
        "Hit bf_max_job_test",
        "bf_exit.bf_max_job_test",
    ),
    (
        BACKFILL_EXIT,
        "System state changed",
        "bf_exit.state_changed",
    ),
    (
        BACKFILL_EXIT,
        "Hit table size limit (bf_node_space_size)",
        "bf_exit.bf_node_space_size",
    ),
    (
        BACKFILL_EXIT,
        "Timeout (bf_max_time)",
        "bf_exit.bf_max_time",
    ),
];

const MAIN: &str = "Main schedule statistics";
const MAIN_EXIT: &str = "Main scheduler exit";
const BACKFILL: &str = "Backfilling stats";
const BACKFILL_EXIT: &str = "Backfill exit";
const LATENCY: &str = "Latency for";
const BY_TYPE: &str = "Remote Procedure Call statistics by message type";
const BY_USER: &str = "Remote Procedure Call statistics by user";
const PENDING: &str = "Pending RPC";

/// sdiag's statistics. `None` if it has nothing about the scheduler.
pub(crate) fn statistics(output: &str) -> Option<SchedulerStats> {
    let mut stats = SchedulerStats::default();
    let mut part = "";
    for line in output.lines().filter(|line| !line.trim().is_empty()) {
        if let Some(latency) = line.strip_prefix(LATENCY) {
            let micros = latency
                .rsplit_once(':')
                .and_then(|(_, value)| leading(value));
            stats
                .figures
                .extend(micros.map(|micros| ("gettimeofday_latency", micros)));
            continue;
        }
        if let Some(heading) = heading(line) {
            part = heading;
            continue;
        }
        match part {
            BY_TYPE => stats.calls_by_type.extend(calls(line)),
            BY_USER => stats.calls_by_user.extend(calls(line)),
            part => stats.figures.extend(figure(part, line)),
        }
    }
    stats
        .figures
        .contains_key("schedule_cycle_total")
        .then_some(stats)
}

fn heading(line: &str) -> Option<&'static str> {
    [
        MAIN,
        MAIN_EXIT,
        BACKFILL_EXIT,
        BACKFILL,
        BY_TYPE,
        BY_USER,
        PENDING,
    ]
    .into_iter()
    .find(|heading| line.starts_with(heading))
}

/// `Last cycle:   141`, or a time as `Wed Nov 25 19:32:56 2026 (1795635176)`; `Data since` has no colon of its own.
fn figure(part: &str, line: &str) -> Option<(&'static str, i64)> {
    let line = line.trim();
    let (_, _, name) = LINES.iter().find(|(of, label, _)| {
        *of == part
            && line.strip_prefix(label).is_some_and(|rest| {
                rest.starts_with(':') || (part.is_empty() && rest.starts_with(' '))
            })
    })?;
    let at = line
        .rsplit_once('(')
        .and_then(|(_, time)| time.strip_suffix(')'))
        .and_then(UnixTime::parse);
    let value = match at {
        Some(at) => at.as_secs(),
        None => match line.rsplit_once(':')?.1.trim() {
            // There was no cycle yet (22.05 to 26.05). slurmctld's own page has 0 then.
            "N/A" => 0,
            number => leading(number)?,
        },
    };
    Some((name, value))
}

/// `REQUEST_PING   ( 1008) count:1   ave_time:4141   total_time:4141`
fn calls(line: &str) -> Option<CallStats> {
    let value = |key: &str| leading(line.rsplit_once(key)?.1);
    Some(CallStats {
        name: text(line.split_once('(')?.0),
        count: value(" count:")?,
        average_micros: value("ave_time:")?,
        total_micros: value("total_time:")?,
    })
}

/// The shares, and the lines that could not be parsed.
pub(crate) fn shares(output: &str) -> (Vec<ShareRecord>, Unread) {
    let (mut records, mut unread) = (Vec::new(), Unread::default());
    for line in output.lines().filter(|line| !line.trim().is_empty()) {
        match share(line) {
            Some(record) => records.push(record),
            None => unread.note(line),
        }
    }
    (records, unread)
}

/// The depth of an account is shown by spaces before its name. `parent` in place of shares means that they are inherited.
fn share(line: &str) -> Option<ShareRecord> {
    let columns: Vec<&str> = line.split('|').collect();
    let [
        account,
        user,
        raw_shares,
        norm_shares,
        raw_usage,
        norm_usage,
        fairshare,
        level,
    ] = columns[..]
    else {
        return None;
    };
    let factor = |value: &str| {
        value
            .trim()
            .parse()
            .ok()
            .filter(|value: &f64| value.is_finite())
    };
    let record = ShareRecord {
        account: text(account),
        user: text(user),
        raw_shares: leading(raw_shares).unwrap_or(0),
        norm_shares: factor(norm_shares).unwrap_or_default(),
        raw_usage: leading(raw_usage)?,
        norm_usage: factor(norm_usage).unwrap_or_default(),
        fairshare: factor(fairshare),
        level_fairshare: factor(level),
    };
    (!record.account.is_empty()).then_some(record)
}
