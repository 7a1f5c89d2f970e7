//! Budgets that count what pending jobs are estimated to cost.

use crate::api::get;
use crate::budgets::run;
use crate::nodes::change;
use crate::support::{DEADLINE, Outside, Site, on_both};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, RunKey};
use mesh_testkit::fixtures::{self, ended, job, job_event};
use mesh_testkit::service::TestService;
use mesh_testkit::{NatsServer, wait_until};

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
