//! What pending jobs may cost until their time limits.
//!
//! The nodes of a pending job are not known. Where prices are of named nodes, the dearest kind of node of the partition counts, because
//! this is an upper bound. A cost is computed again when its job or the price book changes, and every hour, because prices may depend on
//! the time.

use std::collections::{BTreeMap, HashMap};

use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::Tres;

use super::usage::Amounts;
use crate::adapters::{NodesOfPartitions, PendingRun, Store};
use crate::domain::{Micros, RunsCost};
use crate::error::Error;
use crate::price_book::PriceBook;
use crate::price_book::estimate::{JobRequest, estimate};

/// How often the nodes of partitions are read, while jobs are pending.
const NODES_INTERVAL_SECONDS: u64 = 600;
/// How long a cost stays valid.
const COST_VALIDITY_SECONDS: u64 = 3600;

/// Costs by cluster and run.
#[derive(Default)]
pub(crate) struct PendingCosts {
    costs: HashMap<(String, String), PendingCost>,
    nodes: NodesOfPartitions,
    nodes_at: Option<i64>,
    /// One node of each kind in each partition.
    samples: NodesOfPartitions,
    /// Label of the price book that tells the kinds apart.
    price_book: String,
}

struct PendingCost {
    job: Job,
    account: String,
    /// Unix seconds.
    computed_at: i64,
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
            let nodes = store.nodes_of_partitions().await?;
            self.nodes_at = Some(now);
            if nodes != self.nodes {
                self.nodes = nodes;
                self.set_samples(book);
            }
        }
        let label = book.label();
        if label != self.price_book {
            self.price_book = label;
            self.costs.clear();
            self.set_samples(book);
        }
        let mut before = std::mem::take(&mut self.costs);
        for run in pending {
            let id = (run.keys.cluster.clone(), run.run.clone());
            let is_current = |cost: &PendingCost| {
                cost.job == run.job
                    && cost.account == run.keys.account
                    && now.abs_diff(cost.computed_at) < COST_VALIDITY_SECONDS
            };
            let cost = before
                .remove(&id)
                .filter(is_current)
                .unwrap_or_else(|| PendingCost {
                    job: run.job.clone(),
                    account: run.keys.account.clone(),
                    computed_at: now,
                    amounts: amounts(book, run, &self.samples, now),
                });
            self.costs.insert(id, cost);
        }
        Ok(())
    }

    fn set_samples(&mut self, book: &PriceBook) {
        let samples = samples(book, &self.nodes);
        if samples != self.samples {
            self.samples = samples;
            self.costs.clear();
        }
    }

    /// What a pending job may cost.
    pub fn amounts(&self, run: &PendingRun) -> Amounts {
        let id = (run.keys.cluster.clone(), run.run.clone());
        self.costs
            .get(&id)
            .map_or(Amounts::default(), |cost| cost.amounts)
    }
}

/// One node of each node type and market, because nodes of one kind have equal prices.
fn samples(book: &PriceBook, nodes: &NodesOfPartitions) -> NodesOfPartitions {
    let of_partition = |(place, nodes): (&(String, String), &Vec<String>)| {
        let mut kinds: BTreeMap<(String, &str), &String> = BTreeMap::new();
        for node in nodes {
            if let Some(kind) = book.node(node, &place.1) {
                let key = (kind.node_type, kind.market.as_str());
                kinds.entry(key).or_insert(node);
            }
        }
        (place.clone(), kinds.into_values().cloned().collect())
    };
    nodes.iter().map(of_partition).collect()
}

/// A job without a time limit has no upper bound, and adds nothing.
fn amounts(book: &PriceBook, run: &PendingRun, samples: &NodesOfPartitions, now: i64) -> Amounts {
    if run.job.time_limit_minutes.is_none() {
        return Amounts::default();
    }
    Amounts {
        pending: RunsCost::of(ceiling(book, run, samples, now)),
        ..Amounts::default()
    }
}

/// Cost at the time limit. Of several partitions, and of several kinds of nodes, the dearest counts.
fn ceiling(
    book: &PriceBook,
    run: &PendingRun,
    samples: &NodesOfPartitions,
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
        // One node, as often as the job asks for nodes.
        let costs = samples.get(&place)?.iter().filter_map(|node| {
            let one = JobRequest {
                nodes: node.clone(),
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
    use mesh_db::Location;

    use super::*;
    use crate::adapters::{NodePartitions, RunKeys};

    const BOOK: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"EUR\"\n[[node_type]]\nname = \"small\"\nnodes = \"n[1-2]\"\ncpu = 4\nmem = 4000\n\
        [[node_type.price]]\non_demand = 1\nspot = 0.5\n[[node_type]]\nname = \"large\"\nnodes = \"n3\"\ncpu = 8\nmem = 4000\n[[node_type.price]]\non_demand = 4\n\
        [[spot]]\nnodes = \"n1\"\n";

    fn pending(run: &str, partition: &str, nodes: u32, minutes: Option<u32>) -> PendingRun {
        PendingRun {
            run: run.into(),
            keys: RunKeys {
                cluster: "c".into(),
                ..RunKeys::default()
            },
            job: Job {
                partition: partition.into(),
                req_tres: format!("cpu={},mem=200M,node={nodes}", 2 * nodes),
                node_count: nodes,
                time_limit_minutes: minutes,
                ..Job::default()
            },
        }
    }

    fn nodes() -> NodesOfPartitions {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        NodesOfPartitions::from([
            (("c".into(), "cpu".into()), names(&["n1", "n2"])),
            (("c".into(), "all".into()), names(&["n2", "n3"])),
        ])
    }

    #[test]
    fn a_pending_job_may_cost_what_it_costs_on_the_dearest_node() {
        let book = PriceBook::parse(BOOK, "book").unwrap();
        let samples = samples(&book, &nodes());
        let of = |partition: &str, minutes| {
            let amounts = amounts(&book, &pending("", partition, 2, minutes), &samples, 0);
            (amounts.pending.known.0, amounts.pending.unpriced)
        };
        // n1 of the same type is a spot node, and cheaper.
        assert_eq!(of("cpu", Some(90)), (1_500_000, 0));
        // A quarter of the larger node costs more than half of the smaller one.
        assert_eq!(of("all", Some(60)), (2_000_000, 0));
        assert_eq!(of("cpu,all", Some(60)), (2_000_000, 0));
        assert_eq!(of("unknown", Some(60)), (0, 1));
        assert_eq!(of("cpu", None), (0, 0), "no upper bound");
    }

    #[test]
    fn nodes_of_one_kind_have_one_sample() {
        let book = PriceBook::parse(BOOK, "book").unwrap();
        let place = ("c".to_owned(), "cpu".to_owned());
        let mut nodes = nodes();
        nodes.insert(place.clone(), vec!["n2".into(); 1000]);
        assert_eq!(samples(&book, &nodes)[&place], ["n2"]);
    }

    #[tokio::test]
    async fn each_run_has_its_own_cost_until_a_node_is_removed() {
        let book = PriceBook::parse(BOOK, "book").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Sqlite(folder.path().join("costs.db")))
            .await
            .unwrap();
        let set = async |node: &str, at, partitions: &[&str]| {
            let known = NodePartitions {
                at,
                seq: 1,
                partitions: partitions.iter().map(ToString::to_string).collect(),
            };
            let mut transaction = store.begin().await.unwrap();
            let stored = transaction.store_node_partitions("c", node, &known);
            stored.await.unwrap();
            transaction.commit().await.unwrap();
        };
        set("n2", 1, &["cpu", "all"]).await;
        set("n3", 1, &["all"]).await;
        // Jobs from before the run was part of the stored facts.
        let runs = [
            pending("job/1/1", "all", 1, Some(60)),
            pending("job/2/1", "cpu", 1, Some(60)),
        ];
        let mut costs = PendingCosts::default();
        let of = |costs: &PendingCosts| {
            runs.each_ref()
                .map(|run| costs.amounts(run).pending.known.0)
        };
        costs.set(&store, &book, &runs, 0).await.unwrap();
        assert_eq!(of(&costs), [1_000_000, 500_000]);
        set("n3", 2, &[]).await;
        set("n3", 1, &["all"]).await;
        costs.set(&store, &book, &runs, 599).await.unwrap();
        assert_eq!(of(&costs), [1_000_000, 500_000]);
        costs.set(&store, &book, &runs, 600).await.unwrap();
        assert_eq!(of(&costs), [500_000, 500_000]);
    }
}
