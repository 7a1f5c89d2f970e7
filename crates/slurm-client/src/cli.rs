//! The questions of [`Slurm`](crate::Slurm), asked by Slurm's commands.

mod access;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use chrono::DateTime;
use slurm_types::{JobId, JobRef, UnixTime};

use crate::{
    AccountingRecord, Config, Error, JobRecord, JobsAnswer, NodeRecord, PartitionRecord, Ping,
    Query, Sweep, UsageRecord,
    command::{Output, Runner},
    error::excerpt,
    metrics,
    parse::{self, FreeTexts, JobsText, Separator},
};

/// Up to so many jobs are asked for one by one, however long the queue is; more in one answer with every job in it.
const ONE_BY_ONE: usize = 16;
/// One more for each so many jobs of the queue: one `scontrol show job` costs about 10 ms, `scontrol show jobs` of 10,000 jobs
/// 400 ms (22.05).
const JOBS_PER_QUESTION: usize = 250;
/// Ids per `squeue -j` and `sacct -j`: 11 bytes each at most, far below the limit of an argument (128 KiB).
const IDS_PER_COMMAND: usize = 1_000;

/// Slurm, by its commands. Clones share the bound on commands at a time.
#[derive(Clone, Debug)]
pub(crate) struct Cli {
    runner: Runner,
    /// Jobs in the last sweep.
    queue: Arc<AtomicUsize>,
}

impl Cli {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            runner: Runner::new(config),
            queue: Arc::default(),
        }
    }

    /// One that waits longer for answers, within the same number of commands per second.
    pub(crate) fn patient(&self, command_timeout: Duration) -> Self {
        Self {
            runner: self.runner.patient(command_timeout),
            queue: Arc::clone(&self.queue),
        }
    }

    /// Every job the controller has in memory, a few columns each: 0.1 s and 1 MB at 10,000 jobs.
    pub(crate) async fn sweep(&self) -> Result<Sweep, Error> {
        let started_at = now();
        let output = self
            .runner
            .run(
                "squeue",
                &["-h", "-a", "-t", "all", "-o", parse::SWEEP_FORMAT],
            )
            .await?;
        let (rows, unread_lines) = parse::sweep(&output);
        metrics::unread("squeue", unread_lines);
        if rows.is_empty() && unread_lines > 0 {
            return Err(malformed(
                "squeue",
                "no line has the columns asked for",
                &output,
            ));
        }
        self.queue.store(rows.len(), Ordering::Relaxed);
        Ok(Sweep {
            started_at,
            rows,
            unread_lines,
        })
    }

    /// Full records of these jobs. An array's id gives its remainder and every task in memory, a heterogeneous leader's its components.
    pub(crate) async fn jobs(&self, ids: &[JobId]) -> Result<JobsAnswer, Error> {
        // Absence from a list proves less than an answer to a question, so a few are asked for again by id.
        self.jobs_asked_again(ids, ONE_BY_ONE).await
    }

    /// The same, but who is missing in a list is only said to be.
    pub(crate) async fn jobs_listed(&self, ids: &[JobId]) -> Result<JobsAnswer, Error> {
        self.jobs_asked_again(ids, 0).await
    }

    async fn jobs_asked_again(&self, ids: &[JobId], again: usize) -> Result<JobsAnswer, Error> {
        let ids: BTreeSet<JobId> = ids.iter().copied().collect();
        let mut answer = JobsAnswer::default();
        if ids.is_empty() {
            return Ok(answer);
        }
        if ids.len() <= self.one_by_one() {
            let (texts, outputs) =
                tokio::try_join!(self.free_texts(&ids), self.ask_one_by_one(&ids))?;
            for (id, output) in outputs {
                read_one(id, output, &texts, &mut answer)?;
            }
            return Ok(answer);
        }
        let (texts, output) = tokio::try_join!(
            self.free_texts(&ids),
            self.runner.run("scontrol", &["-o", "-d", "show", "jobs"])
        )?;
        let (mut rest, mut unclear) = sort_into(&mut answer, &ids, parse::jobs(&output, &texts));
        let later = rest.split_off(rest.len().min(again));
        for id in later {
            match unclear.remove(&id) {
                Some(problem) => answer.unclear.push((id, problem)),
                None => answer.unlisted.push(id),
            }
        }
        let by_id: BTreeSet<JobId> = rest.into_iter().collect();
        for (id, output) in self.ask_one_by_one(&by_id).await? {
            read_one(id, output, &texts, &mut answer)?;
        }
        Ok(answer)
    }

    /// How many jobs are asked for one by one at most.
    fn one_by_one(&self) -> usize {
        let queue = self.queue.load(Ordering::Relaxed);
        (1 + queue / JOBS_PER_QUESTION).min(ONE_BY_ONE)
    }

    async fn ask_one_by_one(&self, ids: &BTreeSet<JobId>) -> Result<Vec<(JobId, Output)>, Error> {
        let mut outputs = Vec::with_capacity(ids.len());
        for id in ids {
            let question = ["-o", "-d", "show", "job", &id.to_string()];
            outputs.push((*id, self.runner.run_any("scontrol", &question).await?));
        }
        Ok(outputs)
    }

    /// What users wrote, by columns that cannot be forged.
    async fn free_texts(&self, ids: &BTreeSet<JobId>) -> Result<HashMap<JobId, FreeTexts>, Error> {
        let separator = Separator::random();
        let format = separator.join(&["%A", "%U", "%k", "%o", "%Z", "%j"]);
        let mut arguments = vec!["-h", "-a", "-t", "all", "-o", &format];
        let list = join(ids);
        if ids.len() <= IDS_PER_COMMAND {
            arguments.extend(["-j", &list]);
        }
        let output = self.runner.run_any("squeue", &arguments).await?;
        if output.status != 0 {
            // squeue says so if it knows none of the ids.
            if output.stderr.contains("Invalid job id specified") {
                return Ok(HashMap::new());
            }
            let error = Error::from_stderr("squeue", output.status, &output.stderr);
            metrics::failed("squeue", error.kind());
            return Err(error);
        }
        let rows = parse::delimited(&output.stdout, &separator, 6).ok_or_else(|| {
            malformed(
                "squeue",
                "the answer has not the columns asked for",
                &output.stdout,
            )
        })?;
        Ok(rows.into_iter().filter_map(|row| free_text(&row)).collect())
    }

    /// Runs as accounting has them, one row per attempt (and per resize). A job that accounting does not know gives no row.
    pub(crate) async fn accounting(&self, query: &Query) -> Result<Vec<AccountingRecord>, Error> {
        match query {
            Query::Window { start, end } => {
                let (start, end) = (local_time(*start)?, end.map(local_time).transpose()?);
                let end = end.as_deref().unwrap_or("now");
                self.runs(&["-S", &start, "-E", end]).await
            }
            Query::Jobs(ids) => {
                let ids: Vec<JobId> = ids
                    .iter()
                    .copied()
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect();
                let mut records = Vec::new();
                for some in ids.chunks(IDS_PER_COMMAND) {
                    records.extend(self.runs(&["-j", &join(some)]).await?);
                }
                Ok(records)
            }
        }
    }

    async fn runs(&self, which: &[&str]) -> Result<Vec<AccountingRecord>, Error> {
        let fields = parse::ACCOUNTING_FIELDS.join(",");
        let which = [&["-a", "-X"], which].concat();
        self.sacct(&fields, &which, parse::accounting).await
    }

    /// Every run of these jobs with its steps and what they used. A task of an array that has the array's own id brings the array's other
    /// tasks along, unless it is asked for as a task.
    pub(crate) async fn usage(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, Error> {
        let mut records = Vec::new();
        for some in jobs.chunks(IDS_PER_COMMAND) {
            let list: Vec<String> = some.iter().map(JobRef::to_string).collect();
            let which = ["-a", "-j", &list.join(",")];
            records.extend(
                self.sacct(&parse::usage_fields(), &which, parse::usage)
                    .await?,
            );
        }
        Ok(records)
    }

    async fn sacct<T>(
        &self,
        fields: &str,
        which: &[&str],
        read: impl FnOnce(&str, &Separator) -> Option<(Vec<T>, usize)>,
    ) -> Result<Vec<T>, Error> {
        let separator = Separator::random();
        let format = format!("--format={fields}");
        let delimiter = format!("--delimiter={}", separator.as_str());
        let mut arguments = vec!["-D", "-P", "-n", "--noconvert", &delimiter, &format];
        arguments.extend(which);
        let output = self.runner.run("sacct", &arguments).await?;
        let (records, unread) = read(&output, &separator).ok_or_else(|| {
            malformed("sacct", "the answer has not the columns asked for", &output)
        })?;
        metrics::unread("sacct", unread);
        // The answer has the shape that only sacct can give it. A row without an id is nobody's, and holds up no other.
        Ok(records)
    }

    /// Every node the controller shows, hidden partitions included. Slurm 22.05 leaves out cloud nodes that are powered down.
    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRecord>, Error> {
        let output = self
            .runner
            .run("scontrol", &["-o", "-a", "show", "node"])
            .await?;
        let (nodes, unread) = parse::nodes(&output);
        complete("scontrol", nodes, unread, &output)
    }

    /// Every partition, hidden ones included.
    pub(crate) async fn partitions(&self) -> Result<Vec<PartitionRecord>, Error> {
        let output = self
            .runner
            .run("scontrol", &["-o", "-a", "show", "partition"])
            .await?;
        let (partitions, unread) = parse::partitions(&output);
        complete("scontrol", partitions, unread, &output)
    }

    /// The controller's configuration: `ClusterName`, `SlurmUser`, `PrologSlurmctld`, … as `scontrol show config` prints them.
    pub(crate) async fn config(&self) -> Result<BTreeMap<String, String>, Error> {
        let output = self.runner.run("scontrol", &["show", "config"]).await?;
        let config = parse::config(&output);
        match config.contains_key("ClusterName") {
            true => Ok(config),
            false => Err(malformed(
                "scontrol",
                "the configuration names no cluster",
                &output,
            )),
        }
    }

    /// Whether a controller is up. Every controller being down is an answer, not an error.
    pub(crate) async fn ping(&self) -> Result<Ping, Error> {
        let output = self.runner.run_any("scontrol", &["ping"]).await?;
        let lines: Vec<String> = output
            .stdout
            .lines()
            .filter(|line| line.starts_with("Slurmctld"))
            .map(str::to_owned)
            .collect();
        let up = lines.iter().any(|line| line.contains(" is UP"));
        // With munge away scontrol prints DOWN, too, though the controller may be well (22.05).
        let error = Error::from_stderr("scontrol", output.status, &output.stderr);
        if lines.is_empty() || (!up && matches!(error, Error::MungeDown { .. })) {
            metrics::failed("scontrol", error.kind());
            return Err(error);
        }
        Ok(Ping { up, lines })
    }

    /// Version of the commands: `22.05.8`. Asks no daemon.
    pub(crate) async fn version(&self) -> Result<String, Error> {
        let output = self.runner.run("scontrol", &["--version"]).await?;
        let version = output
            .split_ascii_whitespace()
            .last()
            .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        version
            .map(str::to_owned)
            .ok_or_else(|| malformed("scontrol", "no version number", &output))
    }
}

/// Reads the answer about one job.
fn read_one(
    id: JobId,
    output: Output,
    texts: &HashMap<JobId, FreeTexts>,
    answer: &mut JobsAnswer,
) -> Result<(), Error> {
    if output.status != 0 {
        if output.stderr.contains("Invalid job id specified") {
            answer.missing.push(id);
            return Ok(());
        }
        let error = Error::from_stderr("scontrol", output.status, &output.stderr);
        metrics::failed("scontrol", error.kind());
        return Err(error);
    }
    let JobsText { records, unclear } = parse::jobs(&output.stdout, texts);
    let before = answer.found.len();
    answer
        .found
        .extend(records.into_iter().filter(|record| belongs_to(record, id)));
    for (unclear_id, problem) in unclear {
        metrics::unread("scontrol", 1);
        answer.unclear.push((unclear_id, problem.to_owned()));
    }
    if answer.found.len() == before && !answer.unclear.iter().any(|(unclear, _)| *unclear == id) {
        answer
            .unclear
            .push((id, "the answer holds no record of it".to_owned()));
    }
    Ok(())
}

/// Takes records of jobs asked for out of the answer about all jobs; returns the ids of which there is no clear one, and of those
/// that have one why it is not clear.
pub(crate) fn sort_into(
    answer: &mut JobsAnswer,
    ids: &BTreeSet<JobId>,
    text: JobsText,
) -> (Vec<JobId>, BTreeMap<JobId, String>) {
    let JobsText { records, unclear } = text;
    let mut seen: BTreeSet<JobId> = BTreeSet::new();
    for record in records {
        let roots: Vec<JobId> = [record.job_id, record.array_job_id, record.het_job_id]
            .into_iter()
            .flatten()
            .filter(|id| ids.contains(id))
            .collect();
        if !roots.is_empty() {
            seen.extend(roots);
            answer.found.push(record);
        }
    }
    // Alone, a record may be clear.
    let unclear = unclear.into_iter().map(|(id, problem)| {
        seen.remove(&id);
        (id, problem.to_owned())
    });
    let unclear: BTreeMap<JobId, String> = unclear.filter(|(id, _)| ids.contains(id)).collect();
    let rest: Vec<JobId> = ids.difference(&seen).copied().collect();
    (rest, unclear)
}

pub(crate) fn belongs_to(record: &JobRecord, id: JobId) -> bool {
    [record.job_id, record.array_job_id, record.het_job_id].contains(&Some(id))
}

fn free_text(row: &[&str]) -> Option<(JobId, FreeTexts)> {
    let [id, uid, comment, command, work_dir, name] = row[..] else {
        return None;
    };
    let texts = FreeTexts {
        uid: uid.trim().parse().ok(),
        name: name.to_owned(),
        comment: unless_null(comment),
        command: unless_null(command),
        work_dir: unless_null(work_dir),
    };
    Some((id.trim().parse().ok()?, texts))
}

/// A user's text exactly as it is; white space counts.
fn unless_null(value: &str) -> String {
    if value == "(null)" {
        String::new()
    } else {
        value.to_owned()
    }
}

/// A list whose every record was read, and that is not empty: a cluster has nodes and partitions.
fn complete<T>(
    command: &'static str,
    records: Vec<T>,
    unread: usize,
    output: &str,
) -> Result<Vec<T>, Error> {
    metrics::unread(command, unread);
    if unread > 0 {
        return Err(malformed(command, "a record could not be read", output));
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

fn join<'a>(ids: impl IntoIterator<Item = &'a JobId>) -> String {
    ids.into_iter()
        .map(JobId::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// sacct reads times in the zone of its environment, which is UTC here.
fn local_time(time: UnixTime) -> Result<String, Error> {
    DateTime::from_timestamp(time.as_secs(), 0)
        .map(|time| time.format("%Y-%m-%dT%H:%M:%S").to_string())
        .ok_or(Error::Suspicious {
            command: "sacct",
            problem: "asked for a time that is no date",
        })
}

pub(crate) fn now() -> UnixTime {
    let since_1970 = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixTime::from_secs(i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX))
}
