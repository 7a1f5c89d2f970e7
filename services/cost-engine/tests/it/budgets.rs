//! Budgets: each threshold is published once per crossing, whatever happens.

use crate::api::get;
use crate::support::{DEADLINE, EXAMPLE, Outside, Site, on_both};
use axum::http::StatusCode;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::user::v1::Quota;
use mesh_events::{Event, EventId, EventType};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::TestService;
use mesh_testkit::{NatsServer, Postgres, wait_until};
use serde_json::{Value, json};

/// The jobs of the fixtures are charged 0.34 per hour, to account physics, in November 2025.
pub fn budget(amount: &str) -> String {
    format!(
        "[[budget]]\nname = \"physics\"\nscope = {{ account = \"physics\" }}\nfrom = 2025-11-01\nto = 2025-12-01\namount = \"{amount}\"\n"
    )
}

pub async fn evaluated(engine: &TestService, percent: u64) -> Value {
    let path = "/v1/budgets/physics";
    wait_until("an evaluation", DEADLINE, async || {
        get(&engine.router, "root", path).await.1["percent"] == percent
    })
    .await;
    get(&engine.router, "root", path).await.1
}

/// Publishes a run of two hours: 0.68.
pub async fn run(outside: &Outside, id: u32) {
    let end = ended(job(id), "COMPLETED", 7200);
    outside
        .publish(&job_event(EventType::JobCompleted, end))
        .await;
}

/// The first events of budgets, as type and threshold.
async fn events(outside: &Outside, count: usize) -> Vec<(Event, Quota)> {
    let messages = outside.messages("slurm.*.user.>", count).await;
    let quota = |event: &Event| match &event.payload {
        Some(Payload::User(payload)) => payload.quota.clone().unwrap(),
        other => panic!("no quota: {other:?}"),
    };
    let events = messages.iter().map(|message| message.event().unwrap());
    events.map(|event| (event.clone(), quota(&event))).collect()
}

fn summary(events: &[(Event, Quota)]) -> Vec<(&str, u32, u64)> {
    let one = |(event, quota): &'_ (Event, Quota)| (quota.threshold, quota.crossing, event.run_seq);
    for (n, event) in events.iter().enumerate() {
        assert_eq!(one(event).2, n as u64 + 1, "numbered from 1");
    }
    events
        .iter()
        .map(|(event, quota)| (event.r#type.as_str(), quota.threshold, quota.crossing))
        .collect()
}

const PASSED: [(&str, u32, u64); 3] = [
    ("user.quota_high", 50, 1),
    ("user.quota_high", 80, 1),
    ("user.quota_exceeded", 100, 1),
];
const CLEARED: (&str, u32, u64) = ("user.quota_cleared", 100, 1);

on_both!(each_threshold_is_published_once_and_cleared_when_the_amount_is_raised);

async fn each_threshold_is_published_once_and_cleared_when_the_amount_is_raised(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_budgets(&budget("1.00"));
    let engine = site.start(&nats.toml()).await.unwrap();
    evaluated(&engine, 0).await;
    run(&outside, 1).await;
    let (high, quota) = &events(&outside, 1).await[0];
    let micros = |money: &Option<mesh_events::proto::mesh::cost::v1::Money>| {
        money.as_ref().map(|money| money.micros)
    };
    assert_eq!(
        [
            micros(&quota.amount),
            micros(&quota.settled),
            micros(&quota.in_flight)
        ],
        [Some(1_000_000), Some(680_000), Some(0)]
    );
    assert_eq!(
        (quota.percent(), quota.scope.as_slice()),
        (68, ["account=physics".to_owned()].as_slice())
    );
    let largest = &quota.contributors[0];
    assert_eq!(
        (largest.user.as_str(), micros(&largest.amount)),
        ("alice", Some(680_000))
    );
    // Coordinators of the account may see it; its id can be computed from the event.
    assert_eq!(high.owner.as_ref().unwrap().account, "physics");
    assert_eq!(
        EventId::recomputed(high).unwrap().to_string(),
        high.id,
        "{high:?}"
    );

    run(&outside, 2).await;
    let status = evaluated(&engine, 136).await;
    assert_eq!(summary(&events(&outside, 3).await), PASSED);
    assert_eq!(status["threshold"], 100, "{status}");
    assert_eq!(status["settled_micros"], "1360000", "{status}");
    assert_eq!(status["scope"], json!({"account": ["physics"]}));
    // Neither owner nor coordinator.
    let (_, hidden) = get(&engine.router, "alice", "/v1/budgets").await;
    assert_eq!(hidden["budgets"], json!([]));
    let (missing, _) = get(&engine.router, "alice", "/v1/budgets/physics").await;
    assert_eq!(missing, StatusCode::NOT_FOUND);

    // Restarts publish nothing again.
    engine.kill().await;
    let engine = site.start(&nats.toml()).await.unwrap();
    evaluated(&engine, 136).await;
    engine.stop().await;
    let engine = site.start(&nats.toml()).await.unwrap();
    evaluated(&engine, 136).await;
    site.write_budgets(&budget("10.00"));
    evaluated(&engine, 13).await;
    let all = events(&outside, 4).await;
    assert_eq!(summary(&all)[..3], PASSED);
    assert_eq!(summary(&all)[3], CLEARED);
    // Faulty budgets change nothing; passing again is a second crossing.
    site.write_budgets("[[budget]]\nname = \"physics\"\n");
    site.write_budgets(&budget("1.00"));
    evaluated(&engine, 136).await;
    let again = events(&outside, 7).await;
    assert_eq!(
        summary(&again)[4..],
        PASSED.map(|(kind, threshold, _)| (kind, threshold, 2))
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_loaded_within_its_period_publishes_only_the_highest_threshold() {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let site = Site::new(EXAMPLE);
    site.write_budgets("");
    let engine = site.start(&nats.toml()).await.unwrap();
    run(&outside, 1).await;
    outside.costs(1).await;
    // Half an hour before the period and an hour and a half within it.
    let first = "2025-11-01";
    let start = mesh_events::from_timestamp(job(1).start_time.as_ref().unwrap()).unwrap();
    let from = (start + chrono::TimeDelta::minutes(30)).to_rfc3339();
    site.write_budgets(&budget("0.60").replace(first, &from));
    let status = evaluated(&engine, 85).await;
    assert_eq!(status["settled_micros"], "510000");
    site.write_budgets(&budget("10.00").replace(first, &from));
    evaluated(&engine, 5).await;
    let found = events(&outside, 2).await;
    assert_eq!(
        summary(&found),
        [("user.quota_high", 80, 1), ("user.quota_cleared", 80, 1)]
    );
    engine.stop().await;
}

on_both!(a_forecast_that_passes_the_amount_is_published);

async fn a_forecast_that_passes_the_amount_is_published(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_budgets("");
    let engine = site.start(&nats.toml()).await.unwrap();
    let today = chrono::Utc::now().date_naive();
    let at = |days: i64| {
        let date = today + chrono::TimeDelta::days(days);
        date.and_hms_opt(10, 0, 0).unwrap().and_utc()
    };
    // An hour on each of the last five days, at the price of that time: 1.80 in all.
    for days in 1..=5 {
        let start = Some(mesh_events::timestamp(at(-days)));
        let one = Job {
            start_time: start,
            ..job(u32::try_from(days).unwrap())
        };
        let end = ended(one, "COMPLETED", 3600);
        outside
            .publish(&job_event(EventType::JobCompleted, end))
            .await;
    }
    outside.costs(5).await;
    // Ten whole days and the rest of today are still to come.
    let period = format!(
        "from = {}\nto = {}",
        at(-20).date_naive(),
        at(11).date_naive()
    );
    let budget = budget("3.00").replace("from = 2025-11-01\nto = 2025-12-01", &period);
    site.write_budgets(&format!("{budget}forecast = 100\n"));
    let status = evaluated(&engine, 60).await;
    let micros = |key: &str| {
        let text = status["forecast"][key].as_str().unwrap();
        text.parse::<i64>().unwrap()
    };
    assert!(
        (5_400_000..=5_760_000).contains(&micros("p50_micros")),
        "{status}"
    );
    assert_eq!(micros("p50_micros"), micros("p90_micros"));
    // 1.20 is left, which three days and a part of a fourth use up.
    let exhausted = status["forecast"]["exhausted_p50"].as_str().unwrap();
    let days: Vec<String> = [3, 4].map(|days| at(days).date_naive().to_string()).into();
    assert!(
        days.iter().any(|day| exhausted.starts_with(day)),
        "{status}"
    );
    let found = events(&outside, 2).await;
    assert_eq!(
        summary(&found),
        [("user.quota_high", 50, 1), ("user.quota_high", 100, 1)]
    );
    assert!(found[1].1.is_forecast && !found[0].1.is_forecast);
    assert_ne!(found[0].0.id, found[1].0.id);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_share_a_database_publish_each_threshold_once() {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let url = Postgres::shared().await.create_database();
    let sites = [1, 2].map(|_| Site::at(EXAMPLE, url.clone()));
    for site in &sites {
        site.write_budgets(&budget("1.00"));
    }
    let first = sites[0].start(&nats.toml()).await.unwrap();
    let second = sites[1].start(&nats.toml()).await.unwrap();
    for engine in [&first, &second] {
        evaluated(engine, 0).await;
    }
    run(&outside, 1).await;
    run(&outside, 2).await;
    // Either of them may have priced the runs; the other one evaluates when its budgets are read again.
    for site in &sites {
        site.write_budgets(&format!("# again\n{}", budget("1.00")));
    }
    for engine in [&first, &second] {
        evaluated(engine, 136).await;
    }
    for site in &sites {
        site.write_budgets(&budget("10.00"));
    }
    for engine in [&first, &second] {
        evaluated(engine, 13).await;
    }
    let mut all = events(&outside, 4).await;
    // Each engine publishes what it has found, so the order on the bus may be another one.
    all.sort_by_key(|(event, _)| event.run_seq);
    assert_eq!(summary(&all)[..3], PASSED);
    assert_eq!(summary(&all)[3], CLEARED);
    first.stop().await;
    second.stop().await;
}

/// Two users, one of which may not publish events of users.
const USERS: &str = r#"authorization { users = [
    { user: "free", password: "x" },
    { user: "mute", password: "x", permissions: { publish: { deny: ["slurm.*.user.>"] } } }
] }"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_commit_and_publish_publishes_once() {
    let nats = NatsServer::start_with(USERS).await;
    let outside = Outside::connect(&nats, Some("free")).await;
    let site = Site::new(EXAMPLE);
    site.write_budgets(&budget("1.00"));
    let login = |user: &str| {
        format!(
            "url = \"{}\"\nuser = \"{user}\"\npassword = \"x\"",
            nats.url()
        )
    };
    let engine = site.start(&login("mute")).await.unwrap();
    evaluated(&engine, 0).await;
    run(&outside, 1).await;
    evaluated(&engine, 68).await;
    let outbox = async || {
        let rows = site
            .rows("SELECT event_id, body FROM outbox ORDER BY seq")
            .await;
        let is_quota = |body: &[u8]| {
            let event: Event = prost::Message::decode(body).unwrap();
            event.r#type == "user.quota_high"
        };
        rows.into_iter()
            .filter(|(_, body)| is_quota(body))
            .collect::<Vec<_>>()
    };
    assert_eq!(outbox().await.len(), 1);
    engine.kill().await;
    let committed = outbox().await;

    let engine = site.start(&login("free")).await.unwrap();
    let published = outside.messages("slurm.*.user.>", 1).await;
    assert_eq!(
        (
            published[0].header("Nats-Msg-Id").unwrap(),
            &published[0].body[..]
        ),
        (committed[0].0.as_str(), &committed[0].1[..])
    );
    engine.kill().await;
    let engine = site.start(&login("free")).await.unwrap();
    site.write_budgets(&budget("10.00"));
    evaluated(&engine, 6).await;
    let found = events(&outside, 2).await;
    assert_eq!(
        summary(&found),
        [("user.quota_high", 50, 1), ("user.quota_cleared", 50, 1)]
    );
    engine.stop().await;
}
