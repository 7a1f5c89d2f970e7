//! Job queries: `scontrol show job` for a few, `scontrol show jobs` for many, and `squeue` for texts of users.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::Ordering;

use slurm_types::JobId;
use tokio::task::spawn_blocking;

use super::{Cli, IDS_PER_COMMAND, join, malformed};
use crate::command::Output;
use crate::drift::{DriftLog, Unread};
use crate::job_pages::SpilledJobs;
use crate::parse::{self, FreeTexts, ParsedJobs, Separator, Texts, free_text, long_jobs};
use crate::spill::Text;
use crate::{Error, JobLookup, JobPages, JobRecord, metrics};

/// One more individual lookup for each this many jobs of the queue: one `scontrol show job` costs about 10 ms, `scontrol show jobs` of
/// 10,000 jobs 400 ms (22.05).
const JOBS_PER_LOOKUP: usize = 250;
impl Cli {
    /// Full records of these jobs. An array's id gives its remainder and every task in memory, a heterogeneous leader's its components.
    pub(crate) async fn jobs(&self, ids: &[JobId]) -> Result<JobLookup, Error> {
        // Absence from a list proves less than a lookup, so a few missing jobs are looked up by id.
        self.jobs_with_retry(ids, JobLookup::MAX_SINGLE).await
    }

    /// As [`Self::jobs`], but jobs missing from a list are only returned as unlisted.
    pub(crate) async fn jobs_from_list(&self, ids: &[JobId]) -> Result<JobLookup, Error> {
        self.jobs_with_retry(ids, 0).await
    }

    async fn jobs_with_retry(
        &self,
        order: &[JobId],
        max_retries: usize,
    ) -> Result<JobLookup, Error> {
        let ids: BTreeSet<JobId> = order.iter().copied().collect();
        let mut answer = JobLookup::default();
        if ids.is_empty() {
            return Ok(answer);
        }
        if ids.len() <= self.max_single_lookups() {
            self.look_up_by_id(ids.into_iter().collect(), &mut answer)
                .await?;
            return Ok(answer);
        }
        let (texts, output) = self.list(&ids).await?;
        let drifts = self.drifts.clone();
        let text = in_background(move || listed(&output, &texts, &ids, &drifts)).await?;
        let (retried, absent) = sort_into(&mut answer, order, text, max_retries);
        self.look_up_by_id(retried, &mut answer).await?;
        answer.check_list(&absent);
        Ok(answer)
    }

    /// Full records of exactly these jobs, in pages.
    pub(crate) async fn job_pages(&self, order: Vec<JobId>) -> Result<JobPages, Error> {
        let ids: BTreeSet<JobId> = order.iter().copied().collect();
        if ids.len() <= self.max_single_lookups() {
            let answer = self.jobs(&order).await?;
            return Ok(JobPages::of(order, answer));
        }
        let (texts, output) = self.list(&ids).await?;
        let (drifts, in_order) = (self.drifts.clone(), order.clone());
        let store = move || {
            let (mut stored, mut result) = (SpilledJobs::default(), Ok(()));
            long_jobs(&output, &texts, |id, record| {
                if result.is_ok() && ids.contains(&id) {
                    let record = record.as_ref();
                    drifts.job(record);
                    result = stored.push(id, record.map_err(|rejected| rejected.problem));
                }
            })?;
            result?;
            stored.finish();
            let rest = in_order.into_iter().filter(|id| !stored.has(*id));
            let rest: Vec<JobId> = rest.collect();
            Ok((stored, rest))
        };
        let (stored, mut rest) = in_background(store).await?;
        let mut answer = JobLookup::default();
        for id in rest.split_off(rest.len().min(JobLookup::MAX_SINGLE)) {
            if let Some(problem) = stored.problem(id) {
                answer.unclear.push((id, problem.to_owned()));
            }
        }
        self.look_up_by_id(rest, &mut answer).await?;
        Ok(JobPages::new(order, stored, answer))
    }

    /// Every record, and the texts of users.
    async fn list(&self, ids: &BTreeSet<JobId>) -> Result<(Texts, Text), Error> {
        tokio::try_join!(
            self.texts(ids),
            self.runner
                .run_long("scontrol", &["-o", "-d", "show", "jobs"])
        )
    }

    /// Looks jobs up individually: a record may be clear on its own, and a lookup proves more than a list.
    async fn look_up_by_id(&self, ids: Vec<JobId>, answer: &mut JobLookup) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let ids: BTreeSet<JobId> = ids.into_iter().collect();
        let (texts, outputs) = tokio::try_join!(self.free_texts(&ids), self.show_each_job(&ids))?;
        for (id, output) in outputs {
            read_one(id, output, &texts, answer, &self.drifts)?;
        }
        Ok(())
    }

    /// Limit of jobs that are looked up one by one.
    fn max_single_lookups(&self) -> usize {
        let queue = self.queue.load(Ordering::Relaxed);
        (1 + queue / JOBS_PER_LOOKUP).min(JobLookup::MAX_SINGLE)
    }

    async fn show_each_job(&self, ids: &BTreeSet<JobId>) -> Result<Vec<(JobId, Output)>, Error> {
        let mut outputs = Vec::with_capacity(ids.len());
        for id in ids {
            let question = ["-o", "-d", "show", "job", &id.to_string()];
            outputs.push((*id, self.runner.run_any("scontrol", &question).await?));
        }
        Ok(outputs)
    }

    /// The texts of a few jobs' users, by columns that cannot be forged.
    async fn free_texts(&self, ids: &BTreeSet<JobId>) -> Result<HashMap<JobId, FreeTexts>, Error> {
        let Some((text, separator)) = self.ask_texts(ids).await? else {
            return Ok(HashMap::new());
        };
        let text = text.into_string().map_err(io_error("squeue"))?;
        let rows = parse::delimited(&text, &separator, 6).ok_or_else(|| odd_columns(&text))?;
        let (mut texts, mut unread) = (HashMap::new(), Unread::default());
        for row in rows {
            match free_text(&row) {
                Some((id, text)) => drop(texts.insert(id, text)),
                None => unread.note(&row.join("|")),
            }
        }
        self.drifts.unread("squeue", &unread);
        Ok(texts)
    }

    /// The texts of these jobs' users; for many jobs, those of all jobs.
    async fn texts(&self, ids: &BTreeSet<JobId>) -> Result<Texts, Error> {
        if ids.len() <= IDS_PER_COMMAND {
            return Ok(Texts::Few(self.free_texts(ids).await?));
        }
        let Some((text, separator)) = self.ask_texts(ids).await? else {
            return Ok(Texts::Few(HashMap::new()));
        };
        let begin = text.window(0, 1_000).map_err(io_error("squeue"))?;
        let texts = in_background(move || Texts::all(text, separator)).await?;
        let texts = texts.ok_or_else(|| odd_columns(&begin))?;
        self.drifts.unread("squeue", &texts.unread());
        Ok(texts)
    }

    async fn ask_texts(&self, ids: &BTreeSet<JobId>) -> Result<Option<(Text, Separator)>, Error> {
        let separator = Separator::random();
        let format = separator.join(&["%A", "%U", "%k", "%o", "%Z", "%j"]);
        let mut arguments = vec!["-h", "-a", "-t", "all", "-o", &format];
        let list = if ids.len() <= IDS_PER_COMMAND {
            join(ids)
        } else {
            String::new()
        };
        if !list.is_empty() {
            arguments.extend(["-j", &list]);
        }
        let output = self.runner.run_any_long("squeue", &arguments).await?;
        if output.status != 0 {
            // squeue prints this if it knows none of the ids.
            if output.stderr.contains("Invalid job id specified") {
                return Ok(None);
            }
            let error = Error::from_stderr("squeue", output.status, &output.stderr);
            metrics::failed("squeue", error.kind());
            return Err(error);
        }
        Ok(Some((output.stdout, separator)))
    }
}

fn odd_columns(text: &str) -> Error {
    malformed(
        "squeue",
        "the answer does not have the requested columns",
        text,
    )
}

fn io_error(command: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { command, source }
}

/// Parses a long response in a blocking thread: it takes a second, and the disk may be slow.
async fn in_background<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let read = spawn_blocking(read)
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    read.map_err(io_error("scontrol"))
}

/// The records of a list that belong to these jobs.
fn listed(
    output: &Text,
    texts: &Texts,
    ids: &BTreeSet<JobId>,
    drifts: &DriftLog,
) -> io::Result<ParsedJobs> {
    let (mut text, mut count) = (ParsedJobs::default(), HashMap::<JobId, u32>::new());
    long_jobs(output, texts, |id, record| {
        *count.entry(id).or_default() += 1;
        match record {
            Ok(record) if record.request_ids().any(|root| ids.contains(&root)) => {
                drifts.job(Ok(&record));
                text.records.push(record);
            }
            Ok(_) => {}
            Err(rejected) => {
                drifts.job(Err(&rejected));
                text.unclear.push((id, rejected));
            }
        }
    })?;
    parse::reject_duplicates(&mut text, count);
    Ok(text)
}

/// Parses the response about one job.
fn read_one(
    id: JobId,
    output: Output,
    texts: &HashMap<JobId, FreeTexts>,
    answer: &mut JobLookup,
    drifts: &DriftLog,
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
    let ParsedJobs { records, unclear } = parse::jobs(&output.stdout, texts);
    let before = answer.found.len();
    for record in records {
        if belongs_to(&record, id) {
            drifts.job(Ok(&record));
            answer.found.push(record);
        }
    }
    for (unclear_id, rejected) in unclear {
        metrics::unread("scontrol", 1);
        drifts.job(Err(&rejected));
        answer
            .unclear
            .push((unclear_id, rejected.problem.to_owned()));
    }
    if answer.found.len() == before && !answer.unclear.iter().any(|(unclear, _)| *unclear == id) {
        answer
            .unclear
            .push((id, "the answer has no record of it".to_owned()));
    }
    Ok(())
}

/// Moves the records of requested jobs from a list of all jobs into the result. Returns the first jobs without a clear record, in the order of
/// the request and up to the limit, which are read by id, and those of them that the list lacks. The others are unclear or unlisted.
pub(crate) fn sort_into(
    answer: &mut JobLookup,
    order: &[JobId],
    text: ParsedJobs,
    max_retries: usize,
) -> (Vec<JobId>, BTreeSet<JobId>) {
    let ids: BTreeSet<JobId> = order.iter().copied().collect();
    let ParsedJobs { records, unclear } = text;
    let mut seen: BTreeSet<JobId> = BTreeSet::new();
    for record in records {
        let roots: Vec<JobId> = record.request_ids().filter(|id| ids.contains(id)).collect();
        if !roots.is_empty() {
            seen.extend(roots);
            answer.found.push(record);
        }
    }
    // On its own, a record may be clear.
    let unclear = unclear.into_iter().map(|(id, rejected)| {
        seen.remove(&id);
        (id, rejected.problem.to_owned())
    });
    let mut unclear: BTreeMap<JobId, String> = unclear.collect();
    let mut retried = Vec::new();
    for id in order.iter().copied().filter(|id| seen.insert(*id)) {
        if retried.len() < max_retries {
            retried.push(id);
        } else if let Some(problem) = unclear.remove(&id) {
            answer.unclear.push((id, problem));
        } else {
            answer.unlisted.push(id);
        }
    }
    let is_absent = |id: &JobId| !unclear.contains_key(id);
    let absent = retried.iter().copied().filter(is_absent).collect();
    (retried, absent)
}

pub(crate) fn belongs_to(record: &JobRecord, id: JobId) -> bool {
    record.request_ids().any(|root| root == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_jobs_that_a_list_lacks_are_read_by_id() {
        let ids =
            |ids: &[u32]| -> Vec<JobId> { ids.iter().filter_map(|id| JobId::new(*id)).collect() };
        let listed = JobRecord {
            job_id: JobId::new(7),
            ..JobRecord::default()
        };
        let text = ParsedJobs {
            records: vec![listed],
            unclear: vec![(JobId::new(3).unwrap(), parse::Rejected::of("why", ""))],
        };
        let mut answer = JobLookup::default();
        let order = ids(&[9, 7, 8, 9, 1, 3, 2]);
        let (retried, absent) = sort_into(&mut answer, &order, text, 2);
        assert_eq!(retried, ids(&[9, 8]));
        assert_eq!(absent, ids(&[8, 9]).into_iter().collect());
        assert_eq!(answer.unlisted, ids(&[1, 2]));
        assert_eq!(answer.unclear, [(JobId::new(3).unwrap(), "why".to_owned())]);
        assert_eq!(answer.found.len(), 1);
    }

    #[test]
    fn a_list_without_a_job_that_is_found_by_its_id_proves_nothing_about_the_others() {
        let id = |id: u32| JobId::new(id).unwrap();
        let by_id = |found: &[u32]| {
            let mut answer = JobLookup::default();
            let order = [id(9), id(8), id(1), id(3)];
            let text = ParsedJobs {
                records: Vec::new(),
                unclear: vec![(id(9), parse::Rejected::of("why", ""))],
            };
            let (_, absent) = sort_into(&mut answer, &order, text, 2);
            let record = |job_id: &u32| JobRecord {
                array_job_id: JobId::new(*job_id),
                ..JobRecord::default()
            };
            answer.found = found.iter().map(record).collect();
            answer.check_list(&absent);
            let unclear: Vec<JobId> = answer.unclear.iter().map(|(id, _)| *id).collect();
            (answer.unlisted, unclear)
        };
        assert_eq!(by_id(&[]), (vec![id(1), id(3)], vec![]));
        // The list has its record, which could not be read.
        assert_eq!(by_id(&[9]), (vec![id(1), id(3)], vec![]));
        assert_eq!(by_id(&[8]), (vec![], vec![id(1), id(3)]));
    }
}
