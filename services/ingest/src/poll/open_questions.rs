//! Every open question about a run ends as one event or one gap within `resolution_timeout`: the collector with its real bucket and stream,
//! in virtual time, with records that answers leave out, accounting that fails, and restarts at any point.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mesh_bus::{Bus, Config as BusConfig};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, RunKey};
use mesh_runtime::Health;
use mesh_testkit::NatsServer;
use proptest::prelude::*;
use proptest::sample::select;
use slurm_client::{
    AccountingRecord, ArrayPosition, ArrayTasks, JobRecord, QueueListing, QueueRow, StepUsage,
    UsageRecord,
};
use slurm_types::{ExitCode, JobBaseState, JobId, JobState, UnixTime};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use super::selection::{ArrayRecord, arrays, missing};
use crate::collector::{Collector, TracedObservation};
use crate::config::Config;
use crate::domain::{Observation, RunState, fold, usages};
use crate::envelope::Cause;
use crate::identity::IdentityResolver;

/// Virtual seconds between two polls.
const STEP: u64 = 15;
/// Polls until every question has ended.
const STEPS: u64 = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// How did a run end that slurmctld does not have any more?
    End,
    /// How did the run end before the one that waits?
    EarlierEnd,
    /// What became of a task that left its array?
    Task,
    /// What became of an array?
    Array,
    /// What did a run use?
    Usage,
    /// Who cancelled a job that waited?
    Canceller,
}

const KINDS: [Kind; 6] = [
    Kind::End,
    Kind::EarlierEnd,
    Kind::Task,
    Kind::Array,
    Kind::Usage,
    Kind::Canceller,
];

#[derive(Clone, Debug)]
struct Question {
    kind: Kind,
    id: u32,
    /// Number of the poll from which on it is open.
    opens: u64,
    /// How long accounting needs for the answer, in polls; `None` if it never has one.
    answer: Option<u64>,
    /// Whether accounting lists the run as not ended until then.
    alive: bool,
}

impl Question {
    /// Seconds that it was open until a poll, as far as its source answered. What only accounting has waits while accounting is away,
    /// which is an event of its own, and from the first answer after a restart on.
    fn age(&self, until: u64, steps: &[Step]) -> u64 {
        let counts = |pair: &[Step]| match self.kind {
            Kind::Usage | Kind::Canceller => {
                pair[1].slurmdbd && pair.iter().all(|step| step.restart == Restart::No)
            }
            _ => pair[1].slurmctld,
        };
        let open = (1..until).zip(steps.windows(2));
        let open = open.filter(|(poll, pair)| self.is_open(*poll) && counts(pair));
        u64::try_from(open.count()).unwrap() * STEP
    }

    /// The bound of its age: usage is asked for once a minute at last.
    const fn limit(&self) -> u64 {
        match self.kind {
            Kind::Usage | Kind::Canceller => 600 + 60 + 2 * STEP,
            _ => 600 + 2 * STEP,
        }
    }

    fn is_open(&self, poll: u64) -> bool {
        poll >= self.opens
    }

    fn is_answered(&self, poll: u64) -> bool {
        self.answer
            .is_some_and(|answer| poll >= self.opens + answer)
    }

    fn run(&self, submit: i64) -> RunKey {
        RunKey {
            cluster: String::new(),
            job_id: self.id,
            task_id: None,
            submit_time: submit,
            attempt: 0,
        }
    }
}

/// What happens at one poll.
#[derive(Clone, Debug)]
struct Step {
    /// Whether slurmctld answers.
    slurmctld: bool,
    /// Whether accounting answers.
    slurmdbd: bool,
    /// Jobs that the list of this poll leaves out, as a bit per question.
    left_out: u64,
    restart: Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    No,
    /// After everything was stored.
    Orderly,
    /// Between publishing and storing.
    Crash,
}

#[derive(Clone, Debug)]
struct World {
    questions: Vec<Question>,
    steps: Vec<Step>,
}

fn worlds() -> impl Strategy<Value = World> {
    let question = (
        1..20u64,
        prop::option::weighted(0.5, 0..36u64),
        any::<bool>(),
    );
    let questions = prop::collection::vec(question, 2 * KINDS.len());
    let questions = questions.prop_map(|all| {
        let all = (1_001..).zip(all).enumerate();
        all.map(|(n, (id, (opens, answer, alive)))| Question {
            kind: KINDS[n % KINDS.len()],
            id,
            opens,
            answer,
            alive,
        })
        .collect()
    });
    // slurmdbd answers always, mostly or rarely; ingest restarts never, or every minute or two.
    let faults = (select(vec![0.0, 0.1, 0.5]), select(vec![0, 0, 1]));
    let steps = faults.prop_flat_map(move |(failing, restarts)| {
        let restart = prop_oneof![
            8 => Just(Restart::No),
            restarts => Just(Restart::Orderly),
            restarts => Just(Restart::Crash),
        ];
        let step = (
            prop::bool::weighted(0.95),
            prop::bool::weighted(1.0 - failing),
            any::<u64>(),
            any::<u64>(),
            any::<u64>(),
            restart,
        );
        let step = step.prop_map(|(slurmctld, slurmdbd, a, b, c, restart)| Step {
            slurmctld,
            slurmdbd,
            left_out: a & b & c,
            restart,
        });
        prop::collection::vec(step, usize::try_from(STEPS).unwrap())
    });
    (questions, steps).prop_map(|(questions, mut steps)| {
        // The first poll shows every run.
        steps[0] = Step {
            slurmctld: true,
            slurmdbd: true,
            left_out: 0,
            restart: Restart::No,
        };
        World { questions, steps }
    })
}

fn tasks(text: &str) -> Option<ArrayTasks> {
    ArrayTasks::parse(text)
}

/// Slurm, whose times are relative to the start of the test.
struct Slurm<'a> {
    world: &'a World,
    submit: i64,
}

impl Slurm<'_> {
    fn at(&self, seconds: i64) -> Option<UnixTime> {
        Some(UnixTime::from_secs(self.submit + seconds))
    }

    /// slurmctld's record of a job.
    fn record(&self, question: &Question, poll: u64) -> Option<JobRecord> {
        let (job_id, open) = (JobId::new(question.id), question.is_open(poll));
        let waits = JobRecord {
            job_id,
            state: JobState::parse("PENDING"),
            reason: "Priority".to_owned(),
            priority: Some(1),
            submit: self.at(0),
            user: "alice".to_owned(),
            ..JobRecord::default()
        };
        let runs = JobRecord {
            state: JobState::parse("RUNNING"),
            reason: "None".to_owned(),
            start: self.at(1),
            nodes: "n1".to_owned(),
            ..waits.clone()
        };
        let array = |text| JobRecord {
            array_job_id: job_id,
            array_tasks: tasks(text),
            ..waits.clone()
        };
        Some(match (question.kind, open) {
            (Kind::End | Kind::EarlierEnd | Kind::Usage, false) => runs,
            (Kind::End | Kind::Array, true) => return None,
            (Kind::EarlierEnd, true) => JobRecord {
                submit: self.at(100),
                restarts: 1,
                ..waits
            },
            (Kind::Task | Kind::Array, false) => array("0-9"),
            (Kind::Task, true) => array("1-9"),
            (Kind::Usage, true) => JobRecord {
                state: JobState::parse("COMPLETED"),
                end: self.at(2),
                exit_code: Some(ExitCode::default()),
                ..runs
            },
            (Kind::Canceller, false) => waits,
            (Kind::Canceller, true) => JobRecord {
                state: JobState::parse("CANCELLED"),
                end: self.at(2),
                ..waits
            },
        })
    }

    fn listing(&self, poll: u64, left_out: u64) -> QueueListing {
        let shown = self.world.questions.iter().enumerate();
        let shown = shown.filter(|(n, _)| left_out & (1 << n) == 0);
        let records = shown.filter_map(|(_, question)| self.record(question, poll));
        QueueListing {
            started_at: UnixTime::from_secs(self.submit + 200),
            rows: records.map(row).collect(),
            unread_lines: 0,
        }
    }

    /// Accounting's rows of a job.
    fn rows(&self, question: &Question, poll: u64) -> Vec<AccountingRecord> {
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
            Kind::End | Kind::Usage => (row("COMPLETED"), row("RUNNING")),
            Kind::EarlierEnd => (row("REQUEUED"), row("RUNNING")),
            // What leaves no record never has one.
            Kind::Task => (array("PENDING"), array("PENDING")),
            Kind::Array => (array("CANCELLED"), array("PENDING")),
            Kind::Canceller => (
                AccountingRecord {
                    cancelled_by: Some(0),
                    ..waits("CANCELLED")
                },
                waits("PENDING"),
            ),
        };
        if ended {
            vec![over]
        } else if question.alive || !question.is_open(poll) {
            vec![alive]
        } else {
            Vec::new()
        }
    }
}

fn row(record: JobRecord) -> QueueRow {
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
        digest: 1,
    }
}

/// One ingest after the other, on one bus.
struct Ingest<'a> {
    slurm: Slurm<'a>,
    bus: Bus,
    cluster: String,
    collector: Collector,
    asked: BTreeSet<u32>,
}

async fn load(bus: &Bus, cluster: &str) -> Collector {
    let config = Arc::new(Config::default());
    let identities = Arc::new(IdentityResolver::new(None, &config.identity));
    let condition = Health::default().condition("ingest.state");
    let shutdown = CancellationToken::new();
    let bus = bus.clone();
    Collector::load(bus, cluster, false, config, identities, condition, shutdown)
        .await
        .unwrap()
}

impl Ingest<'_> {
    /// What the poller does with Slurm's answers.
    async fn poll(&mut self, poll: u64, step: &Step) {
        let cause = Cause::Poll(poll);
        let questions = &self.slurm.world.questions;
        let listing = self.slurm.listing(poll, step.left_out);
        let rows: BTreeSet<u32> = listing.rows.iter().map(|row| row.job_id.get()).collect();
        let read = |ids: &BTreeSet<u32>| -> Vec<TracedObservation> {
            let records = questions
                .iter()
                .filter(|question| ids.contains(&question.id))
                .filter_map(|question| self.slurm.record(question, poll));
            records
                .filter_map(|record| Observation::from_controller(&self.cluster, &record))
                .map(TracedObservation::new)
                .collect()
        };
        self.collector.touch(&rows, self.slurm.submit + 200).await;
        let (missing, arrays) = {
            let core = self.collector.core().await;
            (
                missing(&core.run_store, &listing, &rows, 0),
                arrays(&core.run_store, &listing),
            )
        };
        let follow_ups = self.collector.absorb(&cause, read(&rows)).await.unwrap();
        let mut asked = follow_ups.accounting;
        let missing: BTreeSet<u32> = missing.iter().map(|id| id.get()).collect();
        let found = read(&missing);
        let gone: Vec<u32> = missing
            .iter()
            .copied()
            .filter(|id| !found.iter().any(|found| found.observation.raw_id == *id))
            .collect();
        let follow_ups = self.collector.absorb(&cause, found).await.unwrap();
        asked.extend(follow_ups.accounting);
        for id in gone {
            if self.collector.missing(id).await.unwrap() {
                asked.insert(id);
            }
        }
        for array in arrays {
            let own = || {
                let mut of_array = questions.iter().filter(|one| one.id == array.run.job_id);
                of_array.any(|one| self.slurm.record(one, poll).is_some())
            };
            let is_absent = match array.record {
                ArrayRecord::There => false,
                ArrayRecord::Purged => true,
                ArrayRecord::Absent => !own(),
            };
            let reconciled = self
                .collector
                .reconcile_array(&cause, &array.run, is_absent);
            if reconciled.await.unwrap() {
                asked.insert(array.run.job_id);
            }
        }
        self.asked.extend(asked);
        self.collector.record_poll(poll, Instant::now()).await;
    }

    /// What accounting's callers do with its answers.
    async fn ask_accounting(&mut self, poll: u64) {
        let rows_of = |id: u32| {
            let questions = &self.slurm.world.questions;
            let mut asked = questions.iter().filter(move |question| question.id == id);
            asked.next().map(|question| self.slurm.rows(question, poll))
        };
        let asked = std::mem::take(&mut self.asked);
        let rows: Vec<AccountingRecord> = asked
            .iter()
            .filter_map(|id| rows_of(*id))
            .flatten()
            .collect();
        let observations = fold(&self.cluster, &rows);
        let (ended, alive): (Vec<Observation>, Vec<Observation>) = observations
            .into_iter()
            .partition(|run| run.end_kind().is_some());
        let alive = alive.into_iter().map(|run| run.run).collect();
        self.collector.accounting_answered(&asked, &alive).await;
        let ended = ended.into_iter().map(TracedObservation::new).collect();
        self.collector
            .absorb(&Cause::Accounting, ended)
            .await
            .unwrap();
        let due = self.collector.usage_due(500).await;
        let records: Vec<UsageRecord> = due
            .iter()
            .filter_map(|due| rows_of(due.run.job_id))
            .flatten()
            .map(|record| UsageRecord {
                record,
                cpu_millis: Some(1_000),
                steps: vec![StepUsage {
                    id: "batch".to_owned(),
                    ended: true,
                    end: self.slurm.at(3),
                    state: Some(JobBaseState::Completed),
                    ..StepUsage::default()
                }],
                ..UsageRecord::default()
            })
            .collect();
        let usages = usages(&self.cluster, &records);
        self.collector.usage_answered(&due, usages).await.unwrap();
        let due = self.collector.arrays_due(500).await;
        self.collector.submitted(&due, &[]).await.unwrap();
    }

    async fn events(&self) -> Vec<Event> {
        let subjects = [format!("slurm.{}.>", self.cluster)];
        let page = self
            .bus
            .stored_page(SLURM_EVENTS, &subjects, 1, u64::MAX, 10_000);
        let page = page.await.unwrap().into_iter();
        page.map(|message| message.event().unwrap()).collect()
    }

    /// Whether an event or a gap is the end of a question.
    fn ends(&self, question: &Question, event: &Event) -> bool {
        let key = question.run(self.slurm.submit).entity_key();
        if let Some(Payload::Capture(gap)) = &event.payload {
            let is_usage = gap.not_recoverable.starts_with("resource usage");
            return event.r#type == "capture.gap_closed"
                && is_usage == (question.kind == Kind::Usage)
                && gap
                    .not_recoverable
                    .split([' ', ','])
                    .any(|word| word == key);
        }
        event.entity_key() == key
            && match question.kind {
                Kind::End => event.r#type == "job.completed",
                Kind::EarlierEnd => event.r#type == "job.requeued",
                Kind::Task | Kind::Array => event.r#type == "job.cancelled",
                Kind::Usage => event.r#type == "job.updated",
                Kind::Canceller => false,
            }
    }
}

/// Returns when each question ended, in polls, and how often.
async fn play(nats: &str, cluster: &str, world: &World) -> BTreeMap<u32, (u64, usize)> {
    let config = BusConfig {
        url: nats.to_owned(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    // From here on, time passes only between two polls: the runtime does not skip any while a blocking task runs.
    let (stop, stopped) = channel::<()>();
    let no_skips = tokio::task::spawn_blocking(move || stopped.recv());
    tokio::time::pause();
    let submit = chrono::Utc::now().timestamp() + 5;
    let slurm = Slurm { world, submit };
    let mut ingest = Ingest {
        slurm,
        cluster: cluster.to_owned(),
        collector: load(&bus, cluster).await,
        asked: BTreeSet::new(),
        bus,
    };
    let mut ended = BTreeMap::new();
    for (poll, step) in (0..).zip(&world.steps) {
        if step.slurmctld {
            ingest.poll(poll, step).await;
        }
        let crash = step.restart == Restart::Crash;
        if step.slurmdbd && !crash {
            ingest.ask_accounting(poll).await;
        }
        if !crash {
            ingest.collector.expire().await;
            ingest.collector.flush().await.unwrap();
        }
        if step.restart != Restart::No {
            ingest.collector = load(&ingest.bus, cluster).await;
            ingest.asked.clear();
        }
        let events = ingest.events().await;
        let core = ingest.collector.core().await;
        for question in &world.questions {
            let mut count = events
                .iter()
                .filter(|event| ingest.ends(question, event))
                .count();
            if question.kind == Kind::Canceller {
                let state = core.run_store.get(&RunKey {
                    cluster: cluster.to_owned(),
                    ..question.run(submit)
                });
                let settled = |state: &RunState| state.over() && !state.accounting_pending();
                count = usize::from(state.is_some_and(settled));
            }
            if count > 0 {
                ended.entry(question.id).or_insert((poll, 0)).1 = count;
            }
        }
        drop(core);
        tokio::time::advance(Duration::from_secs(STEP)).await;
    }
    drop(stop);
    no_skips.await.unwrap().unwrap_err();
    ended
}

#[test]
fn every_open_question_ends_once_in_time_whatever_fails() {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let nats = runtime.block_on(NatsServer::start());
    let url = nats.url();
    let number = AtomicU32::new(0);
    let config = ProptestConfig {
        cases: 8,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    };
    proptest!(config, |(world in worlds())| {
        let cluster = format!("c{}", number.fetch_add(1, Ordering::Relaxed));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(play(&url, &cluster, &world));
        for question in &world.questions {
            let (poll, count) = ended.get(&question.id).copied().unwrap_or((u64::MAX, 0));
            prop_assert_eq!(count, 1, "{:?}", question);
            let age = question.age(poll, &world.steps);
            prop_assert!(age <= question.limit(), "{question:?} after {age} s");
        }
    });
}
