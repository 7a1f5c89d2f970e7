//! Events that arrive after the final cost of a run change it by `cost.adjusted`.

mod usage;

use mesh_events::proto::mesh::cost::v1::CostClass;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId, EventType, RunKey, Slot};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::ask;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};

use axum::http::StatusCode;

use crate::api::get;
use crate::costs::at;
use crate::support::{DEADLINE, EXAMPLE, Outside, Site, amounts, label, on_both, sum};

on_both!(
    a_late_suspension_is_taken_off_the_final_cost,
    whatever_order_events_come_in_the_costs_add_up_to_the_same,
    a_correction_moves_the_cost_to_another_class,
    a_late_fact_is_priced_by_the_book_that_priced_the_run,
    what_changes_after_a_period_is_closed_is_a_correction_of_the_next_one,
);

/// A job with all CPUs of a node and a quarter of its memory. While suspended it costs a quarter.
pub fn little_memory(id: u32) -> Job {
    Job {
        alloc_tres: "cpu=4,mem=1000M,node=1".into(),
        ..job(id)
    }
}

/// Number of costs per run if its end arrives last: the estimate, the new one after the resize, and the final cost.
const IN_ORDER: usize = 3;

async fn a_late_suspension_is_taken_off_the_final_cost(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, little_memory(1)))
        .await;
    let completed = job_event(
        EventType::JobCompleted,
        ended(little_memory(1), "COMPLETED", 3600),
    );
    outside.publish(&completed).await;
    let costs = outside.costs(2).await;
    assert_eq!(amounts(&costs[1].1).2, Some(340_000));

    let suspended = at(EventType::JobSuspended, little_memory(1), 1200);
    outside.publish(&suspended).await;
    let costs = outside.costs(3).await;
    let (event, cost) = &costs[2];
    let cause: EventId = suspended.id.parse().unwrap();
    assert_eq!(
        (event.r#type.as_str(), &event.id),
        (
            "cost.adjusted",
            &EventId::derived(cause, EventType::CostAdjusted, 0).to_string()
        )
    );
    assert_eq!(
        event.correlation.as_ref().unwrap().event_ids,
        [suspended.id.as_str()]
    );
    let micros = |money: &Option<mesh_events::proto::mesh::cost::v1::Money>| {
        money.as_ref().map(|money| money.micros)
    };
    let total = micros(&cost.total).unwrap();
    assert!(total < 340_000, "suspended to its end: {total}");
    assert_eq!(micros(&cost.previous), Some(340_000));
    assert_eq!(micros(&cost.delta), Some(total - 340_000));
    assert_eq!(cost.reason, "late_fact");
    assert_eq!(cost.class(), CostClass::Completed);
    assert_eq!(cost.job.as_ref().unwrap().state, "COMPLETED");

    // A duplicate whose id has left JetStream's window has no effect.
    outside.republish(&suspended, "again").await;
    outside
        .publish(&at(EventType::JobResumed, little_memory(1), 2400))
        .await;
    let costs = outside.costs(4).await;
    assert_eq!(costs[3].0.r#type, "cost.adjusted");
    let total = micros(&costs[3].1.total).unwrap();
    assert_eq!(sum(&costs, 1), total, "final cost and deltas add up");
    let (_, report) = get(&engine.router, "root", "/v1/costs").await;
    let row = &report["rows"][0];
    let sums = ["total_micros", "adjustments_micros"].map(|key| row[key].as_str());
    let delta = (total - 340_000).to_string();
    assert_eq!(sums, [Some(&*total.to_string()), Some(&*delta)], "{report}");

    // As if all events had arrived in time.
    for event in [
        job_event(EventType::JobStarted, little_memory(2)),
        at(EventType::JobSuspended, little_memory(2), 1200),
        at(EventType::JobResumed, little_memory(2), 2400),
        job_event(
            EventType::JobCompleted,
            ended(little_memory(2), "COMPLETED", 3600),
        ),
    ] {
        outside.publish(&event).await;
    }
    let costs = outside.costs(6).await;
    assert_eq!(sum(&costs, 2), total);
    engine.stop().await;
}

/// The events of a run: it starts with two nodes, releases one, and is suspended once.
fn life(id: u32) -> [Event; 5] {
    let large = Job {
        nodes: "n[1-2]".into(),
        alloc_tres: "cpu=8,mem=2000M,node=2".into(),
        ..job(id)
    };
    [
        job_event(EventType::JobStarted, large),
        at(EventType::JobSuspended, little_memory(id), 300),
        at(EventType::JobResumed, little_memory(id), 600),
        at(EventType::JobResized, little_memory(id), 1800),
        job_event(
            EventType::JobCompleted,
            ended(little_memory(id), "COMPLETED", 3600),
        ),
    ]
}

/// Every order of some numbers (Heap's algorithm).
fn orders(numbers: &mut Vec<usize>, k: usize, all: &mut Vec<Vec<usize>>) {
    if k <= 1 {
        all.push(numbers.clone());
        return;
    }
    for i in 0..k {
        orders(numbers, k - 1, all);
        let with = if k.is_multiple_of(2) { i } else { 0 };
        numbers.swap(with, k - 1);
    }
}

async fn whatever_order_events_come_in_the_costs_add_up_to_the_same(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    for event in life(1) {
        outside.publish(&event).await;
    }
    let expected = sum(&outside.costs(IN_ORDER).await, 1);
    assert!(expected > 0);
    let mut all = Vec::new();
    orders(&mut (0..5).collect(), 5, &mut all);
    assert_eq!(all.len(), 120);
    for (id, order) in (2..).zip(&all) {
        let events = life(id);
        for &n in order {
            outside.publish(&events[n]).await;
        }
    }
    // Job events are handled in order, but costs of different runs are published in any order. One job shows that all events are
    // handled, another one that all costs are published.
    outside
        .publish(&job_event(EventType::JobStarted, job(998)))
        .await;
    let handled = "SELECT run, start_job FROM runs WHERE display_id = '998'";
    let left = "SELECT event_id, body FROM outbox";
    wait_until("every cost published", DEADLINE, async || {
        !site.rows(handled).await.is_empty() && site.rows(left).await.is_empty()
    })
    .await;
    outside
        .publish(&job_event(EventType::JobStarted, job(999)))
        .await;
    let costs = outside.costs_until(999).await;
    for (id, order) in (2..).zip(&all) {
        assert_eq!(sum(&costs, id), expected, "order {order:?} of run {id}");
    }
    engine.stop().await;
}

async fn a_correction_moves_the_cost_to_another_class(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    for event in [
        job_event(EventType::JobStarted, job(5)),
        job_event(EventType::JobCompleted, ended(job(5), "COMPLETED", 1800)),
    ] {
        outside.publish(&event).await;
    }
    outside.costs(2).await;
    // A better record: the job failed, a quarter of an hour later.
    let key = RunKey::parse(mesh_testkit::fixtures::CLUSTER, &job(5).run).unwrap();
    let corrected = Event {
        id: EventId::recorded(&key, Slot::Updated).to_string(),
        ..job_event(EventType::JobCorrected, ended(job(5), "FAILED", 2700))
    };
    outside.publish(&corrected).await;
    let costs = outside.costs(3).await;
    let cost = &costs[2].1;
    assert_eq!(cost.class(), CostClass::NotCompleted);
    assert_eq!(cost.charged_seconds, 2700);
    assert_eq!(amounts(cost).2, Some(255_000));
    assert_eq!(sum(&costs, 5), 255_000);
    engine.stop().await;
}

async fn a_late_fact_is_priced_by_the_book_that_priced_the_run(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    for event in [
        job_event(EventType::JobStarted, job(6)),
        job_event(EventType::JobCompleted, ended(job(6), "COMPLETED", 3600)),
    ] {
        outside.publish(&event).await;
    }
    outside.costs(2).await;
    engine.stop().await;
    let dearer = EXAMPLE
        .replace("2026-07\"", "2026-08\"")
        .replace("\"0.34\"", "\"3.40\"");
    assert_ne!(dearer, EXAMPLE);
    site.write_book(&dearer);
    let engine = site.start(&nats.toml()).await.unwrap();
    let key = RunKey::parse(mesh_testkit::fixtures::CLUSTER, &job(6).run).unwrap();
    let corrected = Event {
        id: EventId::recorded(&key, Slot::Updated).to_string(),
        ..job_event(EventType::JobCorrected, ended(job(6), "COMPLETED", 1800))
    };
    outside.publish(&corrected).await;
    let costs = outside.costs(3).await;
    assert_eq!(costs[2].1.price_book, label(EXAMPLE));
    assert_eq!(amounts(&costs[2].1).2, Some(170_000));
    engine.stop().await;
}

async fn what_changes_after_a_period_is_closed_is_a_correction_of_the_next_one(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let run = async |id: u32| {
        let started = job_event(EventType::JobStarted, little_memory(id));
        outside.publish(&started).await;
        let record = ended(little_memory(id), "COMPLETED", 3600);
        outside
            .publish(&job_event(EventType::JobCompleted, record))
            .await;
    };
    run(1).await;
    outside.costs(2).await;
    let close = async |period: &str| {
        let path = format!("/v1/costs/periods/{period}");
        let caller = Caller::peer("root", 0, Role::Admin);
        let (status, closed) = ask(&engine.router, caller, "POST", &path, None).await;
        assert_eq!(status, StatusCode::OK, "{closed}");
        let (_, shown) = get(&engine.router, "root", &path).await;
        let report: Value = serde_json::from_str(shown["report"].as_str().unwrap()).unwrap();
        report
    };
    let november = close("2025-11").await;
    assert_eq!(november["rows"][0]["total_micros"], "340000");
    assert_eq!(november["corrections"], json!([]));

    // The run was suspended until its end. Another one of that month is known only now.
    let suspended = at(EventType::JobSuspended, little_memory(1), 1200);
    outside.publish(&suspended).await;
    run(2).await;
    let costs = outside.costs(5).await;
    let total = sum(&costs, 1);
    assert!(total < 340_000, "{total}");
    let december = close("2025-12").await;
    assert_eq!(december["rows"], json!([]));
    // What both runs cost now, without what the report of November has.
    let corrections = &december["corrections"];
    assert_eq!(corrections.as_array().unwrap().len(), 1, "{corrections}");
    assert_eq!(
        (&corrections[0]["period"], &corrections[0]["key"]),
        (&json!("2025-11"), &json!("physics"))
    );
    assert_eq!(corrections[0]["total_micros"], total.to_string());
    // The report of November is as it was, and nothing is corrected twice; a quarter has all of it in its rows.
    let (_, shown) = get(&engine.router, "root", "/v1/costs/periods/2025-11").await;
    let stored: Value = serde_json::from_str(shown["report"].as_str().unwrap()).unwrap();
    assert_eq!(stored, november);
    assert_eq!(close("2026-01").await["corrections"], json!([]));
    let quarter = close("2025-Q4").await;
    let both = (total + 340_000).to_string();
    assert_eq!(quarter["rows"][0]["total_micros"], both);
    assert_eq!(quarter["corrections"], json!([]));
    engine.stop().await;
}
