//! The families of metrics, and the pages on which they are served.

mod cluster;
mod native;
mod native_jobs;
mod native_nodes;
mod rivosinc;
mod scheduler;
mod sckyzo;
mod slinky;
mod soperator;
mod vpenso;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::queue::v1::License;
use serde::{Deserialize, Serialize};

use crate::adapters::store::AllocationSum;
use crate::domain::counters::Counters;
use crate::domain::exemplars::Exemplars;
use crate::domain::exposition::Exposition;
use crate::domain::gpus::GpuHolder;
use crate::domain::jobs::Jobs;
use crate::domain::nodes::Nodes;
use crate::domain::scheduler::Scheduler;

/// Names of metrics that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// The mesh's own.
    Cluster,
    /// Those of slurmctld 25.11 and newer.
    Native,
    /// Those of prometheus-slurm-exporter (vpenso).
    Vpenso,
    /// Those of SckyzO's slurm_exporter.
    Sckyzo,
    /// Those of rivosinc's prometheus-slurm-exporter.
    Rivosinc,
    /// Those of Slinky's slurm-exporter.
    Slinky,
    /// Those of soperator's exporter.
    Soperator,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 7] = [
        Self::Cluster,
        Self::Native,
        Self::Vpenso,
        Self::Sckyzo,
        Self::Rivosinc,
        Self::Slinky,
        Self::Soperator,
    ];
    /// Those that are served unless others are configured.
    pub const DEFAULT: [Self; 3] = [Self::Cluster, Self::Native, Self::Vpenso];
}

/// What the pages are made from.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// When the pages are made.
    pub now: DateTime<Utc>,
    /// Jobs, unless the newest snapshot is stale.
    pub jobs: Option<Jobs>,
    /// Nodes, unless the newest snapshot is stale.
    pub nodes: Option<Nodes>,
    /// What is known about the scheduler, without what is stale.
    pub scheduler: Scheduler,
    /// Each source, and when its newest snapshot was taken.
    pub sources: Vec<Source>,
    /// Counters of the cluster.
    pub counters: Counters,
    /// Exemplars of the histograms.
    pub exemplars: Exemplars,
    /// What running jobs hold.
    pub allocations: Vec<AllocationSum>,
    /// Running jobs with GPUs, by job id.
    pub gpu_holders: Vec<GpuHolder>,
    /// Maximum number of series of a page.
    pub max_series: usize,
    /// Series that were folded into `other`, by page.
    pub folded: Vec<(&'static str, usize)>,
}

/// A source of snapshots.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The service that reads Slurm: `ingest`, `node-watcher`; or what ingest reads if configured: `scheduler`, `shares`.
    pub name: &'static str,
    /// When its newest snapshot was taken. `None` before the first.
    pub taken_at: Option<DateTime<Utc>>,
    /// False if that is too long ago.
    pub is_up: bool,
}

/// A page below `/metrics`.
pub struct Page {
    /// Last part of its path.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    /// Writes it. Returns how many series were folded into `other`.
    pub write: fn(&Inputs, &mut Exposition) -> usize,
}

/// Every page. The mesh's own comes last, because it reports about the others.
pub const PAGES: &[Page] = &[
    Page {
        name: "jobs",
        family: Family::Native,
        write: native::jobs,
    },
    Page {
        name: "nodes",
        family: Family::Native,
        write: native::nodes,
    },
    Page {
        name: "partitions",
        family: Family::Native,
        write: native::partitions,
    },
    Page {
        name: "jobs-users-accts",
        family: Family::Native,
        write: native::users_and_accounts,
    },
    Page {
        name: "scheduler",
        family: Family::Native,
        write: scheduler::native,
    },
    Page {
        name: "vpenso",
        family: Family::Vpenso,
        write: vpenso::write,
    },
    Page {
        name: "sckyzo",
        family: Family::Sckyzo,
        write: sckyzo::write,
    },
    Page {
        name: "rivosinc",
        family: Family::Rivosinc,
        write: rivosinc::write,
    },
    Page {
        name: "slinky",
        family: Family::Slinky,
        write: slinky::write,
    },
    Page {
        name: "soperator",
        family: Family::Soperator,
        write: soperator::write,
    },
    Page {
        name: "cluster",
        family: Family::Cluster,
        write: cluster::write,
    },
];

/// Name of a metric of a license, what it is about, and its value.
type OfLicense = (&'static str, &'static str, fn(&License) -> u64);

/// Metrics of a license.
pub(crate) const LICENSES: [OfLicense; 4] = [
    ("total", "Licenses", |license| license.total),
    ("used", "Licenses in use", |license| license.used),
    ("free", "Free licenses", |license| {
        license.total.saturating_sub(license.used)
    }),
    ("reserved", "Licenses kept for reservations", |license| {
        license.reserved
    }),
];

/// A number as the value of a sample. Exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "values of samples are floats")]
pub(crate) const fn float(number: u64) -> f64 {
    number as f64
}

/// Bytes of an amount in MiB.
pub(crate) fn bytes(mib: u64) -> f64 {
    float(mib) * 1_048_576.0
}
