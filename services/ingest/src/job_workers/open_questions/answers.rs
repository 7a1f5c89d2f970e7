//! What the model answers to ingest's queries.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use slurm_client::{
    AccountingQuery, AccountingRecord, ArraySubmission, Error as SlurmError, JobLookup, JobPages,
    JobRecord, Ping, QueueListing, QueueRow, StepUsage, UsageRecord,
};
use slurm_types::{JobBaseState, JobId, JobRef, TaskSet, UnixTime};

use super::model::Model;
use super::world::{Kind, Question};
use crate::job_queries::JobQueries;

fn task_set(text: &str) -> TaskSet {
    text.parse().unwrap()
}

impl Model {
    /// As the client: of what a list of all jobs lacks, the first ones are read by id.
    fn lookup(&self, ids: &[JobId]) -> Result<JobLookup, SlurmError> {
        self.slurmctld()?;
        let (mut answer, mut absent) = (JobLookup::default(), BTreeSet::new());
        for id in ids {
            let record = self.records().find(|record| record.job_id == Some(*id));
            match record {
                Some(record) if !self.is_cut(id.get()) => answer.found.push(record),
                _ if absent.len() >= self.by_id() => answer.unlisted.push(*id),
                record => {
                    absent.insert(*id);
                    match record {
                        Some(record) => answer.found.push(record),
                        None => answer.missing.push(*id),
                    }
                }
            }
        }
        answer.check_list(&absent);
        Ok(answer)
    }
}

fn listed(record: JobRecord) -> QueueRow {
    let mut hasher = DefaultHasher::new();
    format!("{record:?}").hash(&mut hasher);
    let digest = hasher.finish();
    QueueRow {
        job_id: record.job_id.unwrap(),
        array_job_id: record.array_job_id,
        array_tasks: record.array_tasks.map(Box::new),
        het_job_id: None,
        het_job_offset: None,
        state: record.state.base,
        submit: record.submit,
        start: record.start,
        priority: record.priority,
        partition: "p".into(),
        user: "alice".into(),
        has_nodes: !record.nodes.is_empty(),
        reason: record.reason.as_str().into(),
        digest,
    }
}

impl JobQueries for Model {
    async fn list_queue(&self) -> Result<QueueListing, SlurmError> {
        let step = self.slurmctld()?;
        let shown = self.questions().iter().enumerate();
        let shown = shown.filter(|(n, question)| !step.leaves_out(*n) && !self.is_cut(question.id));
        Ok(QueueListing {
            started_at: UnixTime::from_secs(self.submit + 200),
            rows: shown
                .filter_map(|(_, question)| self.record(question).map(listed))
                .collect(),
            counts: slurm_client::JobCounts::default(),
            unread_lines: 0,
        })
    }

    async fn ping(&self) -> Result<Ping, SlurmError> {
        self.slurmctld()?;
        Ok(Ping {
            up: true,
            lines: Vec::new(),
        })
    }

    async fn jobs(&self, ids: &[JobId]) -> Result<JobLookup, SlurmError> {
        self.lookup(ids)
    }

    async fn jobs_from_list(&self, ids: &[JobId]) -> Result<JobLookup, SlurmError> {
        self.lookup(ids)
    }

    async fn job_pages(&self, ids: Vec<JobId>) -> Result<JobPages, SlurmError> {
        let answer = self.lookup(&ids)?;
        Ok(JobPages::of(ids, answer))
    }

    async fn accounting(
        &self,
        query: &AccountingQuery,
    ) -> Result<Vec<AccountingRecord>, SlurmError> {
        self.slurmdbd()?;
        let is_selected = |question: &&Question| match query {
            // What never became eligible is not listed by time.
            AccountingQuery::Window { .. } => question.kind != Kind::UnseenId,
            AccountingQuery::Jobs(ids) => ids.iter().any(|id| id.get() == question.id),
        };
        let selected = self.questions().iter().filter(is_selected);
        Ok(selected.flat_map(|question| self.rows(question)).collect())
    }

    async fn usage(&self, jobs: &[JobRef]) -> Result<Vec<UsageRecord>, SlurmError> {
        self.slurmdbd()?;
        let is_selected = |question: &&Question| {
            JobId::new(question.id).is_some_and(|id| jobs.contains(&JobRef::Job(id)))
        };
        let rows = self.questions().iter().filter(is_selected);
        let rows = rows.flat_map(|question| self.rows(question));
        let usage = rows.map(|record| UsageRecord {
            record,
            cpu_millis: Some(1_000),
            steps: vec![StepUsage {
                id: "batch".to_owned(),
                ended: true,
                end: self.at(3),
                state: Some(JobBaseState::Completed),
                ..StepUsage::default()
            }],
            ..UsageRecord::default()
        });
        Ok(usage.collect())
    }

    async fn submitted(&self, arrays: &[JobId]) -> Result<Vec<ArraySubmission>, SlurmError> {
        self.slurmdbd()?;
        let of = |id: &JobId| {
            let mut asked = self.questions().iter();
            let question = asked.find(|question| question.id == id.get())?;
            let is_asked = question.kind == Kind::SubmittedTasks;
            (!is_asked || self.is_answered(question)).then(|| ArraySubmission {
                array: *id,
                submit: UnixTime::from_secs(self.submit),
                jobs: TaskSet::default(),
                rest: task_set(if is_asked { "1-9" } else { "0-9" }),
                ordered: is_asked.then(|| task_set("0-9")),
            })
        };
        Ok(arrays.iter().filter_map(of).collect())
    }

    fn min_poll_interval(&self, _: Duration) -> Duration {
        Duration::ZERO
    }
}
