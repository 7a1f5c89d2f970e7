//! A model of Slurm: what slurmctld and accounting have at each step.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use slurm_client::{AccountingRecord, ArrayPosition, ArrayTasks, Error as SlurmError, JobRecord};
use slurm_types::{ExitCode, JobId, JobState, UnixTime};

use super::world::{
    EPILOG_STEPS, Kind, LOST_AT_FIRST, NEXT_RUN_STEPS, PURGE_STEPS, Question, Step, WAVE_STEPS,
    World,
};
use crate::domain::Evidence;

/// Slurm, whose times are relative to the start of the test.
#[derive(Clone)]
pub(super) struct Model {
    world: Arc<World>,
    cluster: Arc<str>,
    pub(super) submit: i64,
    step: Arc<AtomicU64>,
    queries: Arc<AtomicU64>,
}

fn tasks(text: &str) -> Option<ArrayTasks> {
    ArrayTasks::parse(text)
}

impl Model {
    pub(super) fn new(world: Arc<World>, cluster: &str, submit: i64) -> Self {
        Self {
            world,
            cluster: cluster.into(),
            submit,
            step: Arc::default(),
            queries: Arc::default(),
        }
    }

    pub(super) fn begin(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Number of queries so far.
    pub(super) fn queries(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    pub(super) fn questions(&self) -> &[Question] {
        &self.world.questions
    }

    pub(super) fn by_id(&self) -> usize {
        self.world.by_id
    }

    /// Whether the lists of all jobs end before a job at this step.
    pub(super) fn is_cut(&self, id: u32) -> bool {
        let cut = self.world.cut.as_ref();
        cut.is_some_and(|(polls, last)| polls.contains(&self.poll()) && id > *last)
    }

    pub(super) fn poll(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    fn current(&self) -> &Step {
        self.queries.fetch_add(1, Ordering::Relaxed);
        &self.world.steps[usize::try_from(self.poll()).unwrap()]
    }

    pub(super) fn slurmctld(&self) -> Result<&Step, SlurmError> {
        let step = self.current();
        let down = || SlurmError::ControllerDown {
            command: "scontrol",
            message: "it is down".to_owned(),
        };
        step.slurmctld.then_some(step).ok_or_else(down)
    }

    pub(super) fn slurmdbd(&self) -> Result<&Step, SlurmError> {
        let step = self.current();
        let down = || SlurmError::AccountingDown {
            command: "sacct",
            message: "it is down".to_owned(),
        };
        step.slurmdbd.then_some(step).ok_or_else(down)
    }

    pub(super) fn at(&self, seconds: i64) -> Option<UnixTime> {
        Some(UnixTime::from_secs(self.submit + seconds))
    }

    /// slurmctld's record of a job.
    pub(super) fn record(&self, question: &Question) -> Option<JobRecord> {
        let poll = self.poll();
        let (job_id, open) = (JobId::new(question.id), question.is_open(poll));
        let waits = JobRecord {
            job_id,
            state: JobState::parse("PENDING"),
            reason: "Priority".to_owned(),
            priority: Some(1),
            submit: self.at(0),
            user: "alice".to_owned(),
            restarts: 0,
            ..JobRecord::default()
        };
        let runs = JobRecord {
            state: JobState::parse("RUNNING"),
            reason: "None".to_owned(),
            start: self.at(1),
            nodes: "n1".to_owned(),
            ..waits.clone()
        };
        // 22.05 hides how it ended.
        let completing = JobRecord {
            state: JobState::parse("COMPLETING"),
            end: self.at(3),
            ..runs.clone()
        };
        let completed = JobRecord {
            state: JobState::parse("COMPLETED"),
            end: self.at(3),
            exit_code: Some(ExitCode::default()),
            ..runs.clone()
        };
        let array = |text| JobRecord {
            array_job_id: job_id,
            array_tasks: tasks(text),
            ..waits.clone()
        };
        Some(match (question.kind, open) {
            (Kind::LostTwice, false) if LOST_AT_FIRST.contains(&(question.opens - poll)) => {
                return None;
            }
            (
                Kind::End
                | Kind::EarlierEnd
                | Kind::Usage
                | Kind::ReportedEnd
                | Kind::ReportedEarlierEnd
                | Kind::ExitCode
                | Kind::LostTwice
                | Kind::ShortNextRun,
                false,
            ) => runs,
            (Kind::End | Kind::LostTwice | Kind::Array, true)
            | (Kind::UnseenId | Kind::UnseenEarlierEnd, false) => {
                return None;
            }
            (Kind::EarlierEnd | Kind::ReportedEarlierEnd | Kind::UnseenEarlierEnd, true) => {
                JobRecord {
                    submit: self.at(100),
                    restarts: 1,
                    ..waits
                }
            }
            (Kind::ShortNextRun, true) if poll >= question.opens + PURGE_STEPS => return None,
            (Kind::ShortNextRun, true) => {
                let has_ended = poll >= question.opens + NEXT_RUN_STEPS;
                JobRecord {
                    submit: self.at(100),
                    start: self.at(101),
                    end: self.at(103).filter(|_| has_ended),
                    restarts: 1,
                    ..if has_ended { completed } else { runs }
                }
            }
            (Kind::Resized, false) => waits,
            (Kind::Resized, true) => JobRecord {
                resize_time: self.at(5),
                ..runs
            },
            (Kind::LaterTask, false) if poll + WAVE_STEPS >= question.opens => array("1-9"),
            (Kind::LaterTask, true) => array("2-9"),
            (Kind::Task | Kind::Array | Kind::LaterTask, false) => array("0-9"),
            (Kind::Task, true) | (Kind::SubmittedTasks, _) => array("1-9"),
            (Kind::Usage, true) => completed,
            (Kind::Canceller, false) => waits,
            (Kind::Canceller, true) => JobRecord {
                state: JobState::parse("CANCELLED"),
                end: self.at(2),
                ..waits
            },
            // The job after the one that was not seen.
            (Kind::UnseenId, true) => JobRecord {
                job_id: JobId::new(question.id + 1),
                submit: self.at(i64::try_from(question.opens).unwrap()),
                ..runs
            },
            (Kind::ExitCode, true) if poll >= question.opens + EPILOG_STEPS => completed,
            (Kind::ReportedEnd | Kind::ExitCode, true) => completing,
        })
    }

    pub(super) fn records(&self) -> impl Iterator<Item = JobRecord> {
        let questions = self.world.questions.iter();
        questions.filter_map(|question| self.record(question))
    }

    /// Whether accounting has the answer to a question.
    pub(super) fn is_answered(&self, question: &Question) -> bool {
        question.is_answered(self.world.reported(self.poll()))
    }

    /// Accounting's rows of a job.
    pub(super) fn rows(&self, question: &Question) -> Vec<AccountingRecord> {
        self.row(question)
            .into_iter()
            .chain(self.second_row(question))
            .collect()
    }

    /// The row of the next run, or of the next part of a resized one.
    fn second_row(&self, question: &Question) -> Option<AccountingRecord> {
        let poll = self.world.reported(self.poll());
        let row = |state: &str, submit, start| AccountingRecord {
            state: JobState::parse(state),
            submit: self.at(submit),
            start: self.at(start),
            end: None,
            db_index: Some(2),
            ..self.row(question).unwrap_or_default()
        };
        match question.kind {
            Kind::ShortNextRun if poll >= question.opens + NEXT_RUN_STEPS => {
                let has_end = question.is_answered(poll);
                (has_end || question.alive).then(|| match has_end {
                    true => AccountingRecord {
                        end: self.at(103),
                        ..row("COMPLETED", 100, 101)
                    },
                    false => row("RUNNING", 100, 101),
                })
            }
            Kind::Resized if question.is_answered(poll) => Some(row("RUNNING", 5, 5)),
            _ => None,
        }
    }

    /// Accounting's first row of a job.
    fn row(&self, question: &Question) -> Option<AccountingRecord> {
        let poll = self.world.reported(self.poll());
        let ended = question.is_answered(poll);
        let row = |state: &str| AccountingRecord {
            job_id: JobId::new(question.id),
            state: JobState::parse(state),
            submit: self.at(0),
            start: self.at(1),
            end: self.at(3).filter(|_| ended),
            nodes: "n1".to_owned(),
            user: "alice".to_owned(),
            ..AccountingRecord::default()
        };
        let waits = |state: &str| AccountingRecord {
            start: None,
            nodes: String::new(),
            ..row(state)
        };
        let array = |state: &str| AccountingRecord {
            array: tasks("0-9").map(|tasks| ArrayPosition {
                array_job_id: JobId::new(question.id).unwrap(),
                tasks,
            }),
            ..waits(state)
        };
        let (over, alive) = match question.kind {
            Kind::End | Kind::LostTwice | Kind::Usage | Kind::ReportedEnd | Kind::ExitCode => {
                (row("COMPLETED"), row("RUNNING"))
            }
            Kind::EarlierEnd
            | Kind::ReportedEarlierEnd
            | Kind::UnseenEarlierEnd
            | Kind::ShortNextRun => (row("REQUEUED"), row("RUNNING")),
            Kind::Resized => (
                AccountingRecord {
                    end: self.at(5).filter(|_| ended),
                    ..row("RESIZING")
                },
                row("RUNNING"),
            ),
            // What leaves no record never has one.
            Kind::Task | Kind::LaterTask | Kind::SubmittedTasks => {
                (array("PENDING"), array("PENDING"))
            }
            Kind::Array => (array("CANCELLED"), array("PENDING")),
            Kind::UnseenId => (waits("CANCELLED"), waits("PENDING")),
            Kind::Canceller => (
                AccountingRecord {
                    cancelled_by: Some(0),
                    ..waits("CANCELLED")
                },
                waits("PENDING"),
            ),
        };
        if ended {
            Some(over)
        } else {
            (question.alive || !question.is_open(poll)).then_some(alive)
        }
    }

    /// The doorbell that reports an end, if the question has one.
    pub(super) fn doorbell(&self, question: &Question) -> Option<Evidence> {
        let state = match question.kind {
            Kind::ReportedEnd => "COMPLETED",
            Kind::ReportedEarlierEnd => "PENDING",
            _ => return None,
        };
        let time = |seconds: i64| (self.submit + seconds).to_string();
        let environment = [
            ("JOBID", question.id.to_string()),
            ("JOBSTATE", state.to_owned()),
            ("SUBMIT", time(0)),
            ("START", time(1)),
            ("END", time(3)),
            ("NODES", "n1".to_owned()),
            ("USERNAME", "alice".to_owned()),
            ("EXITCODE", "0:0".to_owned()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value));
        let doorbell = Doorbell {
            hook: "JobComp".to_owned(),
            cluster: self.cluster.to_string(),
            job_id: question.id,
            environment: environment.into(),
            ..Doorbell::default()
        };
        Some(Evidence::read(&self.cluster, &doorbell).unwrap())
    }
}
