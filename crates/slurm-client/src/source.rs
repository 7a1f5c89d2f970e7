//! The services' interface to Slurm: the same queries and records, by commands or by REST.

use std::{collections::BTreeMap, ffi::OsString, time::Duration};

use slurm_types::{JobId, JobRef, UnixTime};

use crate::{
    AccessRecords, AccountingRecord, ArraySubmission, BackfillStats, CommentedJob, Config, Drift,
    Error, JobListing, JobLookup, JobPages, LicenseRecord, Limits, NodeEventRecord, NodeRecord,
    PartitionRecord, Ping, PriorityRow, QueueListing, ReservationRecord, RunningRow,
    SchedulerStats, ShareRecord, Source, Transaction, UsageRecord, cli::Cli, drift::DriftLog,
    metrics, rest::Rest,
};

/// Shortest pause between two polls over REST, which cost slurmrestd and slurmctld much more than a command.
const MIN_REST_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// A client of Slurm, by its commands or by slurmrestd. Cheap to clone; clones share the limit of concurrent queries.
#[derive(Clone, Debug)]
pub struct Slurm(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Cli(Cli),
    Rest(Rest),
}

/// Selects runs of accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountingQuery {
    /// Runs in any state that lived at some time in the window. Leaves out runs that never became eligible (held, dependent): query those
    /// by id.
    Window {
        /// Begin of the window.
        start: UnixTime,
        /// End of the window; `None` is now.
        end: Option<UnixTime>,
    },
    /// Every run of these jobs.
    Jobs(Vec<JobId>),
}

/// Forwards a query to the configured source.
macro_rules! ask {
    ($self:ident.$question:ident($($argument:expr),*)) => {
        {
            let answer = match &$self.0 {
                Inner::Cli(cli) => cli.$question($($argument),*).await,
                // Boxed: these futures are large, and a request takes a thousand times longer than an allocation.
                Inner::Rest(rest) => Box::pin(rest.$question($($argument),*)).await,
            };
            $self.drifts().refused(&answer);
            answer
        }
    };
}

impl Slurm {
    /// Creates a client; sends nothing yet.
    pub fn new(config: Config) -> Self {
        metrics::describe();
        Self(match config.source {
            Source::Cli => Inner::Cli(Cli::new(config)),
            Source::Rest => Inner::Rest(Rest::new(config)),
        })
    }

    /// A client of Slurm's commands that run with these variables and inherit nothing else of this process's environment.
    pub fn isolated(config: Config, environment: Vec<(OsString, OsString)>) -> Self {
        metrics::describe();
        Self(Inner::Cli(Cli::isolated(config, environment)))
    }

    /// A client with another deadline, within the same number of queries per second.
    #[must_use]
    pub fn with_timeout(&self, command_timeout: Duration) -> Self {
        Self(match &self.0 {
            Inner::Cli(cli) => Inner::Cli(cli.with_timeout(command_timeout)),
            Inner::Rest(rest) => Inner::Rest(rest.with_timeout(command_timeout)),
        })
    }

    /// Name of the source for messages: `slurm commands` or `slurmrestd`.
    pub const fn source(&self) -> &'static str {
        match &self.0 {
            Inner::Cli(_) => "slurm commands",
            Inner::Rest(_) => "slurmrestd",
        }
    }

    /// True if slurmrestd is the source.
    pub const fn over_rest(&self) -> bool {
        matches!(self.0, Inner::Rest(_))
    }

    /// True if the log of access changes is available: slurmrestd has no query for slurmdbd's log.
    pub const fn has_transaction_log(&self) -> bool {
        !self.over_rest()
    }

    /// The shortest polite pause after a response that took this long. None with commands, whose rate is limited anyway. With REST, 20
    /// times the response time and at least 30 s: slurmrestd needs fifteen times the effort.
    pub fn min_poll_interval(&self, last_answer: Duration) -> Duration {
        match &self.0 {
            Inner::Cli(_) => Duration::ZERO,
            Inner::Rest(_) => last_answer.saturating_mul(20).max(MIN_REST_POLL_INTERVAL),
        }
    }

    const fn drifts(&self) -> &DriftLog {
        match &self.0 {
            Inner::Cli(cli) => &cli.drifts,
            Inner::Rest(rest) => &rest.drifts,
        }
    }

    /// Unknown forms in responses since the last call, to this client and its clones: each form once.
    pub fn take_drifts(&self) -> Vec<Drift> {
        self.drifts().take()
    }

    /// As [`Slurm::take_drifts`], but waits until there is one. For one caller.
    pub async fn next_drifts(&self) -> Vec<Drift> {
        self.drifts().next().await
    }

    /// Every job in the controller's memory, a few columns each. By commands 0.1 s and 1 MB at 10,000 jobs; by REST 3 to 9 s and up to 92
    /// MB unless nothing has changed since the last poll.
    pub async fn list_queue(&self) -> Result<QueueListing, Error> {
        ask!(self.list_queue())
    }

    /// All jobs in squeue's order with the columns [`crate::LISTING_LETTERS`], for answers in place of squeue. Refused over REST.
    pub async fn job_listing(&self) -> Result<JobListing, Error> {
        ask!(self.job_listing())
    }

    /// Full records of these jobs. An array's id gives its remainder and every task in memory, a heterogeneous leader's its components.
    pub async fn jobs(&self, ids: &[JobId]) -> Result<JobLookup, Error> {
        ask!(self.jobs(ids))
    }

    /// The jobs of a user in the controller's memory, with their comments. Not over REST.
    pub async fn jobs_of_user(&self, user: &str) -> Result<Vec<CommentedJob>, Error> {
        let answer = match &self.0 {
            Inner::Cli(cli) => cli.jobs_of_user(user).await,
            Inner::Rest(_) => Err(Error::NotOverRest {
                question: "the jobs of a user",
            }),
        };
        self.drifts().refused(&answer);
        answer
    }

    /// Full records of exactly these jobs in this order, in pages: for more jobs than should be held in memory. Neither tasks of an array
    /// nor components of a heterogeneous job are added. Jobs without a clear record are left out.
    pub async fn job_pages(&self, ids: Vec<JobId>) -> Result<JobPages, Error> {
        ask!(self.job_pages(ids))
    }

    /// As [`Slurm::jobs`], but a job that is absent from a list of all jobs is returned as unlisted and not looked up by its id: for many
    /// jobs that may not exist.
    pub async fn jobs_from_list(&self, ids: &[JobId]) -> Result<JobLookup, Error> {
        let answer = match &self.0 {
            Inner::Cli(cli) => cli.jobs_from_list(ids).await,
            Inner::Rest(rest) => Box::pin(rest.jobs(ids)).await,
        };
        self.drifts().refused(&answer);
        answer
    }

    /// Runs in accounting, one row per attempt (and per resize). A job unknown to accounting gives no row.
    pub async fn accounting(
        &self,
        query: &AccountingQuery,
    ) -> Result<Vec<AccountingRecord>, Error> {
        ask!(self.accounting(query))
    }

    /// Every run of these jobs with its steps and their usage. The task that has the array's own id brings the array's other tasks along,
    /// unless it is requested as a task.
    pub async fn usage(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        ask!(self.usage(jobs))
    }

    /// The tasks that these arrays were submitted with, as far as accounting knows. Over REST without the submit command.
    pub async fn submitted(&self, arrays: &[JobId]) -> Result<Vec<ArraySubmission>, Error> {
        ask!(self.submitted(arrays))
    }

    /// Every association of a cluster and every user. Comments are requested only if `comments` is set: 22.05 has none, and its commands
    /// refuse the column.
    ///
    /// A response that lacks what every cluster has, or that contradicts itself, is an error, so that access never seems revoked by
    /// mistake.
    pub async fn access(&self, cluster: &str, comments: bool) -> Result<AccessRecords, Error> {
        ask!(self.access(cluster, comments))
    }

    /// Changes made with sacctmgr since then; an empty list if there are none. Not over REST, which has no such query.
    pub async fn transactions(&self, since: UnixTime) -> Result<Vec<Transaction>, Error> {
        let answer = match &self.0 {
            Inner::Cli(cli) => cli.transactions(since).await,
            Inner::Rest(_) => Err(Error::NotOverRest {
                question: "the users who changed associations",
            }),
        };
        self.drifts().refused(&answer);
        answer
    }

    /// Downtimes of a cluster's nodes that lasted at some time since then. Not over REST, which has no such query.
    pub async fn node_events(
        &self,
        cluster: &str,
        since: UnixTime,
    ) -> Result<Vec<NodeEventRecord>, Error> {
        let answer = match &self.0 {
            Inner::Cli(cli) => cli.node_events(cluster, since).await,
            Inner::Rest(_) => Err(Error::NotOverRest {
                question: "the downtimes of nodes",
            }),
        };
        self.drifts().refused(&answer);
        answer
    }

    /// Every node the controller shows, hidden partitions included. Slurm 22.05's commands leave out cloud nodes that are powered down.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        ask!(self.nodes())
    }

    /// Every partition, hidden ones included.
    pub async fn partitions(&self) -> Result<Vec<PartitionRecord>, Error> {
        ask!(self.partitions())
    }

    /// Every job that holds an allocation, with what it holds.
    pub async fn running(&self) -> Result<Vec<RunningRow>, Error> {
        ask!(self.running())
    }

    /// Limits of QOS and associations with their use. Over REST without: slurmrestd has no query for the use.
    pub async fn limits(&self) -> Result<Limits, Error> {
        ask!(self.limits())
    }

    /// Every reservation; an empty list if there are none.
    pub async fn reservations(&self) -> Result<Vec<ReservationRecord>, Error> {
        ask!(self.reservations())
    }

    /// Every license; an empty list if there are none.
    pub async fn licenses(&self) -> Result<Vec<LicenseRecord>, Error> {
        ask!(self.licenses())
    }

    /// Weighted priority factors of every pending job. Not over REST, which has no such query.
    pub async fn priorities(&self) -> Result<Vec<PriorityRow>, Error> {
        ask!(self.priorities())
    }

    /// Backfill's last cycle.
    pub async fn backfill(&self) -> Result<BackfillStats, Error> {
        ask!(self.backfill())
    }

    /// Statistics of slurmctld.
    pub async fn statistics(&self) -> Result<SchedulerStats, Error> {
        ask!(self.statistics())
    }

    /// Fairshare of every account and user. Not over REST.
    pub async fn shares(&self) -> Result<Vec<ShareRecord>, Error> {
        ask!(self.shares())
    }

    /// The controller's configuration: `ClusterName`, `SlurmUser`, `PrologSlurmctld`, … as `scontrol show config` prints them, and `AsOf`,
    /// its clock. Over REST only what slurmrestd has: cluster, version, clock, and whether there is accounting.
    pub async fn config(&self) -> Result<BTreeMap<String, String>, Error> {
        ask!(self.config())
    }

    /// Checks whether a controller is up. Every controller being down is a result, not an error.
    pub async fn ping(&self) -> Result<Ping, Error> {
        ask!(self.ping())
    }

    /// Version of the source: `22.05.8`. With commands, no daemon is contacted.
    pub async fn version(&self) -> Result<String, Error> {
        ask!(self.version())
    }
}
