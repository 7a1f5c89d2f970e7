//! Counters and histograms as stored: a value per metric and label values.

use std::collections::BTreeMap;

/// Separates label values in the stored form. Slurm's names contain no control characters.
const SEPARATOR: char = '\x1f';

/// Bounds of the histograms of waits and run times in seconds.
pub const BOUNDS: [i64; 16] = [
    1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800,
];

/// Jobs and runs that were submitted, by partition and account.
pub const SUBMITTED: &str = "jobs_submitted";
/// Runs that started, by partition and account.
pub const STARTED: &str = "jobs_started";
/// Runs that ended, by partition, account and end.
pub const ENDS: &str = "job_ends";
/// CPU seconds, by partition, account and kind.
pub const CPU_SECONDS: &str = "job_cpu_seconds";
/// Memory times time in KiB seconds, by partition, account and kind.
pub const MEMORY_KIB_SECONDS: &str = "job_memory_kib_seconds";
/// GPU seconds, by partition, account and kind.
pub const GPU_SECONDS: &str = "job_gpu_seconds";
/// Costs in millionths of the currency unit, by account and currency.
pub const COST_MICROS: &str = "cost_micros";
/// Events of nodes, by event.
pub const NODE_EVENTS: &str = "node_events";
/// Runs that were preempted, by partition.
pub const PREEMPTIONS: &str = "preemptions";
/// Waits, by partition and QOS: number per bucket.
pub const WAIT_BUCKETS: &str = "job_wait_buckets";
/// Sum of the waits in seconds, by partition and QOS.
pub const WAIT_SUM: &str = "job_wait_sum";
/// Run times, by partition: number per bucket.
pub const RUN_BUCKETS: &str = "job_run_buckets";
/// Sum of the run times in seconds, by partition.
pub const RUN_SUM: &str = "job_run_sum";

/// Label values in the stored form.
pub fn labels(values: &[&str]) -> String {
    let cleaned = values.iter().map(|value| value.replace(SEPARATOR, " "));
    cleaned.collect::<Vec<_>>().join(&SEPARATOR.to_string())
}

/// Name of the bucket that a value is counted in: its upper bound, or `+Inf`.
pub fn bucket(value: i64) -> String {
    let bound = BOUNDS.iter().find(|bound| value <= **bound);
    bound.map_or_else(|| "+Inf".to_owned(), i64::to_string)
}

/// All counters of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<(String, String), i64>);

impl Counters {
    /// Sets a counter.
    pub fn set(&mut self, metric: String, labels: String, value: i64) {
        self.0.insert((metric, labels), value);
    }

    /// Label values and values of a metric.
    pub fn of(&self, metric: &str) -> impl Iterator<Item = (Vec<&str>, i64)> {
        let from = (metric.to_owned(), String::new());
        let metric = metric.to_owned();
        let found = self.0.range(from..);
        found
            .take_while(move |((name, _), _)| *name == metric)
            .map(|((_, labels), value)| (labels.split(SEPARATOR).collect(), *value))
    }

    /// Histograms of a metric by their labels: cumulated numbers per bound, the last of `+Inf`, and the sum.
    pub fn histograms(
        &self,
        buckets: &str,
        sums: &str,
    ) -> BTreeMap<Vec<&str>, ([i64; BOUNDS.len() + 1], i64)> {
        let mut histograms: BTreeMap<Vec<&str>, ([i64; BOUNDS.len() + 1], i64)> = BTreeMap::new();
        for (mut labels, value) in self.of(buckets) {
            let bound = labels.pop().unwrap_or_default();
            let place = BOUNDS.iter().position(|known| known.to_string() == bound);
            let (numbers, _) = histograms.entry(labels).or_default();
            for number in &mut numbers[place.unwrap_or(BOUNDS.len())..] {
                *number += value;
            }
        }
        for (labels, value) in self.of(sums) {
            histograms.entry(labels).or_default().1 = value;
        }
        histograms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_to_a_histogram() {
        let mut counters = Counters::default();
        for (value, number) in [(0, 2), (5, 1), (700_000, 1)] {
            let labels = labels(&["cpu", "normal", &bucket(value)]);
            counters.set(WAIT_BUCKETS.into(), labels, number);
        }
        counters.set(WAIT_SUM.into(), labels(&["cpu", "normal"]), 700_005);
        let histograms = counters.histograms(WAIT_BUCKETS, WAIT_SUM);
        let (numbers, sum) = histograms[&vec!["cpu", "normal"]];
        assert_eq!(
            (numbers[0], numbers[1], numbers[15], numbers[16]),
            (2, 3, 3, 4)
        );
        assert_eq!(sum, 700_005);
    }

    #[test]
    fn a_metric_has_only_its_own_labels() {
        let mut counters = Counters::default();
        counters.set("a".into(), labels(&["x"]), 1);
        counters.set("ab".into(), labels(&["y"]), 2);
        assert_eq!(counters.of("a").collect::<Vec<_>>(), [(vec!["x"], 1)]);
    }
}
