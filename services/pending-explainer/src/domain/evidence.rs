//! The newest evidence of a cluster: what decides about starts besides the queue, assembled from its chunks.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use mesh_events::chunks::newest_complete;
use mesh_events::proto::mesh::queue::v1::{
    Backfill, EvidenceSnapshot, License, Limit, NodeState, Partition, PriorityFactor, Reservation,
    RunningJob,
};
use slurm_types::HostList;

/// A complete snapshot.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Start of the reads.
    pub taken_at: DateTime<Utc>,
    /// Errors of the reads that failed, by field.
    pub failed: BTreeMap<String, String>,
    /// Jobs that hold an allocation.
    pub running: Vec<RunningJob>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeState>,
    /// Reservations.
    pub reservations: Vec<Reservation>,
    /// Licenses by name.
    pub licenses: HashMap<String, License>,
    /// Backfill's last cycle.
    pub backfill: Option<Backfill>,
    partitions: HashMap<String, Partition>,
    /// Names of the nodes of each partition.
    members: HashMap<String, Vec<String>>,
    limits_of_qos: HashMap<String, Vec<Limit>>,
    limits_of_accounts: HashMap<String, Vec<Limit>>,
    parents: HashMap<String, String>,
    priorities: HashMap<u32, Vec<PriorityFactor>>,
}

impl Evidence {
    /// Assembles the chunks of one snapshot. `None` while one is missing.
    pub fn from_chunks(chunks: Vec<EvidenceSnapshot>) -> Option<Self> {
        let (taken_at, chunks) = newest_complete(chunks)?;
        let mut evidence = Self {
            taken_at,
            ..Self::default()
        };
        for chunk in chunks {
            let failed = chunk.failed.into_iter();
            evidence
                .failed
                .extend(failed.map(|failed| (failed.field, failed.error)));
            evidence.running.extend(chunk.running);
            for limit in chunk.limits {
                let (limits, name) = if limit.qos.is_empty() {
                    (&mut evidence.limits_of_accounts, &limit.account)
                } else {
                    (&mut evidence.limits_of_qos, &limit.qos)
                };
                limits.entry(name.clone()).or_default().push(limit);
            }
            evidence.reservations.extend(chunk.reservations);
            let nodes = chunk.nodes.into_iter();
            evidence
                .nodes
                .extend(nodes.map(|node| (node.name.clone(), node)));
            let licenses = chunk.licenses.into_iter();
            evidence
                .licenses
                .extend(licenses.map(|license| (license.name.clone(), license)));
            for partition in &chunk.partitions {
                let names = HostList::expand(&partition.nodes).unwrap_or_default();
                evidence.members.insert(partition.name.clone(), names);
            }
            let partitions = chunk.partitions.into_iter();
            evidence
                .partitions
                .extend(partitions.map(|partition| (partition.name.clone(), partition)));
            let accounts = chunk.accounts.into_iter();
            evidence
                .parents
                .extend(accounts.map(|account| (account.name, account.parent)));
            let priorities = chunk.priorities.into_iter();
            evidence
                .priorities
                .extend(priorities.map(|row| (row.job_id, row.factors)));
            evidence.backfill = evidence.backfill.or(chunk.backfill);
        }
        Some(evidence)
    }

    /// A partition.
    pub fn partition(&self, name: &str) -> Option<&Partition> {
        self.partitions.get(name)
    }

    /// Names of all partitions, in no order.
    pub fn partition_names(&self) -> impl Iterator<Item = &str> {
        self.partitions.keys().map(String::as_str)
    }

    /// The nodes of a partition: name and record. Slurm 22.05 shows no record of a cloud node that is powered down.
    pub fn members(&self, partition: &str) -> impl Iterator<Item = (&str, Option<&NodeState>)> {
        let names = self.members.get(partition).map_or(&[][..], Vec::as_slice);
        names
            .iter()
            .map(|name| (name.as_str(), self.nodes.get(name)))
    }

    /// Limits of a QOS, also those per user and account.
    pub fn limits_of_qos(&self, qos: &str) -> &[Limit] {
        self.limits_of_qos.get(qos).map_or(&[], Vec::as_slice)
    }

    /// Limits of the associations of an account and its users.
    pub fn limits_of_account(&self, account: &str) -> &[Limit] {
        self.limits_of_accounts
            .get(account)
            .map_or(&[], Vec::as_slice)
    }

    /// The job's allocation, if it has one.
    pub fn running(&self, job_id: u32) -> Option<&RunningJob> {
        self.running.iter().find(|job| job.job_id == job_id)
    }

    /// Weighted priority factors of a job.
    pub fn priority(&self, job_id: u32) -> &[PriorityFactor] {
        self.priorities.get(&job_id).map_or(&[], Vec::as_slice)
    }

    /// The account and all above it.
    pub fn accounts_above<'a>(&'a self, account: &'a str) -> Vec<&'a str> {
        let mut chain = vec![account];
        while let Some(parent) = chain.last().and_then(|name| self.parents.get(*name)) {
            // Accounts are a tree. A loop could only come from a mixed-up answer.
            if parent.is_empty() || chain.contains(&parent.as_str()) {
                break;
            }
            chain.push(parent);
        }
        chain
    }

    /// The nodes of a host list: name and record.
    pub fn nodes_of(&self, hosts: &str) -> Vec<(String, Option<&NodeState>)> {
        let names = HostList::expand(hosts).unwrap_or_default();
        names
            .into_iter()
            .map(|name| {
                let node = self.nodes.get(&name);
                (name, node)
            })
            .collect()
    }
}
