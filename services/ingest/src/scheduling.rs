//! Scheduling state for explanations: what decides about starts besides the queue itself, read once for all jobs and published in chunks to
//! `mesh_evidence`.
//!
//! At most eight commands per [`Config::evidence_interval`](crate::config::Config), and none while no job waits. A read that fails leaves
//! its field empty and is named in the snapshot.

use std::time::Duration;

use chrono::Utc;
use mesh_events::chunks::ChunkBuilder;
use mesh_events::proto::mesh::queue::v1::{
    Account, Backfill, EvidenceSnapshot, FailedRead, JobPriority, License, Limit, NodeState,
    Partition, PriorityFactor, Reservation, RunningJob,
};
use mesh_events::timestamp;
use slurm_client::{
    BackfillStats, Error as SlurmError, LicenseRecord, Limits, NodeRecord, PartitionRecord,
    PriorityRow, ReservationRecord, RunningRow, Slurm,
};
use slurm_types::{NodeFlag, TimeLimit, UnixTime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::adapters::chunks::ChunkPublisher;
use crate::sources::unless_stopped;

/// Longest queue whose priorities are read: sprio costs slurmctld a record of every pending job.
const MAX_PRIORITIES: usize = 2_000;

/// Whether jobs wait, as the last poll saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// True if a job waits for its turn or for its nodes.
    pub is_needed: bool,
    /// Number of waiting jobs.
    pub waiting: usize,
}

/// Reads the scheduling state and publishes it.
pub struct SchedulingReader {
    /// Slurm client.
    pub slurm: Slurm,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Writes the chunks.
    pub publisher: ChunkPublisher,
    /// Pause between two reads.
    pub interval: Duration,
    /// Whether jobs wait.
    pub demand: watch::Receiver<Demand>,
    /// Signals shutdown.
    pub shutdown: CancellationToken,
}

impl SchedulingReader {
    /// Reads until shutdown.
    ///
    /// # Errors
    /// If another ingest has taken over.
    pub async fn run(mut self) -> Result<(), Error> {
        loop {
            let needed = self.demand.wait_for(|demand| demand.is_needed);
            let demand = tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                demand = needed => match demand {
                    Ok(demand) => *demand,
                    Err(_) => return Ok(()),
                },
            };
            let began = Instant::now();
            let snapshot = match self.read(demand).await {
                Ok(snapshot) => snapshot,
                Err(error) if error.is_shutdown() => return Ok(()),
                Err(error) => return Err(error),
            };
            let took = began.elapsed();
            self.publisher.publish_all(split(snapshot)).await?;
            // At most a tenth of a slow controller's time.
            let pause = self
                .interval
                .max(took.saturating_mul(9))
                .max(self.slurm.min_poll_interval(Duration::ZERO));
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
        }
    }

    async fn read(&self, demand: Demand) -> Result<EvidenceSnapshot, Error> {
        let mut snapshot = EvidenceSnapshot {
            cluster: self.cluster.clone(),
            taken_at: Some(timestamp(Utc::now())),
            ..EvidenceSnapshot::default()
        };
        let slurm = &self.slurm;
        let mut failed = Vec::new();
        macro_rules! read {
            ($field:ident, $read:expr, $convert:expr) => {
                match unless_stopped(&self.shutdown, $read).await? {
                    Ok(records) => snapshot.$field = records.into_iter().map($convert).collect(),
                    Err(error) => failed.push(failure(stringify!($field), &error)),
                }
            };
        }
        read!(running, slurm.running(), running);
        read!(nodes, slurm.nodes(), node);
        read!(partitions, slurm.partitions(), partition);
        read!(reservations, slurm.reservations(), reservation);
        read!(licenses, slurm.licenses(), license);
        if demand.waiting <= MAX_PRIORITIES {
            read!(priorities, slurm.priorities(), priority);
        }
        match unless_stopped(&self.shutdown, slurm.limits()).await? {
            Ok(found) => (snapshot.accounts, snapshot.limits) = limits(found),
            Err(error) => failed.push(failure("limits", &error)),
        }
        match unless_stopped(&self.shutdown, slurm.backfill()).await? {
            Ok(stats) => snapshot.backfill = Some(backfill(stats)),
            Err(error) => failed.push(failure("backfill", &error)),
        }
        snapshot.failed = failed;
        Ok(snapshot)
    }
}

fn failure(field: &str, error: &SlurmError) -> FailedRead {
    tracing::debug!(
        field,
        error = error as &dyn std::error::Error,
        "scheduling state not read"
    );
    FailedRead {
        field: field.to_owned(),
        error: error.to_string(),
    }
}

/// Divides a snapshot into chunks.
fn split(snapshot: EvidenceSnapshot) -> Vec<EvidenceSnapshot> {
    let empty = EvidenceSnapshot {
        cluster: snapshot.cluster,
        taken_at: snapshot.taken_at,
        ..EvidenceSnapshot::default()
    };
    let first = EvidenceSnapshot {
        failed: snapshot.failed,
        backfill: snapshot.backfill,
        ..empty.clone()
    };
    let mut chunks = ChunkBuilder::new(first, empty);
    macro_rules! distribute {
        ($($field:ident),*) => {$(
            for item in snapshot.$field {
                chunks.chunk_for(&item).$field.push(item);
            }
        )*};
    }
    distribute!(
        running,
        limits,
        accounts,
        partitions,
        nodes,
        reservations,
        licenses,
        priorities
    );
    chunks.build()
}

fn seconds(time: Option<UnixTime>) -> i64 {
    time.map_or(0, UnixTime::as_secs)
}

fn running(row: RunningRow) -> RunningJob {
    RunningJob {
        job_id: row.job_id,
        start: seconds(row.start),
        end: seconds(row.end),
        tres: row.tres.to_string(),
        display_id: row.display_id,
        user: row.user,
        account: row.account,
        qos: row.qos,
        partition: row.partition,
        state: row.state,
        nodes: row.nodes,
        licenses: row.licenses,
        reservation: row.reservation,
    }
}

pub(crate) fn limits(found: Limits) -> (Vec<Account>, Vec<Limit>) {
    let accounts = found.accounts.into_iter();
    let accounts = accounts.map(|(name, parent)| Account { name, parent });
    let limits = found.limits.into_iter().map(|limit| Limit {
        qos: limit.qos,
        account: limit.account,
        user: limit.user,
        partition: limit.partition,
        limit: limit.limit.to_owned(),
        tres: limit.tres,
        value: limit.value,
        used: limit.used,
    });
    (accounts.collect(), limits.collect())
}

fn partition(record: PartitionRecord) -> Partition {
    Partition {
        max_minutes: match TimeLimit::parse(&record.max_time) {
            Some(TimeLimit::Minutes(minutes)) => Some(minutes),
            _ => None,
        },
        name: record.name,
        state: record.state,
        nodes: record.nodes,
        qos: record.qos,
        min_nodes: record.min_nodes,
        max_nodes: record.max_nodes,
        allow_accounts: record.allow_accounts,
        deny_accounts: record.deny_accounts,
        allow_qos: record.allow_qos,
        deny_qos: record.deny_qos,
        allow_groups: record.allow_groups,
        priority_tier: record.priority_tier.unwrap_or_default(),
    }
}

fn node(record: NodeRecord) -> NodeState {
    let flags = NodeFlag::ALL
        .iter()
        .filter(|(flag, _)| record.state.has(*flag));
    NodeState {
        state: record.state.base.map_or("", |base| base.name()).to_owned(),
        state_flags: flags.map(|(_, name)| (*name).to_owned()).collect(),
        reason_time: seconds(record.reason_time),
        tres: record.cfg_tres.to_string(),
        name: record.name,
        reason: record.reason,
        reason_user: record.reason_user,
        cpus: record.cpus_effective,
        alloc_cpus: record.cpus_alloc,
        memory_mib: record.real_memory_mib,
        alloc_memory_mib: record.alloc_memory_mib,
        features: record.available_features,
        partitions: record.partitions,
    }
}

pub(crate) fn reservation(record: ReservationRecord) -> Reservation {
    Reservation {
        start: seconds(record.start),
        end: seconds(record.end),
        name: record.name,
        nodes: record.nodes,
        flags: record.flags,
        users: record.users,
        accounts: record.accounts,
        licenses: record.licenses,
        state: record.state,
    }
}

pub(crate) fn license(record: LicenseRecord) -> License {
    License {
        name: record.name,
        total: record.total,
        used: record.used,
        reserved: record.reserved,
    }
}

fn priority(row: PriorityRow) -> JobPriority {
    let factors = row
        .factors
        .into_iter()
        .map(|(name, points)| PriorityFactor {
            name: name.to_owned(),
            points,
        });
    JobPriority {
        job_id: row.job_id,
        factors: factors.collect(),
    }
}

fn backfill(stats: BackfillStats) -> Backfill {
    Backfill {
        last_cycle: seconds(stats.last_cycle),
        last_depth: stats.last_depth,
        queue_length: stats.queue_length,
    }
}
