//! Budgets: each threshold is published once per crossing, whatever happens.

use audit_outbox::AuditRow;
use axum::http::StatusCode;
use cost_engine::adapters::Store;
use futures_util::StreamExt as _;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::user::v1::Quota;
use mesh_events::{Event, EventId, EventType, RunKey};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{self, ended, job, job_event};
use mesh_testkit::service::{TestService, ask};
use mesh_testkit::{NatsServer, Postgres, wait_until};
use prost::Message as _;
use serde_json::{Value, json};

use crate::api::get;
use crate::nodes::change;
use crate::support::{DEADLINE, EXAMPLE, Outside, Site, on_both};

/// The jobs of the fixtures are charged 0.34 per hour, to account physics, in November 2025.
fn budget(amount: &str) -> String {
    format!(
        "[[budget]]\nname = \"physics\"\nscope = {{ account = \"physics\" }}\nfrom = 2025-11-01\nto = 2025-12-01\namount = \"{amount}\"\n"
    )
}

async fn evaluated(engine: &TestService, percent: u64) -> Value {
    let path = "/v1/budgets/physics";
    wait_until("an evaluation", DEADLINE, async || {
        get(&engine.router, "root", path).await.1["percent"] == percent
    })
    .await;
    get(&engine.router, "root", path).await.1
}

/// Publishes a run of two hours: 0.68.
async fn run(outside: &Outside, id: u32) {
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

on_both!(a_pending_job_is_committed_until_it_starts_or_is_cancelled);

const COMMITTED: &str = "[[budget]]\nname = \"all\"\nscope = { cluster = \"testbed\" }\nperiod = \"month\"\namount = 10\ncounts = \"committed\"\n";

/// Waits until pending jobs have this cost.
async fn pending(engine: &TestService, micros: &str) {
    wait_until(&format!("pending {micros}"), DEADLINE, async || {
        let (_, budget) = get(&engine.router, "root", "/v1/budgets/all").await;
        budget["pending_micros"] == micros && budget["committed_micros"] == micros
    })
    .await;
}

fn pending_job(id: u32) -> Job {
    Job {
        state: "PENDING".into(),
        start_time: None,
        nodes: String::new(),
        alloc_tres: String::new(),
        ..job(id)
    }
}

/// A node in two partitions.
async fn publish_node(outside: &Outside) {
    let mut node = change(1, 0, EventType::NodeActive, "active");
    if let Some(Payload::Node(payload)) = &mut node.payload {
        payload.node.as_mut().unwrap().partitions = vec!["all".into(), "cpu".into()];
    }
    outside.publish(&node).await;
}

async fn a_pending_job_is_committed_until_it_starts_or_is_cancelled(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_budgets(COMMITTED);
    let engine = site.start(&nats.toml()).await.unwrap();
    publish_node(&outside).await;
    let submitted = [30, 31].map(|id| job_event(EventType::JobSubmitted, pending_job(id)));
    for event in &submitted {
        outside.publish(event).await;
    }
    // A node for an hour, each.
    pending(&engine, "720000").await;
    // The first starts and ends: its cost is of another month.
    outside
        .publish(&job_event(EventType::JobStarted, job(30)))
        .await;
    run(&outside, 30).await;
    pending(&engine, "360000").await;
    // The second is cancelled. Its request comes again, after its id has left JetStream's window.
    let cancelled = Event {
        run_seq: 2,
        ..job_event(
            EventType::JobCancelled,
            ended(pending_job(31), "CANCELLED", 60),
        )
    };
    outside.publish(&cancelled).await;
    for event in &submitted {
        outside
            .republish(event, &format!("again {}", event.id))
            .await;
    }
    // Events are handled in order, and an evaluation follows.
    outside
        .publish(&job_event(EventType::JobStarted, job(32)))
        .await;
    outside.costs(3).await;
    pending(&engine, "0").await;
    let rows = site
        .rows("SELECT run, job FROM pending_runs WHERE removed_at IS NULL")
        .await;
    assert!(rows.is_empty(), "{rows:?}");
    engine.stop().await;
}

on_both!(a_pending_array_is_counted_by_its_tasks);

async fn a_pending_array_is_counted_by_its_tasks(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_budgets(COMMITTED);
    let engine = site.start(&nats.toml()).await.unwrap();
    publish_node(&outside).await;
    let mut array = job_event(EventType::JobSubmitted, pending_job(50));
    array.entity.as_mut().unwrap().kind = "array".into();
    outside.publish(&array).await;
    let task = |task_id: u32| {
        let run = RunKey {
            task_id: Some(task_id),
            ..fixtures::run(50)
        };
        Job {
            run: run.entity_key(),
            job_id: 51 + task_id,
            ..job(50)
        }
    };
    for task in [0, 1].map(task) {
        let end = ended(task.clone(), "COMPLETED", 3600);
        for event in [
            job_event(EventType::JobStarted, task),
            job_event(EventType::JobCompleted, end),
        ] {
            outside.publish(&event).await;
        }
    }
    outside.costs(4).await;
    let rows = site.rows("SELECT run, job FROM pending_runs").await;
    assert!(rows.is_empty(), "{rows:?}");
    pending(&engine, "0").await;
    engine.stop().await;
}

on_both!(budgets_are_made_and_deleted_by_the_api);

async fn budgets_are_made_and_deleted_by_the_api(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_budgets(&budget("1.00"));
    let engine = site.start(&nats.toml()).await.unwrap();
    evaluated(&engine, 0).await;
    let client = async_nats::connect(nats.url()).await.unwrap();
    let mut audit = client.subscribe("mesh.*.audit.cost").await.unwrap();
    client.flush().await.unwrap();
    let send = async |caller: &Caller, method: &str, path: &str, body: Option<&Value>| {
        ask(&engine.router, caller.clone(), method, path, body)
            .await
            .0
    };
    let admin = Caller::peer("root", 0, Role::Admin);
    let carol = Caller::peer("carol", 1, Role::User).coordinating("testbed", "physics");
    let path = "/v1/budgets";
    let body = |name: &str, account: &str| json!({"name": name, "scope": {"account": account}, "from": "2025-11-01", "to": "2025-12-01", "amount": "2.00"});
    let of = async |caller: &Caller, body: &Value| send(caller, "POST", path, Some(body)).await;
    assert_eq!(of(&carol, &body("own", "art")).await, StatusCode::FORBIDDEN);
    assert_eq!(
        of(&admin, &body("physics", "physics")).await,
        StatusCode::CONFLICT
    );
    assert_eq!(
        of(&admin, &json!({"name": "x"})).await,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(of(&admin, &body("art", "art")).await, StatusCode::OK);
    // Not by changing the accounts of one that is not hers.
    assert_eq!(
        of(&carol, &body("art", "physics")).await,
        StatusCode::FORBIDDEN
    );
    assert_eq!(of(&carol, &body("own", "physics")).await, StatusCode::OK);
    run(&outside, 40).await;
    let used = async || get(&engine.router, "root", "/v1/budgets/own").await.1["percent"] == 34;
    wait_until("the budget", DEADLINE, used).await;

    let own = "/v1/budgets/own";
    let dave = Caller::peer("dave", 2, Role::User);
    assert_eq!(
        send(&dave, "DELETE", own, None).await,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        send(&carol, "DELETE", "/v1/budgets/physics", None).await,
        StatusCode::CONFLICT
    );
    assert_eq!(send(&carol, "DELETE", own, None).await, StatusCode::OK);
    assert_eq!(
        send(&carol, "DELETE", own, None).await,
        StatusCode::NOT_FOUND
    );
    let gone = async || get(&engine.router, "root", own).await.0 == StatusCode::NOT_FOUND;
    wait_until("no budget", DEADLINE, gone).await;
    let mut acts = Vec::new();
    while acts.len() < 3 {
        let message = tokio::time::timeout(DEADLINE, audit.next()).await;
        let entry = AuditEntry::decode(message.unwrap().unwrap().payload).unwrap();
        let Some(Act::Budget(act)) = entry.act else {
            panic!("{entry:?}")
        };
        acts.push((act.budget, act.what, act.made_by));
    }
    acts.sort();
    let act = |budget: &str, what: &str, by: &str| (budget.into(), what.into(), by.into());
    assert_eq!(
        acts,
        [
            act("art", "set", "root"),
            act("own", "deleted", "carol"),
            act("own", "set", "carol")
        ]
    );
    engine.stop().await;
}

on_both!(a_budget_is_changed_only_as_it_was_when_the_right_was_checked);

async fn a_budget_is_changed_only_as_it_was_when_the_right_was_checked(site: Site) {
    let store = Store::open(&site.location()).await.unwrap();
    let audit = |n: u32| AuditRow {
        id: n.to_string(),
        cluster: "c".into(),
        body: Vec::new(),
    };
    let put = async |n, content: &str, known: Option<&str>| {
        let audit = audit(n);
        let put = store.put_budget(("b", content), known, ("root", 0), &audit);
        put.await.unwrap()
    };
    assert!(put(1, "one", None).await);
    assert!(!put(2, "of another coordinator", None).await);
    assert!(!put(3, "three", Some("two")).await);
    assert!(put(4, "two", Some("one")).await);
    assert!(!store.delete_budget(("b", "one"), &audit(5)).await.unwrap());
    assert_eq!(
        store.api_budgets().await.unwrap(),
        [("b".to_owned(), "two".to_owned())]
    );
    assert!(store.delete_budget(("b", "two"), &audit(6)).await.unwrap());
    // Only what was done is in the audit.
    let mut entries: Vec<_> = store.unpublished_audit_entries().await.unwrap();
    entries.sort_by(|one, other| one.id.cmp(&other.id));
    let ids: Vec<_> = entries.iter().map(|entry| &*entry.id).collect();
    assert_eq!(ids, ["1", "4", "6"]);
    store.database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_of_the_api_need_a_folder_are_limited_and_faulty_ones_are_for_administrators() {
    let nats = NatsServer::start().await;
    let site = Site::new(EXAMPLE);
    let post = async |engine: &TestService, caller: &Caller, name: &str| {
        let body = json!({"name": name, "scope": {"account": "physics"}, "period": "month", "amount": "2.00"});
        engine
            .ask(caller.clone(), "POST", "/v1/budgets", Some(&body))
            .await
    };
    let admin = Caller::peer("root", 0, Role::Admin);
    let carol = Caller::peer("carol", 1, Role::User).coordinating("testbed", "physics");
    let engine = site.start(&nats.toml()).await.unwrap();
    let (status, problem) = post(&engine, &admin, "b").await;
    assert_eq!(status, StatusCode::CONFLICT);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("set cost-engine.budgets"), "{detail}");
    engine.stop().await;

    let store = Store::open(&site.location()).await.unwrap();
    for n in 0..1000 {
        let audit = AuditRow {
            id: n.to_string(),
            cluster: "testbed".into(),
            body: Vec::new(),
        };
        let name = format!("b{n}");
        let put = store.put_budget((&name, "[[budget]]"), None, ("root", 0), &audit);
        assert!(put.await.unwrap());
    }
    store.database.close().await;
    site.write_budgets(&budget("1.00"));
    let engine = site.start(&nats.toml()).await.unwrap();
    // Before the first evaluation, and beside faulty budgets of the API.
    assert_eq!(
        post(&engine, &admin, "physics").await.0,
        StatusCode::CONFLICT
    );
    assert_eq!(post(&engine, &admin, "new").await.0, StatusCode::CONFLICT);
    assert_eq!(post(&engine, &carol, "b1").await.0, StatusCode::FORBIDDEN);
    let delete = async |caller: &Caller| {
        let caller = caller.clone();
        let (status, _) = engine.ask(caller, "DELETE", "/v1/budgets/b1", None).await;
        status
    };
    assert_eq!(delete(&carol).await, StatusCode::NOT_FOUND);
    assert_eq!(delete(&admin).await, StatusCode::OK);
    assert_eq!(post(&engine, &carol, "new").await.0, StatusCode::OK);
    wait_until("the budget", DEADLINE, async || {
        get(&engine.router, "root", "/v1/budgets/new").await.0 == StatusCode::OK
    })
    .await;
    engine.stop().await;
}

on_both!(coordinators_do_not_see_costs_of_other_clusters);

async fn coordinators_do_not_see_costs_of_other_clusters(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let here = budget("10.00")
        .replace("\"physics\"\n", "\"here\"\n")
        .replace("\"physics\" }", "\"physics\", cluster = \"testbed\" }");
    site.write_budgets(&format!("{}{here}", budget("10.00")));
    let engine = site.start(&nats.toml()).await.unwrap();
    let carol = Caller::peer("carol", 1, Role::User).coordinating("testbed", "physics");
    let seen = async || {
        let (_, list) = engine.ask(carol.clone(), "GET", "/v1/budgets", None).await;
        let names = list["budgets"].as_array().unwrap().iter();
        names
            .map(|budget| budget["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    run(&outside, 60).await;
    evaluated(&engine, 6).await;
    assert_eq!(seen().await, ["physics", "here"]);
    let mut elsewhere = job_event(EventType::JobCompleted, ended(job(61), "COMPLETED", 7200));
    elsewhere.cluster = "other".into();
    outside.publish(&elsewhere).await;
    evaluated(&engine, 13).await;
    assert_eq!(seen().await, ["here"]);
    engine.stop().await;
}
