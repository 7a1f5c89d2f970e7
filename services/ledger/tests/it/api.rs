//! REST: filters, cursors, stories, and who may see what.

use chrono::TimeDelta;
use ledger::Store;
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, HetInfo, Job};
use mesh_events::{EventType, RunKey, timestamp};
use mesh_testkit::build::{self, CLUSTER, submit_time};
use serde_json::Value;

use crate::support::{
    Database, admin, audit_entry, audit_fact, fact, node_event, of_user, on_both, serve, user,
};

on_both!(
    filters_choose_events,
    a_bad_filter_is_a_problem_that_names_it,
    cursors_are_stable_while_events_are_appended,
    a_jobs_story_has_its_runs_oldest_first_and_events_in_order_of_time,
    arrays_and_heterogeneous_jobs_are_found_in_slurms_id_forms,
    a_story_that_is_too_long_says_so,
    users_see_what_is_theirs_and_nothing_else,
    coordinators_see_their_accounts_on_their_cluster,
    a_body_changed_in_the_database_is_an_error_and_not_a_wrong_answer,
);

/// An API over a ledger of these events, as an administrator sees it.
pub struct Api {
    _database: Database,
    pub store: Store,
    pub url: String,
}

impl Api {
    pub async fn with(database: Database, events: &[Event]) -> Self {
        mesh_runtime::install_tls();
        let store = database.store().await;
        for batch in events.chunks(500) {
            let facts = batch.iter().map(fact).collect();
            store.append("SLURM_EVENTS", 1, facts).await.unwrap();
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

    /// The whole answer of a question that is answered.
    pub async fn text(&self, path: &str) -> String {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.text().await.unwrap()
    }

    /// Ids of jobs that a filter lists, in order.
    async fn jobs(&self, filter: &str) -> Vec<u64> {
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

fn job_id(entry: &Value) -> u64 {
    entry["event"]["data"]["job"]["job"]["jobId"]
        .as_u64()
        .unwrap_or_default()
}

/// A job submitted some seconds later than others.
pub fn later(id: u32, seconds: i64) -> Job {
    let submitted = submit_time() + TimeDelta::seconds(seconds);
    let mut job = build::job(id);
    job.submit_time = Some(timestamp(submitted));
    job.eligible_time = job.submit_time;
    job.start_time = Some(timestamp(submitted + TimeDelta::seconds(10)));
    job.run = RunKey {
        submit_time: submitted.timestamp(),
        ..build::run(id)
    }
    .entity_key();
    job
}

fn submitted(user: &str, id: u32, seconds: i64) -> Event {
    let job = later(id, seconds);
    let mut event = of_user(user, EventType::JobSubmitted, job.clone());
    event.occurred_at = job.submit_time;
    event
}

async fn filters_choose_events(database: Database) {
    let mut ended = build::job_event(
        EventType::JobCompleted,
        build::ended(build::job(3), "COMPLETED", 60),
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
        ("since=yesterday", "since"),
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
                .append("SLURM_EVENTS", 1, vec![fact(&fresh)])
                .await
                .unwrap();
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{order}");
    }
    // A cursor is bound to its question.
    let (_, page) = api.get("/v1/events?user=alice&limit=10").await;
    let next = page["next_cursor"].as_str().unwrap();
    let (status, problem) = api.get(&format!("/v1/events?user=bob&cursor={next}")).await;
    assert_eq!(status, 400);
    assert!(problem["detail"].as_str().unwrap().starts_with("cursor: "));
}

/// Submitted, started, cost estimated, completed, final cost: in the order in which they might arrive.
fn life(user: &str, job: &Job) -> Vec<Event> {
    let money = |micros| {
        Some(Money {
            micros,
            currency: "EUR".into(),
        })
    };
    let mut ended = build::ended(job.clone(), "COMPLETED", 60);
    ended.exit_code = Some(ExitCode { code: 0, signal: 0 });
    let mut submission = of_user(
        user,
        EventType::JobSubmitted,
        Job {
            state: "PENDING".into(),
            ..job.clone()
        },
    );
    submission.occurred_at = job.submit_time;
    let mut estimate = of_user(user, EventType::CostEstimated, job.clone());
    let mut total = of_user(user, EventType::CostFinalized, ended.clone());
    total.occurred_at = ended.end_time;
    for (event, estimated, sum) in [
        (&mut estimate, money(900), None),
        (&mut total, None, money(700)),
    ] {
        if let Some(Payload::Cost(cost)) = &mut event.payload {
            (cost.estimated, cost.total) = (estimated, sum);
        }
    }
    let completed = of_user(user, EventType::JobCompleted, ended);
    vec![
        completed,
        of_user(user, EventType::JobStarted, job.clone()),
        submission,
        estimate,
        total,
    ]
}

async fn a_jobs_story_has_its_runs_oldest_first_and_events_in_order_of_time(database: Database) {
    let mut events = life("alice", &later(5, 3600));
    events.extend(life("alice", &later(5, 0)));
    events.extend(life("alice", &later(6, 0)));
    let api = Api::with(database, &events).await;
    let (status, story) = api.get(&format!("/v1/jobs/{CLUSTER}/5")).await;
    assert_eq!(status, 200, "{story}");
    assert_eq!(story["truncated"], false);
    let runs = story["runs"].as_array().unwrap();
    let keys: Vec<&str> = runs
        .iter()
        .map(|run| run["run"].as_str().unwrap())
        .collect();
    assert_eq!(keys, [later(5, 0).run, later(5, 3600).run]);
    for run in runs {
        let types: Vec<&str> = run["timeline"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["event"]["data"]["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            types,
            [
                "job.submitted",
                "job.started",
                "cost.estimated",
                "job.completed",
                "cost.finalized"
            ]
        );
        let summary = &run["summary"];
        assert_eq!(summary["state"], "COMPLETED");
        assert_eq!(summary["exit_code"]["code"], 0);
        assert_eq!(
            (
                summary["cost"]["kind"].as_str(),
                summary["cost"]["micros"].as_str()
            ),
            (Some("final"), Some("700"))
        );
        assert!(summary["ended"].as_str() > summary["started"].as_str());
    }
    let (status, _) = api.get(&format!("/v1/jobs/{CLUSTER}/7")).await;
    assert_eq!(status, 404);
    let (status, _) = api.get("/v1/jobs/elsewhere/5").await;
    assert_eq!(status, 404);
    let (status, problem) = api.get(&format!("/v1/jobs/{CLUSTER}/five")).await;
    assert_eq!(
        (
            status,
            problem["detail"].as_str().unwrap().contains("123_4")
        ),
        (400, true)
    );
}

fn task(array: u32, raw: u32, task: u32) -> Job {
    let mut job = build::job(raw);
    job.array = Some(ArrayInfo {
        job_id: array,
        task_id: Some(task),
        ..ArrayInfo::default()
    });
    job.run = RunKey {
        task_id: Some(task),
        ..build::run(array)
    }
    .entity_key();
    job
}

fn component(leader: u32, offset: u32) -> Job {
    let mut job = build::job(leader + offset);
    job.het = Some(HetInfo {
        job_id: leader,
        offset,
    });
    job
}

async fn arrays_and_heterogeneous_jobs_are_found_in_slurms_id_forms(database: Database) {
    let events: Vec<Event> = [
        task(100, 101, 1),
        task(100, 102, 2),
        task(100, 100, 3),
        component(200, 0),
        component(200, 1),
    ]
    .into_iter()
    .map(|job| build::job_event(EventType::JobStarted, job))
    .collect();
    let api = Api::with(database, &events).await;
    assert_eq!(api.jobs("job=100").await, [101, 102, 100]);
    assert_eq!(api.jobs("job=100_2").await, [102]);
    assert_eq!(api.jobs("job=102").await, [102]);
    assert_eq!(api.jobs("job=200").await, [200, 201]);
    assert_eq!(api.jobs("job=200%2B1").await, [201]);
    let (_, story) = api.get(&format!("/v1/jobs/{CLUSTER}/100")).await;
    assert_eq!(story["runs"].as_array().unwrap().len(), 3);
    let (_, story) = api.get(&format!("/v1/jobs/{CLUSTER}/200+1")).await;
    assert_eq!(story["runs"][0]["run"], build::job(201).run);
}

async fn a_story_that_is_too_long_says_so(database: Database) {
    let events: Vec<Event> = (1..=150)
        .map(|n| build::job_event(EventType::JobStarted, task(100, 100 + n, n)))
        .collect();
    let api = Api::with(database, &events).await;
    let (_, story) = api.get(&format!("/v1/jobs/{CLUSTER}/100")).await;
    assert_eq!(
        (
            story["truncated"].as_bool(),
            story["runs"].as_array().unwrap().len()
        ),
        (Some(true), 100)
    );
}

async fn users_see_what_is_theirs_and_nothing_else(database: Database) {
    let mut events = life("alice", &build::job(1));
    events.extend(life("bob", &build::job(2)));
    events.push(node_event("n1", 1));
    let api = Api::with(database, &events).await;
    api.store
        .append("MESH_AUDIT", 1, vec![audit_fact(&audit_entry(1))])
        .await
        .unwrap();
    let alice = serve(&api.store, user("alice"), 1000, 100).await;

    let owners = async |query: &str| -> Vec<String> {
        let (status, page) = get(&alice, &format!("/v1/events?{query}")).await;
        assert_eq!(status, 200, "{page}");
        let entries = page["entries"].as_array().unwrap();
        entries
            .iter()
            .map(|entry| {
                entry["event"]["data"]["owner"]["user"]
                    .as_str()
                    .unwrap_or("nobody")
                    .to_owned()
            })
            .collect()
    };
    assert_eq!(owners("").await, ["alice"; 5]);
    assert_eq!(owners("user=alice").await.len(), 5);
    for query in [
        "type=audit.*",
        "type=node.*",
        "type=capture.*",
        "job=2",
        "type=audit.delivery",
    ] {
        assert!(owners(query).await.is_empty(), "{query}");
    }
    assert_eq!(get(&alice, &format!("/v1/jobs/{CLUSTER}/1")).await.0, 200);
    // Another's job and no job look the same.
    let (status, another) = get(&alice, &format!("/v1/jobs/{CLUSTER}/2")).await;
    let (_, none) = get(&alice, &format!("/v1/jobs/{CLUSTER}/3")).await;
    assert_eq!(status, 404);
    assert_eq!(
        another["detail"].as_str().unwrap().replace("job 2", ""),
        none["detail"].as_str().unwrap().replace("job 3", "")
    );
    assert_eq!(get(&alice, "/v1/events?user=bob").await.0, 403);
    // An administrator's cursor gives a user no more than their own.
    let (_, page) = api.get("/v1/events?limit=1").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(owners(&format!("cursor={cursor}")).await, ["alice"; 4]);
    // The head tells nothing about anybody.
    let (status, head) = get(&alice, "/v1/ledger/head").await;
    assert_eq!(
        (
            status,
            head["seq"].as_u64(),
            head["chain"].as_str().unwrap().len()
        ),
        (200, Some(12), 64)
    );
}

async fn coordinators_see_their_accounts_on_their_cluster(database: Database) {
    let in_account = |account: &str, mut event: Event| {
        event.owner.as_mut().unwrap().account = account.into();
        event
    };
    let of_bob = |job| of_user("bob", EventType::JobSubmitted, build::job(job));
    let api = Api::with(
        database,
        &[
            in_account("physics", of_bob(1)),
            in_account("chemistry", of_bob(2)),
            in_account(
                "biology",
                of_user("carol", EventType::JobSubmitted, build::job(3)),
            ),
            node_event("n1", 1),
        ],
    )
    .await;
    let carol = user("carol");
    for (caller, jobs) in [
        (carol.clone(), vec![3]),
        (carol.clone().coordinating(CLUSTER, "physics"), vec![1, 3]),
        (carol.clone().coordinating("elsewhere", "physics"), vec![3]),
    ] {
        let url = serve(&api.store, caller.clone(), 1000, 100).await;
        let (status, page) = get(&url, "/v1/events").await;
        assert_eq!(status, 200, "{page}");
        let seen: Vec<u64> = page["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(job_id)
            .collect();
        assert_eq!(seen, jobs, "{:?}", caller.accounts);
        // Asking about somebody shows what may be seen of them, and is refused if that is certainly nothing.
        let (status, page) = get(&url, "/v1/events?user=bob").await;
        match caller.accounts.is_empty() {
            true => assert_eq!(status, 403),
            false => assert_eq!(
                page["entries"].as_array().unwrap().len(),
                usize::from(jobs.contains(&1))
            ),
        }
        let another = get(&url, &format!("/v1/jobs/{CLUSTER}/2")).await.0;
        assert_eq!(another, 404);
    }
}

async fn a_body_changed_in_the_database_is_an_error_and_not_a_wrong_answer(database: Database) {
    mesh_runtime::install_tls();
    let store = database.store().await;
    store
        .append("S", 1, vec![fact(&submitted("alice", 1, 0))])
        .await
        .unwrap();
    let mut outsider = database.outsider().await;
    outsider.drop_guards().await;
    outsider.execute("UPDATE payloads SET body = x'ffff'").await;
    let url = serve(&store, admin(), 1000, 100).await;
    assert_eq!(get(&url, "/v1/events").await.0, 500);
}
