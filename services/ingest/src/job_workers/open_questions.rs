//! Every open question about a run ends as one event or one gap within ten minutes: the workers of a term with real bucket and
//! stream, in virtual time, with records that answers leave out, accounting that fails, and restarts at any point.

mod answers;
mod model;
mod term;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use mesh_bus::{Bus, Config as BusConfig};
use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::NatsServer;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use slurm_types::TaskSet;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use self::model::Model;
use self::term::Term;
use self::world::{KINDS, Kind, Question, Restart, STEP, Step, World, worlds};

/// Whether an event or a gap is the end of a question.
fn ends(question: &Question, submit: i64, event: &Event) -> bool {
    let key = match question.kind {
        // It is over when the run after it is published.
        Kind::UnseenEarlierEnd => question.run(submit + 100).entity_key(),
        Kind::ShortNextRun => question.run(submit + 100).entity_key(),
        _ => question.run(submit).entity_key(),
    };
    if let Some(Payload::Capture(gap)) = &event.payload {
        if question.kind == Kind::LaterTask {
            let mut words = gap.not_recoverable.split(' ');
            let tasks = words.by_ref().skip_while(|word| *word != "tasks").nth(1);
            return words.any(|word| word == key) && tasks.is_some_and(has_later_task);
        }
        let is_usage = gap.not_recoverable.starts_with("resource usage");
        let mut words = gap.not_recoverable.split([' ', ',']);
        return event.r#type == "capture.gap_closed"
            && is_usage == (question.kind == Kind::Usage)
            && words.any(|word| word == key);
    }
    let kind = match question.kind {
        Kind::End | Kind::LostTwice | Kind::ExitCode | Kind::ReportedEnd | Kind::ShortNextRun => {
            "job.completed"
        }
        Kind::EarlierEnd | Kind::ReportedEarlierEnd => "job.requeued",
        Kind::Task | Kind::LaterTask | Kind::Array | Kind::SubmittedTasks | Kind::UnseenId => {
            "job.cancelled"
        }
        Kind::Usage => "job.updated",
        Kind::Canceller => "job.corrected",
        Kind::UnseenEarlierEnd => "job.submitted",
        Kind::Resized => "job.started",
    };
    if question.kind == Kind::LaterTask
        && !matches!(&event.payload, Some(Payload::Job(job)) if has_later_task(&job.array_tasks))
    {
        return false;
    }
    event.entity_key() == key && event.r#type == kind
}

/// Whether tasks contain the one that left its array later.
fn has_later_task(tasks: &str) -> bool {
    let tasks: Result<TaskSet, _> = tasks.parse();
    tasks.is_ok_and(|tasks| tasks.iter().any(|task| task == 1))
}

const fn is_gap(event: &Event) -> bool {
    matches!(event.payload, Some(Payload::Capture(_)))
}

/// What a gap reports.
fn reported(event: &Event) -> String {
    match &event.payload {
        Some(Payload::Capture(gap)) => format!(": {}", gap.message),
        _ => String::new(),
    }
}

/// When a question ended, in polls, how often, and by which events. One that has ended without an event has none.
type Ended = (u64, usize, Vec<String>);

/// Returns when each question ended.
async fn play(nats: &str, cluster: &str, world: &Arc<World>) -> BTreeMap<u32, Ended> {
    let config = BusConfig {
        url: nats.to_owned(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    // From here on, time passes only between two steps: the runtime does not skip any while a blocking task runs.
    let (stop, stopped) = channel::<()>();
    let no_skips = tokio::task::spawn_blocking(move || stopped.recv());
    tokio::time::pause();
    let submit = chrono::Utc::now().timestamp() + 5;
    let model = Model::new(Arc::clone(world), cluster, submit);
    let mut term = Term::begin(&bus, cluster, &model).await;
    let mut doorbells = BTreeMap::new();
    let mut ended = BTreeMap::new();
    for (poll, step) in (0..).zip(&world.steps) {
        model.begin(poll);
        tokio::time::advance(Duration::from_secs(STEP)).await;
        term.settle(&model).await;
        term.ring(&model, poll, &mut doorbells).await;
        term.settle(&model).await;
        if step.restart != Restart::No {
            term.end(step.restart).await;
            doorbells.retain(|_, doorbell| doorbell.is_answered());
            term = Term::begin(&bus, cluster, &model).await;
            // Else the time would pass during its first writes, which would fail.
            term.settle(&model).await;
        }
        let events = term.events().await;
        for question in &world.questions {
            let of_question = events.iter().filter(|event| ends(question, submit, event));
            let of_question: Vec<&Event> = of_question.collect();
            let mut count = of_question.len();
            // A record that comes later is published all the same.
            if let [first, second] = of_question[..]
                && is_gap(first)
                && !is_gap(second)
            {
                count = 1;
            }
            if count == 0 && term.is_closed(question, submit).await {
                count = 1;
            }
            if count > 0 {
                let shown = of_question.iter();
                let shown = shown.map(|event| {
                    format!(
                        "{} {}{}",
                        event.r#type,
                        event.confidence().as_str_name(),
                        reported(event)
                    )
                });
                let (_, times, events) = ended.entry(question.id).or_insert((poll, 0, Vec::new()));
                (*times, *events) = (count, shown.collect());
            }
        }
    }
    term.end(Restart::Crash).await;
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
    let mut config = ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 8;
    }
    // The same worlds each time. Others by PROPTEST_RNG_SEED.
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(20_261_127);
    }
    proptest!(config, |(world in worlds())| {
        let cluster = format!("c{}", number.fetch_add(1, Ordering::Relaxed));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let world = Arc::new(world);
        let ended = runtime.block_on(play(&url, &cluster, &world));
        for (n, question) in world.questions.iter().enumerate() {
            let (poll, count, events) =
                ended.get(&question.id).cloned().unwrap_or((u64::MAX, 0, Vec::new()));
            prop_assert_eq!(count, 1, "{:?}: {:?}", question, events);
            let age = question.age(n, poll, &world.steps);
            prop_assert!(age <= question.limit(), "{question:?} after {age} s");
        }
    });
}

/// One question of each kind, with how long accounting needs for the answer.
fn one_of_each(answer: impl Fn(Kind) -> Option<u64>) -> Vec<Question> {
    let questions = (1_001..).zip(KINDS).map(|(id, kind)| Question {
        kind,
        id: if kind == Kind::UnseenId { 2_000 } else { id },
        opens: if kind == Kind::SubmittedTasks { 0 } else { 2 },
        answer: answer(kind),
        alive: true,
    });
    questions.collect()
}

/// As [`play`], with a nats-server of its own.
fn play_alone(cluster: &str, world: &Arc<World>) -> BTreeMap<u32, Ended> {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let nats = runtime.block_on(NatsServer::start());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(&nats.url(), cluster, world))
}

/// Accounting answers a minute after each question was opened, is away for a quarter of an hour from then on, and has the answers after that.
#[test]
fn an_outage_of_accounting_is_no_answer() {
    let questions = one_of_each(|kind| Some(if kind == Kind::UnseenId { 6 } else { 20 }));
    let world = World::new(questions, vec![Step::QUIET], Some(6..66));
    let world = Arc::new(world);
    let ended = play_alone("outage", &world);
    for question in &world.questions {
        let (_, count, events) = &ended[&question.id];
        assert_eq!(*count, 1, "{question:?}: {events:?}");
        // The others end after `resolution_timeout`, because the job itself shows that something has ended.
        let waits_for_accounting = matches!(
            question.kind,
            Kind::Usage
                | Kind::Canceller
                | Kind::SubmittedTasks
                | Kind::UnseenId
                | Kind::ShortNextRun
        );
        let is_gap = events.iter().any(|event| event.starts_with("capture."));
        let is_published = !events.is_empty() && !is_gap;
        assert!(
            is_published || !waits_for_accounting,
            "{question:?}: {events:?}"
        );
    }
}

/// slurmctld has lost many jobs and arrays that accounting has as alive. The client reads few of them by id at each poll.
#[test]
fn more_jobs_are_missing_than_are_read_by_id() {
    let questions = (1_001..1_121).map(|id| Question {
        kind: if id % 2 == 0 { Kind::End } else { Kind::Array },
        id,
        opens: 2,
        answer: None,
        alive: true,
    });
    let world = Arc::new(World {
        by_id: 2,
        ..World::new(questions.collect(), vec![Step::QUIET], None)
    });
    let ended = play_alone("many", &world);
    for (n, question) in world.questions.iter().enumerate() {
        let (poll, count, events) =
            ended
                .get(&question.id)
                .cloned()
                .unwrap_or((u64::MAX, 0, Vec::new()));
        assert_eq!(count, 1, "{question:?}: {events:?}");
        let age = question.age(n, poll, &world.steps);
        assert!(age <= question.limit(), "{question:?} after {age} s");
    }
}

/// For an hour, lists of all jobs are cut after few of them, with status 0. The client reads one of the others by id at each poll.
#[test]
fn a_list_that_is_cut_ends_no_job_and_no_array() {
    let questions = (1_001..1_081).map(|id| Question {
        kind: if id % 2 == 0 { Kind::End } else { Kind::Array },
        id,
        opens: u64::MAX / 2,
        answer: None,
        alive: false,
    });
    let world = Arc::new(World {
        by_id: 1,
        cut: Some((5..200, 1_004)),
        ..World::new(questions.collect(), vec![Step::QUIET], None)
    });
    assert_eq!(play_alone("cut", &world), BTreeMap::new());
}

/// A backup slurmctld with an older state does not have a job, and then it is there again, with the row that it had. The wait for its end
/// begins only when it is really gone.
#[test]
fn the_wait_for_a_missing_job_is_over_when_it_is_shown_again() {
    let question = Question {
        kind: Kind::LostTwice,
        id: 1_001,
        opens: 50,
        answer: None,
        alive: true,
    };
    let mut steps = vec![Step::QUIET; 30];
    steps[29].restart = Restart::Orderly;
    let world = Arc::new(World::new(vec![question], steps, None));
    let ended = play_alone("twice", &world);
    let (poll, count, events) = &ended[&1_001];
    assert_eq!(*count, 1, "{events:?}");
    let age = world.questions[0].age(0, *poll, &world.steps);
    assert!((390..600).contains(&age), "after {age} s");
}

#[test]
fn gaps_name_the_owners() {
    let questions = one_of_each(|_| None);
    let world = World::new(questions, vec![Step::QUIET], None);
    let world = Arc::new(world);
    let ended = play_alone("owners", &world);
    let reported = ended.values().flat_map(|(_, _, events)| events);
    let gaps: Vec<&String> = reported
        .filter(|event| event.starts_with("capture."))
        .collect();
    // Of a run, an array, usage, tasks at submission and an unseen id.
    assert_eq!(gaps.len(), 5, "{ended:?}");
    for gap in gaps {
        assert!(gap.contains(" of alice"), "{gap}");
    }
}
