//! Tests filters by every column, fields, exports, statistics, and states at a given time.

use chrono::{SecondsFormat, TimeDelta};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Event, Identity};
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, Job, Usage};
use mesh_events::{EventId, EventType, timestamp};
use mesh_testkit::fixtures::{self, CLUSTER, submit_time};
use serde_json::{Value, json};

use crate::api::{Api, submitted_at};
use crate::support::{Database, node_event, of_user, on_both, serve, user};

on_both!(
    every_column_filters,
    a_node_finds_itself_and_the_jobs_that_ran_on_it,
    an_export_is_the_whole_listing,
    sums_count_waits_and_costs_by_group,
    key_figures_are_exact_by_group,
    a_job_and_a_node_are_returned_as_of_a_time,
);

/// Jobs of one day: alice's array of two tasks, bob's failing job, and their costs.
fn day() -> Vec<Event> {
    let mut events = Vec::new();
    for (n, waited) in [(1, 10), (2, 50)] {
        let mut job = Job {
            array: Some(ArrayInfo {
                job_id: 100,
                task_id: Some(n),
                ..ArrayInfo::default()
            }),
            name: "sweep".into(),
            ..submitted_at(100 + n, 0)
        };
        job.start_time = Some(timestamp(submit_time() + TimeDelta::seconds(waited)));
        events.extend(life("alice", "physics", job, "COMPLETED", 1_000_000));
    }
    let mut job = submitted_at(7, 86_400);
    job.partition = "gpu".into();
    events.extend(life("bob", "chemistry", job, "FAILED", 250_000));
    for event in &mut events {
        if let Some(owner) = &mut event.owner
            && owner.user == "alice"
        {
            owner.identity = Some(Identity {
                issuer: "https://id.example.org".into(),
                subject: "al-2".into(),
                email: "alice@example.org".into(),
                ..Identity::default()
            });
        }
    }
    events
}

fn life(user: &str, account: &str, job: Job, state: &str, micros: i64) -> Vec<Event> {
    let end = match state {
        "COMPLETED" => EventType::JobCompleted,
        _ => EventType::JobFailed,
    };
    let mut ended = fixtures::ended(job.clone(), state, 60);
    ended.exit_code = Some(ExitCode {
        code: u32::from(state == "FAILED"),
        signal: 0,
    });
    let pending = Job {
        state: "PENDING".into(),
        start_time: None,
        ..job.clone()
    };
    let mut events = vec![
        of_user(user, EventType::JobSubmitted, pending),
        of_user(user, EventType::JobStarted, job),
        of_user(user, end, ended.clone()),
        cost(user, EventType::CostFinalized, ended, micros),
    ];
    for event in &mut events {
        event.owner.as_mut().unwrap().account = account.into();
    }
    events
}

fn cost(user: &str, kind: EventType, job: Job, micros: i64) -> Event {
    let occurred = job.end_time;
    let mut event = of_user(user, kind, job);
    event.occurred_at = occurred;
    if let Some(Payload::Cost(cost)) = &mut event.payload {
        cost.total = Some(Money {
            micros,
            currency: "EUR".into(),
        });
    }
    event
}

async fn every_column_filters(database: Database) {
    let api = Api::with(database, &day()).await;
    let count = async |filter: &str| {
        let (status, page) = api.get(&format!("/v1/events?{filter}")).await;
        assert_eq!(status, 200, "{filter}: {page}");
        page["entries"].as_array().unwrap().len()
    };
    for (filter, expected) in [
        ("", 12),
        ("category=cost", 3),
        ("category=cost&type=job.failed", 4),
        ("array=100", 8),
        ("array=101", 0),
        ("account=chemistry", 4),
        ("partition=gpu", 4),
        ("name=sweep", 8),
        ("name=swe*", 8),
        ("name=swe", 0),
        ("name=train*", 4),
        ("identity=al-2", 8),
        ("identity=alice@example.org", 8),
        ("identity=bob@example.org", 0),
        ("from_seq=3&to_seq=6", 4),
        ("from_seq=12", 1),
        ("from_seq=13", 0),
        ("user=alice&type=job.started&name=s*&account=physics", 2),
        ("name=a%00b", 0),
    ] {
        assert_eq!(count(filter).await, expected, "{filter}");
    }
    let run = submitted_at(7, 86_400).run;
    assert_eq!(count(&format!("run={run}")).await, 4);
}

async fn a_node_finds_itself_and_the_jobs_that_ran_on_it(database: Database) {
    let on = |id: u32, kind: EventType, nodes: &str| {
        let mut job = fixtures::job(id);
        job.nodes = nodes.into();
        of_user("alice", kind, job)
    };
    let mut planned = on(6, EventType::JobPending, "");
    if let Some(Payload::Job(payload)) = &mut planned.payload
        && let Some(job) = &mut payload.job
    {
        job.scheduled_nodes = "n17".into();
    }
    let events = [
        on(1, EventType::JobSubmitted, ""),
        on(1, EventType::JobStarted, "n[1-3000],n[3002-9000]"),
        on(1, EventType::JobCompleted, "n[1-3000],n[3002-9000]"),
        on(2, EventType::JobStarted, "n[16-17]"),
        on(3, EventType::JobStarted, "n[0016-0018],n18,n17-ib"),
        // An invalid host list: the event is stored, and found by other filters.
        on(4, EventType::JobStarted, "n[16-17"),
        node_event("n17", 1),
        node_event("n18", 1),
        on(5, EventType::CostFinalized, "n17"),
        planned,
    ];
    let location = database.location();
    let api = Api::with(database, &events).await;
    let seqs = async |filter: &str| {
        let (status, page) = api.get(&format!("/v1/events?{filter}")).await;
        assert_eq!(status, 200, "{filter}: {page}");
        let entries = page["entries"].as_array().unwrap();
        let seqs = entries.iter().map(|entry| entry["seq"].as_u64().unwrap());
        seqs.collect::<Vec<_>>()
    };
    for (filter, expected) in [
        ("node=n17", vec![2, 3, 4, 7, 9]),
        ("node=n17&order=desc", vec![9, 7, 4, 3, 2]),
        ("node=n18", vec![2, 3, 5, 8]),
        ("node=n0017", vec![5]),
        ("node=n9000", vec![2, 3]),
        ("node=n3001", vec![]),
        ("node=n17-ib", vec![5]),
        ("node=n1", vec![2, 3]),
        ("node=n17&type=node.*", vec![7]),
        ("node=n17&type=job.started", vec![2, 4]),
        ("node=n17&job=1", vec![2, 3]),
        ("node=n17&job=4", vec![]),
        ("node=n17&name=train-2", vec![4]),
        ("node=n17&name=train*", vec![2, 3, 4, 9]),
        ("node=n17&from_seq=3&to_seq=7", vec![3, 4, 7]),
        ("node=n17&since=2000-01-01T00:00:00Z", vec![2, 3, 4, 7, 9]),
        ("node=n17&until=2000-01-01T00:00:00Z", vec![]),
        ("job=4", vec![6]),
    ] {
        assert_eq!(seqs(filter).await, expected, "{filter}");
    }
    let export = api.text("/v1/events/export?node=n17").await;
    assert_eq!(export.lines().count(), 5);
    let (_, stats) = api.get("/v1/events/stats?by=name&node=n17").await;
    let (_, all) = api.get("/v1/events/stats?by=name").await;
    let groups = |stats: &Value| stats["rows"].as_array().unwrap().len();
    assert_eq!((groups(&stats), groups(&all)), (2, 5), "{stats} {all}");
    let (status, problem) = api.get("/v1/events?node=n[16-17]").await;
    assert_eq!(status, 400);
    assert!(problem["detail"].as_str().unwrap().starts_with("node: "));
    // The history of a node contains only its own events.
    let (_, history) = api.get(&format!("/v1/nodes/{CLUSTER}/n17")).await;
    assert_eq!(
        history["timeline"].as_array().unwrap().len(),
        1,
        "{history}"
    );
    let verified = ledger::verify_database(&location, |_| ()).await.unwrap();
    assert_eq!(verified.count, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_fields_that_were_asked_for_are_given() {
    let api = Api::with(Database::sqlite(), &day()).await;
    let (_, page) = api
        .get("/v1/events?limit=1&fields=seq,type,data.owner.user,data.job.job.jobId")
        .await;
    assert_eq!(
        page["entries"],
        json!([{
            "seq": 1,
            "event": {
                "type": "org.slurm-mesh.job.submitted.v1",
                "data": {"owner": {"user": "alice"}, "job": {"job": {"jobId": 101}}},
            },
        }])
    );
    let (status, problem) = api.get("/v1/events?fields=colour").await;
    assert_eq!(status, 400);
    assert!(problem["detail"].as_str().unwrap().starts_with("fields: "));
}

async fn an_export_is_the_whole_listing(database: Database) {
    let many: Vec<Event> = (1..=2500)
        .map(|id| of_user("alice", EventType::JobStarted, fixtures::job(id)))
        .collect();
    let api = Api::with(database, &many).await;
    let text = api.text("/v1/events/export?user=alice").await;
    let seqs: Vec<u64> = text
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["seq"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert_eq!(seqs, (1..=2500).collect::<Vec<u64>>());
    let text = api
        .text("/v1/events/export?format=csv&to_seq=2000&fields=seq,data.job.job.name")
        .await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2001);
    assert_eq!(lines[0], "seq,data.job.job.name");
    assert_eq!(lines[2000], "2000,train-2000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_safe_to_open_and_a_bad_export_is_refused_at_once() {
    let mut job = fixtures::job(5);
    job.name = "=HYPERLINK(\"http://x\"),\n".into();
    let api = Api::with(
        Database::sqlite(),
        &life("alice", "physics", job, "FAILED", 1_500_000),
    )
    .await;
    let text = api.text("/v1/events/export?format=csv&type=cost.*").await;
    let mut table = csv::Reader::from_reader(text.as_bytes());
    let rows: Vec<std::collections::HashMap<String, String>> =
        table.deserialize().map(Result::unwrap).collect();
    let row = &rows[0];
    assert_eq!(row["name"], "'=HYPERLINK(\"http://x\"),\n");
    assert_eq!(
        (
            row["user"].as_str(),
            row["state"].as_str(),
            row["exit_code"].as_str()
        ),
        ("alice", "FAILED", "1")
    );
    assert_eq!(
        (row["cost"].as_str(), row["job"].as_str()),
        ("1.500000 EUR", "5")
    );

    for (query, field) in [
        ("format=xml", "format"),
        ("limit=5", "limit"),
        ("type=job.exploded", "type"),
        ("since=1h&until=2h", "until"),
    ] {
        let (status, problem) = api.get(&format!("/v1/events/export?{query}")).await;
        assert_eq!(status, 400, "{query}");
        assert!(
            problem["detail"].as_str().unwrap().starts_with(field),
            "{problem}"
        );
    }
    // An empty result is no error.
    assert_eq!(api.text("/v1/events/export?from_seq=1000").await, "");
    let empty = Api::with(Database::sqlite(), &[]).await;
    assert!(
        empty
            .text("/v1/events/export?format=csv")
            .await
            .starts_with("seq,id,")
    );
}

async fn sums_count_waits_and_costs_by_group(database: Database) {
    let mut events = day();
    // The cost of bob's run is corrected: the last cost event counts.
    let ended = fixtures::ended(submitted_at(7, 86_400), "FAILED", 60);
    let mut adjusted = cost("bob", EventType::CostAdjusted, ended, 300_000);
    adjusted.id = EventId::sampled(CLUSTER, "x", EventType::CostAdjusted, 1).to_string();
    adjusted.owner.as_mut().unwrap().account = "chemistry".into();
    events.push(adjusted);
    let api = Api::with(database, &events).await;
    let stats = async |query: &str| {
        let (status, stats) = api.get(&format!("/v1/events/stats?{query}")).await;
        assert_eq!(status, 200, "{query}: {stats}");
        stats["rows"].clone()
    };
    assert_eq!(
        stats("by=user").await,
        json!([
            {
                "group": {"user": "alice"},
                "jobs": {"submitted": 2, "started": 2, "completed": 2},
                "wait": {"starts": 2, "p50_seconds": 10, "p90_seconds": 50, "max_seconds": 50},
                "cost_micros": {"EUR": "2000000"},
            },
            {
                "group": {"user": "bob"},
                "jobs": {"submitted": 1, "started": 1, "failed": 1},
                "wait": {"starts": 1, "p50_seconds": 10, "p90_seconds": 10, "max_seconds": 10},
                "cost_micros": {"EUR": "300000"},
            },
        ])
    );
    let total = stats("").await;
    assert_eq!(total[0]["group"], json!({}));
    assert_eq!(total[0]["jobs"]["started"], 3);
    assert_eq!(total[0]["wait"]["p90_seconds"], 50);
    assert_eq!(total[0]["cost_micros"]["EUR"], "2300000");
    let days = stats("by=day,account&type=job.*").await;
    let groups: Vec<&Value> = days
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["group"])
        .collect();
    let date = |days| {
        (submit_time() + TimeDelta::days(days))
            .date_naive()
            .to_string()
    };
    assert_eq!(
        groups,
        [
            &json!({"day": date(0), "account": "physics"}),
            &json!({"day": date(1), "account": "chemistry"}),
        ]
    );
    assert_eq!(stats("user=nobody").await, json!([]));

    let (status, problem) = api.get("/v1/events/stats?by=colour").await;
    assert_eq!(status, 400);
    assert!(problem["detail"].as_str().unwrap().starts_with("by: "));
    let bob = serve(&api.store, user("bob"), 1000, 100).await;
    let (_, own) = crate::api::get(&bob, "/v1/events/stats?by=user").await;
    assert_eq!(own["rows"].as_array().unwrap().len(), 1);
    assert_eq!(own["rows"][0]["group"]["user"], "bob");
}

/// Two runs of alice that used half their CPU time and a quarter of their memory, a failed one of bob, whose use is unknown.
async fn key_figures_are_exact_by_group(database: Database) {
    let mut events = day();
    for n in [1, 2] {
        let mut ended = fixtures::ended(submitted_at(100 + n, 0), "COMPLETED", 60);
        ended.alloc_tres = "cpu=4,mem=2G,node=1".into();
        ended.usage = Some(Usage {
            elapsed_seconds: 100,
            cpu_seconds: 200,
            memory_kib: 512 * 1024,
            ..Usage::default()
        });
        let mut event = of_user("alice", EventType::JobUpdated, ended);
        event.owner = events[0].owner.clone();
        events.push(event);
    }
    let api = Api::with(database, &events).await;
    let kpis = async |query: &str| {
        let (status, kpis) = api.get(&format!("/v1/kpis?{query}")).await;
        assert_eq!(status, 200, "{query}: {kpis}");
        kpis["rows"].clone()
    };
    let (alice, bob) = (
        json!({
            "group": {"account": "physics"}, "runs": 2, "cpu_efficiency": 0.5, "memory_waste": 0.75,
            "wait_p95_seconds": 50, "failure_rate": 0.0, "node_failure_rate": 0.0,
        }),
        json!({
            "group": {"account": "chemistry"}, "runs": 1, "cpu_efficiency": null, "memory_waste": null,
            "wait_p95_seconds": 10, "failure_rate": 1.0, "node_failure_rate": 0.0,
        }),
    );
    assert_eq!(kpis("by=account").await, json!([bob, alice]));
    let total = kpis("").await;
    assert_eq!(
        (&total[0]["group"], &total[0]["runs"]),
        (&json!({}), &json!(3))
    );
    let people = kpis("by=identity&user=alice").await;
    assert_eq!(people[0]["group"]["identity"], "alice@example.org");
    assert_eq!(kpis("user=nobody").await, json!([]));
    let failed = kpis("type=job.failed").await;
    assert_eq!(
        (&failed[0]["runs"], &failed[0]["failure_rate"]),
        (&json!(1), &json!(1.0))
    );
    let (status, problem) = api.get("/v1/kpis?by=colour").await;
    assert_eq!(status, 400);
    assert!(problem["detail"].as_str().unwrap().starts_with("by: "));
    let bob = serve(&api.store, user("bob"), 1000, 100).await;
    let (_, own) = crate::api::get(&bob, "/v1/kpis?by=user").await;
    assert_eq!(own["rows"].as_array().unwrap().len(), 1);
    assert_eq!(own["rows"][0]["group"]["user"], "bob");
}

async fn a_job_and_a_node_are_returned_as_of_a_time(database: Database) {
    let mut events = day();
    let mut back = node_event("n1", 2);
    if let Some(Payload::Node(payload)) = &mut back.payload {
        let node = payload.node.as_mut().unwrap();
        (node.state, node.lifecycle) = ("IDLE".into(), "active".into());
    }
    back.occurred_at = Some(timestamp(submit_time() + TimeDelta::hours(1)));
    let mut down = node_event("n1", 1);
    if let Some(Payload::Node(payload)) = &mut down.payload {
        let node = payload.node.as_mut().unwrap();
        (node.state, node.lifecycle) = ("DOWN".into(), "down".into());
    }
    // The newer event was appended first.
    events.extend([back, down]);
    let api = Api::with(database, &events).await;
    let at = |seconds| {
        (submit_time() + TimeDelta::seconds(seconds)).to_rfc3339_opts(SecondsFormat::Secs, true)
    };
    let state = async |seconds| {
        let (status, history) = api
            .get(&format!("/v1/jobs/{CLUSTER}/100_1?at={}", at(seconds)))
            .await;
        assert_eq!(status, 200, "{history}");
        assert_eq!(history["at"], at(seconds));
        history["runs"][0]["summary"]["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(state(5).await, "PENDING");
    assert_eq!(state(10).await, "RUNNING");
    assert_eq!(state(69).await, "RUNNING");
    assert_eq!(state(70).await, "COMPLETED");
    let before = api
        .get(&format!("/v1/jobs/{CLUSTER}/100_1?at={}", at(-1)))
        .await;
    assert_eq!(before.0, 404);

    let node = async |query: &str| api.get(&format!("/v1/nodes/{CLUSTER}/n1{query}")).await;
    let (status, now) = node("").await;
    assert_eq!(
        (status, now["state"]["state"].as_str()),
        (200, Some("IDLE"))
    );
    assert_eq!(now["timeline"].as_array().unwrap().len(), 2);
    let steps = &now["steps"];
    assert_eq!(
        (&steps[0]["lifecycle"], &steps[0]["seconds"]),
        (&json!("down"), &json!(3_600))
    );
    assert_eq!(
        (&steps[1]["lifecycle"], &steps[1]["to"]),
        (&json!("active"), &Value::Null)
    );
    assert_eq!(now["boots"]["launches"], 0);
    let (_, then) = node(&format!("?at={}", at(60))).await;
    assert_eq!(then["state"]["state"], "DOWN");
    assert_eq!(then["state"]["since"], at(0));
    assert_eq!(node("?at=100weeks").await.0, 404);
    assert_eq!(node("?at=never").await.0, 400);
    assert_eq!(node("?until=2h").await.0, 400);
    let alice = serve(&api.store, user("alice"), 1000, 100).await;
    let (status, _) = crate::api::get(&alice, &format!("/v1/nodes/{CLUSTER}/n1")).await;
    assert_eq!(status, 404);
}
