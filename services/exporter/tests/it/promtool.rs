//! Every page is accepted by Prometheus' own parser, and stays as it is.

use std::io::Write as _;
use std::process::{Command, Stdio};

use chrono::Utc;
use exporter::adapters::store::AllocationSum;
use exporter::domain::counters::{
    CPU_SECONDS, Counters, ENDS, MEMORY_KIB_SECONDS, STARTED, SUBMITTED, WAIT_BUCKETS, WAIT_SUM,
    labels,
};
use exporter::domain::exemplars::Exemplars;
use exporter::domain::exposition::{Exposition, Format};
use exporter::domain::gpus::GpuHolder;
use exporter::domain::jobs::Jobs;
use exporter::domain::nodes::Nodes;
use exporter::domain::scheduler::Scheduler;
use exporter::families::{Family, Inputs, PAGES, Source};

use crate::harness::{cell, node};

/// A cluster in which each counter has `scale` times its value.
pub fn inputs(scale: i64) -> Inputs {
    let taken_at = chrono::DateTime::from_timestamp(1_763_760_100, 0).unwrap();
    let mut cells = vec![
        cell("physics", "RUNNING", "", 3),
        cell("physics", "PENDING", "Priority", 2),
        cell("physics", "PENDING", "Dependency", 1),
        cell("chem", "PENDING", "JobHeldUser", 1),
        cell("chem", "COMPLETING", "", 1),
        cell("chem", "COMPLETED", "", 5),
        cell("chem", "FAILED", "", 1),
    ];
    cells[1].partition = "cpu,gpu".into();
    let mut counters = Counters::default();
    let both = ["cpu", "physics"];
    for (metric, values, value) in [
        (SUBMITTED, both.to_vec(), 9),
        (STARTED, both.to_vec(), 8),
        (ENDS, [&both[..], &["failed"]].concat(), 7),
        (ENDS, [&both[..], &["completed"]].concat(), 21),
        (CPU_SECONDS, [&both[..], &["used"]].concat(), 300),
        (CPU_SECONDS, [&both[..], &["allocated"]].concat(), 400),
        (MEMORY_KIB_SECONDS, [&both[..], &["used"]].concat(), 300),
        (
            MEMORY_KIB_SECONDS,
            [&both[..], &["allocated"]].concat(),
            1_200,
        ),
        (WAIT_BUCKETS, vec!["cpu", "normal", "15"], 2),
        (WAIT_SUM, vec!["cpu", "normal"], 20),
    ] {
        counters.set(metric.into(), labels(&values), value * scale);
    }
    Inputs {
        cluster: "testbed".into(),
        now: Utc::now(),
        jobs: Some(Jobs::new(taken_at, cells.into_iter())),
        nodes: Some(Nodes::new(
            taken_at,
            [
                node("n1", "MIXED", "active", 4),
                node("n2", "IDLE", "active", 0),
                node("n3", "IDLE+DRAIN", "drained", 0),
                node("n4", "DOWN+NOT_RESPONDING", "down", 0),
            ]
            .into_iter(),
        )),
        scheduler: Scheduler::recent(crate::other_names::scheduler(), true, true),
        sources: vec![Source {
            name: "ingest",
            taken_at: Some(taken_at),
            is_up: true,
        }],
        counters,
        exemplars: Exemplars::default(),
        allocations: vec![AllocationSum {
            partition: "cpu".into(),
            account: "physics".into(),
            user: "physics-user".into(),
            gpus: 1,
            memory_mib: 4_000,
        }],
        gpu_holders: vec![GpuHolder {
            job_id: 7,
            partition: "cpu".into(),
            account: "physics".into(),
            places: "n1=1".into(),
        }],
        max_series: 50_000,
        folded: Vec::new(),
    }
}

fn text(name: &str, format: Format) -> String {
    let page = PAGES.iter().find(|page| page.name == name).unwrap();
    let mut exposition = Exposition::new(format);
    (page.write)(&inputs(1), &mut exposition);
    exposition.finish().0
}

/// What `promtool check metrics` says about a page. Fails if it cannot be parsed.
fn check(text: &str) -> String {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing: run scripts/setup");
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    // 3 is for names that are against Prometheus' conventions, which those of others are.
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{report}\n{text}"
    );
    report
}

#[test]
fn promtool_accepts_every_page_and_finds_nothing_in_our_own() {
    for page in PAGES {
        let text = text(page.name, Format::Text);
        let report = check(&text);
        if page.family == Family::Cluster {
            assert_eq!(report, "", "{text}");
        }
    }
}

/// Metric names, labels and values of the page, without help.
fn samples(name: &str) -> Vec<String> {
    let text = text(name, Format::Text);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

#[test]
fn vpenso_counts_as_its_original() {
    let samples = samples("vpenso");
    for line in [
        // `squeue -r`: each task counts.
        "slurm_queue_pending 8",
        "slurm_queue_pending_dependency 2",
        "slurm_queue_running 6",
        "slurm_queue_completing 2",
        "slurm_queue_completed 10",
        "slurm_account_jobs_running{account=\"physics\"} 6",
        "slurm_account_cpus_running{account=\"physics\"} 12",
        "slurm_user_jobs_pending{user=\"chem-user\"} 2",
        "slurm_nodes_mix 1",
        "slurm_nodes_idle 1",
        "slurm_nodes_drain 1",
        "slurm_nodes_down 1",
        "slurm_cpus_alloc 4",
        "slurm_cpus_idle 12",
        "slurm_cpus_other 16",
        "slurm_cpus_total 32",
        "slurm_gpus_alloc 1",
        "slurm_gpus_total 8",
        "slurm_gpus_utilization 0.125",
        "slurm_node_cpu_alloc{node=\"n1\",status=\"mixed\"} 4",
        "slurm_node_mem_total{node=\"n3\",status=\"drained\"} 16000",
        "slurm_partition_cpus_other{partition=\"cpu\"} 16",
        "slurm_partition_jobs_pending{partition=\"gpu\"} 4",
    ] {
        assert!(
            samples.iter().any(|found| found == line),
            "{line}\n{samples:#?}"
        );
    }
    // A number of 0 is left out, as there.
    assert!(
        !samples
            .iter()
            .any(|found| found.contains("jobs_suspended{"))
    );
}

#[test]
fn the_native_names_count_as_slurmctld() {
    let jobs = samples("jobs");
    for line in [
        // A pending array counts its tasks, all else counts records.
        "slurm_jobs_pending 8",
        "slurm_jobs_hold 2",
        "slurm_jobs_running 3",
        "slurm_jobs_completed 5",
        "slurm_jobs_cpus_alloc 12",
        "slurm_jobs_gpus_alloc 1",
        "slurm_jobs_memory_alloc 4000",
    ] {
        assert!(jobs.iter().any(|found| found == line), "{line}\n{jobs:#?}");
    }
    let nodes = samples("nodes");
    for line in [
        "slurm_nodes 4",
        "slurm_nodes_idle 2",
        "slurm_nodes_drain 1",
        "slurm_nodes_drained 1",
        "slurm_nodes_draining 0",
        "slurm_nodes_noresp 1",
        "slurm_node_cpus_idle{node=\"n1\"} 4",
        "slurm_node_memory_bytes{node=\"n1\"} 16000",
    ] {
        assert!(
            nodes.iter().any(|found| found == line),
            "{line}\n{nodes:#?}"
        );
    }
}
