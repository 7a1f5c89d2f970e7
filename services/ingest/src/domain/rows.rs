//! Folds accounting's rows into runs.
//!
//! A resize ends a row with state `RESIZING` and opens another one whose submit and start are the time of the resize (job_mgr.c, and `sacct
//! -D` on 22.05): several rows, one run. The run keeps its first submit time.

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
    let mut open_resize: Option<(u32, i64)> = None;
    for at in ordered {
        let row = rows[at];
        let Some(mut observation) = Observation::from_accounting(cluster, row) else {
            continue;
        };
        let resized = row.state.has(JobFlag::Resizing) && row.end.is_some();
        let continues_row = open_resize == Some((observation.raw_id, observation.run.submit_time));
        if continues_row && let Some((run, parts)) = runs.last_mut() {
            observation.run = run.run.clone();
            observation.job.run = observation.run.entity_key();
            observation.job.submit_time = run.job.submit_time;
            observation.job.start_time = run.job.start_time;
            observation.start = run.start;
            observation.resizes = std::mem::take(&mut run.resizes);
            observation.parts = std::mem::take(&mut run.parts);
            let resized_at = observation.resizes.last().copied().unwrap_or_default();
            observation
                .parts
                .push(AllocationPart::of(&observation.job, resized_at));
            *run = observation;
            parts.push(at);
        } else {
            runs.push((observation, vec![at]));
        }
        open_resize = None;
        if resized && let (Some((run, _)), Some(end)) = (runs.last_mut(), row.end) {
            let at = end.as_secs();
            if run.parts.is_empty() {
                let started = run.start.unwrap_or_default();
                run.parts.push(AllocationPart::of(&run.job, started));
            }
            open_resize = Some((run.raw_id, at));
            run.resizes.push(at);
            // The run continues: `RESIZING` implies a running job.
            run.end = None;
        }
    }
    runs
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
