use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind, Entity, Identity, Owner};
use mesh_events::proto::mesh::job::v1::{ExitCode, Job, JobEvent, Usage};
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
use mesh_events::timestamp;
use proptest::prelude::*;

use super::*;

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
        ..Job::default()
    }
}

fn ended(seconds: i64) -> Job {
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

fn job_event(kind: EventType, job: Job) -> Event {
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

fn json(message: Option<Message>) -> Value {
    serde_json::to_value(message.unwrap()).unwrap()
}

#[test]
fn a_start_shows_its_burn_rate() {
    let cost = CostEvent {
        burn_rate: euros(4_200_000),
        estimated: euros(8_400_000),
        ..CostEvent::default()
    };
    let event = job_event(EventType::JobStarted, job());
    insta::assert_json_snapshot!("started", json(render(&event, Some(&cost))));
    assert!(!json(render(&event, None)).to_string().contains("Burn rate"));
}

#[test]
fn a_failure_shows_cause_node_cost_and_what_to_try() {
    let job = Job {
        exit_code: Some(ExitCode { code: 3, signal: 0 }),
        reason: "NonZeroExitCode".into(),
        ..ended(3_725)
    };
    insta::assert_json_snapshot!(
        "failed",
        json(render(
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
    insta::assert_json_snapshot!(
        "out_of_memory",
        json(render(&job_event(EventType::JobOutOfMemory, job), None))
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
    insta::assert_json_snapshot!("node_fail", json(render(&event, Some(&total(700_000)))));
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
    insta::assert_json_snapshot!("timeout", json(render(&event, Some(&total(8_400_000)))));
}

#[test]
fn an_end_shows_duration_and_final_cost() {
    insta::assert_json_snapshot!(
        "completed",
        json(render(
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
    insta::assert_json_snapshot!("cancelled_pending", json(render(&event, None)));
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
    insta::assert_json_snapshot!(
        "explained",
        json(render(&event(EventType::QueueExplained, payload), None))
    );
}

#[test]
fn a_node_and_a_hold_are_one_line_each() {
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
        .map(|event| render(event, None).unwrap().text)
        .collect();
    insta::assert_snapshot!("lines", lines.join("\n"));
}

/// Slack's limits: header 150, section text 3,000, 10 fields of 2,000, 10 context elements, 50 blocks, about 13,200 characters in all.
fn assert_within_limits(message: &Message) {
    let characters = |value: &Value| value.as_str().unwrap().chars().count();
    let mut total = 0;
    assert!(message.blocks.len() <= 50);
    for block in &message.blocks {
        match block["type"].as_str().unwrap() {
            "header" => {
                assert!(characters(&block["text"]["text"]) <= 150);
                total += characters(&block["text"]["text"]);
            }
            "section" => {
                if !block["text"].is_null() {
                    assert!((1..=3_000).contains(&characters(&block["text"]["text"])));
                    total += characters(&block["text"]["text"]);
                }
                let fields = block["fields"].as_array().cloned().unwrap_or_default();
                assert!(fields.len() <= 10);
                for field in &fields {
                    assert!((1..=2_000).contains(&characters(&field["text"])));
                    total += characters(&field["text"]);
                }
            }
            "context" => {
                assert!(block["elements"].as_array().unwrap().len() <= 10);
                total += characters(&block["elements"][0]["text"]);
            }
            other => panic!("unknown block {other}"),
        }
    }
    assert!(total < 9_000, "{total} characters");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_message_keeps_to_slacks_limits(
        kind in prop::sample::select(EventType::ALL),
        text in "[<>&a`\\PC]{0,60}",
        times in 1usize..400,
    ) {
        let long = text.repeat(times);
        let job = Job {
            display_id: long.clone(), name: long.clone(), partition: long.clone(), nodes: long.clone(), failed_node: long.clone(),
            req_tres: format!("mem={long}"), alloc_tres: long.clone(), std_out: long.clone(), std_err: long.clone(), work_dir: long.clone(),
            reason: long.clone(), ..ended(10)
        };
        let payload = match kind.category() {
            mesh_events::Category::Job => Payload::Job(JobEvent { job: Some(job), ..JobEvent::default() }),
            mesh_events::Category::Cost => Payload::Cost(CostEvent { job: Some(job), problem: long.clone(), ..CostEvent::default() }),
            mesh_events::Category::Node => {
                let node = Node { name: long.clone(), reason: long.clone(), ..Node::default() };
                Payload::Node(NodeEvent { node: Some(node), ..NodeEvent::default() })
            }
            _ => {
                let explanation = Explanation { summary: long.clone(), actor: long.clone(), advice: long.clone(), ..Explanation::default() };
                Payload::Queue(QueueEvent { job: Some(job), explanation: Some(explanation) })
            }
        };
        let mut event = event(kind, payload);
        event.cluster = long.clone();
        event.actor = Some(Actor { kind: ActorKind::Admin.into(), user: long.clone(), ..Actor::default() });
        let cost = CostEvent { problem: long.clone(), ..CostEvent::default() };
        for cost in [None, Some(&cost)] {
            let message = render(&event, cost).unwrap();
            assert_within_limits(&message);
            prop_assert!(!serde_json::to_string(&message).unwrap().contains("<!channel"));
        }
        assert_within_limits(&Message::away(7, &long));
        assert_within_limits(&Message::test(&long, &long));
    }
}
