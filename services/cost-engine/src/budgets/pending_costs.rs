//! What pending jobs may cost until their time limits. Computed once, and again when a job or the price book changes.
//!
//! The nodes of a pending job are not known. Where prices are of named nodes, the dearest kind of node of the partition counts, because
//! this is an upper bound.

use std::collections::{BTreeMap, HashMap};

use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::Tres;

use super::usage::Amounts;
use crate::adapters::{NodesOfPartitions, PendingRun, Store};
use crate::domain::Micros;
use crate::error::Error;
use crate::price_book::PriceBook;
use crate::price_book::estimate::{JobRequest, estimate};

/// How often the nodes of partitions are read, while jobs wait.
const NODES_INTERVAL_SECONDS: u64 = 600;

/// Costs by cluster and run.
#[derive(Default)]
pub(crate) struct PendingCosts {
    costs: HashMap<(String, String), PendingCost>,
    nodes: NodesOfPartitions,
    nodes_at: Option<i64>,
}

struct PendingCost {
    job: Job,
    account: String,
    price_book: String,
    amounts: Amounts,
}

impl PendingCosts {
    /// Computes the costs of all pending jobs, and removes those of others.
    pub async fn set(
        &mut self,
        store: &Store,
        book: &PriceBook,
        pending: &[PendingRun],
        now: i64,
    ) -> Result<(), Error> {
        let is_old = |at: i64| now.abs_diff(at) >= NODES_INTERVAL_SECONDS;
        if !pending.is_empty() && self.nodes_at.is_none_or(is_old) {
            self.nodes = store.nodes_of_partitions().await?;
            self.nodes_at = Some(now);
            self.costs.clear();
        }
        let label = book.label();
        let mut before = std::mem::take(&mut self.costs);
        for run in pending {
            let id = (run.keys.cluster.clone(), run.job.run.clone());
            let is_current = |cost: &PendingCost| {
                cost.job == run.job && cost.account == run.keys.account && cost.price_book == label
            };
            let cost = before
                .remove(&id)
                .filter(is_current)
                .unwrap_or_else(|| PendingCost {
                    job: run.job.clone(),
                    account: run.keys.account.clone(),
                    price_book: label.clone(),
                    amounts: amounts(book, run, &self.nodes, now),
                });
            self.costs.insert(id, cost);
        }
        Ok(())
    }

    /// What a pending job may cost.
    pub fn amounts(&self, run: &PendingRun) -> Amounts {
        let id = (run.keys.cluster.clone(), run.job.run.clone());
        self.costs
            .get(&id)
            .map_or(Amounts::default(), |cost| cost.amounts)
    }
}

/// A job without a time limit has no upper bound, and adds nothing.
fn amounts(book: &PriceBook, run: &PendingRun, nodes: &NodesOfPartitions, now: i64) -> Amounts {
    if run.job.time_limit_minutes.is_none() {
        return Amounts::default();
    }
    match ceiling(book, run, nodes, now) {
        Some(pending) => Amounts {
            pending,
            ..Amounts::default()
        },
        None => Amounts {
            unpriced_runs: 1,
            ..Amounts::default()
        },
    }
}

/// Cost at the time limit. Of several partitions, and of several kinds of nodes, the dearest counts.
fn ceiling(
    book: &PriceBook,
    run: &PendingRun,
    nodes: &NodesOfPartitions,
    now: i64,
) -> Option<Micros> {
    let partitions = run.job.partition.split(',');
    let costs = partitions.filter_map(|partition| {
        let request = request(run, partition, now);
        let of = |request: &JobRequest| estimate(book, request).ok()?.estimate;
        if let Some(cost) = of(&request) {
            return Some(cost);
        }
        let place = (run.keys.cluster.clone(), partition.to_owned());
        // One node of each kind, as often as the job asks for nodes.
        let mut kinds: BTreeMap<String, &str> = BTreeMap::new();
        for node in nodes.get(&place).into_iter().flatten() {
            let kind = book.node(node, partition);
            kinds
                .entry(kind.map_or_else(String::new, |kind| kind.node_type))
                .or_insert(node);
        }
        let costs = kinds.values().filter_map(|node| {
            let one = JobRequest {
                nodes: (*node).to_owned(),
                ..request.clone()
            };
            let count = i64::from(request.node_count.max(1));
            of(&one)?.0.checked_mul(count).map(Micros)
        });
        costs.max()
    });
    costs.max()
}

/// The request of a job, with amounts per node.
fn request(run: &PendingRun, partition: &str, now: i64) -> JobRequest {
    let job = &run.job;
    let (asked, _) = Tres::parse_lossy(&job.req_tres);
    let nodes = u64::from(job.node_count.max(1));
    let each = |total: u64| u32::try_from(total.div_ceil(nodes)).unwrap_or(u32::MAX);
    let is_shared = !job.exclusive;
    JobRequest {
        partition: partition.to_owned(),
        qos: job.qos.clone(),
        account: run.keys.account.clone(),
        nodes: String::new(),
        node_count: job.node_count,
        // Without amounts it is priced by whole nodes.
        cpus: if is_shared { each(asked.cpus()) } else { 0 },
        mem_mib: match asked.mem_mib() {
            Some(total) if is_shared => total.div_ceil(nodes),
            _ => 0,
        },
        gpus: if is_shared { each(asked.gpus()) } else { 0 },
        billing: asked.billing(),
        time_limit_minutes: job.time_limit_minutes,
        start: now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::RunKeys;

    const BOOK: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"EUR\"\n[[node_type]]\nname = \"small\"\nnodes = \"n[1-2]\"\ncpu = 4\nmem = 4000\n\
        [[node_type.price]]\non_demand = 1\n[[node_type]]\nname = \"large\"\nnodes = \"n3\"\ncpu = 8\nmem = 4000\n[[node_type.price]]\non_demand = 4\n";

    fn pending(partition: &str, tres: &str, nodes: u32, minutes: Option<u32>) -> PendingRun {
        PendingRun {
            keys: RunKeys {
                cluster: "c".into(),
                ..RunKeys::default()
            },
            job: Job {
                partition: partition.into(),
                req_tres: tres.into(),
                node_count: nodes,
                time_limit_minutes: minutes,
                ..Job::default()
            },
        }
    }

    #[test]
    fn a_pending_job_may_cost_what_it_costs_on_the_dearest_node() {
        let book = PriceBook::parse(BOOK, "book").unwrap();
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let nodes = NodesOfPartitions::from([
            (("c".into(), "cpu".into()), names(&["n1", "n2"])),
            (("c".into(), "all".into()), names(&["n1", "n3"])),
        ]);
        let of = |run: &PendingRun| {
            let amounts = amounts(&book, run, &nodes, 0);
            (amounts.pending.0, amounts.unpriced_runs)
        };
        let two = "cpu=4,mem=200M,node=2";
        assert_eq!(of(&pending("cpu", two, 2, Some(90))), (1_500_000, 0));
        // A quarter of the larger node costs more than half of the smaller one.
        assert_eq!(of(&pending("all", two, 2, Some(60))), (2_000_000, 0));
        assert_eq!(of(&pending("cpu,all", two, 2, Some(60))), (2_000_000, 0));
        assert_eq!(of(&pending("unknown", two, 2, Some(60))), (0, 1));
        assert_eq!(of(&pending("cpu", two, 2, None)), (0, 0), "no upper bound");
    }
}
