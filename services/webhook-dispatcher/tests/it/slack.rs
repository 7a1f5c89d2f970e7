//! Chats: costs are waited for, old events are counted.

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::{Receiver, wait_until};

use crate::harness::{DEADLINE, Kind, Mesh, endpoint, event, on_both};

on_both!(
    a_start_shows_its_burn_rate_and_an_end_its_final_cost,
    old_events_become_one_message,
);

fn chat(url: &str, more: &str) -> String {
    endpoint("chat", url, &format!("format = \"slack\"\n{more}"))
}

fn cost(kind: EventType, job: u32, micros: i64) -> Event {
    let mut event = event(kind, job);
    let Some(Payload::Cost(cost)) = &mut event.payload else {
        panic!("no cost")
    };
    let money = Some(Money {
        micros,
        currency: "EUR".into(),
    });
    match kind {
        EventType::CostEstimated => cost.burn_rate = money,
        _ => cost.total = money,
    }
    event
}

async fn a_start_shows_its_burn_rate_and_an_end_its_final_cost(kind: Kind) {
    let receiver = Receiver::start().await;
    // What would be sent after it has no cost.
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "cost_wait = \"60s\"".to_owned();
    mesh.run(&[chat(&receiver.url("/"), "")]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.publish(&cost(EventType::CostEstimated, 1, 4_200_000))
        .await;
    mesh.wait_for_count("chat", "delivered", 1).await;
    mesh.publish(&event(EventType::JobCompleted, 1)).await;
    mesh.publish(&cost(EventType::CostFinalized, 1, 4_345_000))
        .await;
    mesh.wait_for_count("chat", "delivered", 2).await;

    let received = receiver.received();
    assert_eq!(received.len(), 2, "costs are no messages of their own");
    assert_eq!(received[0].header("content-type"), "application/json");
    assert!(received[0].headers.get("webhook-signature").is_none());
    let (started, ended) = (received[0].json(), received[1].json());
    assert_eq!(started["text"], "▶️ Job 1 started");
    assert!(
        started["blocks"].to_string().contains("4.20 EUR per hour"),
        "{started}"
    );
    assert_eq!(ended["text"], "✅ Job 1 completed");
    assert!(ended["blocks"].to_string().contains("4.34 EUR"), "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_whose_cost_does_not_come_goes_without() {
    let receiver = Receiver::start().await;
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.settings = "cost_wait = \"300ms\"".to_owned();
    mesh.run(&[chat(&receiver.url("/"), "")]).await;
    let start = Instant::now();
    mesh.publish(&event(EventType::JobFailed, 1)).await;
    wait_until("a message", DEADLINE, async || {
        receiver.received().len() == 1
    })
    .await;
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(
        receiver.received()[0].json()["blocks"]
            .to_string()
            .contains("not known yet")
    );
    // Too late: it is not sent again.
    mesh.publish(&cost(EventType::CostFinalized, 1, 1)).await;
    mesh.publish(&event(EventType::JobHeld, 2)).await;
    mesh.wait_for_count("chat", "delivered", 2).await;
    assert_eq!(receiver.received().len(), 2);
}

async fn old_events_become_one_message(kind: Kind) {
    let receiver = Receiver::start().await;
    let mesh = Mesh::start_on(
        kind,
        &[chat(
            &receiver.url("/"),
            "types = [\"job.held\"]\nmax_event_age = \"1m\"",
        )],
    )
    .await;
    let old = (1..=7).map(|job| Event {
        occurred_at: Some(timestamp(Utc::now() - TimeDelta::minutes(2))),
        ..event(EventType::JobHeld, job)
    });
    mesh.bus
        .publish_all(old.collect(), &Default::default())
        .await
        .unwrap();
    mesh.wait_for_count("chat", "expired", 7).await;
    mesh.publish(&event(EventType::JobHeld, 8)).await;
    let texts = || -> Vec<String> {
        let requests = receiver.received();
        let texts = requests
            .iter()
            .map(|request| request.json()["blocks"].to_string());
        texts.collect()
    };
    // Usually in one message; what comes more than two seconds later is in another.
    let missed = || -> u32 {
        let counts = texts().into_iter().filter_map(|text| {
            let (before, _) = text.split_once(" of cluster *testbed* while away")?;
            let (before, _) = before.rsplit_once(' ')?;
            let count = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
            count.parse::<u32>().ok()
        });
        counts.sum()
    };
    wait_until("all that was missed is counted", DEADLINE, async || {
        missed() == 7
    })
    .await;
    mesh.wait_for_count("chat", "waiting", 0).await;
    let texts = texts();
    assert!(texts.len() < 7, "{texts:?}");
    let held = texts.iter().filter(|text| text.contains("Job 8 held"));
    assert_eq!(held.count(), 1, "{texts:?}");
}
