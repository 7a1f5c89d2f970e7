//! Names of SckyzO's slurm_exporter: those of vpenso with more labels, and more of them. Memory is in MB there.
//!
//! `slurm_queue_*`, `slurm_cores_*` and `slurm_jobs_*` count an array that waits once, `slurm_account_*`, `slurm_user_*` and
//! `slurm_partition_jobs_*` each of its tasks, as there. Idle and other GPUs are those of nodes that take jobs and of nodes that do not.
//! Absent: what it reads from sacct (efficiencies by user), and what it says about itself. Users' shares are there only for accounts that
//! Slurm gives a factor.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::metrics::v1::Share;
use slurm_types::{HostList, NodeBaseState, NodeFlag, Tres};

use super::vpenso::{Cpus, USES, printed, word};
use super::{Inputs, float, scheduler, vpenso};
use crate::domain::exposition::{Exposition, Kind};
use crate::domain::fold::fold;
use crate::domain::jobs::Jobs;
use crate::domain::nodes::{Node, Nodes};

/// States of jobs in metric names.
const STATES: [&str; 11] = [
    "pending",
    "running",
    "suspended",
    "cancelled",
    "completing",
    "completed",
    "configuring",
    "failed",
    "timeout",
    "preempted",
    "node_fail",
];

/// States of nodes in metric names, and how the word for the state begins.
const NODE_STATES: [(&str, &str); 12] = [
    ("alloc", "alloc"),
    ("comp", "comp"),
    ("down", "down"),
    ("drain", "drain"),
    ("err", "err"),
    ("fail", "fail"),
    ("idle", "idle"),
    ("inval", "inval"),
    ("maint", "maint"),
    ("mix", "mix"),
    ("resv", "res"),
    ("planned", "planned"),
];

/// Largest number of nodes of a reservation whose states are counted.
const MAX_RESERVED: usize = 100_000;

/// Writes the page.
pub fn write(inputs: &Inputs, page: &mut Exposition) -> usize {
    let mut folded = 0;
    if let Some(jobs) = &inputs.jobs {
        folded += queue(jobs, inputs.max_series / 100, page);
        folded += vpenso::owners(jobs, inputs.max_series / 16, page);
        gpus_of_owners(inputs, inputs.max_series / 16, page);
    }
    if let Some(nodes) = &inputs.nodes {
        states(nodes, page);
        gpus(nodes, page);
        vpenso::cpu_totals(nodes, page);
        folded += of_each(nodes, inputs.max_series / 20, page);
        vpenso::partitions(nodes, inputs.jobs.as_ref(), page);
        of_partitions(nodes, inputs.jobs.as_ref(), page);
        info(nodes, page);
    }
    scheduler::sckyzo(inputs, page);
    shares(inputs, page);
    licenses(inputs, page);
    reservations(inputs, page);
    folded
}

/// Jobs and their CPUs by partition and, for pending ones, reason.
type Queue = BTreeMap<(&'static str, String, String), (u64, u64)>;

fn add_all(sums: &mut Queue, more: &Queue) {
    for (key, (jobs, cpus)) in more {
        let sum = sums.entry(key.clone()).or_default();
        sum.0 += jobs;
        sum.1 += cpus;
    }
}

fn queue(jobs: &Jobs, fits: usize, page: &mut Exposition) -> usize {
    let mut users: BTreeMap<String, Queue> = BTreeMap::new();
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for cell in &jobs.cells {
        let state = printed(cell);
        let counted = &cell.counted;
        let total = totals.entry(state).or_default();
        total.0 += counted.jobs;
        total.1 += counted.cpus;
        let reason = if state == "pending" {
            counted.reason.as_str()
        } else {
            ""
        };
        let queue = users.entry(counted.user.clone()).or_default();
        for partition in cell.partitions() {
            let key = (state, partition.to_owned(), reason.to_owned());
            let sum = queue.entry(key).or_default();
            sum.0 += counted.jobs;
            sum.1 += counted.cpus;
        }
    }
    let weight = |queue: &Queue| queue.values().map(|(jobs, _)| jobs).sum();
    let (users, folded) = fold(users, fits, weight, add_all);
    for (prefix, help, is_cpus) in [
        ("slurm_queue", "Jobs in this state", false),
        ("slurm_cores", "CPUs of jobs in this state", true),
    ] {
        for state in STATES {
            let name = format!("{prefix}_{state}");
            page.metric(&name, Kind::Gauge, help);
            for (user, queue) in &users {
                let of_state = queue.iter().filter(|((of, ..), _)| *of == state);
                for ((_, partition, reason), (jobs, cpus)) in of_state {
                    let mut labels = vec![("user", user.as_str()), ("partition", partition)];
                    if state == "pending" {
                        labels.push(("reason", reason));
                    }
                    page.sample(&name, &labels, float(if is_cpus { *cpus } else { *jobs }));
                }
            }
        }
    }
    let total = |state: &str| totals.get(state).copied().unwrap_or_default();
    for state in STATES {
        let name = format!("slurm_jobs_{state}");
        gauge(
            page,
            &name,
            "Jobs in this state in the cluster",
            total(state).0,
        );
    }
    for state in ["running", "pending"] {
        let name = format!("slurm_jobs_cores_{state}");
        gauge(page, &name, "CPUs of jobs in this state", total(state).1);
    }
    folded * 4
}

fn gauge(page: &mut Exposition, name: &str, help: &str, value: u64) {
    page.metric(name, Kind::Gauge, help);
    page.sample(name, &[], float(value));
}

fn gpus_of_owners(inputs: &Inputs, fits: usize, page: &mut Exposition) {
    let mut accounts: BTreeMap<String, u64> = BTreeMap::new();
    let mut users: BTreeMap<String, u64> = BTreeMap::new();
    for held in &inputs.allocations {
        *accounts.entry(held.account.clone()).or_default() += held.gpus;
        *users.entry(held.user.clone()).or_default() += held.gpus;
    }
    for (label, owners) in [("account", accounts), ("user", users)] {
        let (owners, _) = fold(owners, fits, |gpus| *gpus, |sum, gpus| *sum += gpus);
        let name = format!("slurm_{label}_gpus_running");
        page.metric(&name, Kind::Gauge, "GPUs allocated to running jobs");
        for (owner, gpus) in owners.iter().filter(|(_, gpus)| **gpus > 0) {
            page.sample(&name, &[(label, owner)], float(*gpus));
        }
    }
}

fn states(nodes: &Nodes, page: &mut Exposition) {
    let mut sets: BTreeMap<(&str, String), [u64; NODE_STATES.len() + 1]> = BTreeMap::new();
    for node in &nodes.nodes {
        let features = match node.summary.features.join(",") {
            none if none.is_empty() => "null".to_owned(),
            features => features,
        };
        let word = word(node);
        let place = NODE_STATES
            .iter()
            .position(|(_, begins)| word.starts_with(begins));
        for partition in &node.summary.partitions {
            let numbers = sets.entry((partition, features.clone())).or_default();
            numbers[place.unwrap_or(NODE_STATES.len())] += 1;
        }
    }
    let names = NODE_STATES.iter().map(|(name, _)| *name).chain(["other"]);
    for (place, name) in names.enumerate() {
        let name = format!("slurm_nodes_{name}");
        page.metric(&name, Kind::Gauge, "Nodes in this state");
        for ((partition, features), numbers) in &sets {
            let labels = [("partition", *partition), ("active_feature_set", features)];
            page.sample(&name, &labels, float(numbers[place]));
        }
    }
    gauge(page, "slurm_nodes_total", "Nodes", nodes.nodes.len() as u64);
}

/// GPUs: allocated, idle, other, all.
fn gpus_of<'a>(nodes: impl Iterator<Item = &'a Node>) -> [u64; 4] {
    let mut sums = [0; 4];
    for node in nodes {
        let (total, allocated) = (node.summary.gpus, node.summary.alloc_gpus);
        let free = u64::from(total.saturating_sub(allocated));
        sums[0] += u64::from(allocated);
        sums[if node.takes_jobs() { 1 } else { 2 }] += free;
        sums[3] += u64::from(total);
    }
    sums
}

fn gpus(nodes: &Nodes, page: &mut Exposition) {
    let sums = gpus_of(nodes.nodes.iter());
    for (name, value) in ["alloc", "idle", "other", "total"].iter().zip(sums) {
        gauge(page, &format!("slurm_gpus_{name}"), "GPUs", value);
    }
    let utilization = match sums[3] {
        0 => 0.0,
        total => float(sums[0]) / float(total),
    };
    let name = "slurm_gpus_utilization";
    page.metric(name, Kind::Gauge, "Allocated part of all GPUs");
    page.sample(name, &[], utilization);
}

fn of_each(nodes: &Nodes, fits: usize, page: &mut Exposition) -> usize {
    let mut metric = |name: &str, value: &dyn Fn(&Node) -> u64| {
        let name = format!("slurm_node_{name}");
        page.metric(&name, Kind::Gauge, "CPUs or MiB of the node, or 1");
        for node in nodes.nodes.iter().take(fits) {
            for partition in &node.summary.partitions {
                let labels = [
                    ("node", node.summary.name.as_str()),
                    ("status", word(node)),
                    ("partition", partition),
                ];
                page.sample(&name, &labels, float(value(node)));
            }
        }
    };
    for (place, (name, _)) in USES.iter().enumerate() {
        metric(&format!("cpu_{name}"), &|node| Cpus::of(node).0[place]);
    }
    metric("mem_alloc", &|node| node.summary.alloc_memory_mib);
    metric("mem_total", &|node| node.summary.memory_mib);
    metric("status", &|_| 1);
    resources(nodes, fits, page);
    let name = "slurm_node_drain_reason_info";
    page.metric(
        name,
        Kind::Gauge,
        "Always 1; why the node is down or drained",
    );
    let with_reason = || {
        let nodes = nodes.nodes.iter().filter(|node| !node.takes_jobs());
        nodes
            .filter(|node| !node.summary.reason.is_empty())
            .take(fits)
    };
    for node in with_reason() {
        let labels = [
            ("node", node.summary.name.as_str()),
            ("reason", &node.summary.reason),
        ];
        page.sample(name, &labels, 1.0);
    }
    let name = "slurm_node_drain_since_timestamp_seconds";
    page.metric(name, Kind::Gauge, "When the reason was set");
    for node in with_reason().filter(|node| node.summary.reason_time > 0) {
        let since = u64::try_from(node.summary.reason_time).unwrap_or_default();
        page.sample(name, &[("node", &node.summary.name)], float(since));
    }
    nodes.nodes.len().saturating_sub(fits) * 9
}

/// Generic resources by type: `gpu:a100`.
fn resources(nodes: &Nodes, fits: usize, page: &mut Exposition) {
    for (name, is_total) in [
        ("slurm_node_gres_total", true),
        ("slurm_node_gres_used", false),
    ] {
        page.metric(name, Kind::Gauge, "Generic resources of the node");
        for node in nodes.nodes.iter().take(fits) {
            let configured = generic_resources(&node.summary.gres);
            let allocated = Tres::parse_lossy(&node.summary.alloc_tres).0;
            for (kind, number) in &configured {
                let number = match is_total {
                    true => Some(*number),
                    false => used(&configured, kind, &allocated),
                };
                let Some(number) = number else { continue };
                for partition in &node.summary.partitions {
                    let labels = [
                        ("node", node.summary.name.as_str()),
                        ("status", word(node)),
                        ("partition", partition),
                        ("gres_type", kind),
                    ];
                    page.sample(name, &labels, float(number));
                }
            }
        }
    }
}

/// `gpu:a100:4(S:0-1),shard:8` by type.
fn generic_resources(text: &str) -> BTreeMap<String, u64> {
    let mut resources = BTreeMap::new();
    // Commas within brackets do not divide items.
    let mut depth = 0_u32;
    let items = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    for item in items {
        let item = item.split('(').next().unwrap_or_default();
        if let Some((kind, number)) = item.rsplit_once(':')
            && let Ok(number) = number.trim().parse::<u64>()
        {
            *resources.entry(kind.trim().to_owned()).or_default() += number;
        }
    }
    resources
}

/// How many of a type are allocated. Unknown if Slurm tracks only the sum of several types.
fn used(configured: &BTreeMap<String, u64>, kind: &str, allocated: &Tres) -> Option<u64> {
    if let Some(number) = allocated.get(&format!("gres/{kind}")) {
        return Some(number);
    }
    let name = kind.split(':').next().unwrap_or(kind);
    let of_name = |other: &&String| other.split(':').next() == Some(name);
    let number = allocated.get(&format!("gres/{name}")).unwrap_or_default();
    (number == 0 || configured.keys().filter(of_name).count() == 1).then_some(number)
}

fn of_partitions(nodes: &Nodes, jobs: Option<&Jobs>, page: &mut Exposition) {
    let mut partitions: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in &nodes.nodes {
        for partition in &node.summary.partitions {
            partitions.entry(partition).or_default().push(node);
        }
    }
    for (name, place) in [("gpus_allocated", 0), ("gpus_idle", 1)] {
        let name = format!("slurm_partition_{name}");
        page.metric(&name, Kind::Gauge, "GPUs of the partition");
        for (partition, nodes) in &partitions {
            let gpus = gpus_of(nodes.iter().copied());
            page.sample(&name, &[("partition", partition)], float(gpus[place]));
        }
    }
    let mut running: BTreeMap<&str, u64> = BTreeMap::new();
    let cells = jobs.iter().flat_map(|jobs| &jobs.cells);
    for cell in cells.filter(|cell| printed(cell) == "running") {
        *running.entry(cell.partition()).or_default() += cell.counted.tasks;
    }
    let name = "slurm_partition_jobs_running";
    page.metric(name, Kind::Gauge, "Running jobs of the partition");
    for (partition, jobs) in &running {
        page.sample(name, &[("partition", partition)], float(*jobs));
    }
}

/// The newest version of slurmd.
fn info(nodes: &Nodes, page: &mut Exposition) {
    let versions = nodes.nodes.iter().map(|node| node.summary.version.as_str());
    if let Some(version) = versions.max().filter(|version| !version.is_empty()) {
        let labels = [("type", "general"), ("binary", ""), ("version", version)];
        page.metric("slurm_info", Kind::Gauge, "Always 1; the version of Slurm");
        page.sample("slurm_info", &labels, 1.0);
    }
}

/// Shares of accounts and users. As in the original, not of those that inherit them.
fn shares(inputs: &Inputs, page: &mut Exposition) {
    type Value = fn(&Share) -> Option<f64>;
    let values: [(&str, &str, Value); 5] = [
        ("fairshare", "Fairshare factor", |share| share.fairshare),
        ("fairshare_norm_shares", "Part of the shares", |share| {
            Some(share.norm_shares)
        }),
        ("fairshare_norm_usage", "Part of the use", |share| {
            Some(share.norm_usage)
        }),
        ("fairshare_raw_shares", "Shares", |share| {
            Some(float(share.raw_shares))
        }),
        ("fairshare_raw_usage_cpu_seconds", "Use, decayed", |share| {
            Some(float(share.raw_usage))
        }),
    ];
    let shares = &inputs.scheduler.shares;
    for is_user in [false, true] {
        for (name, help, value) in values {
            let prefix = if is_user {
                "slurm_user"
            } else {
                "slurm_account"
            };
            let name = format!("{prefix}_{name}");
            page.metric(&name, Kind::Gauge, help);
            let of_kind = shares
                .iter()
                .filter(|share| share.user.is_empty() != is_user);
            for share in of_kind.filter(|share| share.raw_shares > 0) {
                let Some(value) = value(share) else { continue };
                let mut labels = vec![("account", share.account.as_str())];
                if is_user {
                    labels.push(("user", &share.user));
                }
                page.sample(&name, &labels, value);
            }
        }
    }
}

fn licenses(inputs: &Inputs, page: &mut Exposition) {
    for (name, help, value) in super::LICENSES {
        let name = format!("slurm_license_{name}");
        page.metric(&name, Kind::Gauge, help);
        for license in &inputs.scheduler.licenses {
            page.sample(&name, &[("license", &license.name)], float(value(license)));
        }
    }
}

fn reservations(inputs: &Inputs, page: &mut Exposition) {
    let reservations = &inputs.scheduler.reservations;
    let name = "slurm_reservation_info";
    page.metric(
        name,
        Kind::Gauge,
        "Always 1; the labels describe the reservation",
    );
    for found in reservations {
        let (users, flags) = (found.users.join(","), found.flags.join(","));
        let labels = [
            ("reservation_name", found.name.as_str()),
            ("state", &found.state),
            ("users", &users),
            ("nodes", &found.nodes),
            ("flags", &flags),
        ];
        page.sample(name, &labels, 1.0);
    }
    for (name, help, at) in [
        (
            "slurm_reservation_start_time_seconds",
            "When it begins",
            (|found| found.start) as fn(&mesh_events::proto::mesh::queue::v1::Reservation) -> i64,
        ),
        (
            "slurm_reservation_end_time_seconds",
            "When it ends",
            |found| found.end,
        ),
    ] {
        page.metric(name, Kind::Gauge, help);
        for found in reservations.iter().filter(|found| at(found) > 0) {
            let seconds = u64::try_from(at(found)).unwrap_or_default();
            page.sample(name, &[("reservation_name", &found.name)], float(seconds));
        }
    }
    let hosts: Vec<(&str, Vec<String>)> = reservations
        .iter()
        .map(|found| {
            let hosts = HostList::expand_up_to(&found.nodes, MAX_RESERVED);
            (found.name.as_str(), hosts.unwrap_or_default())
        })
        .collect();
    let name = "slurm_reservation_node_count";
    page.metric(name, Kind::Gauge, "Nodes of the reservation");
    for (reservation, hosts) in &hosts {
        let labels = [("reservation_name", *reservation)];
        page.sample(name, &labels, float(hosts.len() as u64));
    }
    if let Some(nodes) = &inputs.nodes {
        reserved(nodes, &hosts, page);
    }
}

/// Nodes of reservations by state. One may be in several: `mix` and `drain`.
fn reserved(nodes: &Nodes, reservations: &[(&str, Vec<String>)], page: &mut Exposition) {
    let by_name: BTreeMap<&str, &Node> = nodes
        .nodes
        .iter()
        .map(|node| (node.summary.name.as_str(), node))
        .collect();
    let base = |node: &Node, bases: &[NodeBaseState]| {
        node.state.base.is_some_and(|base| bases.contains(&base))
    };
    let up = [
        NodeBaseState::Allocated,
        NodeBaseState::Idle,
        NodeBaseState::Mixed,
    ];
    let is_drained = |node: &Node| node.state.flags.contains(NodeFlag::Drain);
    type IsIn<'a> = &'a dyn Fn(&Node) -> bool;
    let states: [(&str, IsIn<'_>); 8] = [
        ("alloc", &|node| base(node, &[NodeBaseState::Allocated])),
        ("idle", &|node| base(node, &[NodeBaseState::Idle])),
        ("mix", &|node| base(node, &[NodeBaseState::Mixed])),
        ("down", &|node| base(node, &[NodeBaseState::Down])),
        ("drain", &is_drained),
        ("planned", &|node| {
            node.state.flags.contains(NodeFlag::Planned)
        }),
        ("other", &|node| {
            !base(node, &up) && !base(node, &[NodeBaseState::Down])
        }),
        ("healthy", &|node| base(node, &up) && !is_drained(node)),
    ];
    for (name, is_in) in states {
        let name = format!("slurm_reservation_nodes_{name}");
        page.metric(&name, Kind::Gauge, "Nodes of the reservation in this state");
        for (reservation, hosts) in reservations {
            let nodes = hosts.iter().filter_map(|host| by_name.get(host.as_str()));
            let number = nodes.filter(|node| is_in(node)).count();
            page.sample(&name, &[("reservation", reservation)], float(number as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generic_resources_are_counted_by_type() {
        let found = generic_resources("gpu:a100:4(S:0,1),gpu:v100:2,shard:8");
        let expected = [("gpu:a100", 4), ("gpu:v100", 2), ("shard", 8)];
        let expected = expected.map(|(kind, number)| (kind.to_owned(), number));
        assert_eq!(found, BTreeMap::from(expected));
        assert_eq!(generic_resources(""), BTreeMap::new());
    }

    #[test]
    fn use_is_unknown_if_only_the_sum_of_several_types_is() {
        let one = generic_resources("gpu:a100:4");
        let two = generic_resources("gpu:a100:4,gpu:v100:2");
        let sum = Tres::parse_lossy("cpu=4,gres/gpu=3").0;
        let typed = Tres::parse_lossy("gres/gpu=3,gres/gpu:a100=2").0;
        assert_eq!(used(&one, "gpu:a100", &sum), Some(3));
        assert_eq!(used(&two, "gpu:a100", &sum), None);
        assert_eq!(used(&two, "gpu:a100", &typed), Some(2));
        assert_eq!(used(&two, "gpu:a100", &Tres::default()), Some(0));
    }
}
