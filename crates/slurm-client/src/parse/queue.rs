//! The rows of a queue listing.
//!
//! No column belongs to a user, so each line is a row and a control character separates the columns. The reason is last: it may be a
//! plugin's free text.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use slurm_types::{JobBaseState, JobId, JobRef, JobState, UnixTime};

use super::{leading, text};
use crate::drift::Unread;
use crate::record::{ArrayTasks, CountedJob, JobCounts, JobRecord, QueueRow};

/// squeue's format: id, printed id, array, tasks, state, submit, start, end, priority, partition, user, uid, account, QOS, nodes, node
/// count, CPUs, limit, reason. Separated by ASCII unit separators.
pub(crate) const FORMAT: &str = "%A\x1f%i\x1f%F\x1f%K\x1f%T\x1f%V\x1f%S\x1f%e\x1f%Q\x1f%P\x1f%u\x1f%U\x1f%a\x1f%q\x1f%N\x1f%D\x1f%C\x1f%l\x1f%r";
const COLUMNS: usize = 19;

/// The rows, and the lines that could not be parsed.
pub(crate) fn queue(output: &str) -> (Vec<QueueRow>, Unread) {
    let mut rows = Rows::default();
    rows.read(output);
    (rows.rows, rows.unread)
}

/// The columns of a row as squeue printed them, by name; `None` if the line is not a row.
pub(crate) fn queue_columns(line: &str) -> Option<BTreeMap<&'static str, &str>> {
    const NAMES: [&str; COLUMNS] = [
        "job_id",
        "printed_id",
        "array_job_id",
        "array_tasks",
        "state",
        "submit",
        "start",
        "end",
        "priority",
        "partition",
        "user",
        "uid",
        "account",
        "qos",
        "nodes",
        "node_count",
        "cpus",
        "time_limit",
        "reason",
    ];
    row(
        line,
        &mut StringInterner::default(),
        &mut JobCounts::default(),
    )?;
    Some(
        NAMES
            .into_iter()
            .zip(line.splitn(COLUMNS, '\x1f'))
            .collect(),
    )
}

/// Rows parsed so far, some lines at a time.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<QueueRow>,
    pub(crate) counts: JobCounts,
    /// Lines that could not be parsed.
    pub(crate) unread: Unread,
    strings: StringInterner,
}

impl Rows {
    /// Parses some lines.
    pub(crate) fn read(&mut self, lines: &str) {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            match row(line, &mut self.strings, &mut self.counts) {
                Some(row) => self.rows.push(row),
                None => self.unread.note(line),
            }
        }
    }
}

/// Shares equal texts of many rows.
#[derive(Debug, Default)]
pub(crate) struct StringInterner(HashSet<Arc<str>>);

impl StringInterner {
    /// The shared copy of a text.
    pub(crate) fn of(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let string: Arc<str> = text.into();
        self.0.insert(Arc::clone(&string));
        string
    }
}

fn row(line: &str, strings: &mut StringInterner, counts: &mut JobCounts) -> Option<QueueRow> {
    let columns: Vec<&str> = line.splitn(COLUMNS, '\x1f').collect();
    let [
        id,
        printed,
        array,
        tasks,
        state,
        submit,
        start,
        end,
        priority,
        partition,
        user,
        uid,
        account,
        qos,
        nodes,
        node_count,
        cpus,
        limit,
        reason,
    ] = columns[..]
    else {
        return None;
    };
    let job_id = id.trim().parse().ok()?;
    let array_tasks = ArrayTasks::parse(tasks);
    let (het_job_id, het_job_offset) = match printed.parse() {
        Ok(JobRef::HetComponent { leader, offset }) => (Some(leader), Some(offset)),
        _ => (None, None),
    };
    let state = JobState::parse(state);
    let (start, end) = (UnixTime::parse(start), UnixTime::parse(end));
    let priority = leading(priority);
    let nodes = text(nodes);
    let columns = [
        id, printed, array, tasks, submit, partition, uid, account, qos, &nodes, limit, reason,
    ];
    let digest = digest(&columns, &state, priority, [start, end]);
    let submit = UnixTime::parse(submit);
    let (partition, user) = (text(partition), text(user));
    let counted = CountedJob {
        cell: [
            &partition,
            &text(account),
            &user,
            &text(qos),
            &state.to_string(),
        ],
        reason,
        is_pending: state.is(JobBaseState::Pending),
        array_tasks: array_tasks.as_ref(),
        cpus: leading(cpus).unwrap_or_default(),
        nodes: leading(node_count).unwrap_or_default(),
        submit,
    };
    counts.add(&counted, |text| strings.of(text));
    Some(QueueRow {
        job_id,
        // squeue prints the job's own id as the array's for a job without an array.
        array_job_id: array_tasks.as_ref().and(array.trim().parse().ok()),
        array_tasks: array_tasks.map(Box::new),
        het_job_id,
        het_job_offset,
        state: state.base,
        submit,
        start,
        priority,
        partition: strings.of(&partition),
        user: strings.of(&user),
        has_nodes: !nodes.is_empty(),
        reason: strings.of(reason),
        digest,
    })
}

/// The row of a job's record, with the same digest as squeue's row. `limit` is the time limit as squeue prints it.
pub(crate) fn row_of_record(
    job: &JobRecord,
    limit: &str,
    strings: &mut StringInterner,
) -> Option<QueueRow> {
    let job_id = job.job_id?;
    let display = match (job.het_job_id, job.het_job_offset, &job.array_tasks) {
        (Some(leader), Some(offset), _) => format!("{leader}+{offset}"),
        (_, _, Some(ArrayTasks::Task(task))) => format!("{}_{task}", id_of(job.array_job_id)),
        (_, _, Some(ArrayTasks::Remainder(tasks))) => {
            format!("{}_[{tasks}]", id_of(job.array_job_id))
        }
        _ => job_id.to_string(),
    };
    let tasks = match &job.array_tasks {
        Some(ArrayTasks::Task(task)) => task.to_string(),
        Some(ArrayTasks::Remainder(tasks)) => tasks.clone(),
        None => "N/A".to_owned(),
    };
    // squeue prints a description with its spaces.
    let reason = job.reason.replace('_', " ");
    let columns = [
        &job_id.to_string(),
        &display,
        &id_of(job.array_job_id.or(Some(job_id))),
        &tasks,
        &job.submit.map_or_else(String::new, |time| time.to_string()),
        &job.partition,
        &job.uid.map_or_else(String::new, |uid| uid.to_string()),
        &job.account,
        &job.qos,
        &job.nodes,
        limit,
        &reason,
    ];
    let digest = digest(&columns, &job.state, job.priority, [job.start, job.end]);
    Some(QueueRow {
        job_id,
        array_job_id: job.array_job_id,
        array_tasks: job.array_tasks.clone().map(Box::new),
        het_job_id: job.het_job_id,
        het_job_offset: job.het_job_offset,
        state: job.state.base,
        submit: job.submit,
        start: job.start,
        priority: job.priority,
        partition: strings.of(&job.partition),
        user: strings.of(&job.user),
        has_nodes: !job.nodes.is_empty(),
        reason: strings.of(&reason),
        digest,
    })
}

/// Counts a job's record as squeue's row is counted.
pub(crate) fn count_record(job: &JobRecord, strings: &mut StringInterner, counts: &mut JobCounts) {
    let counted = CountedJob {
        cell: [
            &job.partition,
            &job.account,
            &job.user,
            &job.qos,
            &job.state.to_string(),
        ],
        reason: &job.reason,
        is_pending: job.state.is(JobBaseState::Pending),
        array_tasks: job.array_tasks.as_ref(),
        cpus: job.num_cpus.unwrap_or_default(),
        nodes: job.node_count.unwrap_or_default(),
        submit: job.submit,
    };
    counts.add(&counted, |text| strings.of(text));
}

fn id_of(id: Option<JobId>) -> String {
    id.map_or_else(String::new, |id| id.to_string())
}

fn digest(
    columns: &[impl AsRef<str>],
    state: &JobState,
    priority: Option<u32>,
    times: [Option<UnixTime>; 2],
) -> u64 {
    let mut digest = Fnv::default();
    let held = if priority == Some(0) { "held" } else { "" };
    for column in columns {
        digest.add(column.as_ref());
    }
    digest.add(held);
    digest.add(&state.to_string());
    // The times of a job without nodes are backfill's plan.
    let has_nodes = columns
        .get(9)
        .is_some_and(|nodes| !nodes.as_ref().is_empty());
    for time in times {
        let secs = time.filter(|_| has_nodes).map_or(0, UnixTime::as_secs);
        digest.add(&secs.to_string());
    }
    digest.0
}

/// FNV-1a, 64 bit: small and stable (the standard library's hasher may change between releases).
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, column: &str) {
        for byte in column.bytes().chain([0x1f]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PENDING: &str = "2\x1f2_[1,3%2]\x1f2\x1f1,3%2\x1fPENDING\x1f1795305073\x1fN/A\x1fN/A\x1f1010\x1fcpu\x1falice\x1f20001\x1fphysics\x1fnormal\x1f\x1f1\x1f1\x1f10:00\x1fPriority";

    #[test]
    fn an_array_remainder_is_read() {
        let (rows, unread) = queue(&format!("{PENDING}\n"));
        assert_eq!(unread.count, 0);
        let row = &rows[0];
        assert_eq!(row.array_job_id.map(|id| id.get()), Some(2));
        assert_eq!(
            row.array_tasks
                .as_deref()
                .and_then(ArrayTasks::set)
                .map(|set| set.len()),
            Some(2)
        );
        assert_eq!((row.start, row.has_nodes), (None, false));
    }

    #[test]
    fn only_relevant_fields_change_the_digest() {
        let digest = |line: &str| queue(line).0[0].digest;
        let before = digest(PENDING);
        assert_eq!(
            before,
            digest(&PENDING.replace("1010", "1011")),
            "priority ages"
        );
        assert_eq!(
            before,
            digest(&PENDING.replace("N/A\x1fN/A", "1795305999\x1f1795306999")),
            "backfill plans"
        );
        assert_ne!(before, digest(&PENDING.replace("1010", "0")), "held");
        assert_ne!(before, digest(&PENDING.replace("Priority", "JobHeldUser")));
        assert_ne!(before, digest(&PENDING.replace("PENDING", "CANCELLED")));
        assert_eq!(
            before, 5_672_443_226_435_859_487,
            "the digest is stored and must never change"
        );
    }

    #[test]
    fn lines_that_are_no_rows_are_counted() {
        let (rows, unread) = queue(&format!(
            "{PENDING}\nnoise\n{PENDING}, and a\nsecond line\n"
        ));
        assert_eq!((rows.len(), unread.count), (2, 2));
        assert_eq!(unread.first, "noise");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400), fields in proptest::collection::vec(".*", 19)) {
            let _ = queue(&String::from_utf8_lossy(&bytes));
            let _ = queue(&fields.join("\x1f"));
        }
    }
}
