//! Folds accounting's rows into runs.
//!
//! A resize ends a row with state `RESIZING` and opens another one whose submit and start are the time of the resize (job_mgr.c, and `sacct
//! -D` on 22.05): several rows, one run. The run keeps its first submit time. If slurmdbd lost the end of the first row (seen on 22.05 with
//! slurmdbd under load or killed), that row has no end time, and may have a finished state.

use std::collections::BTreeSet;

use slurm_client::AccountingRecord;
use slurm_types::JobFlag;

use super::observation::{AllocationPart, Observation};

/// Returns the jobs with a stand-in row. slurmdbd does not know enough of them yet, so none of their rows count, and they are looked up
/// again.
pub fn provisional(rows: &[AccountingRecord]) -> BTreeSet<u32> {
    let rows = rows.iter().filter(|row| row.provisional);
    rows.filter_map(|row| Some(row.job_id?.get())).collect()
}

/// Splits rows that are sorted by job into batches of `at_once` rows, or a few more so that no job is split.
pub fn parts_of_jobs(
    mut rows: &[AccountingRecord],
    at_once: usize,
) -> impl Iterator<Item = &[AccountingRecord]> {
    std::iter::from_fn(move || {
        let last = rows.iter().take(at_once.max(1)).next_back()?.job_id;
        let (part, rest) = rows.split_at(rows.partition_point(|row| row.job_id <= last));
        rows = rest;
        Some(part)
    })
}

/// Returns the runs of these rows (`sacct -D`), oldest run first per job. Stand-in rows are left out.
pub fn fold(cluster: &str, rows: &[AccountingRecord]) -> Vec<Observation> {
    let rows: Vec<&AccountingRecord> = rows.iter().collect();
    let runs = fold_parts(cluster, &rows);
    runs.into_iter()
        .map(|(observation, _)| observation)
        .collect()
}

/// Like [`fold`], with the positions of each run's rows.
pub(super) fn fold_parts(
    cluster: &str,
    rows: &[&AccountingRecord],
) -> Vec<(Observation, Vec<usize>)> {
    let mut ordered: Vec<usize> = (0..rows.len())
        .filter(|at| !rows[*at].provisional)
        .collect();
    ordered.sort_by_key(|at| (rows[*at].job_id, rows[*at].submit, rows[*at].db_index));
    let mut runs: Vec<(Observation, Vec<usize>)> = Vec::new();
    for at in ordered {
        let row = rows[at];
        let Some(mut observation) = Observation::from_accounting(cluster, row) else {
            continue;
        };
        let last = runs.last_mut();
        let part_of = last.filter(|(_, parts)| {
            let before = parts.last().and_then(|at| rows.get(*at));
            before.is_some_and(|before| continues(before, row))
        });
        if let Some((run, parts)) = part_of {
            let resized_at = observation.run.submit_time;
            // The end of the part before was lost.
            if run.resizes.last() != Some(&resized_at) {
                end_part(run, resized_at);
            }
            observation.run = run.run.clone();
            observation.job.run = observation.run.entity_key();
            observation.job.submit_time = run.job.submit_time;
            observation.job.start_time = run.job.start_time;
            observation.start = run.start;
            observation.resizes = std::mem::take(&mut run.resizes);
            observation.parts = std::mem::take(&mut run.parts);
            observation
                .parts
                .push(AllocationPart::of(&observation.job, resized_at));
            *run = observation;
            parts.push(at);
        } else {
            runs.push((observation, vec![at]));
        }
        let resized = row.end.filter(|_| row.state.has(JobFlag::Resizing));
        if let (Some(at), Some((run, _))) = (resized, runs.last_mut()) {
            end_part(run, at.as_secs());
        }
    }
    runs
}

/// Whether a row is the next part of a run whose newest row is `before`.
fn continues(before: &AccountingRecord, row: &AccountingRecord) -> bool {
    if before.job_id != row.job_id {
        return false;
    }
    if before.state.has(JobFlag::Resizing) {
        return before.end.is_some() && before.end == row.submit;
    }
    // slurmdbd lost the end of the first part. The row of a resize starts when it was submitted. No run of a requeued job does: slurmctld
    // delays it. A reused id would need another job that still runs in accounting.
    before.end.is_none()
        && before.start.is_some_and(|start| Some(start) < row.submit)
        && row.start == row.submit
        && (&before.user, &before.account, &before.name) == (&row.user, &row.account, &row.name)
}

/// Ends the last part of a run with a resize.
fn end_part(run: &mut Observation, at: i64) {
    if run.parts.is_empty() {
        let started = run.start.unwrap_or_default();
        run.parts.push(AllocationPart::of(&run.job, started));
    }
    run.resizes.push(at);
    // The run continues: `RESIZING` implies a running job.
    run.end = None;
}

#[cfg(test)]
mod tests {
    use slurm_types::JobId;

    use super::*;

    #[test]
    fn parts_hold_every_row_once_and_jobs_whole() {
        let rows = |ids: &[u32]| -> Vec<AccountingRecord> {
            let row = |id: &u32| AccountingRecord {
                job_id: JobId::new(*id),
                ..AccountingRecord::default()
            };
            ids.iter().map(row).collect()
        };
        let rows = rows(&[1, 2, 2, 2, 3, 4, 4]);
        for (at_once, lengths) in [
            (0, vec![1, 3, 1, 2]),
            (1, vec![1, 3, 1, 2]),
            (2, vec![4, 3]),
            (5, vec![5, 2]),
            (6, vec![7]),
            (100, vec![7]),
        ] {
            let parts: Vec<_> = parts_of_jobs(&rows, at_once).collect();
            let found: Vec<usize> = parts.iter().map(|part| part.len()).collect();
            assert_eq!((at_once, found), (at_once, lengths));
            assert_eq!(parts.concat(), rows);
        }
        assert_eq!(parts_of_jobs(&[], 3).count(), 0);
    }
}
