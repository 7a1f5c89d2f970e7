//! Budgets that are made, changed and deleted by the API, and who sees them.

use crate::api::get;
use crate::budgets::{budget, evaluated, run};
use crate::support::{DEADLINE, EXAMPLE, Outside, Site, on_both};
use audit_outbox::AuditRow;
use axum::http::StatusCode;
use cost_engine::adapters::Store;
use futures_util::StreamExt as _;
use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::{TestService, ask};
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::{Value, json};

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
