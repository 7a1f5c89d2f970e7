//! A pending job, and the newest snapshots of its cluster.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::Explanation;
use slurm_types::ReasonClass;

use super::evidence::Evidence;
use super::queue::{Queue, QueuePosition};
use super::start_estimate::StartEstimate;

/// A pending job with its context.
#[derive(Clone, Copy, Debug)]
pub struct PendingJob<'a> {
    /// The job's record.
    pub job: &'a Job,
    /// Owner. Empty if unknown.
    pub user: &'a str,
    /// Account charged. Empty if unknown.
    pub account: &'a str,
    /// Position in the newest snapshot, if it is in it.
    pub position: Option<QueuePosition<'a>>,
    /// What the cluster's newest snapshots show.
    pub view: ClusterView<'a>,
    /// Present time.
    pub now: DateTime<Utc>,
}

impl PendingJob<'_> {
    /// True if a job of this id, in Slurm's form, is pending too.
    pub fn waits(&self, display_id: &str) -> bool {
        self.view.queue.is_some_and(|queue| queue.waits(display_id))
    }
}

/// The newest snapshots of a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterView<'a> {
    /// The queue.
    pub queue: Option<&'a Queue>,
    /// What else decides about starts.
    pub evidence: Option<&'a Evidence>,
    /// When runs may start.
    pub estimates: Option<&'a HashMap<String, StartEstimate>>,
}

impl<'a> ClusterView<'a> {
    /// When the run may start, if it waits for something that comes by itself.
    pub fn estimate(self, run: &str, explanation: &Explanation) -> Option<&'a StartEstimate> {
        let estimate = self.estimates?.get(run);
        estimate.filter(|_| starts_by_itself(explanation))
    }
}

/// True if the job waits for something that comes by itself, so that its start can be estimated.
fn starts_by_itself(explanation: &Explanation) -> bool {
    use ReasonClass::{
        Dependency, DependencyNeverSatisfied, Failure, Held, Limit, Partition, Request,
    };
    let never = [
        Dependency,
        DependencyNeverSatisfied,
        Failure,
        Held,
        Limit,
        Partition,
        Request,
    ];
    explanation.stage == "waiting"
        && !explanation.needs_act
        && !never
            .iter()
            .any(|class| class.as_str() == explanation.reason_class)
}
