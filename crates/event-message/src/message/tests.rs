use chrono::{DateTime, TimeDelta, Utc};
use event_filter::sample;
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind, Entity, Identity, Owner};
use mesh_events::proto::mesh::job::v1::{ExitCode, Job, JobEvent, Usage};
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
use mesh_events::proto::mesh::user::v1::Quota;
use mesh_events::timestamp;

use super::*;
use crate::Dialect;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_763_760_000, 0).unwrap() + TimeDelta::seconds(seconds)
}

fn job() -> Job {
    Job {
        job_id: 123,
        display_id: "123_4".into(),
        run: "job/120_4/1763760000".into(),
        name: "train <resnet>".into(),
        partition: "gpu".into(),
        submit_time: Some(timestamp(at(0))),
        start_time: Some(timestamp(at(75))),
        time_limit_minutes: Some(120),
        nodes: "n[1-2]".into(),
        req_tres: "cpu=8,mem=16G,node=2,gres/gpu=2".into(),
        alloc_tres: "cpu=8,mem=16G,node=2,billing=8,gres/gpu=2".into(),
        std_out: "/home/alice/slurm-123_4.out".into(),
        comment: "see https://ci.example.org/runs/7".into(),
        ..Job::default()
    }
}

pub(crate) fn ended(seconds: i64) -> Job {
    Job {
        end_time: Some(timestamp(at(75 + seconds))),
        ..job()
    }
}

fn event(kind: EventType, payload: Payload) -> Event {
    let identity = Identity {
        name: "Alice A.".into(),
        ..Identity::default()
    };
    Event {
        cluster: "hpc1".into(),
        r#type: kind.to_string(),
        owner: Some(Owner {
            user: "alice".into(),
            account: "physics".into(),
            identity: Some(identity),
            uid: None,
        }),
        entity: Some(Entity::default()),
        payload: Some(payload),
        ..Event::default()
    }
}

pub(crate) fn job_event(kind: EventType, job: Job) -> Event {
    event(
        kind,
        Payload::Job(JobEvent {
            job: Some(job),
            ..JobEvent::default()
        }),
    )
}

fn euros(micros: i64) -> Option<Money> {
    Some(Money {
        micros,
        currency: "EUR".into(),
    })
}

fn total(micros: i64) -> CostEvent {
    CostEvent {
        total: euros(micros),
        ..CostEvent::default()
    }
}

/// A message as plain text.
fn shown(message: Option<Message>) -> String {
    let message = message.unwrap();
    let plain = |text: &Text| text.write(Dialect::Plain, 2_000);
    let mut lines = vec![
        format!(
            "{:?} {} {}",
            message.severity,
            message.sign,
            plain(&message.heading)
        ),
        plain(&message.sentence),
    ];
    let facts = message.facts.iter();
    lines.extend(facts.map(|fact| format!("  {}: {}", fact.name, plain(&fact.value))));
    lines.extend(
        message
            .links
            .iter()
            .map(|link| format!("  {}: {}", link.label, link.url)),
    );
    lines.push(plain(&message.footer));
    lines.join("\n")
}

#[test]
fn a_start_shows_its_burn_rate() {
    let cost = CostEvent {
        burn_rate: euros(4_200_000),
        estimated: euros(8_400_000),
        ..CostEvent::default()
    };
    let event = job_event(EventType::JobStarted, job());
    insta::assert_snapshot!("started", shown(of(&event, Some(&cost))));
    assert!(!shown(of(&event, None)).contains("Burn rate"));
}

#[test]
fn a_failure_shows_cause_node_cost_and_what_to_try() {
    let job = Job {
        exit_code: Some(ExitCode { code: 3, signal: 0 }),
        reason: "NonZeroExitCode".into(),
        ..ended(3_725)
    };
    insta::assert_snapshot!(
        "failed",
        shown(of(
            &job_event(EventType::JobFailed, job),
            Some(&total(4_345_000))
        ))
    );
}

#[test]
fn out_of_memory_names_what_it_had() {
    let job = Job {
        usage: Some(Usage {
            cpu_seconds: 9,
            max_rss_kib: 16_700_000,
            ..Usage::default()
        }),
        reason: "OutOfMemory".into(),
        ..ended(61)
    };
    insta::assert_snapshot!(
        "out_of_memory",
        shown(of(&job_event(EventType::JobOutOfMemory, job), None))
    );
}

#[test]
fn a_node_failure_names_the_node() {
    let job = Job {
        failed_node: "n2".into(),
        reason: "NodeFail".into(),
        ..ended(600)
    };
    let event = job_event(EventType::JobNodeFail, job);
    insta::assert_snapshot!("node_fail", shown(of(&event, Some(&total(700_000)))));
}

#[test]
fn a_time_out_names_the_limit() {
    let event = job_event(
        EventType::JobTimeout,
        Job {
            reason: "TimeLimit".into(),
            ..ended(7_200)
        },
    );
    insta::assert_snapshot!("timeout", shown(of(&event, Some(&total(8_400_000)))));
}

#[test]
fn an_end_shows_duration_and_final_cost() {
    insta::assert_snapshot!(
        "completed",
        shown(of(
            &job_event(EventType::JobCompleted, ended(3_725)),
            Some(&total(4_345_000))
        ))
    );
}

#[test]
fn a_cancelled_pending_job_has_neither_duration_nor_cost() {
    let pending = Job {
        start_time: None,
        end_time: Some(timestamp(at(30))),
        nodes: String::new(),
        ..job()
    };
    let mut event = job_event(EventType::JobCancelled, pending);
    event.actor = Some(Actor {
        kind: ActorKind::Admin.into(),
        user: "root".into(),
        ..Actor::default()
    });
    insta::assert_snapshot!("cancelled_pending", shown(of(&event, None)));
}

#[test]
fn an_explanation_is_told_in_plain_words() {
    let explanation = Explanation {
        summary: "It waits for its turn: 12 jobs are before it.".into(),
        actor: "wait".into(),
        advice: "Nothing to do; a shorter `--time` lets it fit into gaps.".into(),
        expected_start: Some(timestamp(at(5_400))),
        ..Explanation::default()
    };
    let payload = Payload::Queue(QueueEvent {
        job: Some(job()),
        explanation: Some(explanation),
    });
    insta::assert_snapshot!(
        "explained",
        shown(of(&event(EventType::QueueExplained, payload), None))
    );
}

#[test]
fn nodes_and_holds_say_what_matters() {
    let node = Node {
        name: "n7".into(),
        reason: "Not responding".into(),
        ..Node::default()
    };
    let down = event(
        EventType::NodeDown,
        Payload::Node(NodeEvent {
            node: Some(node),
            ..NodeEvent::default()
        }),
    );
    let held = job_event(EventType::JobHeld, job());
    let lines: Vec<_> = [down, held]
        .iter()
        .map(|event| shown(of(event, None)))
        .collect();
    insta::assert_snapshot!("lines", lines.join("\n"));
}

#[test]
fn the_guide_has_every_default_type_with_its_reason() {
    let guide = include_str!("../../../../docs/guide/webhooks.md");
    let section = guide.split("## What chats get").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| {
        let (name, reason) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name, reason.trim_end_matches(['|', ' '])))
    });
    let rows: Vec<(&str, &str)> = rows.collect();
    let names: Vec<String> = rows.iter().map(|(name, _)| (*name).to_owned()).collect();
    let expected: Vec<String> = DEFAULT_TYPES.iter().map(EventType::to_string).collect();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(names), sorted(expected));
    assert!(rows.iter().all(|(_, reason)| !reason.is_empty()));
}

#[test]
fn a_budget_shows_its_use_and_who_used_most() {
    let event = sample::event(EventType::UserQuotaExceeded);
    let expected = "Error 💶 Budget physics-2025-11: quota exceeded\n\
        100 % of 3000.00 EUR: 2900.00 EUR settled, 112.00 EUR running, 3400.00 EUR if all running and pending jobs reach their time limits\n  \
        Period: 2025-11\n  Covers: account=physics\n  Largest: alice 1800.00 EUR\ncluster example";
    assert_eq!(shown(of(&event, None)), expected);
}

#[test]
fn a_step_that_failed_is_an_error_with_its_exit_codes() {
    let mut event = sample::step();
    assert_eq!(
        shown(of(&event, None)),
        "Error ❌ Step 1234.batch\nStep 1234.batch has ended on n1, 1 of 4 tasks failed, task 2 with exit code 3\n  \
         Exit codes: task 2: 3:0\ncluster example"
    );
    let Some(Payload::User(user)) = &mut event.payload else {
        panic!("no user event")
    };
    let data = &mut user.notice.as_mut().unwrap().data;
    data.insert("failed".into(), "0".into());
    data.remove("task.2");
    let shown = shown(of(&event, None));
    assert!(shown.starts_with("Info 🔔 Step 1234.batch"), "{shown}");
}

#[test]
fn a_budget_says_which_runs_have_no_price() {
    let mut event = sample::event(EventType::UserQuotaCleared);
    let mut sentence = |change: fn(&mut Quota)| {
        let Some(Payload::User(user)) = &mut event.payload else {
            panic!("no user event")
        };
        change(user.quota.as_mut().unwrap());
        shown(of(&event, None)).lines().nth(1).unwrap().to_owned()
    };
    assert_eq!(
        sentence(|quota| {
            quota.in_flight = None;
            quota.unpriced_runs = 2;
        }),
        "100 % of 3000.00 EUR: 2900.00 EUR settled, no price running, 3400.00 EUR if all running and pending jobs reach their time limits. \
         2 runs have no price and are not included"
    );
    assert_eq!(
        sentence(|quota| {
            (quota.settled, quota.committed, quota.percent) = (None, None, None);
        }),
        "no price for what is used of 3000.00 EUR. 2 runs have no price and are not included"
    );
    assert_eq!(
        sentence(|quota| {
            quota.in_flight = Some(Money {
                micros: 0,
                currency: "EUR".into(),
            });
        }),
        "no price for what is used of 3000.00 EUR. 2 runs have no price and are not included",
        "no running jobs"
    );
    assert_eq!(
        sentence(|quota| quota.percent = Some(0)),
        "0 % of 3000.00 EUR: no price settled, 0.00 EUR running. 2 runs have no price and are not included",
        "pending jobs count, and have a price"
    );
    assert_eq!(
        sentence(|quota| {
            (quota.percent, quota.unpriced_runs) = (None, 0);
            quota.settled = quota.in_flight.clone();
        }),
        "0 % of 3000.00 EUR: 0.00 EUR settled, 0.00 EUR running",
        "an event of a first version"
    );
}

#[test]
fn what_a_run_used_is_no_message_of_its_own() {
    let mut event = sample::event(EventType::CostAdjusted);
    assert!(of(&event, None).is_some());
    let Some(Payload::Cost(cost)) = &mut event.payload else {
        panic!("no cost")
    };
    cost.reason = "usage".into();
    assert!(of(&event, None).is_none());
}
