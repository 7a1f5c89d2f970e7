//! The mesh's own metrics. Each has the label `cluster`.
//!
//! Gauges are from snapshots, counters and histograms from events. Never a label: job names, paths, users, and, but for the GPUs of jobs, job ids.

mod counters;
mod gpus;

use std::collections::BTreeMap;

use mesh_events::proto::mesh::metrics::v1::Share;

use super::{Inputs, bytes, float};
use crate::domain::counters::{RUN_BUCKETS, RUN_SUM, WAIT_BUCKETS, WAIT_SUM};
use crate::domain::exposition::{Exposition, Kind, Labels};
use crate::domain::fold::fold;
use crate::domain::jobs::Jobs;
use crate::domain::nodes::Nodes;

/// A page whose samples all have the label `cluster`.
struct Page<'a> {
    page: &'a mut Exposition,
    cluster: &'a str,
}

impl Page<'_> {
    fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        self.page.metric(name, kind, help);
    }

    fn sample(&mut self, name: &str, labels: &Labels<'_>, value: f64) {
        let mut all = vec![("cluster", self.cluster)];
        all.extend_from_slice(labels);
        self.page.sample(name, &all, value);
    }

    /// A gauge with two labels.
    fn pairs<K: AsRef<str> + Ord>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        values: &BTreeMap<(K, &str), f64>,
    ) {
        self.metric(name, Kind::Gauge, help);
        for ((first, second), value) in values {
            let labels = [(labels[0], first.as_ref()), (labels[1], *second)];
            self.sample(name, &labels, *value);
        }
    }
}

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut page = Page {
        page,
        cluster: &inputs.cluster,
    };
    sources(inputs, &mut page);
    let mut folded = 0;
    if let Some(found) = &inputs.jobs {
        jobs(inputs, found, &mut page);
        folded = accounts(inputs, found, &mut page) + gpus::jobs(inputs, &mut page);
    }
    if let Some(found) = &inputs.nodes {
        nodes(inputs, found, &mut page);
    }
    shares(inputs, &mut page);
    counters::counters(inputs, &mut page);
    counters::histogram(
        inputs,
        &mut page,
        ["mesh_job_wait_seconds", WAIT_BUCKETS, WAIT_SUM],
        "Wait from eligible to start, of first attempts.",
        &["partition", "qos"],
    );
    counters::histogram(
        inputs,
        &mut page,
        ["mesh_job_run_seconds", RUN_BUCKETS, RUN_SUM],
        "Time from start to end of runs.",
        &["partition"],
    );
    let name = "mesh_exporter_folded_series";
    page.metric(
        name,
        Kind::Gauge,
        "Series left out or added up as other, because the page has max_series.",
    );
    for (of, folded) in inputs.folded.iter().chain([&("cluster", folded)]) {
        page.sample(name, &[("page", of)], float(*folded as u64));
    }
    folded
}

fn sources(inputs: &Inputs, page: &mut Page<'_>) {
    let name = "mesh_source_up";
    page.metric(
        name,
        Kind::Gauge,
        "1 if the newest snapshot of the source is recent. Else its gauges are left out.",
    );
    for source in &inputs.sources {
        page.sample(
            name,
            &[("source", source.name)],
            f64::from(u8::from(source.is_up)),
        );
    }
    let name = "mesh_snapshot_timestamp_seconds";
    page.metric(
        name,
        Kind::Gauge,
        "When the newest snapshot of the source was taken.",
    );
    for source in &inputs.sources {
        if let Some(taken_at) = source.taken_at {
            let seconds = u64::try_from(taken_at.timestamp()).unwrap_or_default();
            page.sample(name, &[("source", source.name)], float(seconds));
        }
    }
}

fn jobs(inputs: &Inputs, jobs: &Jobs, page: &mut Page<'_>) {
    let mut numbers: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let mut cpus: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let mut waiting: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let mut oldest: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for cell in &jobs.cells {
        let counted = &cell.counted;
        let key = (cell.partition(), cell.state_name());
        *numbers.entry(key).or_default() += float(counted.tasks);
        if matches!(cell.state_name(), "RUNNING" | "SUSPENDED") {
            *cpus.entry(key).or_default() += float(counted.cpus);
        }
        if !counted.reason_class.is_empty() {
            let key = (cell.partition(), counted.reason_class.as_str());
            *waiting.entry(key).or_default() += float(counted.tasks);
            let age = jobs.taken_at.timestamp() - counted.oldest_submit;
            let age = float(u64::try_from(age).unwrap_or_default());
            let longest = oldest.entry(key).or_default();
            if counted.oldest_submit > 0 && age > *longest {
                *longest = age;
            }
        }
    }
    let by_state = ["partition", "state"];
    page.pairs(
        "mesh_jobs",
        "Jobs and array tasks that Slurm holds, by base state.",
        by_state,
        &numbers,
    );
    page.pairs(
        "mesh_job_cpus",
        "CPUs of running and suspended jobs.",
        by_state,
        &cpus,
    );
    let by_class = ["partition", "reason_class"];
    page.pairs(
        "mesh_jobs_waiting",
        "Pending jobs and array tasks by class of the reason.",
        by_class,
        &waiting,
    );
    page.pairs(
        "mesh_oldest_waiting_seconds",
        "Time since the submission of the oldest pending job.",
        by_class,
        &oldest,
    );
    let mut held: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for allocation in &inputs.allocations {
        let (gpus, memory) = held.entry(&allocation.partition).or_default();
        *gpus += allocation.gpus;
        *memory += allocation.memory_mib;
    }
    page.metric("mesh_job_gpus", Kind::Gauge, "GPUs allocated to jobs.");
    for (partition, (gpus, _)) in &held {
        page.sample("mesh_job_gpus", &[("partition", partition)], float(*gpus));
    }
    page.metric(
        "mesh_job_memory_bytes",
        Kind::Gauge,
        "Memory allocated to jobs.",
    );
    for (partition, (_, memory)) in &held {
        page.sample(
            "mesh_job_memory_bytes",
            &[("partition", partition)],
            bytes(*memory),
        );
    }
}

/// Accounts, not users. With Fair Tree an account has no factor, but a level among its siblings.
fn shares(inputs: &Inputs, page: &mut Page<'_>) {
    for (name, help, value) in [
        (
            "mesh_account_fairshare",
            "Fairshare factor of the account, from 0 to 1.",
            (|share| share.fairshare) as fn(&Share) -> Option<f64>,
        ),
        (
            "mesh_account_level_fairshare",
            "Shares of the account divided by its use among its siblings: below 1 if it used more than its share.",
            |share| share.level_fairshare,
        ),
        (
            "mesh_account_share_ratio",
            "Part of the shares that the account has.",
            |share| Some(share.norm_shares),
        ),
        (
            "mesh_account_usage_ratio",
            "Part of the decayed use that the account has.",
            |share| Some(share.norm_usage),
        ),
    ] {
        page.metric(name, Kind::Gauge, help);
        let shares = inputs.scheduler.account_shares();
        for share in shares.take(inputs.max_series / 40) {
            if let Some(value) = value(share) {
                page.sample(name, &[("account", &share.account)], value);
            }
        }
    }
}

#[derive(Default)]
struct Account {
    by_state: BTreeMap<String, u64>,
    jobs: u64,
    cpus: u64,
    gpus: u64,
}

impl Account {
    fn add(&mut self, other: &Self) {
        for (state, jobs) in &other.by_state {
            *self.by_state.entry(state.clone()).or_default() += jobs;
        }
        self.jobs += other.jobs;
        self.cpus += other.cpus;
        self.gpus += other.gpus;
    }
}

fn accounts(inputs: &Inputs, jobs: &Jobs, page: &mut Page<'_>) -> usize {
    let mut accounts: BTreeMap<String, Account> = BTreeMap::new();
    for cell in &jobs.cells {
        let state = cell.state_name();
        if !matches!(state, "PENDING" | "RUNNING" | "SUSPENDED") {
            continue;
        }
        let account = accounts.entry(cell.counted.account.clone()).or_default();
        *account.by_state.entry(state.to_owned()).or_default() += cell.counted.tasks;
        account.jobs += cell.counted.tasks;
        if state != "PENDING" {
            account.cpus += cell.counted.cpus;
        }
    }
    for allocation in &inputs.allocations {
        let account = accounts.entry(allocation.account.clone()).or_default();
        account.gpus += allocation.gpus;
    }
    // Three states, CPUs and GPUs.
    let (accounts, folded) = fold(
        accounts,
        inputs.max_series / 10,
        |account| account.jobs,
        Account::add,
    );
    page.metric(
        "mesh_account_jobs",
        Kind::Gauge,
        "Jobs and array tasks of the account, by state.",
    );
    for (name, account) in &accounts {
        for (state, jobs) in &account.by_state {
            let labels = [("account", name.as_str()), ("state", state.as_str())];
            page.sample("mesh_account_jobs", &labels, float(*jobs));
        }
    }
    page.metric(
        "mesh_account_cpus",
        Kind::Gauge,
        "CPUs allocated to jobs of the account.",
    );
    for (name, account) in &accounts {
        page.sample(
            "mesh_account_cpus",
            &[("account", name)],
            float(account.cpus),
        );
    }
    page.metric(
        "mesh_account_gpus",
        Kind::Gauge,
        "GPUs allocated to jobs of the account.",
    );
    for (name, account) in &accounts {
        page.sample(
            "mesh_account_gpus",
            &[("account", name)],
            float(account.gpus),
        );
    }
    folded * 5
}

/// Amounts by use: allocated, idle, and idle on nodes that take no jobs.
type Uses = [u64; 3];

fn nodes(inputs: &Inputs, nodes: &Nodes, page: &mut Page<'_>) {
    let mut lifecycles: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    let (mut cpus, mut gpus, mut memory) = (Uses::default(), Uses::default(), Uses::default());
    for node in &nodes.nodes {
        let summary = &node.summary;
        for partition in &summary.partitions {
            *lifecycles
                .entry((partition, &summary.lifecycle))
                .or_default() += 1.0;
        }
        let rest = if summary.lifecycle == "active" { 1 } else { 2 };
        let add = |uses: &mut Uses, total: u64, allocated: u64| {
            uses[0] += allocated;
            uses[rest] += total.saturating_sub(allocated);
        };
        add(
            &mut cpus,
            summary.effective_cpus.into(),
            summary.alloc_cpus.into(),
        );
        add(&mut gpus, summary.gpus.into(), summary.alloc_gpus.into());
        add(&mut memory, summary.memory_mib, summary.alloc_memory_mib);
    }
    page.pairs(
        "mesh_nodes",
        "Nodes by lifecycle.",
        ["partition", "lifecycle"],
        &lifecycles,
    );
    for (name, help, uses, value) in [
        (
            "mesh_cpus",
            "CPUs by use: allocated, idle, or unavailable (idle on a node that is not active).",
            cpus,
            float as fn(u64) -> f64,
        ),
        ("mesh_gpus", "GPUs by use.", gpus, float),
        ("mesh_memory_bytes", "Memory by use.", memory, bytes),
    ] {
        page.metric(name, Kind::Gauge, help);
        for (use_, amount) in ["allocated", "idle", "unavailable"].iter().zip(uses) {
            page.sample(name, &[("use", use_)], value(amount));
        }
    }
    let fits = inputs.max_series / 4;
    page.metric("mesh_node_up", Kind::Gauge, "1 if the node can run jobs.");
    for node in nodes.nodes.iter().take(fits) {
        let is_up = matches!(node.summary.lifecycle.as_str(), "active" | "draining");
        let labels = [("node", node.summary.name.as_str())];
        page.sample("mesh_node_up", &labels, f64::from(u8::from(is_up)));
    }
    let name = "mesh_node_impaired_info";
    page.metric(
        name,
        Kind::Gauge,
        "Nodes that are down, drained or draining, with the reason.",
    );
    let is_impaired = |lifecycle: &str| matches!(lifecycle, "down" | "drained" | "draining");
    let impaired = nodes
        .nodes
        .iter()
        .filter(|node| is_impaired(&node.summary.lifecycle));
    for node in impaired.take(fits) {
        let summary = &node.summary;
        let labels = [
            ("node", summary.name.as_str()),
            ("lifecycle", summary.lifecycle.as_str()),
            ("reason", summary.reason.as_str()),
        ];
        page.sample(name, &labels, 1.0);
    }
}
