//! Slurm as the services know it: the same questions and records, whichever way it is asked.

use std::{collections::BTreeMap, time::Duration};

use slurm_types::{JobId, JobRef, UnixTime};

use crate::{
    AccessRecords, AccountingRecord, ArraySubmission, Config, Drift, Error, JobLookup, JobPages,
    NodeRecord, PartitionRecord, QueueListing, Source, Transaction, UsageRecord, cli::Cli,
    drift::DriftLog, metrics, rest::Rest,
};

/// Shortest pause between two sweeps over REST, whose answers cost slurmrestd and slurmctld much more than a command's.
const MIN_REST_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Slurm, by its commands or by slurmrestd. Cheap to clone; clones share the bound on questions at a time.
#[derive(Clone, Debug)]
pub struct Slurm(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Cli(Cli),
    Rest(Rest),
}

/// Which runs accounting is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountingQuery {
    /// Runs in any state that lived at some time in the window. Leaves out what never became eligible (held, dependent): ask
    /// for those by id.
    Window {
        /// Begin of the window.
        start: UnixTime,
        /// End of the window; `None` is now.
        end: Option<UnixTime>,
    },
    /// Every run of these jobs.
    Jobs(Vec<JobId>),
}

/// What the controllers say about themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Whether one of them is up.
    pub up: bool,
    /// Lines as `scontrol ping` prints them: `Slurmctld(primary) at vm is UP`.
    pub lines: Vec<String>,
}

/// Asks the same question of whichever source there is.
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
    /// Takes the configuration; asks nothing yet.
    pub fn new(config: Config) -> Self {
        metrics::describe();
        Self(match config.source {
            Source::Cli => Inner::Cli(Cli::new(config)),
            Source::Rest => Inner::Rest(Rest::new(config)),
        })
    }

    /// One that waits longer for answers, within the same number of questions per second.
    #[must_use]
    pub fn with_timeout(&self, command_timeout: Duration) -> Self {
        Self(match &self.0 {
            Inner::Cli(cli) => Inner::Cli(cli.with_timeout(command_timeout)),
            Inner::Rest(rest) => Inner::Rest(rest.with_timeout(command_timeout)),
        })
    }

    /// What is asked, for messages: `slurm commands` or `slurmrestd`.
    pub const fn source(&self) -> &'static str {
        match &self.0 {
            Inner::Cli(_) => "slurm commands",
            Inner::Rest(_) => "slurmrestd",
        }
    }

    /// Whether slurmrestd is asked.
    pub const fn over_rest(&self) -> bool {
        matches!(self.0, Inner::Rest(_))
    }

    /// Whether it has the log of access changes: slurmrestd has no question for slurmdbd's log.
    pub const fn has_transaction_log(&self) -> bool {
        !self.over_rest()
    }

    /// The shortest polite pause after an answer that took so long. None with commands, whose number per second is bounded anyway; 20
    /// times the answer and at least 30 s with REST, where slurmrestd makes the answer at fifteen times the cost.
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

    /// What answers had since the last call that is not known, to this and to its clones: each form once.
    pub fn take_drifts(&self) -> Vec<Drift> {
        self.drifts().take()
    }

    /// The same, once there is something. For one caller.
    pub async fn next_drifts(&self) -> Vec<Drift> {
        self.drifts().next().await
    }

    /// Every job the controller has in memory, a few columns each. With commands 0.1 s and 1 MB at 10,000 jobs, with REST 3 to 9 s
    /// and up to 92 MB unless nothing has changed since the last sweep.
    pub async fn list_queue(&self) -> Result<QueueListing, Error> {
        ask!(self.list_queue())
    }

    /// Full records of these jobs. An array's id gives its remainder and every task in memory, a heterogeneous leader's its components.
    pub async fn jobs(&self, ids: &[JobId]) -> Result<JobLookup, Error> {
        ask!(self.jobs(ids))
    }

    /// Full records of these very jobs in this order, a part at a time: for so many that they should not be held at once. Neither the tasks of
    /// an array nor the components of a heterogeneous job come with it. A job that has no clear record is left out.
    pub async fn job_pages(&self, ids: Vec<JobId>) -> Result<JobPages, Error> {
        ask!(self.job_pages(ids))
    }

    /// The same as [`Slurm::jobs`], but a job that a list of all leaves out is said to be unlisted and not asked for by its id: for many jobs that may not exist.
    pub async fn jobs_from_list(&self, ids: &[JobId]) -> Result<JobLookup, Error> {
        let answer = match &self.0 {
            Inner::Cli(cli) => cli.jobs_from_list(ids).await,
            Inner::Rest(rest) => Box::pin(rest.jobs(ids)).await,
        };
        self.drifts().refused(&answer);
        answer
    }

    /// Runs as accounting has them, one row per attempt (and per resize). A job that accounting does not know gives no row.
    pub async fn accounting(
        &self,
        query: &AccountingQuery,
    ) -> Result<Vec<AccountingRecord>, Error> {
        ask!(self.accounting(query))
    }

    /// Every run of these jobs with its steps and what they used. A task of an array that has the array's own id brings the array's other
    /// tasks along, unless it is asked for as a task.
    pub async fn usage(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        ask!(self.usage(jobs))
    }

    /// Which tasks these arrays were submitted with, as far as accounting knows. Over REST without what was ordered.
    pub async fn submitted(&self, arrays: &[JobId]) -> Result<Vec<ArraySubmission>, Error> {
        ask!(self.submitted(arrays))
    }

    /// Every association of a cluster and every user. Comments are asked for only where wanted: 22.05 has none, and its commands refuse.
    ///
    /// An answer that leaves out what every cluster has, or that contradicts itself, is an error: nobody lost access then.
    pub async fn access(&self, cluster: &str, comments: bool) -> Result<AccessRecords, Error> {
        ask!(self.access(cluster, comments))
    }

    /// What was changed with sacctmgr since then; nothing new is an empty list. Not over REST, which has no such question.
    pub async fn transactions(&self, since: UnixTime) -> Result<Vec<Transaction>, Error> {
        let answer = match &self.0 {
            Inner::Cli(cli) => cli.transactions(since).await,
            Inner::Rest(_) => Err(Error::NotOverRest {
                question: "who changed associations",
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

    /// The controller's configuration: `ClusterName`, `SlurmUser`, `PrologSlurmctld`, … as `scontrol show config` prints them, and
    /// `AsOf`, its clock. Over REST only what slurmrestd has: cluster, version, clock, whether there is accounting.
    pub async fn config(&self) -> Result<BTreeMap<String, String>, Error> {
        ask!(self.config())
    }

    /// Whether a controller is up. Every controller being down is an answer, not an error.
    pub async fn ping(&self) -> Result<Ping, Error> {
        ask!(self.ping())
    }

    /// Version of what is asked: `22.05.8`. With commands, no daemon is asked.
    pub async fn version(&self) -> Result<String, Error> {
        ask!(self.version())
    }
}
