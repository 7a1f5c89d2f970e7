//! Selects what to read in full after a poll.

use std::collections::{BTreeSet, HashMap};

use mesh_events::RunKey;
use slurm_client::{ArrayTasks, JobLookup, QueueListing, QueueRow};
use slurm_types::{JobBaseState, JobId, Reason, ReasonClass};

use crate::collector::MAX_CLOCK_SKEW_SECS;
use crate::domain::{Observation, RunStore};

/// Digest that no row has, so that the record is read again.
const NO_DIGEST: u64 = 0;

/// Jobs whose full records are to be read, in the order in which they are applied.
pub(super) struct ChangedJobs {
    pub(super) order: Vec<JobId>,
    /// Their rows, by Slurm's job id and submit time.
    rows: Vec<ChangedRow>,
}

/// The part of a row with which its record is compared.
struct ChangedRow {
    raw_id: u32,
    submit_time: i64,
    digest: u64,
    held: bool,
    class: ReasonClass,
}

impl ChangedRow {
    fn of(row: &QueueRow) -> Option<Self> {
        Some(Self {
            raw_id: row.job_id.get(),
            submit_time: row.submit?.as_secs(),
            digest: row.digest,
            held: row.state == Some(JobBaseState::Pending) && row.priority == Some(0),
            class: Reason::lookup(&row.reason).class(),
        })
    }

    const fn key(&self) -> (u32, i64) {
        (self.raw_id, self.submit_time)
    }
}

impl ChangedJobs {
    fn of(mut rows: Vec<&QueueRow>) -> Self {
        // An array before its tasks, a lower id before a higher one.
        rows.sort_by_key(|row| {
            let task = row.array_tasks.as_deref().and_then(ArrayTasks::task);
            (row.submit, row.array_job_id.unwrap_or(row.job_id), task)
        });
        let mut changed: Vec<_> = rows.iter().filter_map(|row| ChangedRow::of(row)).collect();
        changed.sort_unstable_by_key(ChangedRow::key);
        Self {
            order: rows.into_iter().map(|row| row.job_id).collect(),
            rows: changed,
        }
    }

    /// Returns the digest of the row of a record that was read after it. A job that was released or held in between may have the row's state
    /// again at the next poll. Its row is unchanged then, and must be read all the same.
    pub(super) fn digest(&self, observation: &Observation) -> Option<u64> {
        let key = (observation.raw_id, observation.run.submit_time);
        let at = self.rows.binary_search_by_key(&key, ChangedRow::key).ok()?;
        let row = &self.rows[at];
        let agrees = !observation.waiting()
            || (row.held, row.class) == (observation.held, observation.class);
        Some(if agrees { row.digest } else { NO_DIGEST })
    }
}

/// Returns jobs whose rows have changed, or that must be read even if their rows have not.
pub(super) fn changed(run_store: &RunStore, listing: &QueueListing) -> ChangedJobs {
    let unchanged = |row: &QueueRow| {
        let Some(submit) = row.submit.map(slurm_types::UnixTime::as_secs) else {
            return false;
        };
        let mut known = false;
        for (_, tracked) in run_store.submitted_as(row.job_id.get(), submit) {
            if tracked.unsettled(listing.started_at.as_secs()) {
                return false;
            }
            known |= tracked.digest == row.digest;
        }
        known
    };
    let rows = listing.rows.iter();
    ChangedJobs::of(rows.filter(|row| !unchanged(row)).collect())
}

/// Returns live jobs that the answer lacks.
pub(super) fn missing(
    run_store: &RunStore,
    listing: &QueueListing,
    rows: &BTreeSet<u32>,
) -> BTreeSet<JobId> {
    // A job submitted after the poll began may be missing. A submit time in the far future dates from before the clock was set back.
    let (began, future) = (
        listing.started_at.as_secs(),
        listing
            .started_at
            .as_secs()
            .saturating_add(MAX_CLOCK_SKEW_SECS),
    );
    let alive = run_store.iter().filter(|(run, tracked)| {
        !tracked.over()
            && !tracked.is_array
            && (run.submit_time < began || run.submit_time > future)
            && !rows.contains(&tracked.raw_id)
    });
    alive
        .filter_map(|(_, tracked)| JobId::new(tracked.raw_id))
        .collect()
}

/// Returns the rows of these jobs, by Slurm's job id and submit time.
pub(super) fn shown(jobs: &BTreeSet<u32>, listing: &QueueListing) -> BTreeSet<(u32, i64)> {
    let rows = listing.rows.iter();
    rows.filter(|row| jobs.contains(&row.job_id.get()))
        .filter_map(|row| Some((row.job_id.get(), row.submit?.as_secs())))
        .collect()
}

/// Returns the arrays without a row.
pub(super) fn absent(arrays: &[OpenArray]) -> BTreeSet<JobId> {
    let absent = arrays
        .iter()
        .filter(|array| array.record == ArrayRecord::Absent);
    absent
        .filter_map(|array| JobId::new(array.run.job_id))
        .collect()
}

/// The order of missing jobs: Slurm is asked about a few of them at each poll, so that unanswered ones do not block the others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rotation {
    /// The last job that was asked about.
    last: u32,
}

impl Rotation {
    /// Returns the jobs in order: those after the last one, and then from the smallest one.
    pub(super) fn order(self, ids: &BTreeSet<JobId>) -> Vec<JobId> {
        let (before, after): (Vec<JobId>, Vec<JobId>) =
            ids.iter().partition(|id| id.get() <= self.last);
        after.into_iter().chain(before).collect()
    }

    /// Returns the next jobs.
    pub(super) fn next(&mut self, ids: &BTreeSet<JobId>, limit: usize) -> Vec<JobId> {
        let mut order = self.order(ids);
        order.truncate(limit);
        self.last = order.last().map_or(self.last, |id| id.get());
        order
    }

    /// Records an answer about jobs in this order: the first of them were read by id, and none of the unread ones was for certain.
    pub(super) fn were_read(&mut self, order: &[JobId], unread: &BTreeSet<JobId>) {
        let read = order.iter().take_while(|id| !unread.contains(id));
        // One at least, which may stay unclear.
        let last = read.last().or(order.first());
        self.last = last.map_or(self.last, |id| id.get());
    }
}

/// Puts some of the jobs whose wait is over first, so that they are read by id before their absence is concluded. They are spread over all of
/// these jobs: an answer that was cut lacks neighbours.
pub(super) fn due_first(order: &[JobId], due: &BTreeSet<JobId>) -> Vec<JobId> {
    let step = due.len().div_ceil(JobLookup::MAX_SINGLE).max(1);
    let first: BTreeSet<JobId> = due.iter().copied().step_by(step).collect();
    let others = order.iter().copied().filter(|id| !first.contains(id));
    first.iter().copied().chain(others).collect()
}

/// An array with departed tasks.
pub(super) struct OpenArray {
    pub(super) run: RunKey,
    pub(super) record: ArrayRecord,
}

/// What a poll shows of an array's own record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ArrayRecord {
    /// The record exists.
    There,
    /// The last task has it: Slurm gives that task the array's id.
    Purged,
    /// No row has the array's id, which proves nothing.
    Absent,
}

/// Returns arrays with departed tasks.
pub(super) fn arrays(run_store: &RunStore, listing: &QueueListing) -> Vec<OpenArray> {
    let open: Vec<RunKey> = run_store
        .iter()
        .filter(|(_, tracked)| {
            // Tasks that left the array before its cancellation are resolved afterwards, too.
            tracked.is_array
                && (tracked.rare.left.is_some()
                    || !tracked.over() && tracked.rare.remaining.is_some())
        })
        .map(|(run, _)| run)
        .collect();
    if open.is_empty() {
        return Vec::new();
    }
    let mut records: HashMap<(u32, i64), ArrayRecord> = HashMap::new();
    for row in &listing.rows {
        let (true, Some(submit)) = (row.array_job_id == Some(row.job_id), row.submit) else {
            continue;
        };
        let record = if row.has_nodes {
            ArrayRecord::Purged
        } else {
            ArrayRecord::There
        };
        records.insert((row.job_id.get(), submit.as_secs()), record);
    }
    let record = |run: &RunKey| {
        let records = records.get(&(run.job_id, run.submit_time));
        records.copied().unwrap_or(ArrayRecord::Absent)
    };
    let left = |run: &RunKey| {
        run_store
            .get(run)
            .is_some_and(|tracked| tracked.rare.left.is_some())
    };
    let open = open.into_iter().map(|run| OpenArray {
        record: record(&run),
        run,
    });
    open.filter(|open| open.record != ArrayRecord::There || left(&open.run))
        .collect()
}

#[cfg(test)]
mod tests {
    use slurm_client::JobRecord;
    use slurm_types::{JobState, UnixTime};

    use super::*;
    use crate::domain::RunState;

    /// A row of squeue, and the record that scontrol prints for such a row.
    fn row_and_record(priority: u32, reason: &str) -> (QueueRow, Observation) {
        let (job_id, submit) = (JobId::new(7), Some(UnixTime::from_secs(100)));
        let row = QueueRow {
            job_id: job_id.unwrap(),
            array_job_id: None,
            array_tasks: None,
            het_job_id: None,
            het_job_offset: None,
            state: Some(JobBaseState::Pending),
            submit,
            start: None,
            priority: Some(priority),
            partition: "p".into(),
            user: "alice".into(),
            has_nodes: false,
            reason: reason.into(),
            digest: 10 + u64::from(priority),
        };
        let record = JobRecord {
            job_id,
            submit,
            state: JobState::parse("PENDING"),
            priority: Some(priority),
            reason: reason.to_owned(),
            ..JobRecord::default()
        };
        (row, Observation::from_controller("c", &record).unwrap())
    }

    fn listing(row: &QueueRow) -> QueueListing {
        QueueListing {
            started_at: UnixTime::from_secs(200),
            rows: vec![row.clone()],
            counts: slurm_client::JobCounts::default(),
            unread_lines: 0,
        }
    }

    #[test]
    fn a_row_is_read_again_if_its_record_was_of_another_hold_or_reason() {
        let held = || row_and_record(0, "JobHeldUser");
        let released = || row_and_record(1, "Priority");
        let depends = || row_and_record(1, "Dependency");
        let next = || row_and_record(1, "Resources");
        let read_again = |(row, _): (QueueRow, Observation),
                          (_, record): (QueueRow, Observation)| {
            let mut run_store = RunStore::default();
            let listing = listing(&row);
            let read = changed(&run_store, &listing);
            assert_eq!(read.order, [row.job_id]);
            let state = RunState {
                digest: read.digest(&record).unwrap(),
                ..RunState::new(&record)
            };
            run_store.put(record.run, state);
            !changed(&run_store, &listing).order.is_empty()
        };
        assert!(!read_again(held(), held()));
        assert!(!read_again(released(), released()));
        // Released between the poll and the read, and held again before the next poll.
        assert!(read_again(held(), released()));
        assert!(read_again(released(), held()));
        assert!(read_again(released(), depends()));
        // Both are the same class.
        assert!(!read_again(released(), next()));
    }

    #[test]
    fn every_missing_job_is_asked_about() {
        let ids: BTreeSet<JobId> = (1..=2_500).filter_map(JobId::new).collect();
        let (mut of_accounting, mut by_id) = (Rotation::default(), Rotation::default());
        let (mut asked, mut read) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..3 {
            asked.extend(of_accounting.next(&ids, 1_000));
        }
        assert_eq!(asked, ids);
        // The client reads 16 of them by id.
        for _ in 0..157 {
            let order = by_id.order(&ids);
            assert_eq!(order.len(), ids.len());
            read.extend(order[..16].iter().copied());
            by_id.were_read(&order, &order[16..].iter().copied().collect());
        }
        assert_eq!(read, ids);
    }

    #[test]
    fn records_that_stay_unclear_keep_no_other_job_from_being_read() {
        let ids: BTreeSet<JobId> = (1..=100).filter_map(JobId::new).collect();
        let unclear: BTreeSet<JobId> = (1..=40).filter_map(JobId::new).collect();
        let (mut by_id, mut read) = (Rotation::default(), BTreeSet::new());
        for _ in 0..60 {
            let order = by_id.order(&ids);
            read.extend(order[..16].iter().copied());
            let unlisted = order[16..].iter().copied();
            by_id.were_read(&order, &unlisted.chain(unclear.iter().copied()).collect());
        }
        assert_eq!(read, ids);
    }

    #[test]
    fn arrays_without_a_row_are_absent() {
        let of = |job_id, record| OpenArray {
            run: RunKey {
                cluster: "c".to_owned(),
                job_id,
                task_id: None,
                submit_time: 100,
                attempt: 0,
            },
            record,
        };
        let arrays = [
            of(1, ArrayRecord::Absent),
            of(2, ArrayRecord::There),
            of(3, ArrayRecord::Purged),
            of(4, ArrayRecord::Absent),
        ];
        let expected = [1, 4].into_iter().filter_map(JobId::new).collect();
        assert_eq!(absent(&arrays), expected);
    }

    #[test]
    fn jobs_whose_wait_is_over_are_read_by_id_first_and_spread() {
        let ids = |ids: &mut dyn Iterator<Item = u32>| -> BTreeSet<JobId> {
            ids.filter_map(JobId::new).collect()
        };
        let order: Vec<JobId> = ids(&mut (1..=100)).into_iter().collect();
        assert_eq!(due_first(&order, &BTreeSet::new()), order);
        let few = due_first(&order, &ids(&mut [70, 90].into_iter()));
        assert_eq!(few[..3], [order[69], order[89], order[0]]);
        let many = due_first(&order, &ids(&mut (21..=100)));
        let first: Vec<u32> = many[..17].iter().map(|id| id.get()).collect();
        let spread = (0..16).map(|n| 21 + 5 * n).chain([1]);
        assert_eq!(first, spread.collect::<Vec<_>>());
        assert_eq!(many.iter().collect::<BTreeSet<_>>().len(), 100);
    }
}
