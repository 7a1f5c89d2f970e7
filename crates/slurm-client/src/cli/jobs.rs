//! Questions about jobs: `scontrol show job` for a few, `scontrol show jobs` for many, and `squeue` for what users wrote.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use slurm_types::JobId;

use super::{Cli, IDS_PER_COMMAND, join, malformed};
use crate::command::Output;
use crate::parse::{self, FreeTexts, JobsText, Separator};
use crate::{Error, JobRecord, JobsAnswer, metrics};

/// Up to so many jobs are asked for one by one, however long the queue is; more in one answer with every job in it.
const ONE_BY_ONE: usize = 16;
/// One more for each so many jobs of the queue: one `scontrol show job` costs about 10 ms, `scontrol show jobs` of 10,000 jobs
/// 400 ms (22.05).
const JOBS_PER_QUESTION: usize = 250;
impl Cli {
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
