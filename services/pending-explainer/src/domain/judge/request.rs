//! What a job asks for.

use chrono::{DateTime, Utc};
use slurm_types::Tres;

use crate::domain::pending_job::PendingJob;

/// The request of a pending job.
pub struct Request<'a> {
    /// Owner.
    pub user: &'a str,
    /// Account.
    pub account: &'a str,
    /// QOS.
    pub qos: &'a str,
    /// Partitions.
    pub partitions: Vec<&'a str>,
    /// Reservation. Empty if none.
    pub reservation: &'a str,
    /// Features. Empty if none.
    pub features: &'a str,
    /// Licenses with their numbers.
    pub licenses: Vec<(&'a str, u64)>,
    /// Resources.
    pub tres: Tres,
    /// Number of nodes, at least 1.
    pub nodes: u64,
    /// Time limit in minutes. `None` for no limit.
    pub minutes: Option<u32>,
    /// Present time.
    pub now: DateTime<Utc>,
}

impl<'a> Request<'a> {
    /// The request of a job.
    pub fn of(waiting: &PendingJob<'a>) -> Self {
        let job = waiting.job;
        let tres = Tres::parse_lossy(&job.req_tres).0;
        Self {
            user: waiting.user,
            account: waiting.account,
            qos: &job.qos,
            partitions: job
                .partition
                .split(',')
                .filter(|name| !name.is_empty())
                .collect(),
            reservation: &job.reservation,
            features: &job.features,
            licenses: licenses(&job.licenses),
            nodes: tres.nodes().max(u64::from(job.node_count)).max(1),
            tres,
            minutes: job.time_limit_minutes,
            now: waiting.now,
        }
    }

    /// The amount of a resource, 0 if it asks for none.
    pub fn amount(&self, tres: &str) -> u64 {
        match tres {
            "node" => self.nodes,
            name => self.tres.get(name).unwrap_or(0),
        }
    }

    /// The smallest amount that some node has to give. Tasks may be spread unevenly, so no more can be said for several nodes.
    pub fn per_node(&self, tres: &str) -> u64 {
        self.amount(tres) / self.nodes
    }
}

/// `matlab:2,ansys@db:1`.
pub fn licenses(text: &str) -> Vec<(&str, u64)> {
    text.split([',', ';', '|'])
        .filter(|item| !item.is_empty())
        .map(|item| match item.rsplit_once(':') {
            Some((name, count)) => (name, count.parse().unwrap_or(1)),
            None => (item, 1),
        })
        .collect()
}
