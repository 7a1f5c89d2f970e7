//! The rows of a sweep.
//!
//! No column belongs to a user, so a line is a row and a control character separates the columns. The reason comes last: it may be
//! a free text of a plugin.

use std::collections::HashSet;
use std::sync::Arc;

use slurm_types::{JobId, JobRef, JobState, UnixTime};

use super::{leading, text};
use crate::record::{ArrayTasks, SweepRow};

/// squeue's format: id, printed id, array, tasks, state, submit, start, end, priority, partition, user, uid, account, QOS, nodes, node count,
/// CPUs, limit, reason. Separated by ASCII unit separators.
pub(crate) const FORMAT: &str = "%A\x1f%i\x1f%F\x1f%K\x1f%T\x1f%V\x1f%S\x1f%e\x1f%Q\x1f%P\x1f%u\x1f%U\x1f%a\x1f%q\x1f%N\x1f%D\x1f%C\x1f%l\x1f%r";
const COLUMNS: usize = 19;

/// The rows, and how many lines were none.
pub(crate) fn sweep(output: &str) -> (Vec<SweepRow>, usize) {
    let mut rows = Rows::default();
    rows.read(output);
    (rows.rows, rows.unread)
}

/// Rows as they are read, some lines at a time.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<SweepRow>,
    /// Lines that were none.
    pub(crate) unread: usize,
    words: StringInterner,
}

impl Rows {
    /// Reads some lines.
    pub(crate) fn read(&mut self, lines: &str) {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            match row(line, &mut self.words) {
                Some(row) => self.rows.push(row),
                None => self.unread += 1,
            }
        }
    }
}

/// Texts that many rows have in common: each is there once.
#[derive(Debug, Default)]
pub(crate) struct StringInterner(HashSet<Arc<str>>);

impl StringInterner {
    /// The text, as it is there already if it is.
    pub(crate) fn of(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let word: Arc<str> = text.into();
        self.0.insert(Arc::clone(&word));
        word
    }
}

fn row(line: &str, words: &mut StringInterner) -> Option<SweepRow> {
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
    Some(SweepRow {
        job_id,
        // squeue prints the job's own id as the array's for a job that belongs to none.
        array_job_id: array_tasks.as_ref().and(array.trim().parse().ok()),
        array_tasks,
        het_job_id,
        het_job_offset,
        state,
        submit: UnixTime::parse(submit),
        start,
        end,
        priority,
        partition: words.of(&text(partition)),
        user: words.of(&text(user)),
        uid: leading(uid),
        account: words.of(&text(account)),
        qos: words.of(&text(qos)),
        nodes: words.of(&nodes),
        node_count: leading(node_count),
        cpus: leading(cpus),
        time_limit: words.of(&text(limit)),
        reason: words.of(reason),
        digest,
    })
}

/// Fills in the digest of a row that did not come from squeue, from what squeue would print.
pub(crate) fn sweep_row(row: SweepRow) -> SweepRow {
    let display = match (row.het_job_id, row.het_job_offset, &row.array_tasks) {
        (Some(leader), Some(offset), _) => format!("{leader}+{offset}"),
        (_, _, Some(ArrayTasks::Task(task))) => format!("{}_{task}", id_of(row.array_job_id)),
        (_, _, Some(ArrayTasks::Remainder(tasks))) => {
            format!("{}_[{tasks}]", id_of(row.array_job_id))
        }
        _ => row.job_id.to_string(),
    };
    let tasks = match &row.array_tasks {
        Some(ArrayTasks::Task(task)) => task.to_string(),
        Some(ArrayTasks::Remainder(tasks)) => tasks.clone(),
        None => "N/A".to_owned(),
    };
    let columns = [
        row.job_id.to_string(),
        display,
        id_of(row.array_job_id.or(Some(row.job_id))),
        tasks,
        row.submit.map_or_else(String::new, |time| time.to_string()),
        row.partition.to_string(),
        row.uid.map_or_else(String::new, |uid| uid.to_string()),
        row.account.to_string(),
        row.qos.to_string(),
        row.nodes.to_string(),
        row.time_limit.to_string(),
        row.reason.to_string(),
    ];
    let digest = digest(&columns, &row.state, row.priority, [row.start, row.end]);
    SweepRow { digest, ..row }
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

/// FNV-1a, 64 bit: small, and the same for ever (the standard library's hasher may change between releases).
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
        let (rows, unread) = sweep(&format!("{PENDING}\n"));
        assert_eq!(unread, 0);
        let row = &rows[0];
        assert_eq!(row.array_job_id.map(|id| id.get()), Some(2));
        assert_eq!(
            row.array_tasks
                .as_ref()
                .and_then(ArrayTasks::set)
                .map(|set| set.len()),
            Some(2)
        );
        assert_eq!((row.start, row.uid), (None, Some(20_001)));
    }

    #[test]
    fn only_what_matters_changes_the_digest() {
        let digest = |line: &str| sweep(line).0[0].digest;
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
        let (rows, unread) = sweep(&format!(
            "{PENDING}\nnoise\n{PENDING}, and a\nsecond line\n"
        ));
        assert_eq!((rows.len(), unread), (2, 2));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400), fields in proptest::collection::vec(".*", 19)) {
            let _ = sweep(&String::from_utf8_lossy(&bytes));
            let _ = sweep(&fields.join("\x1f"));
        }
    }
}
