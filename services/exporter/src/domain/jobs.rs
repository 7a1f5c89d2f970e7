//! Jobs of a snapshot.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::metrics::v1::JobCell;
use slurm_types::JobState;

/// The jobs of a cluster at one poll.
#[derive(Clone, Debug)]
pub struct Jobs {
    /// Start of the poll.
    pub taken_at: DateTime<Utc>,
    /// Cells with their parsed states.
    pub cells: Vec<JobGroup>,
}

/// Jobs that have partition, account, user, QOS, state and reason in common.
#[derive(Clone, Debug)]
pub struct JobGroup {
    /// As counted by ingest.
    pub counted: JobCell,
    /// State.
    pub state: JobState,
}

impl Jobs {
    /// The jobs of a snapshot.
    pub fn new(taken_at: DateTime<Utc>, cells: impl Iterator<Item = JobCell>) -> Self {
        let cells = cells.map(|counted| JobGroup {
            state: JobState::parse(&counted.state),
            counted,
        });
        Self {
            taken_at,
            cells: cells.collect(),
        }
    }
}

impl JobGroup {
    /// The partition that the jobs count in: of several requested ones the first, as in slurmctld.
    pub fn partition(&self) -> &str {
        self.counted.partition.split(',').next().unwrap_or_default()
    }

    /// Every requested partition.
    pub fn partitions(&self) -> impl Iterator<Item = &str> {
        self.counted.partition.split(',')
    }

    /// True if somebody holds the jobs.
    pub fn is_held(&self) -> bool {
        matches!(self.counted.reason.as_str(), "JobHeldUser" | "JobHeldAdmin")
    }

    /// One keyword for the state: the base state, or the flag that hides it.
    pub fn state_name(&self) -> &str {
        match self.state.base {
            Some(base) => base.name(),
            None => self.counted.state.split(',').next().unwrap_or_default(),
        }
    }
}
