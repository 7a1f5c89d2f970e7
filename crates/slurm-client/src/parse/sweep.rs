//! The rows of a sweep.
//!
//! No column belongs to a user, so a line is a row and a control character separates the columns. The reason comes last: it may be
//! a free text of a plugin.

use slurm_types::{JobRef, JobState, UnixTime};

use super::{leading, text};
use crate::record::{ArrayTasks, SweepRow};

/// squeue's format: id, printed id, array, tasks, state, submit, start, end, priority, partition, user, uid, account, QOS, nodes, node count,
/// CPUs, limit, reason. Separated by ASCII unit separators.
pub(crate) const FORMAT: &str = "%A\x1f%i\x1f%F\x1f%K\x1f%T\x1f%V\x1f%S\x1f%e\x1f%Q\x1f%P\x1f%u\x1f%U\x1f%a\x1f%q\x1f%N\x1f%D\x1f%C\x1f%l\x1f%r";
const COLUMNS: usize = 19;

/// The rows, and how many lines were none.
pub(crate) fn sweep(output: &str) -> (Vec<SweepRow>, usize) {
    let mut unread = 0;
    let rows = output
        .lines()
        .filter(|line| !line.is_empty())
        .filter_map(|line| {
            let parsed = row(line);
            unread += usize::from(parsed.is_none());
            parsed
        })
        .collect();
    (rows, unread)
}

fn row(line: &str) -> Option<SweepRow> {
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
    let digest = {
        // The times of a job without nodes are backfill's plan.
        let times = [start, end].map(|time| {
            time.filter(|_| !nodes.is_empty())
                .map_or(0, UnixTime::as_secs)
        });
        let held = if priority == Some(0) { "held" } else { "" };
        let mut digest = Fnv::default();
        for column in [
            id, printed, array, tasks, submit, partition, uid, account, qos, &nodes, limit, reason,
            held,
        ] {
            digest.add(column);
        }
        digest.add(&state.to_string());
        for time in times {
            digest.add(&time.to_string());
        }
        digest.0
    };
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
        partition: text(partition),
        user: text(user),
        uid: leading(uid),
        account: text(account),
        qos: text(qos),
        nodes,
        node_count: leading(node_count),
        cpus: leading(cpus),
        time_limit: text(limit),
        reason: reason.to_owned(),
        digest,
    })
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
