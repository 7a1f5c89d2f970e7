//! Names and labels of other exporters' pages against lists of theirs, and numbers that differ between the families.

use std::collections::{BTreeMap, BTreeSet};

use exporter::domain::exposition::{Exposition, Format};
use exporter::domain::jobs::Jobs;
use exporter::domain::scheduler::Scheduler;
use exporter::families::{Family, Inputs, PAGES};
use mesh_events::proto::mesh::metrics::v1::{Calls, Figure, SchedulerState, Share};
use mesh_events::proto::mesh::queue::v1::{License, Limit, Reservation};

use crate::harness::cell;
use crate::promtool::inputs;

const NAMES: &str = include_str!("../data/names.tsv");

/// Names that no page has, by the beginning of the name. The modules of the families say why.
const ABSENT: &[(&str, &[&str])] = &[
    (
        "sckyzo",
        &[
            "slurm_exporter_",
            "slurm_job_",
            "slurm_sacct_",
            "slurm_reservation_core_count",
        ],
    ),
    (
        "rivosinc",
        &[
            "slurm_job_alloc_",
            "slurm_job_cpu_alloc",
            "slurm_job_mem_alloc",
            "slurm_proc_",
            "slurm_feature_",
            "slurm_cplugin_",
            "slurm_lic_last_",
            "slurm_limit_scrape_duration",
            "slurm_account_scrape_error",
            "slurm_account_collect_error",
            "slurm_job_scrape_error",
            "slurm_lic_scrape_error",
            "slurm_diag_scrape_error",
            "slurm_node_scrape_error",
        ],
    ),
];

/// Labels that differ from the list: the reservation's partition is not on the bus, and rivosinc's newest version has the state.
const OTHER_LABELS: &[&str] = &["slurm_reservation_info"];

/// What a cluster says in which everything occurs.
pub fn scheduler() -> SchedulerState {
    let figures = slurm_figures().map(|(name, value)| Figure {
        name: name.to_owned(),
        value,
    });
    let calls = |name: &str| Calls {
        name: name.to_owned(),
        count: 17,
        average_micros: 814,
        total_micros: 13_851,
    };
    let share = |user: &str, factor| Share {
        account: "physics".into(),
        user: user.into(),
        raw_shares: 2,
        norm_shares: 0.25,
        raw_usage: 4_620,
        norm_usage: 0.5,
        fairshare: factor,
        level_fairshare: Some(0.5),
    };
    let limit = |name: &str, tres: &str, value| Limit {
        account: "physics".into(),
        limit: name.into(),
        tres: tres.into(),
        value,
        ..Limit::default()
    };
    SchedulerState {
        figures: figures.collect(),
        calls_by_type: vec![calls("REQUEST_PING")],
        calls_by_user: vec![calls("root")],
        licenses: vec![License {
            name: "matlab".into(),
            total: 10,
            used: 3,
            reserved: 1,
        }],
        reservations: vec![Reservation {
            name: "maint1".into(),
            start: 1_763_760_000,
            end: 1_763_763_600,
            nodes: "n[1,3-4]".into(),
            flags: vec!["MAINT".into()],
            users: vec!["root".into()],
            state: "ACTIVE".into(),
            ..Reservation::default()
        }],
        limits: vec![
            limit("GrpTRES", "cpu", 16),
            limit("GrpTRES", "mem", 4_000),
            limit("GrpJobs", "", 5),
            limit("GrpSubmitJobs", "", 9),
        ],
        shares: vec![share("", Some(0.75)), share("physics-user", Some(0.5))],
        ..SchedulerState::default()
    }
}

/// Every figure, each with another value.
fn slurm_figures() -> impl Iterator<Item = (&'static str, i64)> {
    slurm_client::FIGURES.iter().copied().zip(1..)
}

/// A cluster in which every metric has a sample.
fn everything() -> Inputs {
    let mut inputs = inputs(1);
    let mut cells: Vec<_> = [
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "CANCELLED",
        "COMPLETING",
        "COMPLETED",
        "CONFIGURING",
        "FAILED",
        "TIMEOUT",
        "PREEMPTED",
        "NODE_FAIL",
    ]
    .into_iter()
    .map(|state| {
        cell(
            "physics",
            state,
            if state == "PENDING" { "Priority" } else { "" },
            3,
        )
    })
    .collect();
    cells[0].partition = "cpu,gpu".into();
    let jobs = inputs.jobs.as_ref().unwrap();
    inputs.jobs = Some(Jobs::new(jobs.taken_at, cells.into_iter()));
    for node in &mut inputs.nodes.as_mut().unwrap().nodes {
        node.summary.cpu_load = Some(1.5);
        node.summary.weight = Some(10);
        node.summary.version = "24.11.5".into();
        node.summary.features = vec!["gpu".into(), "a100".into()];
        node.summary.reason_time = 1_763_760_000;
        node.summary.reserved_memory_mib = 1_000;
    }
    inputs.scheduler = Scheduler::recent(scheduler(), true, true);
    inputs
}

fn text(name: &str) -> String {
    let page = PAGES.iter().find(|page| page.name == name).unwrap();
    let mut exposition = Exposition::new(Format::Text);
    (page.write)(&everything(), &mut exposition);
    exposition.finish().0
}

/// Names with types and labels of a page.
fn served(text: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut types = BTreeMap::new();
    let mut served = BTreeMap::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').unwrap();
            types.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') {
            let end = line.find(['{', ' ']).unwrap();
            let mut labels = BTreeSet::new();
            if let Some((_, inner)) = line.split_once('{') {
                for part in inner.split("=\"") {
                    let name = part.rsplit(['{', ',', '"']).next().unwrap();
                    labels.insert(name.to_owned());
                }
                // What stands after the last value.
                labels.retain(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
                labels.remove("");
            }
            let kind = types[&line[..end]].clone();
            served.insert(line[..end].to_owned(), (kind, labels));
        }
    }
    served
}

fn check(exporter: &str, pages: &[&str]) {
    let mut ours = BTreeMap::new();
    for page in pages {
        ours.extend(served(&text(page)));
    }
    let absent = ABSENT.iter().find(|(of, _)| *of == exporter);
    let absent = absent.map_or(&[][..], |(_, names)| names);
    let mut known = BTreeSet::new();
    let mut faults = Vec::new();
    for row in NAMES.lines().filter(|row| !row.starts_with('#')) {
        let columns: Vec<&str> = row.split('\t').collect();
        if columns[0] != exporter {
            continue;
        }
        let (name, kind) = (columns[1], columns[2]);
        known.insert(name.to_owned());
        let labels = columns.get(3).copied().unwrap_or_default();
        let labels: BTreeSet<String> = labels
            .split(',')
            .filter(|label| !label.is_empty())
            .map(str::to_owned)
            .collect();
        let is_absent = absent.iter().any(|begins| name.starts_with(begins));
        match ours.get(name) {
            None if is_absent => {}
            None => faults.push(format!("{name} is missing")),
            Some(_) if is_absent => faults.push(format!("{name} is not absent")),
            Some(_) if OTHER_LABELS.contains(&name) => {}
            Some(found) if *found != (kind.to_owned(), labels.clone()) => {
                faults.push(format!("{name}: {found:?}, theirs {kind} {labels:?}"));
            }
            Some(_) => {}
        }
    }
    for name in ours.keys().filter(|name| !known.contains(*name)) {
        faults.push(format!("{name} is not theirs"));
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn vpenso_has_every_name_of_its_original() {
    check("vpenso", &["vpenso"]);
}

#[test]
fn sckyzo_has_the_names_and_labels_of_its_original() {
    check("sckyzo", &["sckyzo"]);
}

#[test]
fn rivosinc_has_the_names_and_labels_of_its_original() {
    check("rivosinc", &["rivosinc"]);
}

#[test]
fn slinky_has_every_name_of_its_original() {
    check("slinky", &["slinky"]);
}

#[test]
fn the_native_pages_have_every_name_of_slurmctld() {
    let pages: Vec<&str> = PAGES
        .iter()
        .filter(|page| page.family == Family::Native)
        .map(|page| page.name)
        .collect();
    check("native", &pages);
}

fn has(page: &str, lines: &[&str]) {
    let text = text(page);
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line}\n{text}");
    }
}

#[test]
fn the_families_count_as_their_originals() {
    has(
        "sckyzo",
        &[
            // A job that waits in two partitions counts in each, an array once.
            "slurm_queue_pending{user=\"physics-user\",partition=\"gpu\",reason=\"Priority\"} 3",
            "slurm_cores_pending{user=\"physics-user\",partition=\"cpu\",reason=\"Priority\"} 12",
            "slurm_jobs_pending 3",
            "slurm_jobs_cores_running 12",
            "slurm_account_jobs_pending{account=\"physics\"} 6",
            "slurm_account_gpus_running{account=\"physics\"} 1",
            "slurm_nodes_idle{partition=\"cpu\",active_feature_set=\"gpu,a100\"} 1",
            "slurm_nodes_total 4",
            "slurm_gpus_other 4",
            "slurm_gpus_idle 3",
            "slurm_node_gres_total{node=\"n1\",status=\"mixed\",partition=\"cpu\",gres_type=\"gpu:a100\"} 2",
            "slurm_node_drain_since_timestamp_seconds{node=\"n3\"} 1763760000",
            "slurm_reservation_nodes_down{reservation=\"maint1\"} 1",
            "slurm_reservation_nodes_healthy{reservation=\"maint1\"} 1",
            "slurm_reservation_node_count{reservation_name=\"maint1\"} 3",
            "slurm_license_free{license=\"matlab\"} 7",
            "slurm_account_fairshare{account=\"physics\"} 0.75",
            "slurm_user_rpc_stats_total_time{user=\"root\"} 13851",
        ],
    );
    has(
        "rivosinc",
        &[
            "slurm_user_state_total{username=\"physics-user\",state=\"PENDING\"} 6",
            "slurm_user_cpu_alloc{username=\"physics-user\",state=\"RUNNING\"} 12",
            "slurm_account_job_state_mem_alloc{account=\"physics\",state=\"RUNNING\"} 4000000000",
            "slurm_pending_reason_total{reason=\"Priority\"} 6",
            "slurm_partition_node_count{partition=\"cpu\",state=\"drain\"} 1",
            "slurm_partition_alloc_cpus{partition=\"cpu\",state=\"mix\"} 4",
            "slurm_cpu_load 6",
            "slurm_mem_real 64000000000",
            "slurm_account_mem_limit{account=\"physics\"} 4000000000",
            "slurm_account_job_alloc_limit{account=\"physics\"} 5",
            "slurm_lic_used{name=\"matlab\"} 3",
        ],
    );
    has(
        "slinky",
        &[
            "slurm_jobs_pending_total 3",
            "slurm_jobs_total 33",
            "slurm_jobs_memory_alloc_bytes 4000",
            "slurm_partition_jobs_pending_total{partition=\"gpu\"} 3",
            // CONFIGURING is a flag of a running job.
            "slurm_user_jobs_running_total{userid=\"\",username=\"physics-user\"} 6",
            "slurm_node_memory_effective_bytes{node=\"n1\"} 15000",
            "slurm_partition_nodes_cpus_idle_total{partition=\"cpu\"} 28",
            "slurm_nodes_notresponding_total 1",
        ],
    );
    has(
        "soperator",
        &[
            "slurm_node_memory_total_bytes{node_name=\"n1\"} 16777216000",
            "slurm_node_partition{node_name=\"n1\",partition=\"cpu\"} 1",
            "slurm_controller_rpc_calls_total{message_type=\"REQUEST_PING\"} 17",
            "slurm_controller_rpc_user_duration_seconds_total{user=\"root\"} 0.013851",
            "slurm_node_info{node_name=\"n3\",state_base=\"IDLE\",state_is_drain=\"true\",state_is_maintenance=\"false\",state_is_reserved=\"false\",is_unavailable=\"true\",reason=\"bad \\\"disk\\\"\"} 1",
        ],
    );
}

#[test]
fn every_figure_of_slurmctld_is_shown_and_each_by_its_own_name() {
    // `time`s and sums have values as all others.
    let figures: BTreeMap<&str, i64> = slurm_figures().collect();
    let expected = [
        ("slurm_bf_depth_mean", "bf_depth_mean"),
        ("slurm_schedule_cycle_last", "schedule_cycle_last"),
        ("slurm_sched_exit_lic", "schedule_exit.licenses"),
        ("slurm_bf_exit_table_limit", "bf_exit.bf_node_space_size"),
    ];
    let lines = expected.map(|(name, figure)| format!("{name} {}", figures[figure]));
    has("scheduler", &lines.each_ref().map(String::as_str));
    let served = served(&text("scheduler"));
    // Only sdiag's own rate has no name there.
    assert_eq!(served.len(), figures.len() - 1, "{:?}", served.keys());
}
