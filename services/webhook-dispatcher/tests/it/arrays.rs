//! Array digests at a chat: a few messages whatever the number of tasks, also with restarts.

use chrono::Utc;
use mesh_bus::ReplayedEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode};
use mesh_events::{Event, EventId, EventType, RunKey, Slot, subject, timestamp};
use mesh_testkit::{CannedResponse, WebhookReceiver, fixtures, wait_until};
use prost::Message as _;

use crate::harness::{DEADLINE, Mesh, endpoint};

const TASKS: u32 = 120;
const MANY: u32 = 10_000;

/// A current event of array 500 or of one of its tasks.
fn task(kind: EventType, task: Option<u32>) -> Event {
    task_of(TASKS, kind, task)
}

/// Like [`task`], for an array with this many tasks.
fn task_of(count: u32, kind: EventType, task: Option<u32>) -> Event {
    let tasks = format!("0-{}", count - 1);
    let mut job = fixtures::job(500 + task.unwrap_or(0));
    let run = RunKey {
        job_id: 500,
        task_id: task,
        ..fixtures::run(500)
    };
    job.run = run.entity_key();
    job.display_id = task.map_or(format!("500_[{tasks}]"), |task| format!("500_{task}"));
    job.array = Some(ArrayInfo {
        job_id: 500,
        task_id: task,
        tasks: if task.is_none() { tasks } else { String::new() },
        ..ArrayInfo::default()
    });
    if kind.is_end() {
        job = fixtures::ended(job, "COMPLETED", 60);
    }
    let failed = kind == EventType::JobFailed;
    job.exit_code = Some(ExitCode {
        code: u32::from(failed),
        signal: 0,
    });
    let slot = match kind {
        EventType::JobSubmitted => Slot::Submitted,
        EventType::JobStarted => Slot::Started,
        _ => Slot::End,
    };
    let mut event = fixtures::job_event(kind, job);
    event.id = EventId::recorded(&run, slot).to_string();
    event.occurred_at = Some(timestamp(Utc::now()));
    event
}

fn end(n: u32) -> Event {
    let kind = if n % 40 == 7 {
        EventType::JobFailed
    } else {
        EventType::JobCompleted
    };
    task(kind, Some(n))
}

async fn publish(mesh: &Mesh, events: Vec<Event>) {
    mesh.bus
        .publish_all(events, &Default::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_is_told_in_a_few_messages_through_a_restart() {
    let receiver = WebhookReceiver::start().await;
    let endpoints = [endpoint("chat", &receiver.url("/"), "format = \"discord\"")];
    let mut mesh = Mesh::start(&endpoints).await;
    publish(&mesh, vec![task(EventType::JobSubmitted, None)]).await;
    publish(
        &mesh,
        (0..TASKS)
            .map(|n| task(EventType::JobStarted, Some(n)))
            .collect(),
    )
    .await;
    publish(&mesh, (0..50).map(end).collect()).await;
    wait_until(
        "the first start and the first failure",
        DEADLINE,
        async || receiver.received().len() == 2,
    )
    .await;
    mesh.stop().await;
    publish(&mesh, (50..TASKS).map(end).collect()).await;
    mesh.run(&endpoints).await;
    let titles = || -> Vec<String> {
        let received = receiver.received();
        received
            .iter()
            .map(|request| request.json()["embeds"][0]["title"].to_string())
            .collect()
    };
    wait_until("the summary", DEADLINE, async || {
        titles()
            .iter()
            .any(|title| title.contains("Array 500 ended"))
    })
    .await;
    let titles = titles();
    assert_eq!(titles.len(), 3, "{titles:?}");
    assert!(titles[0].contains("the first of 120 tasks"), "{titles:?}");
    assert!(titles[2].contains("3 of 120 tasks failed"), "{titles:?}");
    let body = receiver.received()[2].json().to_string();
    assert!(body.contains("7,47,87"), "{body}");
    assert!(body.contains("117 completed"), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_of_slacks_api_is_kept_current() {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse {
        body: br#"{"ok":true,"channel":"C1","ts":"7.7"}"#.to_vec(),
        ..CannedResponse::status(200)
    });
    let more =
        "format = { type = \"slack-api\", token = \"xoxb-1\", channel = \"C1\", current = true }";
    let mesh = Mesh::start(&[endpoint("bot", &receiver.url("/api/"), more)]).await;
    publish(&mesh, vec![task(EventType::JobSubmitted, None)]).await;
    publish(
        &mesh,
        (0..TASKS)
            .map(|n| task(EventType::JobStarted, Some(n)))
            .collect(),
    )
    .await;
    publish(&mesh, (0..TASKS).map(end).collect()).await;
    let ended = || {
        let received = receiver.received();
        received.iter().any(|request| {
            request.json()["text"]
                .to_string()
                .contains("Array 500 ended")
        })
    };
    wait_until("the summary", DEADLINE, async || ended()).await;
    let received = receiver.received();
    let paths: Vec<&str> = received
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    assert_eq!(paths[0], "/api/chat.postMessage");
    assert!(
        paths[1..].iter().all(|path| *path == "/api/chat.update"),
        "{paths:?}"
    );
    assert!((3..=14).contains(&paths.len()), "{paths:?}");
    assert!(
        received[1..]
            .iter()
            .all(|request| request.json()["ts"] == "7.7")
    );
    assert_eq!(received[0].header("authorization"), "Bearer xoxb-1");
}

/// Titles of the messages that a chat received.
fn titles(receiver: &WebhookReceiver) -> Vec<String> {
    let received = receiver.received();
    let titles = received
        .iter()
        .map(|it| it.json()["embeds"][0]["title"].to_string());
    titles.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_array_is_told_in_a_few_messages_too() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[endpoint("chat", &receiver.url("/"), "format = \"discord\"")]).await;
    let submitted = task(EventType::JobSubmitted, None);
    let starts = (0..TASKS).map(|n| task(EventType::JobStarted, Some(n)));
    let mut events: Vec<Event> = [submitted]
        .into_iter()
        .chain(starts)
        .chain((0..TASKS).map(end))
        .collect();
    // Beyond the maximum event age of chats.
    let old = timestamp(Utc::now() - chrono::TimeDelta::days(3));
    events
        .iter_mut()
        .for_each(|event| event.occurred_at = Some(old));
    for (n, replay) in (1..).zip(["r1", "r2"]) {
        let events = events.iter().map(|event| ReplayedEvent {
            original: subject::of(event).unwrap(),
            event: event.clone(),
            body: event.encode_to_vec().into(),
        });
        let published = mesh
            .bus
            .publish_replayed(replay, Some("chat"), events.collect());
        published.await.unwrap();
        wait_until("the summary", DEADLINE, async || {
            let ended = |title: &&String| title.contains("3 of 120 tasks failed");
            titles(&receiver).iter().filter(ended).count() == n
        })
        .await;
    }
    let titles = titles(&receiver);
    assert_eq!(titles.len(), 6, "{titles:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_that_is_cancelled_as_a_whole_is_told_to_who_asks_for_that() {
    let receiver = WebhookReceiver::start().await;
    let types = |name: &str, types: &str| {
        let more = format!("format = \"discord\"\ntypes = [{types:?}]");
        endpoint(name, &receiver.url(&format!("/{name}")), &more)
    };
    let mesh = Mesh::start(&[
        types("cancelled", "job.cancelled"),
        types("failed", "job.failed"),
    ])
    .await;
    let mut cancelled = task(EventType::JobCancelled, None);
    if let Some(Payload::Job(payload)) = &mut cancelled.payload {
        payload.array_tasks = "0-119".into();
    }
    publish(&mesh, vec![task(EventType::JobSubmitted, None), cancelled]).await;
    wait_until("the summary", DEADLINE, async || {
        titles(&receiver)
            .iter()
            .any(|title| title.contains("120 tasks, none failed"))
    })
    .await;
    let received = receiver.received();
    assert!(received.iter().all(|request| request.path == "/cancelled"));
    assert_eq!(received.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_are_a_few_messages_and_each_is_counted() {
    let receiver = WebhookReceiver::start().await;
    let chat = endpoint("chat", &receiver.url("/"), "format = \"discord\"");
    let mesh = Mesh::start(&[chat]).await;
    let end = |n: u32| match n {
        99 => EventType::JobOutOfMemory,
        n if n % 1_000 == 7 => EventType::JobFailed,
        _ => EventType::JobCompleted,
    };
    publish(&mesh, vec![task_of(MANY, EventType::JobSubmitted, None)]).await;
    publish(&mesh, vec![task_of(MANY, EventType::JobStarted, Some(0))]).await;
    let ends = (0..MANY).map(|n| task_of(MANY, end(n), Some(n)));
    publish(&mesh, ends.collect()).await;
    let last = "11 of 10000 tasks failed";
    wait_until("the summary", DEADLINE, async || {
        titles(&receiver).iter().any(|title| title.contains(last))
    })
    .await;
    let titles = titles(&receiver);
    assert_eq!(titles.len(), 3, "{titles:?}");
    assert!(titles[0].contains("the first of 10000 tasks"), "{titles:?}");
    assert!(titles[1].contains("a task failed"), "{titles:?}");
    let body = receiver.received()[2].json().to_string();
    for count in ["9989 completed", "10 exit code 1", "1 out of memory"] {
        assert!(body.contains(count), "{count}: {body}");
    }
}
