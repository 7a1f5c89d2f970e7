//! Costs of job events.

use mesh_events::proto::mesh::cost::v1::CostClass;
use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId, EventType, RunKey, Slot, timestamp};
use mesh_testkit::fixtures::{CLUSTER, ended, job, job_event, run, submit_time};
use mesh_testkit::{NatsServer, wait_until};

use crate::support::{DEADLINE, EXAMPLE, Outside, Site, amounts, dead_letter, label};

const OPEN_RUNS: &str = "SELECT run, start_job FROM runs WHERE state = 'open'";

/// An event this many seconds after the job's start.
pub fn at(kind: EventType, job: Job, seconds: i64) -> Event {
    let time = submit_time() + chrono::TimeDelta::seconds(10 + seconds);
    let key = RunKey::parse(CLUSTER, &job.run).unwrap();
    let slot = match kind {
        EventType::JobSuspended => Slot::Suspended(time.timestamp()),
        EventType::JobResumed => Slot::Resumed(time.timestamp()),
        _ => Slot::Resized(time.timestamp()),
    };
    let mut event = job_event(kind, job);
    event.id = EventId::recorded(&key, slot).to_string();
    event.occurred_at = Some(timestamp(time));
    event
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_gets_its_estimate_and_its_final_cost() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let started = job_event(EventType::JobStarted, job(7));
    let mut completed = job_event(EventType::JobCompleted, ended(job(7), "COMPLETED", 1800));
    completed.run_seq = 3;
    outside.publish(&started).await;
    outside.publish(&completed).await;

    let costs = outside.costs(2).await;
    let (event, cost) = &costs[0];
    assert_eq!(
        event.id,
        EventId::recorded(&run(7), Slot::CostEstimated).to_string()
    );
    assert_eq!(
        (event.r#type.as_str(), event.run_seq),
        ("cost.estimated", 1)
    );
    assert_eq!(
        event.correlation.as_ref().unwrap().event_ids,
        [started.id.as_str()]
    );
    assert_eq!(
        (&event.owner, &event.entity, &event.occurred_at),
        (&started.owner, &started.entity, &started.occurred_at)
    );
    assert_eq!(amounts(cost), (Some(340_000), Some(340_000), None));
    assert_eq!(cost.job, started.job().cloned());
    assert_eq!(
        (
            cost.mode.as_str(),
            cost.price_book.as_str(),
            cost.problem.as_str()
        ),
        ("max_share", label(EXAMPLE).as_str(), "")
    );

    let (event, cost) = &costs[1];
    assert_eq!(
        event.id,
        EventId::recorded(&run(7), Slot::CostFinalized).to_string()
    );
    assert_eq!(
        (event.r#type.as_str(), event.run_seq),
        ("cost.finalized", 3)
    );
    assert_eq!(amounts(cost), (None, None, Some(170_000)));
    assert_eq!(
        (cost.class(), cost.charged_seconds),
        (CostClass::Completed, 1800)
    );
    let line = &cost.lines[0];
    assert_eq!(
        (
            line.nodes.as_str(),
            line.node_type.as_str(),
            line.share.as_str(),
            line.seconds
        ),
        ("n1", "cpu", "1/1", 1800)
    );
    assert_eq!(cost.total.as_ref().unwrap().currency, "EUR");
    // It is removed a moment after it was published.
    wait_until("an empty outbox", DEADLINE, async || {
        site.rows("SELECT event_id, body FROM outbox")
            .await
            .is_empty()
    })
    .await;
    engine.stop().await;
    assert!(
        site.rows(OPEN_RUNS).await.is_empty(),
        "an ended run does not go on"
    );
}

/// The credential for doorbells is on every node. A fact without a Slurm record is published as inferred, and is not charged.
#[tokio::test(flavor = "multi_thread")]
async fn inferred_runs_cost_nothing_until_a_record_arrives() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let inferred = |kind: EventType, job: Job| Event {
        confidence: Confidence::Inferred.into(),
        ..job_event(kind, job)
    };
    let of_record = |kind: EventType, slot: Slot, job: Job| Event {
        id: EventId::recorded(&RunKey::parse(CLUSTER, &job.run).unwrap(), slot).to_string(),
        ..job_event(kind, job)
    };
    // Only a hook reported this end.
    let failed = |id: u32| ended(job(id), "FAILED", 1800);
    outside
        .publish(&inferred(EventType::JobStarted, job(21)))
        .await;
    outside
        .publish(&inferred(EventType::JobFailed, failed(21)))
        .await;
    // This job was seen running, and accounting reports its end later.
    outside
        .publish(&job_event(EventType::JobStarted, job(22)))
        .await;
    outside
        .publish(&inferred(EventType::JobRequeued, ended(job(22), "", 600)))
        .await;
    outside
        .publish(&of_record(EventType::JobUpdated, Slot::Updated, failed(22)))
        .await;
    // Facts from a record are not charged twice.
    outside
        .publish(&job_event(EventType::JobStarted, job(23)))
        .await;
    outside
        .publish(&job_event(EventType::JobFailed, failed(23)))
        .await;
    outside
        .publish(&of_record(EventType::JobUpdated, Slot::Updated, failed(23)))
        .await;
    outside
        .publish(&job_event(EventType::JobStarted, job(24)))
        .await;
    let costs = outside.costs(5).await;
    // Costs of different runs are published in any order.
    let mut found: Vec<(String, String)> = costs
        .iter()
        .map(|(event, _)| (event.r#type.clone(), event.entity_key().to_owned()))
        .collect();
    found.sort_by_key(|(kind, run)| (run.clone(), kind.clone()));
    let of = |kind: &str, id: u32| (format!("cost.{kind}"), run(id).entity_key());
    let expected = [
        of("estimated", 22),
        of("finalized", 22),
        of("estimated", 23),
        of("finalized", 23),
        of("estimated", 24),
    ];
    assert_eq!(found, expected);
    for (event, cost) in costs
        .iter()
        .filter(|(event, _)| event.r#type == "cost.finalized")
    {
        assert_eq!(amounts(cost).2, Some(170_000));
        assert_eq!(event.confidence(), Confidence::Observed);
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspensions_are_stored_until_the_end() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    // A quarter of the memory, all CPUs: while suspended only the quarter counts.
    let job = Job {
        alloc_tres: "cpu=4,mem=1000M,node=1".into(),
        ..job(8)
    };
    outside
        .publish(&job_event(EventType::JobStarted, job.clone()))
        .await;
    outside
        .publish(&at(EventType::JobSuspended, job.clone(), 1000))
        .await;
    outside
        .publish(&at(EventType::JobResumed, job.clone(), 2800))
        .await;
    outside
        .publish(&job_event(
            EventType::JobTimeout,
            ended(job, "TIMEOUT", 3600),
        ))
        .await;
    let costs = outside.costs(2).await;
    assert_eq!(amounts(&costs[1].1).2, Some(170_000 + 170_000 / 4));
    assert_eq!(costs[1].1.class(), CostClass::NotCompleted);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_allocation_costs_less_from_its_second_on() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let large = Job {
        nodes: "n[1-2]".into(),
        alloc_tres: "cpu=8,mem=16G,node=2".into(),
        ..job(9)
    };
    outside
        .publish(&job_event(EventType::JobStarted, large))
        .await;
    outside
        .publish(&at(EventType::JobResized, job(9), 1800))
        .await;
    outside
        .publish(&job_event(
            EventType::JobCompleted,
            ended(job(9), "COMPLETED", 3600),
        ))
        .await;
    let costs = outside.costs(3).await;
    assert_eq!(
        amounts(&costs[0].1),
        (Some(680_000), Some(680_000), None),
        "two nodes for an hour"
    );
    assert_eq!(
        amounts(&costs[1].1),
        (Some(340_000), Some(340_000 + 170_000), None),
        "one node for the other half of it"
    );
    assert_eq!(amounts(&costs[2].1).2, Some(340_000 + 170_000));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_event_that_comes_again_changes_nothing() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let started = job_event(EventType::JobStarted, job(10));
    let completed = job_event(EventType::JobCompleted, ended(job(10), "COMPLETED", 60));
    for (n, event) in [&started, &completed, &started, &completed, &completed]
        .into_iter()
        .enumerate()
    {
        outside.republish(event, &format!("again-{n}")).await;
    }
    // Once the next job's cost is published, the duplicates have been handled. There is no order between runs.
    outside
        .publish(&job_event(EventType::JobStarted, job(11)))
        .await;
    let mut ids: Vec<String> = outside
        .costs(3)
        .await
        .into_iter()
        .map(|(event, _)| event.id)
        .collect();
    let mut expected = [
        (10, Slot::CostEstimated),
        (10, Slot::CostFinalized),
        (11, Slot::CostEstimated),
    ]
    .map(|(job, slot)| EventId::recorded(&run(job), slot).to_string());
    ids.sort();
    expected.sort();
    assert_eq!(ids, expected);
    engine.stop().await;
    let rows = site
        .rows("SELECT kind, CAST(run AS BLOB) FROM costs WHERE display_id = '10'")
        .await;
    assert_eq!(rows.len(), 2, "one row per run and kind");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_job_events_does_not_change_the_costs() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    outside
        .publish(&job_event(
            EventType::JobCompleted,
            ended(job(12), "COMPLETED", 3600),
        ))
        .await;
    outside
        .publish(&job_event(EventType::JobStarted, job(12)))
        .await;
    let costs = outside.costs(2).await;
    assert_eq!(amounts(&costs[0].1).2, Some(340_000));
    assert_eq!(amounts(&costs[1].1).0, Some(340_000));
    engine.stop().await;
    assert!(
        site.rows(OPEN_RUNS).await.is_empty(),
        "a run that has ended does not go on"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_price_is_reported_and_never_zero() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let job = Job {
        nodes: "x9".into(),
        ..job(13)
    };
    outside
        .publish(&job_event(EventType::JobStarted, job.clone()))
        .await;
    outside
        .publish(&job_event(EventType::JobFailed, ended(job, "FAILED", 60)))
        .await;
    for (_, cost) in outside.costs(2).await {
        assert_eq!(amounts(&cost), (None, None, None));
        assert!(
            cost.problem.starts_with("price_missing: ") && cost.problem.contains("x9"),
            "{}",
            cost.problem
        );
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_runs_that_started_have_a_cost() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let waiting = Job {
        state: "PENDING".into(),
        start_time: None,
        nodes: String::new(),
        alloc_tres: String::new(),
        ..job(14)
    };
    outside
        .publish(&job_event(EventType::JobBaseline, waiting.clone()))
        .await;
    // Slurm sets a start time, but no nodes, for jobs that were cancelled while pending.
    let cancelled = Job {
        start_time: Some(timestamp(submit_time())),
        end_time: Some(timestamp(submit_time())),
        ..waiting
    };
    outside
        .publish(&job_event(EventType::JobCancelled, cancelled))
        .await;
    outside
        .publish(&job_event(EventType::JobBaseline, job(15)))
        .await;
    let costs = outside.costs(1).await;
    assert_eq!(
        costs[0].0.id,
        EventId::recorded(&run(15), Slot::CostEstimated).to_string()
    );
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_ends_before_it_starts_is_parked() {
    let nats = NatsServer::start().await;
    let (outside, site) = (Outside::connect(&nats, None).await, Site::new(EXAMPLE));
    let engine = site.start(&nats.toml()).await.unwrap();
    let parked = dead_letter(&nats).await;
    outside
        .publish(&job_event(
            EventType::JobFailed,
            ended(job(16), "FAILED", -60),
        ))
        .await;
    parked.await;
    engine.stop().await;
    assert!(
        site.rows("SELECT kind, CAST(run AS BLOB) FROM costs")
            .await
            .is_empty()
    );
}
