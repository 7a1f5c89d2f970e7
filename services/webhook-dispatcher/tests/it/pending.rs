//! Notices about pending jobs: chats get them when the wait has lasted, or immediately if action is required.
//! Pipelines get every explanation.

use std::time::{Duration, Instant};

use axum::http::Method;
use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use mesh_events::proto::mesh::job::v1::{ArrayInfo, Job};
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
use mesh_events::{Event, EventId, EventType, RunKey, timestamp};
use mesh_testkit::{WebhookReceiver, fixtures, wait_until};
use serde_json::Value;

use crate::harness::{DEADLINE, Kind, Mesh, endpoint, event, ids, on_both, signed};

on_both!(
    a_wait_is_told_once_it_has_lasted_and_holds_nothing_up,
    a_wait_that_ended_while_the_dispatcher_was_away_is_not_told,
    by_default_a_hold_is_one_message_and_what_goes_on_by_itself_is_none,
    by_default_a_cancellation_waits_until_its_actor_is_known,
);

/// Time until the jobs are submitted: no wait has lasted before a test has published what it needs, however slow the machine.
const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// This time, as receivers measure theirs.
fn instant(at: DateTime<Utc>) -> Instant {
    Instant::now() + (at - Utc::now()).to_std().unwrap()
}

/// A pending job submitted at this time.
fn waiting(id: u32, task: Option<u32>, submitted: DateTime<Utc>) -> Job {
    let run = RunKey {
        task_id: task,
        submit_time: submitted.timestamp(),
        ..fixtures::run(id)
    };
    Job {
        run: run.to_string(),
        display_id: id.to_string(),
        submit_time: Some(timestamp(submitted)),
        start_time: None,
        ..fixtures::job(id)
    }
}

fn explained(job: Job, n: u64, actor: &str, class: &str) -> Event {
    let mut event = fixtures::job_event(EventType::QueueExplained, job.clone());
    event.id =
        EventId::sampled(fixtures::CLUSTER, &job.run, EventType::QueueExplained, n).to_string();
    event.occurred_at = Some(timestamp(Utc::now()));
    event.payload = Some(Payload::Queue(QueueEvent {
        job: Some(job),
        explanation: Some(Explanation {
            summary: format!("Explanation {n}."),
            reason_class: class.into(),
            actor: actor.into(),
            ..Explanation::default()
        }),
    }));
    event
}

fn started(mut job: Job) -> Event {
    job.start_time = Some(timestamp(Utc::now()));
    fixtures::job_event(EventType::JobStarted, job)
}

fn chat(receiver: &WebhookReceiver, more: &str) -> String {
    let more = format!("format = \"slack\"\n{more}");
    endpoint("chat", &receiver.url("/"), &more)
}

fn texts(receiver: &WebhookReceiver) -> Vec<String> {
    let received = receiver.received();
    received
        .iter()
        .map(|request| request.json()["text"].as_str().unwrap().to_owned())
        .collect()
}

async fn delivery(mesh: &Mesh, event: &Event) -> Value {
    let path = format!("/v1/webhooks/chat/deliveries/{}", event.id);
    mesh.call(Method::GET, &path).await.1
}

async fn wait_for_messages(receiver: &WebhookReceiver, count: usize) {
    wait_until(&format!("{count} messages"), DEADLINE, async || {
        receiver.received().len() == count
    })
    .await;
}

async fn a_wait_is_told_once_it_has_lasted_and_holds_nothing_up(kind: Kind) {
    let (people, pipeline) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    let endpoints = [
        chat(
            &people,
            "types = [\"queue.explained\", \"job.failed\"]\npending_threshold = \"6s\"",
        ),
        signed("pipeline", &pipeline.url("/"), "types = [\"queue.*\"]"),
    ];
    let mesh = Mesh::start_on(kind, &endpoints).await;
    let submitted = Utc::now() + MARGIN;
    let due = instant(submitted + TimeDelta::seconds(6));
    // Times may be rounded.
    let almost = due - Duration::from_secs(1);
    let job = |id| waiting(id, None, submitted);
    let long = explained(job(1), 1, "wait", "waiting_turn");
    let short = explained(job(2), 1, "wait", "waiting_turn");
    let held = explained(job(3), 1, "user", "held");
    let mut tasks = waiting(5, None, submitted);
    tasks.array = Some(ArrayInfo {
        job_id: 5,
        ..ArrayInfo::default()
    });
    let array = explained(tasks.clone(), 1, "wait", "waiting_turn");
    for event in [&long, &short, &held, &array] {
        mesh.publish(event).await;
    }
    mesh.publish(&event(EventType::JobFailed, 4)).await;
    // Reasons that require action, and other events, are sent immediately.
    wait_for_messages(&people, 2).await;
    let mut now = texts(&people);
    now.sort();
    assert!(
        now[0].contains("Job 3 waits") || now[1].contains("Job 3 waits"),
        "{now:?}"
    );
    for request in people.received() {
        assert!(request.at < due, "not sent immediately");
    }
    wait_until("the pipeline has all", DEADLINE, async || {
        pipeline.received().len() == 4
    })
    .await;

    // A newer reason replaces the first. A start ends the wait, and the start of a task that of its array.
    let newer = explained(job(1), 2, "wait", "limit");
    mesh.publish(&newer).await;
    mesh.publish(&started(job(2))).await;
    let mut task = waiting(5, Some(1), submitted);
    task.array = Some(ArrayInfo {
        job_id: 5,
        task_id: Some(1),
        ..ArrayInfo::default()
    });
    mesh.publish(&started(task)).await;
    wait_for_messages(&people, 3).await;
    let request = &people.received()[2];
    assert!(request.at >= almost, "sent before the wait has lasted");
    let blocks = request.json()["blocks"].to_string();
    for part in ["Explanation 2.", "Waited so far"] {
        assert!(blocks.contains(part), "{part}: {blocks}");
    }
    for (event, error) in [
        (&short, "the job started or ended"),
        (&array, "the job started or ended"),
        (&long, "a newer explanation"),
    ] {
        let delivery = delivery(&mesh, event).await;
        assert_eq!(delivery["state"], "expired", "{delivery}");
        let said = delivery["error"].as_str().unwrap();
        assert!(said.contains(error), "{delivery}");
    }

    // The wait was reported already, the other reason that requires action was not.
    mesh.publish(&explained(job(1), 3, "wait", "waiting_turn"))
        .await;
    mesh.publish(&explained(job(3), 2, "user", "held")).await;
    mesh.publish(&explained(job(1), 4, "admin", "partition"))
        .await;
    wait_for_messages(&people, 4).await;
    mesh.publish(&event(EventType::JobFailed, 6)).await;
    wait_for_messages(&people, 5).await;
    let last = people.received();
    assert!(
        last[3].json()["blocks"]
            .to_string()
            .contains("Explanation 4.")
    );
    mesh.wait_for_count("chat", "waiting", 0).await;
    assert_eq!(
        ids(&pipeline.received()).len(),
        8,
        "a pipeline gets each at once"
    );
}

async fn a_wait_that_ended_while_the_dispatcher_was_away_is_not_told(kind: Kind) {
    let people = WebhookReceiver::start().await;
    let types = "types = [\"queue.explained\", \"job.started\", \"job.failed\"]\npending_threshold = \"4s\"";
    let endpoints = [chat(&people, types)];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    let submitted = Utc::now() + MARGIN;
    let job = |id| waiting(id, None, submitted);
    mesh.publish(&explained(job(1), 1, "wait", "waiting_turn"))
        .await;
    mesh.publish(&explained(job(2), 1, "wait", "waiting_turn"))
        .await;
    mesh.wait_for_count("chat", "waiting", 2).await;
    mesh.stop().await;
    assert_eq!(people.received().len(), 0, "nothing is due yet");
    // All events are consumed when every notice is due.
    mesh.publish(&started(job(1))).await;
    mesh.publish(&explained(job(3), 1, "wait", "waiting_turn"))
        .await;
    mesh.publish(&started(job(3))).await;
    wait_until("all is due", DEADLINE, async || {
        Utc::now() - submitted > TimeDelta::seconds(5)
    })
    .await;
    mesh.run(&endpoints).await;
    let mut sent = Vec::new();
    wait_until("both starts and one wait", DEADLINE, async || {
        sent = texts(&people);
        sent.len() >= 3
    })
    .await;
    mesh.stop().await;
    mesh.run(&endpoints).await;
    let last = event(EventType::JobFailed, 9);
    mesh.publish(&last).await;
    wait_for_messages(&people, 4).await;
    let mut sent: Vec<String> = texts(&people);
    sent.retain(|text| text.contains("waits"));
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(sent[0].contains("Job 2 waits"), "{sent:?}");

    // An endpoint that no longer requests explanations does not get those that waited.
    let job = waiting(6, None, Utc::now() + MARGIN);
    let waits = explained(job, 1, "wait", "waiting_turn");
    mesh.publish(&waits).await;
    mesh.wait_for_count("chat", "waiting", 1).await;
    mesh.stop().await;
    let failures = "types = [\"job.failed\"]\npending_threshold = \"4s\"";
    mesh.run(&[chat(&people, failures)]).await;
    wait_until("it is dropped", DEADLINE, async || {
        delivery(&mesh, &waits).await["state"] == "expired"
    })
    .await;
    let dropped = delivery(&mesh, &waits).await;
    let error = dropped["error"].as_str().unwrap();
    assert!(error.contains("does not ask for it"), "{dropped}");
    assert_eq!(people.received().len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_setting_a_wait_is_told_after_fifteen_minutes() {
    let people = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[chat(&people, "")]).await;
    let submitted = Utc::now() - TimeDelta::minutes(5);
    let submitted = DateTime::from_timestamp(submitted.timestamp(), 0).unwrap();
    let waits = explained(waiting(1, None, submitted), 1, "wait", "waiting_turn");
    mesh.publish(&waits).await;
    mesh.wait_for_count("chat", "waiting", 1).await;
    let next = delivery(&mesh, &waits).await["next_at"].clone();
    let next: DateTime<Utc> = next.as_str().unwrap().parse().unwrap();
    assert_eq!(next - submitted, TimeDelta::minutes(15));
    assert_eq!(people.received().len(), 0);
}

async fn by_default_a_cancellation_waits_until_its_actor_is_known(kind: Kind) {
    let people = WebhookReceiver::start().await;
    let mesh = Mesh::start_on(kind, &[chat(&people, "")]).await;
    let cancelled = |id, age| {
        let job = Job {
            start_time: Some(timestamp(Utc::now())),
            ..waiting(id, None, Utc::now())
        };
        let mut event = fixtures::job_event(EventType::JobCancelled, job);
        event.actor = None;
        event.occurred_at = Some(timestamp(Utc::now()));
        event.observed_at = Some(timestamp(Utc::now() - age));
        event
    };
    let cost_of = |end: &Event| {
        let job = end.job().unwrap().clone();
        let mut event = fixtures::job_event(EventType::CostFinalized, job);
        event.source_detail.clone_from(&end.id);
        if let Some(Payload::Cost(cost)) = &mut event.payload {
            cost.total = Some(Money {
                micros: 4_345_000,
                currency: "EUR".to_owned(),
            });
        }
        event
    };
    let corrected = |first: &Event, kind: ActorKind| {
        let job = first.job().unwrap().clone();
        let mut event = fixtures::job_event(EventType::JobCorrected, job);
        if let Some(Payload::Job(payload)) = &mut event.payload {
            payload.corrects.clone_from(&first.id);
        }
        event.actor = Some(Actor {
            kind: kind.into(),
            ..Actor::default()
        });
        event
    };
    let by_owner = cancelled(1, TimeDelta::zero());
    let by_admin = cancelled(2, TimeDelta::zero());
    let by_nobody = cancelled(3, TimeDelta::seconds(25));
    // The correction overtakes what it corrects.
    let overtaken = cancelled(4, TimeDelta::zero());
    let overtaken_by_admin = cancelled(5, TimeDelta::zero());
    mesh.publish(&corrected(&overtaken, ActorKind::User)).await;
    mesh.publish(&corrected(&overtaken_by_admin, ActorKind::Admin))
        .await;
    for event in [
        &by_owner,
        &by_admin,
        &by_nobody,
        &overtaken,
        &overtaken_by_admin,
    ] {
        mesh.publish(event).await;
    }
    for event in [&by_owner, &by_admin, &by_nobody] {
        wait_until("it waits", DEADLINE, async || {
            delivery(&mesh, event).await["state"] == "waiting"
        })
        .await;
    }
    // Costs come while the actor is not known. They end no wait.
    for event in [&by_owner, &by_admin, &by_nobody] {
        mesh.publish(&cost_of(event)).await;
    }
    let next = |delivery: &Value| delivery["next_at"].as_str().unwrap().to_owned();
    let (before, due) = (Utc::now(), next(&delivery(&mesh, &by_admin).await));
    assert!(
        due > (before + TimeDelta::seconds(10)).to_rfc3339(),
        "{due}"
    );
    mesh.publish(&corrected(&by_owner, ActorKind::User)).await;
    mesh.publish(&corrected(&by_admin, ActorKind::Admin)).await;
    wait_for_messages(&people, 3).await;
    let mut sent: Vec<String> = people
        .received()
        .iter()
        .map(|request| request.json().to_string())
        .collect();
    sent.sort_by_key(|text| ["Job 2", "Job 3", "Job 5"].map(|job| !text.contains(job)));
    for (text, (job, named, costed)) in sent.iter().zip([
        ("Job 2", true, true),
        ("Job 3", false, true),
        ("Job 5", true, false),
    ]) {
        assert!(text.contains(job), "{text}");
        assert_eq!(text.contains("administrator"), named, "{text}");
        assert_eq!(text.contains("EUR"), costed, "{text}");
    }
    for event in [&by_owner, &overtaken] {
        wait_until("it is dropped", DEADLINE, async || {
            delivery(&mesh, event).await["state"] == "expired"
        })
        .await;
    }
}

async fn by_default_a_hold_is_one_message_and_what_goes_on_by_itself_is_none(kind: Kind) {
    let people = WebhookReceiver::start().await;
    let mesh = Mesh::start_on(kind, &[chat(&people, "")]).await;
    let submitted = Utc::now();
    let job = |id| waiting(id, None, submitted);
    let fact = |kind, job: Job, n: u64| {
        let mut event = fixtures::job_event(kind, job.clone());
        event.id = EventId::sampled(fixtures::CLUSTER, &job.run, kind, n).to_string();
        event.occurred_at = Some(timestamp(Utc::now()));
        event
    };
    // A job starts immediately, and its owner cancels another.
    mesh.publish(&started(job(1))).await;
    let mut cancelled = fact(EventType::JobCancelled, job(2), 1);
    cancelled.actor = Some(Actor {
        kind: ActorKind::User.into(),
        ..Actor::default()
    });
    mesh.publish(&cancelled).await;
    // A job is held, released and held again.
    for n in 1..=2 {
        mesh.publish(&fact(EventType::JobHeld, job(3), n)).await;
        mesh.publish(&explained(job(3), n, "admin", "held")).await;
        let expected = usize::try_from(n).unwrap();
        wait_for_messages(&people, expected).await;
        mesh.wait_for_count("chat", "delivered", n).await;
        mesh.publish(&fact(EventType::JobReleased, job(3), n)).await;
    }
    mesh.publish(&event(EventType::JobFailed, 4)).await;
    wait_for_messages(&people, 3).await;
    mesh.wait_for_count("chat", "waiting", 0).await;
    let sent = texts(&people);
    assert_eq!(sent.len(), 3, "{sent:?}");
    for (n, part) in ["Job 3 waits", "Job 3 waits", "failed"].iter().enumerate() {
        assert!(sent[n].contains(part), "{sent:?}");
    }
    let blocks = people.received()[1].json()["blocks"].to_string();
    for part in ["Explanation 2.", "Who can act", "admin"] {
        assert!(blocks.contains(part), "{part}: {blocks}");
    }
}
