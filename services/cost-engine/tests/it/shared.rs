//! Several cost engines on one PostgreSQL and one consumer, and an unavailable PostgreSQL.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use mesh_events::{Event, EventType};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::{NatsServer, Postgres, wait_until};

use crate::api::get;
use crate::costs::at;
use crate::late::little_memory;
use crate::support::{DEADLINE, EXAMPLE, Outside, Site, sum};

/// Jobs that run while engines start and stop.
const JOBS: u32 = 150;

/// The events of a run that was suspended for a while.
fn events(id: u32) -> [Event; 4] {
    let job = little_memory(id);
    [
        job_event(EventType::JobStarted, job.clone()),
        at(EventType::JobSuspended, job.clone(), 300),
        at(EventType::JobResumed, job.clone(), 600),
        job_event(EventType::JobCompleted, ended(job, "COMPLETED", 3600)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_share_a_database_charge_every_run_once_though_one_is_killed() {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let url = Postgres::shared().await.create_database();
    let sites = [1, 2, 3].map(|_| Site::at(EXAMPLE, url.clone()));
    let first = sites[0].start(&nats.toml()).await.unwrap();
    let second = sites[1].start(&nats.toml()).await.unwrap();
    for id in 1..=JOBS {
        for event in events(id) {
            outside.publish(&event).await;
        }
        if id == JOBS / 2 {
            first.kill().await;
            break;
        }
    }
    let third = sites[2].start(&nats.toml()).await.unwrap();
    for id in JOBS / 2 + 1..=JOBS {
        for event in events(id) {
            outside.publish(&event).await;
        }
    }
    let expected = {
        // One run alone, in order, on SQLite.
        let alone = NatsServer::start().await;
        let outside = Outside::connect(&alone, None).await;
        let site = Site::new(EXAMPLE);
        let engine = site.start(&alone.toml()).await.unwrap();
        for event in events(1) {
            outside.publish(&event).await;
        }
        let costs = outside.costs(2).await;
        engine.stop().await;
        sum(&costs, 1)
    };
    // Events left by the killed engine are published by the others after a delay.
    wait_until(
        "every run's costs and an empty outbox",
        DEADLINE,
        async || {
            let rows = async |query| sites[1].rows(query).await.len();
            // The outbox last, because costs of earlier events may be in it.
            rows("SELECT kind, run::BYTEA FROM costs").await == 2 * JOBS as usize
                && rows("SELECT kind, run::BYTEA FROM marks").await == 2 * JOBS as usize
                && rows("SELECT event_id, body FROM outbox").await == 0
        },
    )
    .await;
    let stored: BTreeMap<String, i64> = sites[1]
        .rows("SELECT display_id, current_micros::TEXT::BYTEA FROM costs WHERE kind = 'finalized'")
        .await
        .into_iter()
        .map(|(job, cost)| (job, String::from_utf8(cost).unwrap().parse().unwrap()))
        .collect();
    outside
        .publish(&job_event(EventType::JobStarted, job(9999)))
        .await;
    let costs = outside.costs_until(9999).await;
    for id in 1..=JOBS {
        assert_eq!(stored[&id.to_string()], expected, "run {id}");
        assert_eq!(sum(&costs, id), expected, "events of run {id}");
        let finals = costs.iter().filter(|(event, cost)| {
            event.r#type == "cost.finalized" && cost.job.as_ref().unwrap().job_id == id
        });
        assert_eq!(finals.count(), 1, "run {id}");
    }
    second.stop().await;
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_unavailable_at_the_start_and_later_only_delays_costs() {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let mut server = Postgres::start().await;
    let site = Site::at(EXAMPLE, server.create_database());
    server.kill();
    let engine = site.start(&nats.toml()).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, job(1)))
        .await;
    server.restart().await;
    outside.costs(1).await;
    server.kill();
    outside
        .publish(&job_event(
            EventType::JobCompleted,
            ended(job(1), "COMPLETED", 3600),
        ))
        .await;
    server.restart().await;
    assert_eq!(sum(&outside.costs(2).await, 1), 340_000);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_refused_for_a_moment_while_the_database_is_away() {
    let nats = NatsServer::start().await;
    let mut postgres = Postgres::start().await;
    let site = Site::at(EXAMPLE, postgres.create_database());
    let engine = site.start(&nats.toml()).await.unwrap();
    let paths = [
        "/v1/costs",
        "/v1/costs?by=month&attribution=slice&since=30d",
        "/v1/costs/live",
        "/v1/costs/me",
        "/v1/costs/periods",
        "/v1/costs/focus",
    ];
    postgres.kill();
    for path in paths {
        let (status, problem) = get(&engine.router, "root", path).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {problem}");
    }
    postgres.restart().await;
    wait_until("it answers", DEADLINE, async || {
        get(&engine.router, "root", "/v1/costs").await.0 == StatusCode::OK
    })
    .await;
    engine.stop().await;
}
