//! Output of squeue (running jobs), `scontrol show reservation` and `licenses`, `sprio` and `sdiag`.
//!
//! None of the columns belongs to a user. Seen alike on 22.05, 24.11 and 26.05.

use slurm_types::{Tres, UnixTime};

use super::{keys::pairs, leading, list, text};
use crate::drift::Unread;
use crate::record::{BackfillStats, LicenseRecord, PriorityRow, ReservationRecord, RunningRow};

/// squeue's columns of a running job, each ended by a unit separator, which also keeps squeue from cutting them to 20 characters.
pub(crate) const RUNNING_FORMAT: &str = "JobID:\x1f,JobArrayID:\x1f,UserName:\x1f,Account:\x1f,QOS:\x1f,Partition:\x1f,State:\x1f,StartTime:\x1f,EndTime:\x1f,tres-alloc:\x1f,NodeList:\x1f,Licenses:\x1f,Reservation:\x1f";
const RUNNING_COLUMNS: usize = 13;

/// sprio's columns: id, and the weighted factors of [`FACTORS`].
pub(crate) const PRIORITY_FORMAT: &str = "%i\x1f%A\x1f%F\x1f%J\x1f%P\x1f%Q\x1f%B\x1f%S\x1f%N\x1f%T";
const FACTORS: [&str; 8] = [
    "age",
    "fairshare",
    "job_size",
    "partition",
    "qos",
    "assoc",
    "site",
    "nice",
];

/// The running jobs, and the lines that could not be parsed.
pub(crate) fn running(output: &str) -> (Vec<RunningRow>, Unread) {
    rows(output, running_row)
}

/// The priorities of pending jobs. A job in several partitions has several lines: the first one counts.
pub(crate) fn priorities(output: &str) -> (Vec<PriorityRow>, Unread) {
    let (mut rows, unread) = rows(output, priority_row);
    rows.sort_by_key(|row| row.job_id);
    rows.dedup_by_key(|row| row.job_id);
    (rows, unread)
}

/// The reservations. `No reservations in the system` is an empty list.
pub(crate) fn reservations(output: &str) -> (Vec<ReservationRecord>, Unread) {
    rows(without_notice(output, "No reservations"), reservation)
}

/// The licenses. `No licenses configured in Slurm.` is an empty list.
pub(crate) fn licenses(output: &str) -> (Vec<LicenseRecord>, Unread) {
    rows(without_notice(output, "No licenses"), license)
}

fn without_notice<'a>(output: &'a str, notice: &str) -> &'a str {
    if output.starts_with(notice) {
        ""
    } else {
        output
    }
}

fn rows<T>(output: &str, read: impl Fn(&str) -> Option<T>) -> (Vec<T>, Unread) {
    let (mut rows, mut unread) = (Vec::new(), Unread::default());
    for line in output.lines().filter(|line| !line.trim().is_empty()) {
        match read(line) {
            Some(row) => rows.push(row),
            None => unread.note(line),
        }
    }
    (rows, unread)
}

fn running_row(line: &str) -> Option<RunningRow> {
    let columns: Vec<&str> = line.split('\x1f').collect();
    let (columns, rest) = columns.split_at_checked(RUNNING_COLUMNS)?;
    if rest.iter().any(|rest| !rest.is_empty()) {
        return None;
    }
    let column = |number: usize| text(columns[number]);
    Some(RunningRow {
        job_id: columns[0].trim().parse().ok()?,
        display_id: column(1),
        user: column(2),
        account: column(3),
        qos: column(4),
        partition: column(5),
        state: column(6),
        start: UnixTime::parse(columns[7]),
        end: UnixTime::parse(columns[8]),
        tres: Tres::parse_lossy(&column(9)).0,
        nodes: column(10),
        licenses: column(11),
        reservation: column(12),
    })
}

fn priority_row(line: &str) -> Option<PriorityRow> {
    let mut columns = line.split('\x1f');
    // An array's remainder is printed with its tasks by some versions: `5_[1-3]`.
    let job_id = leading(columns.next()?)?;
    let points = |value: &str| value.trim().parse::<i64>().unwrap_or(0);
    let factors = FACTORS.into_iter().zip(columns.map(points));
    Some(PriorityRow {
        job_id,
        factors: factors.filter(|(_, points)| *points != 0).collect(),
    })
}

fn reservation(line: &str) -> Option<ReservationRecord> {
    let mut record = ReservationRecord::default();
    for (key, value) in pairs(line) {
        match key {
            "ReservationName" => record.name = text(value),
            "StartTime" => record.start = UnixTime::parse(value),
            "EndTime" => record.end = UnixTime::parse(value),
            "Nodes" => record.nodes = text(value),
            "Flags" => record.flags = list(value),
            "Users" => record.users = list(value),
            "Accounts" => record.accounts = list(value),
            "Licenses" => record.licenses = text(value),
            "State" => record.state = text(value),
            _ => {}
        }
    }
    (!record.name.is_empty()).then_some(record)
}

fn license(line: &str) -> Option<LicenseRecord> {
    let mut record = LicenseRecord::default();
    for (key, value) in pairs(line) {
        match key {
            "LicenseName" => record.name = text(value),
            "Total" => record.total = leading(value)?,
            "Used" => record.used = leading(value)?,
            "Reserved" => record.reserved = leading(value).unwrap_or(0),
            _ => {}
        }
    }
    (!record.name.is_empty()).then_some(record)
}

/// Backfill's last cycle. `None` if the output has no part about backfill.
pub(crate) fn backfill(output: &str) -> Option<BackfillStats> {
    let (_, part) = output.split_once("Backfilling stats")?;
    let value = |name: &str| {
        let line = part.lines().map(str::trim);
        line.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .next()
    };
    // `Wed Nov 25 19:32:26 2026 (1795635146)`, or `N/A` before the first cycle.
    let last_cycle = value("Last cycle when")
        .and_then(|text| text.rsplit_once('(')?.1.strip_suffix(')'))
        .and_then(UnixTime::parse);
    Some(BackfillStats {
        last_cycle,
        last_depth: value("Last depth cycle").and_then(leading).unwrap_or(0),
        queue_length: value("Last queue length").and_then(leading).unwrap_or(0),
    })
}
