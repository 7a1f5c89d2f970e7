//! Chats: messages wait for costs, and old events are counted.

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use mesh_events::catalogue::BUCKET_SPENDING;
use mesh_events::proto::mesh::cost::v1::{Money, Spending};
use mesh_events::proto::mesh::event::v1::Identity;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use prost::Message as _;

use crate::harness::{DEADLINE, Kind, Mesh, endpoint, event, on_both};

on_both!(
    a_start_shows_its_burn_rate_and_an_end_its_final_cost,
    old_events_become_one_message,
    an_owner_reads_what_they_have_spent_this_month,
    incidents_and_bodies_of_ones_own_have_costs_and_people_as_chats_do,
);

/// By default a start is reported only after a wait.
const EVERY_START: &str = "pending_threshold = \"0s\"";

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
    let receiver = WebhookReceiver::start().await;
    // A message sent after this timeout has no cost, so make it long.
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "cost_join_timeout = \"60s\"".to_owned();
    mesh.run(&[chat(&receiver.url("/"), EVERY_START)]).await;
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

async fn an_owner_reads_what_they_have_spent_this_month(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let answers = [
        r#"{"ok": true, "user": {"id": "U1"}}"#,
        r#"{"ok": true, "channel": {"id": "D1"}}"#,
        r#"{"ok": true, "channel": "D1", "ts": "1"}"#,
    ];
    receiver.answer_next(answers.map(|body| CannedResponse {
        body: body.as_bytes().to_vec(),
        ..CannedResponse::status(200)
    }));
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "cost_join_timeout = \"60s\"".to_owned();
    let direct = "types = [\"job.completed\"]\nformat = { type = \"slack-api\", token = \"xoxb-1\", direct = true }";
    mesh.run(&[endpoint("bot", &receiver.url("/api/"), direct)])
        .await;
    let identity = Identity {
        issuer: "https://id.example.org".into(),
        subject: "alice-1".into(),
        email: "alice@example.org".into(),
        ..Identity::default()
    };
    let of_alice = |mut event: Event| {
        event.owner.as_mut().unwrap().identity = Some(identity.clone());
        event
    };
    let ended = of_alice(event(EventType::JobCompleted, 1));
    mesh.publish(&ended).await;
    mesh.publish(&of_alice(cost(EventType::CostFinalized, 1, 4_345_000)))
        .await;
    // As cost-engine writes it, after the event.
    let spending = Spending {
        month: Utc::now().format("%Y-%m").to_string(),
        person: "https://id.example.org#alice-1".into(),
        spent: vec![Money {
            micros: 2_310_000_000,
            currency: "EUR".into(),
        }],
        unpriced_runs: 0,
        // A run with a later end was committed first.
        newest_runs: vec![
            "job/another/1".into(),
            ended.entity.as_ref().unwrap().key.clone(),
        ],
        as_of: Some(timestamp(Utc::now())),
    };
    let user = &ended.owner.as_ref().unwrap().user;
    let key = format!("{}.user.{user}", ended.cluster);
    let bucket = mesh.bus.bucket(BUCKET_SPENDING).await.unwrap();
    let value = spending.encode_to_vec().into();
    bucket.put(&key, value, None).await.unwrap();
    mesh.wait_for_count("bot", "delivered", 1).await;
    let received = receiver.received();
    let message = received.last().unwrap().json();
    assert_eq!(message["channel"], "D1");
    let shown = message["blocks"].to_string();
    assert!(
        shown.contains("This month so far") && shown.contains("2310.00 EUR"),
        "{message}"
    );
}

async fn incidents_and_bodies_of_ones_own_have_costs_and_people_as_chats_do(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::on(kind).await;
    mesh.settings = "cost_join_timeout = \"60s\"".to_owned();
    let failures = "types = [\"job.failed\"]\nformat = ";
    let body = r#"{"type": {{ type }}{% if cost %}, "total": {{ cost.total }}{% endif %}, "person": {{ owner.name }}}"#;
    mesh.run(&[
        endpoint(
            "pager",
            &receiver.url("/pager"),
            &format!("{failures}{{ type = \"pagerduty\", routing_key = \"key\" }}"),
        ),
        endpoint(
            "hub",
            &receiver.url("/hub/"),
            &format!("{failures}{{ type = \"github\", token = \"t\", repository = \"a/b\" }}"),
        ),
        endpoint(
            "body",
            &receiver.url("/body"),
            &format!(
                "types = [\"job.failed\", \"cost.finalized\"]\nformat = {{ type = \"template\", body = '{body}' }}"
            ),
        ),
        endpoint(
            "plain",
            &receiver.url("/plain"),
            &format!("{failures}{{ type = \"template\", body = '{{{{ type }}}}' }}"),
        ),
    ])
    .await;
    let of_alice = |mut event: Event| {
        event.owner.as_mut().unwrap().identity = Some(Identity {
            name: "Alice Liddell".into(),
            email: "alice@example.org".into(),
            ..Identity::default()
        });
        event
    };
    mesh.publish(&of_alice(event(EventType::JobFailed, 1)))
        .await;
    // Formats that show no cost do not wait for it.
    mesh.wait_for_count("plain", "delivered", 1).await;
    assert_eq!(receiver.received().len(), 1);
    mesh.publish(&of_alice(cost(EventType::CostFinalized, 1, 4_345_000)))
        .await;
    wait_until("all have it", DEADLINE, async || {
        receiver.received().len() == 5
    })
    .await;
    let to = |path: &str| {
        let received = receiver.received();
        let all = received.iter().filter(|it| it.path.starts_with(path));
        all.map(|it| it.json()).collect::<Vec<_>>()
    };
    let details = &to("/pager")[0]["payload"]["custom_details"];
    assert_eq!(details["Cost"], "4.34 EUR", "{details}");
    assert_eq!(details["Person"], "Alice Liddell", "{details}");
    assert_eq!(details["E-mail"], "alice@example.org", "{details}");
    let payload = to("/hub/")[0]["client_payload"].to_string();
    assert!(payload.contains("4.345"), "{payload}");
    let mut bodies = to("/body");
    bodies.sort_by_key(|body| body["type"].to_string());
    let expected = ["cost.finalized", "job.failed"]
        .map(|kind| serde_json::json!({"type": kind, "total": 4.345, "person": "Alice Liddell"}));
    assert_eq!(bodies, expected, "its own event, and the cost as it asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_whose_cost_does_not_come_goes_without() {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.settings = "cost_join_timeout = \"300ms\"".to_owned();
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
    // Too late: the message is not sent again.
    mesh.publish(&cost(EventType::CostFinalized, 1, 1)).await;
    mesh.publish(&event(EventType::JobFailed, 2)).await;
    mesh.wait_for_count("chat", "delivered", 2).await;
    assert_eq!(receiver.received().len(), 2);
}

async fn old_events_become_one_message(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
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
    // Usually in one message. Events more than two seconds later are in another.
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
