//! The durable consumers of the services.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{MESH_AUDIT, MESH_HOOKS, MESH_IN, SLURM_EVENTS};
use crate::{hooks, subject};

const MINUTE: Duration = Duration::from_secs(60);
const LEDGER_ACK_WAIT: Duration = Duration::from_secs(10);

/// A durable consumer that is made at set-up.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// Stream.
    pub stream: &'static str,
    /// The service's name: the durable name, or its beginning.
    pub name: &'static str,
    /// One for each cluster: `<name>-<cluster>`, declared by the service itself, and the `*` of its filters is that cluster.
    pub per_cluster: bool,
    /// Only these subjects; empty for all.
    pub filters: &'static [&'static str],
    /// After this time without an answer a message is delivered again. Longer than the slowest handling.
    pub ack_wait: Duration,
    /// How many messages may be unanswered.
    pub max_ack_pending: i64,
}

/// Every durable consumer.
pub const CONSUMERS: &[Consumer] = &[
    // Many: an end that only accounting can prove stays unacknowledged until it does, and must not hold up a start.
    Consumer {
        stream: MESH_HOOKS,
        name: "ingest",
        per_cluster: true,
        filters: hooks::JOB_HOOK_SUBJECTS,
        ack_wait: MINUTE,
        max_ack_pending: 20_000,
    },
    Consumer {
        stream: MESH_HOOKS,
        name: "node-watcher",
        per_cluster: true,
        filters: hooks::NODE_HOOK_SUBJECTS,
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    // Gaps that a ledger found: what it lacks is published again.
    Consumer {
        stream: SLURM_EVENTS,
        name: "ingest",
        per_cluster: true,
        filters: &["slurm.*.capture.gap_opened.stream"],
        ack_wait: MINUTE,
        max_ack_pending: 16,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "cost-engine",
        per_cluster: false,
        filters: &["slurm.*.job.>", "slurm.*.node.>"],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "pending-explainer",
        per_cluster: false,
        filters: &["slurm.*.job.>"],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "exporter",
        per_cluster: false,
        filters: &[
            "slurm.*.job.>",
            "slurm.*.node.>",
            "slurm.*.cost.finalized.>",
        ],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "workflow-trigger",
        per_cluster: false,
        filters: &[],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: MESH_IN,
        name: "workflow-trigger",
        per_cluster: false,
        filters: &[],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    // Short, because the messages of a killed ledger wait this long. One that comes twice is recognised by its id.
    Consumer {
        stream: SLURM_EVENTS,
        name: "ledger",
        per_cluster: false,
        filters: &[],
        ack_wait: LEDGER_ACK_WAIT,
        max_ack_pending: 8192,
    },
    Consumer {
        stream: MESH_AUDIT,
        name: "ledger",
        per_cluster: false,
        filters: &[],
        ack_wait: LEDGER_ACK_WAIT,
        max_ack_pending: 8192,
    },
];

/// Consumers of former versions that stand in the way of the present ones: stream and durable name.
pub const RETIRED_CONSUMERS: &[(&str, &str)] = &[(MESH_HOOKS, "ingest")];

/// How many consumers of dispatchers a stream can have.
pub const DISPATCHER_CONSUMERS: u8 = 16;

/// Names of the consumers by which dispatchers read a stream; each takes one that is free. NATS cannot allow a prefix of names, so the
/// role has a right to each of these.
pub fn dispatcher_consumers() -> impl Iterator<Item = String> {
    (0..DISPATCHER_CONSUMERS).map(|number| format!("webhook-dispatcher-{number:x}"))
}

impl Consumer {
    /// Its durable name, for a cluster.
    pub fn durable(&self, cluster: &str) -> String {
        self.of(&subject::token(cluster))
    }

    /// Its durable name, for a cluster's token.
    pub fn of(&self, token: &str) -> String {
        match self.per_cluster {
            true => format!("{}-{token}", self.name),
            false => self.name.to_owned(),
        }
    }

    /// The consumer of a durable name that is one of a cluster's, and the cluster's token.
    pub fn of_cluster<'a>(stream: &str, durable: &'a str) -> Option<(&'static Self, &'a str)> {
        let token = |consumer: &Self| durable.strip_prefix(consumer.name)?.strip_prefix('-');
        CONSUMERS
            .iter()
            .filter(|consumer| consumer.per_cluster && consumer.stream == stream)
            .find_map(|consumer| Some((consumer, token(consumer)?)))
    }

    /// Its filters, for a cluster's token.
    pub fn filters_of(&self, token: &str) -> Vec<String> {
        let of = |filter: &&str| match self.per_cluster {
            true => filter.replacen('*', token, 1),
            false => (*filter).to_owned(),
        };
        self.filters.iter().map(of).collect()
    }
}

/// The durable consumer of a service on a stream, for a cluster.
pub fn durable(stream: &str, service: &str, cluster: &str) -> String {
    CONSUMERS
        .iter()
        .find(|consumer| consumer.stream == stream && consumer.name == service)
        .map_or_else(|| service.to_owned(), |consumer| consumer.durable(cluster))
}

/// Durable name of the consumer that a webhook endpoint had in former versions: `wh-` and 12 hexadecimal digits of its name's SHA-256.
pub fn legacy_endpoint_consumer(endpoint: &str) -> String {
    let digest = Sha256::digest(endpoint.as_bytes());
    format!("wh-{}", hex::encode(&digest[..6]))
}
