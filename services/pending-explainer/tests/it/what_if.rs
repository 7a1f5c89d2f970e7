//! When a job may start if its request were different, and one that is not submitted.

use axum::http::StatusCode;
use chrono::Utc;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType};
use mesh_runtime::api::Role;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};

use crate::api::{get, post};
use crate::estimates::evidence;
use crate::harness::{DEADLINE, bus, row, snapshot, start, waiting};

/// Job `id` asks for these CPUs and minutes.
fn asking(id: u32, cpus: u32, minutes: u32) -> Event {
    let mut event = waiting(id, EventType::JobPending, "Priority", 1);
    let Some(Payload::Job(payload)) = &mut event.payload else {
        panic!("{event:?}");
    };
    let job = payload.job.as_mut().unwrap();
    job.req_tres = format!("cpu={cpus},mem={cpus}G,node=1");
    job.time_limit_minutes = Some(minutes);
    event
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_limit_is_probably_faster_if_it_fits_before_the_job_ahead() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    // One of four CPUs is free for an hour, then the first job takes all.
    for event in [asking(1, 4, 120), asking(2, 1, 600)] {
        bus.publish(&event).await.unwrap();
    }
    let service = start(&nats).await;
    let now = Utc::now();
    evidence(&bus, &[9], 3, now).await;
    snapshot(&bus, vec![row(1, 9, None), row(2, 8, None)], now).await;
    let router = &service.router;
    wait_until("job 2 has an estimate", DEADLINE, async || {
        let (_, job) = get(router, "/v1/queue/testbed/2", "alice", Role::User).await;
        job["estimate"]["start_p90"].is_string()
    })
    .await;

    let path = "/v1/queue/testbed/2/what-if";
    let variants = json!({"variants": [
        {"time_limit_minutes": 30},
        {"time_limit_minutes": 540},
        {"cpus": 5},
        {"partition": "none"},
    ]});
    let (status, answer) = post(router, path, "alice", &variants).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let verdicts: Vec<&Value> = answer["variants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variant| &variant["verdict"])
        .collect();
    assert_eq!(
        verdicts,
        ["faster", "same", "refused", "refused"],
        "{answer}"
    );
    let faster = &answer["variants"][0];
    assert_eq!(faster["earlier_percent"], 100);
    assert!(
        faster["start_p90"].as_str().unwrap() < answer["estimate"]["start_p90"].as_str().unwrap()
    );
    assert!(
        faster["summary"]
            .as_str()
            .unwrap()
            .starts_with("It would probably start about")
    );

    // Another user's job is not there, and too many variants are refused.
    let (status, _) = post(router, path, "bob", &variants).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let many = json!({"variants": vec![json!({"cpus": 1}); 9]});
    let (status, _) = post(router, path, "alice", &many).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);

    // Anybody may ask about a job of his own that is not submitted.
    let path = "/v1/queue/testbed/what-if";
    let new = json!({
        "request": {"partition": "cpu", "time_limit_minutes": 600, "cpus": 1},
        "variants": [{"time_limit_minutes": 30}],
    });
    let (status, answer) = post(router, path, "bob", &new).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["variants"][0]["verdict"], "faster", "{answer}");
    // Whole nodes, which it never gets: there is one.
    let new = json!({"request": {"partition": "cpu", "time_limit_minutes": 60, "nodes": 2}});
    let (_, answer) = post(router, path, "bob", &new).await;
    assert_eq!(answer["request"]["cpus"], 8, "{answer}");
    assert!(!answer["refused"].as_str().unwrap().is_empty(), "{answer}");
    let (status, _) = post(
        router,
        path,
        "bob",
        &json!({"request": {"partition": "cpu"}}),
    )
    .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    service.stop().await;
}
