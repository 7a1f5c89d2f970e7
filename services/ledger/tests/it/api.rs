//! Tests REST filters and cursors.

use chrono::TimeDelta;
use ledger::Store;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{EventType, RunKey, timestamp};
use mesh_testkit::fixtures::{self, CLUSTER, submit_time};
use serde_json::Value;

use crate::support::{
    Database, admin, audit_entry, audit_fact, node_event, of_user, on_both, record, serve,
};

on_both!(
    filters_choose_events,
    a_bad_filter_is_a_problem_that_names_it,
    cursors_are_stable_while_events_are_appended,
    a_body_changed_in_the_database_is_an_error_and_not_a_wrong_answer,
);

/// The API on a ledger of the given events, as seen by an administrator.
pub struct Api {
    _database: Database,
    pub store: Store,
    pub url: String,
}

impl Api {
    pub async fn with(database: Database, events: &[Event]) -> Self {
        mesh_runtime::install_crypto_provider();
        let store = database.store().await;
        for batch in events.chunks(500) {
            let records = batch.iter().map(record).collect();
            store.append("SLURM_EVENTS", 1, records).await.unwrap();
        }
        let url = serve(&store, admin(), 1000, 100).await;
        Self {
            _database: database,
            store,
            url,
        }
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        get(&self.url, path).await
    }

    /// Returns the body of a successful response.
    pub async fn text(&self, path: &str) -> String {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.text().await.unwrap()
    }

    /// Returns the ids of the jobs that a filter lists, in order.
    pub async fn jobs(&self, filter: &str) -> Vec<u64> {
        let (status, page) = self.get(&format!("/v1/events?{filter}")).await;
        assert_eq!(status, 200, "{page}");
        page["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(job_id)
            .collect()
    }
}

pub async fn get(url: &str, path: &str) -> (u16, Value) {
    let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

pub fn job_id(entry: &Value) -> u64 {
    entry["event"]["data"]["job"]["job"]["jobId"]
        .as_u64()
        .unwrap_or_default()
}

/// Returns a job submitted some seconds after the others.
pub fn submitted_at(id: u32, seconds: i64) -> Job {
    let submitted = submit_time() + TimeDelta::seconds(seconds);
    let mut job = fixtures::job(id);
    job.submit_time = Some(timestamp(submitted));
    job.eligible_time = job.submit_time;
    job.start_time = Some(timestamp(submitted + TimeDelta::seconds(10)));
    job.run = RunKey {
        submit_time: submitted.timestamp(),
        ..fixtures::run(id)
    }
    .entity_key();
    job
}

fn submitted(user: &str, id: u32, seconds: i64) -> Event {
    let job = submitted_at(id, seconds);
    let mut event = of_user(user, EventType::JobSubmitted, job.clone());
    event.occurred_at = job.submit_time;
    event
}

async fn filters_choose_events(database: Database) {
    let mut ended = fixtures::job_event(
        EventType::JobCompleted,
        fixtures::ended(fixtures::job(3), "COMPLETED", 60),
    );
    ended.owner.as_mut().unwrap().user = "bob".into();
    let mut foreign = submitted("alice", 9, 0);
    foreign.cluster = "other".into();
    let events = [
        submitted("alice", 1, 0),
        submitted("bob", 2, 100),
        ended,
        node_event("n1", 1),
        foreign,
    ];
    let api = Api::with(database, &events).await;
    api.store
        .append("MESH_AUDIT", 1, vec![audit_fact(&audit_entry(1))])
        .await
        .unwrap();

    assert_eq!(
        api.jobs("").await,
        [1, 2, 3, 0, 9],
        "every event, no audit entry"
    );
    assert_eq!(api.jobs(&format!("cluster={CLUSTER}")).await, [1, 2, 3, 0]);
    assert_eq!(api.jobs("type=job.*").await, [1, 2, 3, 9]);
    assert_eq!(api.jobs("type=job.completed,node.down").await, [3, 0]);
    assert_eq!(api.jobs("type=job.completed&type=node.*").await, [3, 0]);
    assert_eq!(api.jobs("user=bob").await, [2, 3]);
    assert_eq!(api.jobs("user=bob&type=job.completed").await, [3]);
    assert_eq!(api.jobs("job=2").await, [2]);
    assert_eq!(api.jobs("order=desc&limit=2").await, [9, 0]);
    assert_eq!(api.jobs("since=1h").await, [0_u64; 0]);
    let bound =
        (submit_time() + TimeDelta::seconds(50)).to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    assert_eq!(
        api.jobs(&format!("type=job.submitted&since={bound}")).await,
        [2]
    );
    assert_eq!(
        api.jobs(&format!("type=job.submitted&until={bound}")).await,
        [1, 9]
    );

    let (_, audit) = api.get("/v1/events?type=audit.*").await;
    let entry = &audit["entries"][0];
    assert_eq!(
        (entry["seq"].as_u64(), entry["event"]["type"].as_str()),
        (Some(6), Some("org.slurm-mesh.audit.delivery.v1"))
    );
    assert_eq!(entry["event"]["data"]["delivery"]["endpoint"], "chat");
}

async fn a_bad_filter_is_a_problem_that_names_it(database: Database) {
    let api = Api::with(database, &[]).await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=100000", "limit"),
        ("type=job.exploded", "type"),
        ("job=abc", "job"),
        ("since=tomorrow", "since"),
        ("order=sideways", "order"),
        ("cursor=abc", "cursor"),
        ("colour=red", "colour"),
    ] {
        let answer = reqwest::get(format!("{}/v1/events?{query}", api.url))
            .await
            .unwrap();
        assert_eq!(answer.status(), 400, "{query}");
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let problem: Value = answer.json().await.unwrap();
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.starts_with(&format!("{field}: ")) && detail.contains("allowed: "),
            "{detail}"
        );
    }
}

async fn cursors_are_stable_while_events_are_appended(database: Database) {
    let first: Vec<Event> = (1..=250).map(|id| submitted("alice", id, 0)).collect();
    let api = Api::with(database, &first).await;
    for (order, expected) in [
        ("asc", (1..=250).collect::<Vec<u64>>()),
        ("desc", (1..=250).rev().collect()),
    ] {
        let mut seen = Vec::new();
        let mut cursor = String::new();
        let mut appended = 1000;
        loop {
            let (status, page) = api
                .get(&format!(
                    "/v1/events?user=alice&since=1000weeks&order={order}&limit=40{cursor}"
                ))
                .await;
            assert_eq!(status, 200, "{page}");
            seen.extend(page["entries"].as_array().unwrap().iter().map(job_id));
            appended += 1;
            let fresh = submitted(if order == "asc" { "bob" } else { "alice" }, appended, 0);
            api.store
                .append("SLURM_EVENTS", 1, vec![record(&fresh)])
                .await
                .unwrap();
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{order}");
    }
    // A cursor is bound to its request.
    let (_, page) = api.get("/v1/events?user=alice&limit=10").await;
    let next = page["next_cursor"].as_str().unwrap();
    let (status, problem) = api.get(&format!("/v1/events?user=bob&cursor={next}")).await;
    assert_eq!(status, 400);
    assert!(problem["detail"].as_str().unwrap().starts_with("cursor: "));
}

async fn a_body_changed_in_the_database_is_an_error_and_not_a_wrong_answer(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    store
        .append("S", 1, vec![record(&submitted("alice", 1, 0))])
        .await
        .unwrap();
    let mut outsider = database.outsider().await;
    outsider.drop_guards().await;
    outsider.execute("UPDATE payloads SET body = x'ffff'").await;
    let url = serve(&store, admin(), 1000, 100).await;
    assert_eq!(get(&url, "/v1/events").await.0, 500);
}
