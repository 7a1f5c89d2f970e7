//! Cost of a job before its submission.

use mesh_events::proto::mesh::job::v1::{Job, NodeAllocation};
use pbjson_types::Timestamp;
use slurm_types::HostList;

use super::PriceBook;
use crate::costing::{RunRate, rate};
use crate::domain::PriceError;

/// A job that may be submitted. Amounts are per node.
#[derive(Clone, Debug, Default)]
pub struct JobRequest {
    /// Partition.
    pub partition: String,
    /// QOS.
    pub qos: String,
    /// Account.
    pub account: String,
    /// Nodes as a host list. Empty if not known.
    pub nodes: String,
    /// Number of nodes, if their names are not known.
    pub node_count: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// GPUs.
    pub gpus: u32,
    /// Billing units of the whole job, for books in mode `billing`.
    pub billing: Option<u64>,
    /// Time limit.
    pub time_limit_minutes: Option<u32>,
    /// Start in Unix seconds.
    pub start: i64,
}

/// Burn rate, and cost at the time limit. Without any amounts the job has whole nodes.
///
/// # Errors
/// If there is no price. Without node names only node types that do not name nodes have one.
pub fn estimate(book: &PriceBook, request: &JobRequest) -> Result<RunRate, PriceError> {
    let unnamed = || {
        // No node of a cluster has such a name.
        let names = (1..=request.node_count.max(1)).map(|number| format!("any.node.{number}"));
        HostList::compress(&names.collect::<Vec<_>>())
    };
    let nodes = match request.nodes.as_str() {
        "" => unnamed(),
        nodes => nodes.to_owned(),
    };
    let (cpus, gpus) = (request.cpus, request.gpus);
    let billing = request.billing.map(|units| format!("billing={units}"));
    let job = Job {
        partition: request.partition.clone(),
        qos: request.qos.clone(),
        exclusive: cpus == 0 && request.mem_mib == 0 && gpus == 0,
        allocations: vec![NodeAllocation {
            nodes: nodes.clone(),
            cpus,
            memory_mib: (request.mem_mib > 0).then_some(request.mem_mib),
            gpus,
            gpu_indices: Vec::new(),
        }],
        nodes,
        alloc_tres: billing.unwrap_or_default(),
        time_limit_minutes: request.time_limit_minutes,
        start_time: Some(Timestamp {
            seconds: request.start,
            nanos: 0,
        }),
        ..Job::default()
    };
    rate(book, &job, &request.account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Micros;

    const BOOK: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"USD\"\n[[node_type]]\nname = \"gpu\"\npartitions = \"gpu\"\ncpu = 96\nmem = \"1T\"\ngpu = 8\n\
        [[node_type.price]]\non_demand = \"32.7726\"\n[[node_type]]\nname = \"n\"\nnodes = \"n[1-2]\"\ncpu = 4\nmem = 4000\n[[node_type.price]]\non_demand = 1\n";

    #[test]
    fn a_request_is_priced_by_partition_or_by_nodes() {
        let book = PriceBook::parse(BOOK, "book").unwrap();
        let gpus = JobRequest {
            partition: "gpu".into(),
            node_count: 8,
            gpus: 8,
            time_limit_minutes: Some(24 * 60),
            ..JobRequest::default()
        };
        let burn = Micros(8 * 32_772_600);
        let rate = estimate(&book, &gpus).unwrap();
        assert_eq!(
            (rate.burn, rate.estimate),
            (burn, Some(Micros(burn.0 * 24)))
        );
        // Half of the GPUs, and whole nodes without any amounts.
        let half = estimate(
            &book,
            &JobRequest {
                gpus: 4,
                ..gpus.clone()
            },
        )
        .unwrap();
        assert_eq!(half.burn, Micros(burn.0 / 2));
        let whole = estimate(&book, &JobRequest { gpus: 0, ..gpus }).unwrap();
        assert_eq!(whole.burn, burn);
        let named = JobRequest {
            nodes: "n[1-2]".into(),
            cpus: 1,
            ..JobRequest::default()
        };
        let rate = estimate(&book, &named).unwrap();
        assert_eq!((rate.burn, rate.estimate), (Micros(500_000), None));
        let unnamed = JobRequest {
            nodes: String::new(),
            partition: "cpu".into(),
            ..named
        };
        let error = estimate(&book, &unnamed).unwrap_err();
        assert!(
            matches!(error, PriceError::NodeTypeMissing { .. }),
            "{error}"
        );
    }
}
