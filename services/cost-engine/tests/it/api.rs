//! `/v1/costs/live` and `/v1/costs`.

use crate::support::{DEADLINE, EXAMPLE, Outside, Site, label, on_both};
use axum::Router;
use axum::http::StatusCode;
use mesh_events::catalogue::BUCKET_SPENDING;
use mesh_events::proto::mesh::cost::v1::Spending;
use mesh_events::proto::mesh::event::v1::Identity;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, timestamp};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::ask;
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::{Value, json};

pub async fn get(router: &Router, user: &str, path: &str) -> (StatusCode, Value) {
    let role = if user == "root" {
        Role::Admin
    } else {
        Role::User
    };
    let caller = Caller::peer(user, 20_001, role);
    ask(router, caller, "GET", path, None).await
}

fn of(user: &str, account: &str, mut event: Event) -> Event {
    let owner = event.owner.as_mut().unwrap();
    owner.user = user.into();
    owner.account = account.into();
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_are_by_person_account_month_and_job_and_people_see_their_own() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let ends = [
        (
            "alice",
            "physics",
            EventType::JobCompleted,
            ended(job(40), "COMPLETED", 3600),
        ),
        (
            "alice",
            "physics",
            EventType::JobFailed,
            ended(job(41), "FAILED", 1800),
        ),
        (
            "bob",
            "physics",
            EventType::JobCompleted,
            ended(job(42), "COMPLETED", 360),
        ),
        (
            "bob",
            "physics",
            EventType::JobCompleted,
            ended(
                Job {
                    nodes: "x1".into(),
                    ..job(43)
                },
                "COMPLETED",
                360,
            ),
        ),
    ];
    for (user, account, kind, job) in ends {
        outside
            .publish(&of(user, account, job_event(kind, job)))
            .await;
    }
    // Started an hour ago, and still running.
    let hour_ago = chrono::Utc::now() - chrono::TimeDelta::seconds(3600);
    let running = Job {
        start_time: Some(timestamp(hour_ago)),
        ..job(44)
    };
    outside
        .publish(&of(
            "bob",
            "biology",
            job_event(EventType::JobStarted, running),
        ))
        .await;
    outside.costs(5).await;

    let (status, all) = get(&engine.router, "root", "/v1/costs?by=user").await;
    assert_eq!(status, StatusCode::OK, "{all}");
    let rows = all["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{all}");
    let alice = json!({
        "cluster": "testbed", "key": "alice", "currency": "EUR", "runs": 2, "open_runs": 0, "unpriced_runs": 0,
        "completed_micros": "340000", "not_completed_micros": "170000", "adjustments_micros": "0",
        "open_micros": "0", "total_micros": "510000",
        "charged_seconds": 5400, "lost_micros": {"failed": "170000"},
    });
    assert_eq!(rows[0], alice);
    // Runs without a price are counted, but add nothing.
    let bob = &rows[1];
    let open: i64 = bob["open_micros"].as_str().unwrap().parse().unwrap();
    assert!((360_000..370_000).contains(&open), "{all}");
    assert_eq!(
        (bob["key"].as_str(), bob["completed_micros"].as_str()),
        (Some("bob"), Some("34000"))
    );
    let counts = ["runs", "open_runs", "unpriced_runs"].map(|count| bob[count].as_i64());
    assert_eq!(counts, [Some(3), Some(1), Some(1)]);

    let (_, months) = get(
        &engine.router,
        "root",
        "/v1/costs?by=month&until=2026-01-01",
    )
    .await;
    let november = &months["rows"][0];
    assert_eq!(
        (november["key"].as_str(), november["total_micros"].as_str()),
        (Some("2025-11"), Some("544000"))
    );
    let (_, none) = get(&engine.router, "root", "/v1/costs?until=2025-01-01").await;
    assert_eq!(none["rows"], json!([]));

    let (_, own) = get(&engine.router, "alice", "/v1/costs?by=job").await;
    let keys: Vec<_> = own["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["40", "41"]);
    let (status, problem) = get(&engine.router, "alice", "/v1/costs?user=bob").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{problem}");

    let (_, live) = get(&engine.router, "bob", "/v1/costs/live").await;
    let job = &live["jobs"][0];
    assert_eq!(
        (
            job["job"].as_str(),
            job["user"].as_str(),
            job["account"].as_str()
        ),
        (Some("44"), Some("bob"), Some("biology"))
    );
    assert_eq!(live["burn_rate_micros"], job["burn_rate_micros"]);
    assert_eq!(
        (live["currency"].as_str(), live["price_book"].as_str()),
        (Some("EUR"), Some(label(EXAMPLE).as_str()))
    );
    let (_, live) = get(&engine.router, "alice", "/v1/costs/live").await;
    assert_eq!(live["jobs"], json!([]));
    engine.stop().await;
}

on_both!(a_cost_of_runs_without_a_price_is_null_and_not_zero);

async fn a_cost_of_runs_without_a_price_is_null_and_not_zero(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let on_unknown_node = |id| Job {
        nodes: "x1".into(),
        ..job(id)
    };
    let hour_ago = chrono::Utc::now() - chrono::TimeDelta::seconds(3600);
    let running = Job {
        start_time: Some(timestamp(hour_ago)),
        ..on_unknown_node(62)
    };
    let started = job_event(EventType::JobStarted, running);
    outside.publish(&of("bob", "nlp", started)).await;
    let is_running = async || {
        let (_, live) = get(&engine.router, "bob", "/v1/costs/live").await;
        live["unpriced_runs"] == 1 && live["burn_rate_micros"].is_null()
    };
    wait_until("a running job without a price", DEADLINE, is_running).await;
    for (id, kind, state, seconds) in [
        (60, EventType::JobCompleted, "COMPLETED", 360),
        (61, EventType::JobFailed, "FAILED", 2 * 86_400),
    ] {
        let end = ended(on_unknown_node(id), state, seconds);
        outside
            .publish(&of("bob", "nlp", job_event(kind, end)))
            .await;
    }
    let amounts =
        ["completed", "not_completed", "open", "total"].map(|key| format!("{key}_micros"));
    let all_ended = async || {
        let (_, report) = get(&engine.router, "root", "/v1/costs").await;
        report["rows"][0]["runs"] == 3
    };
    wait_until("three runs", DEADLINE, all_ended).await;
    let (_, report) = get(&engine.router, "root", "/v1/costs").await;
    let row = &report["rows"][0];
    assert_eq!(
        (&row["open_runs"], &row["unpriced_runs"]),
        (&json!(1), &json!(3))
    );
    for key in &amounts {
        assert_eq!(row.get(key), Some(&Value::Null), "{key} {report}");
    }
    let path = "/v1/costs?by=day&attribution=slice&until=2026-01-01";
    let (_, days) = get(&engine.router, "root", path).await;
    let days = days["rows"].as_array().unwrap();
    // Each counts once, in the day of its end.
    assert_eq!(days.len(), 2, "{days:?}");
    for day in days {
        assert_eq!(day["runs"], day["unpriced_runs"], "{day}");
        assert_eq!(day.get("total_micros"), Some(&Value::Null), "{day}");
    }
    let (_, own) = get(&engine.router, "bob", "/v1/costs/me?since=2025-01-01").await;
    let amount = &own["amounts"][0];
    assert_eq!(amount["unpriced_runs"], 3, "{own}");
    for key in ["settled", "in_flight", "total", "burn_rate"] {
        let key = format!("{key}_micros");
        assert_eq!(amount.get(&key), Some(&Value::Null), "{key} {own}");
    }
    // What is published of this month, with the running job alone.
    let bucket = outside.bus.bucket(BUCKET_SPENDING).await.unwrap();
    let has_month = async || {
        let entry = bucket.get("testbed.user.bob").await.unwrap();
        let sum = entry.map(|entry| Spending::decode(entry.value).unwrap());
        sum.is_some_and(|sum| sum.spent.is_empty() && sum.unpriced_runs == 1)
    };
    wait_until("the sum of the month", DEADLINE, has_month).await;
    engine.stop().await;
}

on_both!(identities_are_summed_over_users_and_clusters);

async fn identities_are_summed_over_users_and_clusters(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let hour_ago = chrono::Utc::now() - chrono::TimeDelta::seconds(3600);
    let end = |id| ended(job(id), "COMPLETED", 3600);
    let running = Job {
        start_time: Some(timestamp(hour_ago)),
        ..job(54)
    };
    let events = [
        // Not linked yet: the run belongs to the person as soon as any event names one.
        of("priya", "nlp", job_event(EventType::JobCompleted, end(50))),
        person(of(
            "priya",
            "nlp",
            job_event(EventType::JobCompleted, end(51)),
        )),
        person(of(
            "praman",
            "vision",
            job_event(EventType::JobCompleted, end(52)),
        )),
        of("carol", "nlp", job_event(EventType::JobCompleted, end(53))),
        of(
            "priya",
            "nlp",
            job_event(EventType::JobStarted, running.clone()),
        ),
    ];
    for event in &events {
        outside.publish(event).await;
    }
    outside.costs(5).await;

    let (status, all) = get(&engine.router, "root", "/v1/costs?by=identity").await;
    assert_eq!(status, StatusCode::OK, "{all}");
    let rows: Vec<_> = all["rows"].as_array().unwrap().iter().collect();
    let column = |name: &str| rows.iter().map(|row| &row[name]).collect::<Vec<_>>();
    assert_eq!(
        column("key"),
        ["https://id.example.org#priya-1", "unix:carol@testbed"]
    );
    assert_eq!(column("name"), [&json!("priya@example.org"), &Value::Null]);
    assert_eq!(column("runs"), [4, 1]);
    assert_eq!(column("completed_micros"), ["1020000", "340000"]);
    assert_eq!(column("cluster"), ["", ""]);

    // Everyone may ask for their own costs: those of all Unix users of the person.
    let (status, own) = get(&engine.router, "priya", "/v1/costs/me?since=2025-01-01").await;
    assert_eq!(status, StatusCode::OK, "{own}");
    let amount = &own["amounts"][0];
    assert_eq!(own["users"], json!(["praman", "priya"]));
    assert_eq!(
        (
            amount["currency"].as_str(),
            amount["settled_micros"].as_str()
        ),
        (Some("EUR"), Some("1020000"))
    );
    assert_eq!(
        (amount["runs"].as_i64(), amount["open_runs"].as_i64()),
        (Some(3), Some(1))
    );
    let person = &own["people"][0];
    assert_eq!(
        (&person["key"], &person["name"], &person["linked"]),
        (
            &json!("https://id.example.org#priya-1"),
            &json!("priya@example.org"),
            &json!(true)
        )
    );
    assert_eq!(&person["amounts"], &own["amounts"]);
    // A user without a known person is named as such, and nobody else's costs are counted.
    let (_, unlinked) = get(&engine.router, "carol", "/v1/costs/me?since=2025-01-01").await;
    let carol = json!({"key": "unix:carol@testbed", "linked": false, "users": [{"cluster": "testbed", "user": "carol"}],
        "amounts": unlinked["amounts"]});
    assert_eq!(unlinked["people"], json!([carol]));
    assert_eq!(unlinked["amounts"][0]["settled_micros"], "340000");
    let micros = |key: &str| amount[key].as_str().unwrap().parse::<i64>().unwrap();
    assert_eq!(micros("burn_rate_micros"), 360_000);
    assert!(
        (360_000..370_000).contains(&micros("in_flight_micros")),
        "{own}"
    );
    assert_eq!(
        micros("total_micros"),
        micros("settled_micros") + micros("in_flight_micros")
    );
    // The runs above ended long before this month; only the running job counts.
    let (_, month) = get(&engine.router, "priya", "/v1/costs/me").await;
    assert_eq!(month["amounts"][0]["settled_micros"], "0", "{month}");
    assert_eq!(month["amounts"][0]["open_runs"], 1, "{month}");
    let (_, nothing) = get(&engine.router, "dave", "/v1/costs/me").await;
    assert_eq!(nothing["amounts"], json!([]));

    // The sum of this month, for messages to the owner.
    let bucket = outside.bus.bucket(BUCKET_SPENDING).await.unwrap();
    let sum = async |user: &str, id: u32| {
        let key = format!("testbed.user.{user}");
        let read = async || {
            let entry = bucket.get(&key).await.unwrap()?;
            Some(Spending::decode(entry.value).unwrap())
        };
        let run = job(id).run;
        let has_run = async || {
            let sum = read().await;
            sum.is_some_and(|sum| sum.newest_runs.contains(&run))
        };
        wait_until("the sum of the month", DEADLINE, has_run).await;
        read().await.unwrap()
    };
    assert!(
        sum("carol", 53).await.spent.is_empty(),
        "ended before this month"
    );
    // The end of the running job, at most an hour and some seconds after its start.
    let end = ended(running, "COMPLETED", 3600);
    outside
        .publish(&of(
            "praman",
            "nlp",
            job_event(EventType::JobCompleted, end),
        ))
        .await;
    let spent = sum("praman", 54).await;
    assert_eq!(spent.person, "https://id.example.org#priya-1");
    let (_, month) = get(&engine.router, "priya", "/v1/costs/me").await;
    let total = &month["amounts"][0]["total_micros"];
    assert_eq!(json!(spent.spent[0].micros.to_string()), *total, "{month}");
    assert_eq!(spent.spent[0].currency, "EUR");

    let (_, qos) = get(&engine.router, "root", "/v1/costs?by=qos").await;
    assert_eq!(
        (&qos["rows"][0]["key"], &qos["rows"][0]["runs"]),
        (&json!("normal"), &json!(5)),
        "{qos}"
    );
    engine.stop().await;
}

fn person(mut event: Event) -> Event {
    event.owner.as_mut().unwrap().identity = Some(Identity {
        issuer: "https://id.example.org".into(),
        subject: "priya-1".into(),
        email: "priya@example.org".into(),
        name: "Priya Raman".into(),
        provenance: "map-file".into(),
    });
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_query_names_the_fault() {
    let site = Site::new(EXAMPLE);
    let engine = site.start("url = \"nats://127.0.0.1:1\"").await.unwrap();
    for (path, text) in [
        ("/v1/costs?by=cow", "cow"),
        ("/v1/costs?since=soon", "soon"),
        ("/v1/costs?colour=red", "colour"),
        (
            "/v1/costs/focus?period=2025-11&until=2025-11-02",
            "not with since or until",
        ),
    ] {
        let (status, problem) = get(&engine.router, "root", path).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        assert!(
            problem["detail"].as_str().unwrap().contains(text),
            "{problem}"
        );
    }
    engine.stop().await;
}
