//! A decision about an observation: the context on which it depends besides the stored runs, and its content.

use mesh_events::RunKey;

use super::fact::Fact;
use super::run_state::RunState;

/// Context of an observation.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObservationContext {
    /// Current time in Unix seconds.
    pub now: i64,
    /// Number of the poll; `None` for a read that a doorbell or accounting caused.
    pub poll: Option<u64>,
    /// Whether the job was submitted before capture began, and this is the very first poll of the cluster.
    pub first_start: bool,
    /// Whether the wait for the end of an earlier run is over.
    pub given_up: bool,
    /// Whether no record of Slurm supports the observation.
    pub inferred: bool,
    /// Whether the controller has shown this run as restarted.
    pub restarted: bool,
}

/// A lookup required before everything can be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LookupTarget {
    /// The controller, again and soon: the state is about to change.
    Reread,
    /// Accounting, for every run of the job.
    Accounting,
}

/// Result of an observation.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Run states to store, in the order of `facts`.
    pub changes: Vec<(RunKey, RunState)>,
    /// Facts to publish, in order.
    pub facts: Vec<Fact>,
    /// Lookups to make.
    pub follow_ups: Vec<LookupTarget>,
    /// Runs whose end will never be known.
    pub lost: Vec<RunKey>,
    /// Repeated executions of runs that had ended, by a slurmctld that has lost their end.
    pub repeated: Vec<RunKey>,
}
