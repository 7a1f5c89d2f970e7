//! The list of nodes of a poll, for metrics. Written at most every 15 seconds, because it is large and metrics are scraped that often.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_bus::{Bus, ChunkWriter, PutError};
use mesh_events::catalogue::BUCKET_NODE_LIST;
use mesh_events::chunks::ChunkBuilder;
use mesh_events::proto::mesh::metrics::v1::{NodeList, NodeSummary};
use mesh_events::{subject, timestamp};
use slurm_client::NodeRecord;
use tokio::time::Instant;

use crate::error::Error;

const INTERVAL: Duration = Duration::from_secs(15);
/// Characters of a reason: more would only make series longer.
const MAX_REASON: usize = 100;

/// Writes the lists of a cluster.
pub struct NodeListPublisher {
    cluster: String,
    writer: ChunkWriter,
    written: Option<Instant>,
}

impl NodeListPublisher {
    /// Takes over from a former leader.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn take_over(bus: &Bus, cluster: &str) -> Result<Self, Error> {
        let prefix = subject::token(cluster);
        Ok(Self {
            cluster: cluster.to_owned(),
            writer: bus.take_over_chunks(BUCKET_NODE_LIST, &prefix).await?,
            written: None,
        })
    }

    /// Writes the nodes of a poll, unless the last list is recent. If NATS does not store it, a later poll writes a newer one.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another instance has taken over.
    pub async fn publish(
        &mut self,
        taken_at: DateTime<Utc>,
        nodes: Vec<NodeSummary>,
    ) -> Result<(), Error> {
        if self.written.is_some_and(|at| at.elapsed() < INTERVAL) {
            return Ok(());
        }
        match self.write(taken_at, nodes).await {
            Ok(()) => self.written = Some(Instant::now()),
            Err(error @ PutError::Conflict { .. }) => return Err(error.into()),
            Err(PutError::Bus(error)) => tracing::debug!(
                error = mesh_runtime::error_chain(&error),
                "list of nodes not published"
            ),
        }
        Ok(())
    }

    async fn write(
        &mut self,
        taken_at: DateTime<Utc>,
        nodes: Vec<NodeSummary>,
    ) -> Result<(), PutError> {
        let empty = NodeList {
            cluster: self.cluster.clone(),
            taken_at: Some(timestamp(taken_at)),
            ..NodeList::default()
        };
        let mut chunks = ChunkBuilder::new(empty.clone(), empty);
        for node in nodes {
            chunks.chunk_for(&node).nodes.push(node);
        }
        self.writer.write_all(chunks.build()).await
    }
}

/// What metrics need of a node's record.
pub fn summary(node: &NodeRecord) -> NodeSummary {
    let number_of = |amount: u64| u32::try_from(amount).unwrap_or(u32::MAX);
    NodeSummary {
        name: node.name.clone(),
        state: node.state.to_string(),
        lifecycle: node.lifecycle().as_str().to_owned(),
        reason: node.reason.chars().take(MAX_REASON).collect(),
        cpus: node.cpus_total,
        effective_cpus: node.cpus_effective,
        alloc_cpus: node.cpus_alloc,
        memory_mib: node.real_memory_mib,
        alloc_memory_mib: node.alloc_memory_mib,
        free_memory_mib: node.free_memory_mib,
        gpus: number_of(node.gpus()),
        alloc_gpus: number_of(node.alloc_tres.gpus()),
        partitions: node.partitions.clone(),
        reserved_memory_mib: node.reserved_memory_mib,
        cpu_load: node.cpu_load,
        features: node.active_features.clone(),
        weight: node.weight,
        reason_time: node.reason_time.map_or(0, slurm_types::UnixTime::as_secs),
        gres: node.gres.clone(),
        alloc_tres: node.alloc_tres.to_string(),
        version: node.version.clone(),
    }
}
