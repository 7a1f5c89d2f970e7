//! Arrays at a chat: a few messages whatever the number of tasks, through restarts.

use chrono::Utc;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode};
use mesh_events::{Event, EventId, EventType, RunKey, Slot, timestamp};
use mesh_testkit::{Answer, Receiver, build, wait_until};

use crate::harness::{DEADLINE, Mesh, endpoint};

const TASKS: u32 = 120;

/// An event of the array 500 or of one of its tasks, as of now.
fn task(kind: EventType, task: Option<u32>) -> Event {
    let mut job = build::job(500 + task.unwrap_or(0));
    let run = RunKey {
        job_id: 500,
        task_id: task,
        ..build::run(500)
    };
    job.run = run.entity_key();
    job.display_id = task.map_or("500_[0-119]".into(), |task| format!("500_{task}"));
    job.array = Some(ArrayInfo {
        job_id: 500,
        task_id: task,
        tasks: if task.is_none() {
            "0-119".into()
        } else {
            String::new()
        },
        ..ArrayInfo::default()
    });
    if kind.is_end() {
        job = build::ended(job, "COMPLETED", 60);
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
    let mut event = build::job_event(kind, job);
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
    let receiver = Receiver::start().await;
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
    let receiver = Receiver::start().await;
    receiver.answer_always(Answer {
        body: br#"{"ok":true,"channel":"C1","ts":"7.7"}"#.to_vec(),
        ..Answer::status(200)
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
