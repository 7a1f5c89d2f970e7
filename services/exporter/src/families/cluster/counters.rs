//! Counters and histograms, from events.

use super::{Inputs, Page, float};
use crate::domain::counters::{
    BOUNDS, COST_MICROS, CPU_SECONDS, ENDS, GPU_SECONDS, MEMORY_KIB_SECONDS, NODE_EVENTS,
    PREEMPTIONS, STARTED, SUBMITTED, labels as stored_labels,
};
use crate::domain::exposition::Kind;

pub(super) fn counters(inputs: &Inputs, page: &mut Page<'_>) {
    let account = ["partition", "account"];
    let kind = ["partition", "account", "kind"];
    let counters: [(&str, &str, &str, &[&str], f64); 9] = [
        (
            "mesh_jobs_submitted_total",
            "Runs that entered the queue. An array counts once.",
            SUBMITTED,
            &account,
            1.0,
        ),
        (
            "mesh_jobs_started_total",
            "Runs that started.",
            STARTED,
            &account,
            1.0,
        ),
        (
            "mesh_job_ends_total",
            "Runs that ended, by end.",
            ENDS,
            &["partition", "account", "end"],
            1.0,
        ),
        (
            "mesh_job_cpu_seconds_total",
            "CPU seconds used by and allocated to ended runs whose use is known.",
            CPU_SECONDS,
            &kind,
            1.0,
        ),
        (
            "mesh_job_memory_byte_seconds_total",
            "Memory times time of ended runs whose use is known. Used is the peak, so an upper bound.",
            MEMORY_KIB_SECONDS,
            &kind,
            1024.0,
        ),
        (
            "mesh_job_gpu_seconds_total",
            "GPU seconds allocated to ended runs.",
            GPU_SECONDS,
            &kind,
            1.0,
        ),
        (
            "mesh_cost_total",
            "Final costs of runs, without later adjustments.",
            COST_MICROS,
            &["account", "currency"],
            1e-6,
        ),
        (
            "mesh_node_events_total",
            "Events of nodes.",
            NODE_EVENTS,
            &["event"],
            1.0,
        ),
        (
            "mesh_preemptions_total",
            "Runs that were preempted.",
            PREEMPTIONS,
            &["partition"],
            1.0,
        ),
    ];
    for (name, help, metric, labels, unit) in counters {
        page.metric(name, Kind::Counter, help);
        for (values, number) in inputs.counters.of(metric) {
            let labels: Vec<_> = labels.iter().copied().zip(values).collect();
            let number = float(u64::try_from(number).unwrap_or_default());
            page.sample(name, &labels, number * unit);
        }
    }
}

pub(super) fn histogram(
    inputs: &Inputs,
    page: &mut Page<'_>,
    [name, buckets, sum]: [&'static str; 3],
    help: &str,
    labels: &[&str],
) {
    let value = |number: i64| float(u64::try_from(number).unwrap_or_default());
    page.metric(name, Kind::Histogram, help);
    for (values, (numbers, sum)) in inputs.counters.histograms(buckets, sum) {
        let labels: Vec<_> = labels.iter().copied().zip(values).collect();
        let bounds = BOUNDS.iter().map(i64::to_string).chain(["+Inf".to_owned()]);
        for (bound, number) in bounds.zip(numbers) {
            let stored: Vec<&str> = labels.iter().map(|(_, value)| *value).collect();
            let stored = stored_labels(&[&stored[..], &[bound.as_str()]].concat());
            let mut labels = labels.clone();
            labels.push(("le", &bound));
            page.sample(&format!("{name}_bucket"), &labels, value(number));
            if let Some(exemplar) = inputs.exemplars.of(buckets, stored) {
                page.page.exemplar(exemplar);
            }
        }
        page.sample(&format!("{name}_sum"), &labels, value(sum));
        let all = numbers.last().copied().unwrap_or_default();
        page.sample(&format!("{name}_count"), &labels, value(all));
    }
}
