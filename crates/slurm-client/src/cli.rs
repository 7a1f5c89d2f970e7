//! The queries of [`Slurm`](crate::Slurm) by Slurm's commands.

mod access;
mod accounting;
mod commented;
mod jobs;
mod scheduling;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chrono::DateTime;
use slurm_types::{JobId, UnixTime};

pub(crate) use self::jobs::{belongs_to, sort_into};
use crate::{
    Config, Error, JobListing, NodeRecord, PartitionRecord, Ping, QueueListing,
    command::Runner,
    drift::{Drift, DriftLog, Unread},
    error::excerpt,
    metrics, parse,
};

/// Ids per `squeue -j` and `sacct -j`: 11 bytes each at most, far below the limit of an argument (128 KiB).
const IDS_PER_COMMAND: usize = 1_000;

/// A client of Slurm's commands. Clones share the limit of concurrent commands.
#[derive(Clone, Debug)]
pub(crate) struct Cli {
    runner: Runner,
    /// Number of jobs in the last poll of the queue.
    queue: Arc<AtomicUsize>,
    /// Unknown forms in responses.
    pub(crate) drifts: DriftLog,
}

impl Cli {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            runner: Runner::new(config),
            queue: Arc::default(),
            drifts: DriftLog::default(),
        }
    }

    /// A client whose commands inherit nothing but these variables.
    pub(crate) fn isolated(config: Config, environment: Vec<(OsString, OsString)>) -> Self {
        Self {
            runner: Runner::for_reading(config, environment),
            queue: Arc::default(),
            drifts: DriftLog::default(),
        }
    }

    /// A client with another deadline, within the same number of commands per second.
    pub(crate) fn with_timeout(&self, command_timeout: Duration) -> Self {
        Self {
            runner: self.runner.with_timeout(command_timeout),
            queue: Arc::clone(&self.queue),
            drifts: self.drifts.clone(),
        }
    }

    /// Every job in the controller's memory, a few columns each: 0.1 s and 1 MB at 10,000 jobs.
    pub(crate) async fn list_queue(&self) -> Result<QueueListing, Error> {
        let started_at = now();
        let output = self
            .runner
            .run_long(
                "squeue",
                &["-h", "-a", "-t", "all", "-o", parse::QUEUE_FORMAT],
            )
            .await?;
        let io_error = |source| Error::Io {
            command: "squeue",
            source,
        };
        let mut rows = parse::Rows::default();
        output
            .each_block(|lines| rows.read(lines))
            .map_err(io_error)?;
        let parse::Rows {
            rows,
            counts,
            unread,
            ..
        } = rows;
        if rows.is_empty() && unread.count > 0 {
            let problem = "no line has the requested columns";
            metrics::unread("squeue", unread.count);
            return Err(malformed("squeue", problem, &unread.first));
        }
        self.drifts.unread("squeue", &unread);
        self.queue.store(rows.len(), Ordering::Relaxed);
        Ok(QueueListing {
            started_at,
            rows,
            counts,
            unread_lines: unread.count,
        })
    }

    /// Every job with the columns that pollers ask for.
    pub(crate) async fn job_listing(&self) -> Result<JobListing, Error> {
        let separators = parse::ListingSeparators::new();
        let format = separators.format();
        let output = self
            .runner
            .run_long("squeue", &["-a", "-t", "all", "-o", &format])
            .await?;
        let output = output.into_string().map_err(|source| Error::Io {
            command: "squeue",
            source,
        })?;
        let listing = separators.parse(&output);
        listing.ok_or_else(|| malformed("squeue", "a row has not the requested columns", &output))
    }

    /// Every node the controller shows, hidden partitions included. Slurm 22.05 leaves out cloud nodes that are powered down.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        let output = self
            .runner
            .run("scontrol", &["-o", "-a", "show", "node"])
            .await?;
        let (nodes, unread) = parse::nodes(&output);
        let nodes = complete("scontrol", nodes, &unread)?;
        self.drifts.note(nodes.iter().flat_map(Drift::of_node));
        Ok(nodes)
    }

    /// Every partition, hidden ones included.
    pub(crate) async fn partitions(&self) -> Result<Vec<PartitionRecord>, Error> {
        let output = self
            .runner
            .run("scontrol", &["-o", "-a", "show", "partition"])
            .await?;
        let (partitions, unread) = parse::partitions(&output);
        complete("scontrol", partitions, &unread)
    }

    /// The controller's configuration: `ClusterName`, `SlurmUser`, `PrologSlurmctld`, … as `scontrol show config` prints them.
    pub(crate) async fn config(&self) -> Result<BTreeMap<String, String>, Error> {
        let output = self.runner.run("scontrol", &["show", "config"]).await?;
        let config = parse::config(&output);
        match config.contains_key("ClusterName") {
            true => Ok(config),
            false => Err(malformed(
                "scontrol",
                "the configuration has no ClusterName",
                &output,
            )),
        }
    }

    /// Checks whether a controller is up. Every controller being down is a result, not an error.
    pub(crate) async fn ping(&self) -> Result<Ping, Error> {
        let output = self.runner.run_any("scontrol", &["ping"]).await?;
        let lines: Vec<String> = output
            .stdout
            .lines()
            .filter(|line| line.starts_with("Slurmctld"))
            .map(str::to_owned)
            .collect();
        let up = lines.iter().any(|line| line.contains(" is UP"));
        // Without munge scontrol prints DOWN as well, though the controller may be up (22.05).
        let error = Error::from_stderr("scontrol", output.status, &output.stderr);
        if lines.is_empty() || (!up && matches!(error, Error::MungeDown { .. })) {
            metrics::failed("scontrol", error.kind());
            return Err(error);
        }
        Ok(Ping { up, lines })
    }

    /// Version of the commands: `22.05.8`. Contacts no daemon.
    pub(crate) async fn version(&self) -> Result<String, Error> {
        let output = self.runner.run("scontrol", &["--version"]).await?;
        let version = output
            .split_ascii_whitespace()
            .last()
            .filter(|part| part.starts_with(|c: char| c.is_ascii_digit()));
        version
            .map(str::to_owned)
            .ok_or_else(|| malformed("scontrol", "no version number", &output))
    }
}

/// A list that was parsed completely and is not empty: every cluster has nodes and partitions.
fn complete<T>(command: &'static str, records: Vec<T>, unread: &Unread) -> Result<Vec<T>, Error> {
    metrics::unread(command, unread.count);
    if unread.count > 0 {
        let problem = "a record could not be read";
        return Err(malformed(command, problem, &unread.first));
    }
    if records.is_empty() {
        return Err(Error::Suspicious {
            command,
            problem: "an empty list although it reports success",
        });
    }
    Ok(records)
}

fn malformed(command: &'static str, problem: &'static str, output: &str) -> Error {
    let error = Error::Malformed {
        command,
        problem,
        excerpt: excerpt(output),
    };
    metrics::failed(command, error.kind());
    error
}

/// sacct reads times in the zone of its environment, which is UTC here.
fn local_time(time: UnixTime) -> Result<String, Error> {
    DateTime::from_timestamp(time.as_secs(), 0)
        .map(|time| time.format("%Y-%m-%dT%H:%M:%S").to_string())
        .ok_or(Error::Suspicious {
            command: "sacct",
            problem: "requested time is not a date",
        })
}

fn join<'a>(ids: impl IntoIterator<Item = &'a JobId>) -> String {
    ids.into_iter()
        .map(JobId::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

pub(crate) fn now() -> UnixTime {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixTime::from_secs(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX))
}
