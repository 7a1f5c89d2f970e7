//! Usage of a run, from accounting's records of it and of its steps.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::job::v1::{TresUsage, Usage};
use slurm_client::{AccountingRecord, StepUsage, UsageRecord};

use super::batch_step_end::BatchStepEnd;
use super::observation::Observation;
use super::rows::fold_parts;

/// A run in accounting. If it has ended, its payload contains the usage.
#[derive(Clone, Debug)]
pub struct RunUsage {
    /// The run.
    pub observation: Observation,
    /// Whether every step has reported. Usage may grow until then.
    pub complete: bool,
}

/// Returns the runs of these records with their usage, oldest run first per job. Stand-in rows are left out.
pub fn usages(cluster: &str, records: &[UsageRecord]) -> Vec<RunUsage> {
    let rows: Vec<&AccountingRecord> = records.iter().map(|record| &record.record).collect();
    let settled = |(mut observation, parts): (Observation, Vec<usize>)| {
        let parts: Vec<&UsageRecord> = parts.iter().map(|part| &records[*part]).collect();
        let steps: Vec<&StepUsage> = parts.iter().flat_map(|part| &part.steps).collect();
        let last = parts.last();
        observation.own_end = last.and_then(|last| BatchStepEnd::of(&last.record, &last.steps));
        // A step that has not reported yet has no resources. A step too short to be sampled has at least the sum `energy=0` (22.05).
        let reported = |step: &&StepUsage| !(step.max.is_empty() && step.total.is_empty());
        let complete = !steps.is_empty() && steps.iter().all(|step| step.ended && reported(step));
        if observation.end_kind().is_some() {
            observation.job.usage = Some(Usage {
                incomplete: !complete,
                ..usage(&parts, &steps)
            });
        }
        RunUsage {
            observation,
            complete,
        }
    };
    fold_parts(cluster, &rows)
        .into_iter()
        .map(settled)
        .collect()
}

/// Sums the usage of the parts of one run. A resize splits a run into consecutive parts.
fn usage(parts: &[&UsageRecord], steps: &[&StepUsage]) -> Usage {
    let sum = |of: fn(&UsageRecord) -> Option<u64>| -> u64 {
        parts.iter().filter_map(|part| of(part)).sum()
    };
    let cpu_millis = sum(|part| part.cpu_millis);
    let allocated_cpu_seconds: u64 = parts
        .iter()
        .map(|part| elapsed(part).saturating_mul(part.record.alloc_tres.cpus()))
        .sum();
    let largest = steps
        .iter()
        .filter(|step| step.max_rss_bytes.is_some_and(|bytes| bytes > 0))
        .max_by_key(|step| step.max_rss_bytes);
    let memory = steps
        .iter()
        .map(|step| memory(step))
        .max()
        .unwrap_or_default();
    let allocated_memory = parts
        .iter()
        .filter_map(|part| part.record.alloc_tres.mem_mib())
        .max()
        .unwrap_or_default()
        .saturating_mul(1 << 20);
    let energy = sum(|part| part.energy_joules);
    Usage {
        cpu_seconds: cpu_millis / 1_000,
        user_cpu_seconds: sum(|part| part.user_cpu_millis) / 1_000,
        system_cpu_seconds: sum(|part| part.system_cpu_millis) / 1_000,
        max_rss_kib: largest
            .and_then(|step| step.max_rss_bytes)
            .unwrap_or_default()
            / 1_024,
        max_rss_step: largest.map(|step| step.id.clone()).unwrap_or_default(),
        max_rss_node: largest
            .map(|step| step.max_rss_node.clone())
            .unwrap_or_default(),
        max_rss_task: largest.and_then(|step| step.max_rss_task),
        memory_kib: memory / 1_024,
        energy_joules: (energy > 0).then_some(energy),
        cpu_efficiency_permille: permille(cpu_millis, allocated_cpu_seconds.saturating_mul(1_000)),
        memory_efficiency_permille: permille(memory, allocated_memory).filter(|_| memory > 0),
        elapsed_seconds: parts.iter().map(|part| elapsed(part)).sum(),
        steps: u32::try_from(steps.len()).unwrap_or(u32::MAX),
        tres: tres(steps),
        incomplete: false,
    }
}

/// Returns the seconds of one part. After a resize, accounting of 22.05 counts from the start of the whole run, while "submit" is the
/// resize. For a finished run that was requeued, it counts up to the requeue.
fn elapsed(part: &UsageRecord) -> u64 {
    let record = &part.record;
    let counted_before = match (record.start, record.submit) {
        (Some(start), Some(submit)) => submit.as_secs().saturating_sub(start.as_secs()),
        _ => 0,
    };
    let requeued = record.end.map(slurm_types::UnixTime::as_secs);
    let own_end = BatchStepEnd::of(record, &part.steps);
    let counted_after = own_end.map_or(0, |own| own.seconds_before(requeued));
    let elapsed = record.elapsed_secs.unwrap_or_default();
    elapsed
        .saturating_sub(u64::try_from(counted_before).unwrap_or_default())
        .saturating_sub(counted_after)
}

/// Returns the peak memory of a step in bytes. Slurm sums the peaks of its tasks; without that sum, the largest task is multiplied by their
/// number.
fn memory(step: &StepUsage) -> u64 {
    let tasks = u64::from(step.tasks.unwrap_or(1).max(1));
    let estimate = step.max_rss_bytes.unwrap_or_default().saturating_mul(tasks);
    step.total.get("mem").copied().unwrap_or(estimate)
}

/// Returns the maximum per task and per step for each resource. Resources without any usage, or without measurement, are left out.
fn tres(steps: &[&StepUsage]) -> Vec<TresUsage> {
    let mut used: BTreeMap<&str, TresUsage> = BTreeMap::new();
    for step in steps {
        for (name, amount) in &step.max {
            let entry = used.entry(name).or_default();
            entry.max = entry.max.max(*amount);
        }
        for (name, amount) in &step.total {
            let entry = used.entry(name).or_default();
            entry.total = entry.total.max(*amount);
        }
    }
    used.into_iter()
        .filter(|(_, used)| used.max > 0 || used.total > 0)
        .map(|(name, used)| TresUsage {
            name: name.to_owned(),
            ..used
        })
        .collect()
}

fn permille(part: u64, whole: u64) -> Option<u32> {
    let permille = u128::from(part) * 1_000 / u128::from(whole).max(1);
    (whole > 0).then(|| u32::try_from(permille).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use slurm_client::{AccountingRecord, TresUsage};
    use slurm_types::{JobId, JobState, UnixTime};

    use super::*;

    fn step(id: &str, rss: u64, tasks: u32) -> StepUsage {
        let used =
            |amount: u64| TresUsage::from([("mem".to_owned(), amount), ("energy".to_owned(), 0)]);
        StepUsage {
            id: id.to_owned(),
            ended: true,
            end: None,
            state: None,
            tasks: Some(tasks),
            max_rss_bytes: Some(rss),
            max_rss_node: "n1".to_owned(),
            max_rss_task: Some(tasks - 1),
            max: used(rss),
            total: used(rss * u64::from(tasks)),
        }
    }

    fn part(state: &str, submit: i64, end: i64, tres: &str, steps: Vec<StepUsage>) -> UsageRecord {
        let time = |secs| Some(UnixTime::from_secs(secs));
        let start = submit.max(110);
        UsageRecord {
            record: AccountingRecord {
                job_id: JobId::new(9),
                state: JobState::parse(state),
                submit: time(submit),
                start: time(start),
                end: time(end),
                elapsed_secs: u64::try_from(end - start).ok(),
                nodes: "n1".to_owned(),
                alloc_tres: tres.parse().unwrap(),
                ..AccountingRecord::default()
            },
            cpu_millis: Some(5_500),
            steps,
            ..UsageRecord::default()
        }
    }

    /// Returns the usage of the only run, of which every step has reported.
    fn complete(records: &[UsageRecord]) -> Usage {
        let settled = usages("c", records);
        match &settled[..] {
            [only] if only.complete => only.observation.job.usage.clone().unwrap(),
            _ => panic!("{settled:?}"),
        }
    }

    #[test]
    fn the_peak_is_the_largest_step_and_efficiency_relates_to_the_allocation() {
        let steps = vec![step("batch", 10 << 20, 1), step("0", 60 << 20, 2)];
        let record = part("COMPLETED", 100, 120, "cpu=2,mem=480M,node=1", steps);
        let usage = complete(&[record]);
        assert_eq!(
            (usage.cpu_seconds, usage.elapsed_seconds, usage.steps),
            (5, 10, 2)
        );
        assert_eq!((usage.max_rss_kib, usage.memory_kib), (60 << 10, 120 << 10));
        assert_eq!(
            (usage.max_rss_step.as_str(), usage.max_rss_task),
            ("0", Some(1))
        );
        assert_eq!(usage.cpu_efficiency_permille, Some(275));
        assert_eq!(usage.memory_efficiency_permille, Some(250));
        // Nothing measures energy here.
        assert_eq!((usage.tres.len(), usage.energy_joules), (1, None));
    }

    #[test]
    fn the_parts_of_a_resized_run_are_one() {
        let before = part(
            "RESIZING",
            100,
            120,
            "cpu=4",
            vec![step("batch", 1 << 20, 1)],
        );
        let mut after = part("COMPLETED", 120, 130, "cpu=1", vec![step("1", 2 << 20, 1)]);
        // As 22.05 has it: from the start of the run.
        after.record.start = before.record.start;
        after.record.elapsed_secs = Some(20);
        let usage = complete(&[before, after]);
        assert_eq!((usage.cpu_seconds, usage.elapsed_seconds), (11, 20));
        assert_eq!(usage.cpu_efficiency_permille, Some(220));
        assert_eq!(
            (
                usage.max_rss_step.as_str(),
                usage.memory_efficiency_permille
            ),
            ("1", None)
        );
    }

    #[test]
    fn a_step_that_has_not_reported_makes_it_incomplete() {
        let silent = StepUsage {
            id: "0".to_owned(),
            ended: true,
            ..StepUsage::default()
        };
        let open = StepUsage {
            ended: false,
            ..step("0", 1, 1)
        };
        for steps in [vec![], vec![step("batch", 1, 1), silent], vec![open]] {
            let settled = usages("c", &[part("FAILED", 100, 120, "cpu=1", steps)]);
            let usage = settled[0].observation.job.usage.clone().unwrap();
            assert!(!settled[0].complete && usage.incomplete);
        }
        let lives = part("RUNNING", 100, 0, "cpu=1", vec![step("batch", 1, 1)]);
        assert_eq!(usages("c", &[lives])[0].observation.job.usage, None);
    }

    #[test]
    fn a_step_too_short_to_be_sampled_has_reported() {
        let short = StepUsage {
            max: TresUsage::new(),
            total: TresUsage::from([("energy".to_owned(), 0)]),
            ..step("batch", 0, 1)
        };
        let settled = usages("c", &[part("FAILED", 100, 120, "cpu=1", vec![short])]);
        assert!(settled[0].complete);
    }

    #[test]
    fn nothing_overflows() {
        let max = part(
            "FAILED",
            100,
            i64::MAX,
            "cpu=9999999999",
            vec![step("0", u64::MAX >> 1, 1)],
        );
        let usage = usages("c", &[max])[0]
            .observation
            .job
            .usage
            .clone()
            .unwrap();
        assert_eq!(usage.cpu_efficiency_permille, Some(0));
    }
}
