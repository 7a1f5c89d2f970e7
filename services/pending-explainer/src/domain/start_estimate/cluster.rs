//! The cluster's snapshots as the estimator's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use mesh_events::proto::mesh::queue::v1::{NodeState, QueuedJob, RunningJob};
use queue_estimate::{Key, Pool, Reservation, Resources, Running, Seconds, Snapshot, Waiting};
use slurm_types::Tres;

use super::Request;
use crate::domain::evidence::Evidence;
use crate::domain::queue::{Queue, Rank};

/// Time limit of jobs without one.
pub const UNLIMITED: Seconds = 365 * 86_400;
/// States and flags of nodes that take no jobs.
const UNUSABLE: [&str; 7] = [
    "DOWN",
    "ERROR",
    "FUTURE",
    "UNKNOWN",
    "NOT_RESPONDING",
    "FAIL",
    "INVALID_REG",
];

/// A snapshot, and what is not in it about its waiting jobs.
#[derive(Debug)]
pub struct QueueView {
    pub snapshot: Snapshot,
    pub runs: Vec<String>,
    pub job_ids: Vec<u32>,
    pub partitions: Vec<String>,
    /// Where each stands in the order of the scheduler.
    pub order: Vec<SchedulingOrder>,
    pool_of_partition: HashMap<String, usize>,
}

/// Tier of the partition, then rank in it.
pub type SchedulingOrder = (Reverse<Option<u32>>, Rank);

impl QueueView {
    /// Pools of a list of partitions.
    pub fn pools(&self, partitions: &str) -> Vec<usize> {
        let names = partitions.split(',');
        let mut pools: Vec<usize> = names
            .filter_map(|name| self.pool_of_partition.get(name).copied())
            .collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }
}

/// Where a job of this rank stands in a list of partitions.
pub fn scheduling_order(partitions: &str, rank: Rank, evidence: &Evidence) -> SchedulingOrder {
    let names = partitions.split(',');
    let tiers = names.filter_map(|name| evidence.partition(name));
    let tier = tiers.map(|partition| partition.priority_tier).max();
    (Reverse(tier), rank)
}

/// Time limit of a running job.
pub fn limit(row: &RunningJob) -> Seconds {
    if row.end > row.start {
        row.end - row.start
    } else {
        UNLIMITED
    }
}

/// Amounts of a TRES string.
pub fn size(tres: &str) -> Resources {
    let (tres, _) = Tres::parse_lossy(tres);
    let amount = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX / 4);
    Resources([
        amount(tres.cpus()),
        amount(tres.mem_mib().unwrap_or(0)),
        amount(tres.gpus()),
    ])
}

/// `eligible` gives the time since which a known run contends.
pub fn snapshot(
    at: Seconds,
    queue: &Queue,
    evidence: &Evidence,
    requests: &HashMap<String, Request>,
    eligible: impl Fn(&str) -> Option<Seconds>,
) -> QueueView {
    let pools = Pools::of(evidence);
    let running = evidence.running.iter().filter_map(|row| {
        Some(Running {
            job: Key::of(&format!("{}/{}", row.job_id, row.start)),
            user: Key::of(&row.user),
            pool: pools.of_partition(&row.partition)?,
            size: size(&row.tres),
            start: if row.start > 0 { row.start } else { at },
            limit: limit(row),
        })
    });
    let running = running.collect();
    let mut rows: Vec<(&QueuedJob, &Request, Vec<usize>)> = queue
        .contenders()
        .filter_map(|row| {
            let mut of_job: Vec<usize> = row
                .partition
                .split(',')
                .filter_map(|name| pools.of_partition(name))
                .collect();
            of_job.sort_unstable();
            of_job.dedup();
            let request = requests.get(&row.run)?;
            (!of_job.is_empty()).then_some((row, request, of_job))
        })
        .collect();
    let order_of = |row: &QueuedJob| scheduling_order(&row.partition, Queue::rank(row), evidence);
    rows.sort_by_cached_key(|(row, _, _)| (order_of(row), row.run.clone()));
    let mut view = QueueView {
        snapshot: Snapshot {
            at,
            pools: pools.pools,
            running,
            waiting: Vec::new(),
        },
        runs: Vec::new(),
        job_ids: Vec::new(),
        partitions: Vec::new(),
        order: Vec::new(),
        pool_of_partition: pools.by_partition,
    };
    for (row, request, pools) in rows {
        view.runs.push(row.run.clone());
        view.job_ids.push(row.job_id);
        view.partitions.push(row.partition.clone());
        view.order.push(order_of(row));
        view.snapshot.waiting.push(Waiting {
            job: Key::of(&row.run),
            user: Key::of(&row.user),
            partition: Key::of(&row.partition),
            pools,
            size: request.size,
            // A job that was held, over a limit or unknown contends since it is seen to.
            eligible: eligible(&row.run).unwrap_or(request.eligible).min(at),
            limit: request.limit,
            planned: (row.expected_start > at).then_some(row.expected_start),
        });
    }
    view
}

/// Partitions that share nodes are one pool.
struct Pools {
    pools: Vec<Pool>,
    by_partition: HashMap<String, usize>,
}

impl Pools {
    fn of(evidence: &Evidence) -> Self {
        let mut names: Vec<&str> = evidence.partition_names().collect();
        names.sort_unstable();
        // The first partition of each node's pool.
        let mut root: Vec<usize> = (0..names.len()).collect();
        let mut first_of_node: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, name) in names.iter().enumerate() {
            for (node, _) in evidence.members(name) {
                let first = *first_of_node.entry(node).or_insert(index);
                let (one, other) = (find(&root, first), find(&root, index));
                root[one.max(other)] = one.min(other);
            }
        }
        let mut pools = Vec::new();
        let mut by_root: BTreeMap<usize, usize> = BTreeMap::new();
        let mut by_partition = HashMap::new();
        for (index, name) in names.iter().enumerate() {
            let pool = *by_root.entry(find(&root, index)).or_insert_with(|| {
                pools.push(Pool::default());
                pools.len() - 1
            });
            by_partition.insert((*name).to_owned(), pool);
        }
        for (node, first) in first_of_node {
            let (Some(state), Some(pool)) =
                (evidence.nodes.get(node), by_root.get(&find(&root, first)))
            else {
                continue;
            };
            let pool = &mut pools[*pool];
            pool.capacity = pool.capacity.plus(usable(state));
        }
        for reservation in &evidence.reservations {
            let mut taken: BTreeMap<usize, Resources> = BTreeMap::new();
            for (name, state) in evidence.nodes_of(&reservation.nodes) {
                let pool = state
                    .and_then(|state| state.partitions.first())
                    .and_then(|partition| by_partition.get(partition));
                if let (Some(pool), Some(state)) = (pool, evidence.nodes.get(&name)) {
                    let sum = taken.entry(*pool).or_default();
                    *sum = sum.plus(usable(state));
                }
            }
            for (pool, size) in taken {
                pools[pool].reservations.push(Reservation {
                    start: reservation.start,
                    end: reservation.end,
                    size,
                });
            }
        }
        Self {
            pools,
            by_partition,
        }
    }

    fn of_partition(&self, name: &str) -> Option<usize> {
        self.by_partition.get(name).copied()
    }
}

fn find(root: &[usize], mut index: usize) -> usize {
    while root[index] != index {
        index = root[index];
    }
    index
}

/// What a node gives to jobs. A draining one has only what it still holds.
pub fn usable(node: &NodeState) -> Resources {
    let has =
        |state: &&str| node.state == **state || node.state_flags.iter().any(|flag| flag == *state);
    if UNUSABLE.iter().any(has) {
        return Resources::default();
    }
    let amount = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX / 4);
    if has(&"DRAIN") {
        let memory = amount(node.alloc_memory_mib);
        return Resources([i64::from(node.alloc_cpus), memory, 0]);
    }
    let gpus = size(&node.tres).0[2];
    Resources([i64::from(node.cpus), amount(node.memory_mib), gpus])
}
