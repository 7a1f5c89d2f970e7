//! `cost.accrued` of running jobs.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};
use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId, EventType, Slot, timestamp};
use mesh_testkit::fixtures::{ended, job, job_event, run};
use mesh_testkit::{NatsServer, Postgres};
use prost::Message as _;

use crate::support::{EXAMPLE, Outside, Site, on_both};

on_both!(
    a_running_job_passes_amounts_once_though_its_engine_is_killed,
    a_run_whose_end_is_still_in_the_bus_passes_no_later_amount,
    of_a_run_that_nobody_saw_only_the_last_day_has_intervals,
);

/// One cent per second.
const CENT: &str = "name = \"cent\"\nversion = \"1\"\ncurrency = \"EUR\"\nmode = \"whole_node\"\n[[node_type]]\nname = \"all\"\ncpu = 4\nmem = 8192\ngpu = 0\n\
    [[node_type.price]]\non_demand = \"36.00\"\n";

const OUTBOX: &str = "SELECT event_id, body FROM outbox ORDER BY seq";
/// The events of a user that may not publish costs stay in the outbox.
const USERS: &str = r#"authorization { users = [
    { user: "free", password: "x" },
    { user: "mute", password: "x", permissions: { publish: { deny: ["slurm.*.cost.>"] } } }
] }"#;

fn login(nats: &NatsServer, user: &str) -> String {
    let url = nats.url();
    format!("url = \"{url}\"\nuser = \"{user}\"\npassword = \"x\"")
}

/// Waits until the outbox has this many events more than before. Returns type and job of the new ones.
async fn new_in_outbox(
    site: &Site,
    before: &[(String, Vec<u8>)],
    count: usize,
) -> Vec<(String, u32)> {
    let new = async || {
        let mut rows = site.rows(OUTBOX).await;
        rows.retain(|row| !before.contains(row));
        rows
    };
    mesh_testkit::wait_until(
        "new events are in the outbox",
        crate::support::DEADLINE,
        async || new().await.len() >= count,
    )
    .await;
    let read = |(_, body): (String, Vec<u8>)| {
        let event = Event::decode(body.as_slice()).unwrap();
        let Some(Payload::Cost(cost)) = event.payload else {
            panic!("no cost");
        };
        (event.r#type, cost.job.unwrap().job_id)
    };
    new().await.into_iter().map(read).collect()
}

fn estimated_and_accrued(job: u32) -> Vec<(String, u32)> {
    ["cost.estimated", "cost.accrued"]
        .map(|kind| (kind.to_owned(), job))
        .into()
}

/// A job that started this many seconds ago.
fn running(id: u32, seconds: i64) -> Job {
    Job {
        start_time: Some(timestamp(Utc::now() - TimeDelta::seconds(seconds))),
        time_limit_minutes: None,
        ..job(id)
    }
}

/// Type, amount that was passed, and cost so far, in currency units.
fn written((event, cost): &(Event, CostEvent)) -> String {
    let units = |money: &Option<mesh_events::proto::mesh::cost::v1::Money>| {
        money.as_ref().map_or(0, |money| money.micros / 1_000_000)
    };
    let passed = (units(&cost.threshold), units(&cost.accrued));
    match event.r#type.as_str() {
        "cost.accrued" => format!("accrued {} {}", passed.0, passed.1),
        other => other.to_owned(),
    }
}

async fn a_running_job_passes_amounts_once_though_its_engine_is_killed(site: Site) {
    let nats = NatsServer::start_with(USERS).await;
    let outside = Outside::connect(&nats, Some("free")).await;
    let site = site.with_accruals();
    site.write_book(CENT);
    let engine = site.start(&login(&nats, "free")).await.unwrap();
    // Ten units were passed 500 seconds ago, while nobody looked.
    let job = running(1, 1_500);
    let mut started = job_event(EventType::JobStarted, job.clone());
    started.run_seq = 2;
    outside.publish(&started).await;
    let costs = outside.costs(2).await;
    let (event, cost) = &costs[1];
    let start = job.start_time.as_ref().unwrap().seconds;
    let estimate = EventId::recorded(&run(1), Slot::CostEstimated);
    let id = EventId::derived(estimate, EventType::CostAccrued, 20_000_001);
    assert_eq!(
        (event.r#type.as_str(), &event.id, event.late, event.run_seq),
        ("cost.accrued", &id.to_string(), true, 2)
    );
    assert_eq!(EventId::recomputed(event), Some(id));
    assert_eq!(
        (&event.owner, &event.entity),
        (&started.owner, &started.entity)
    );
    let as_of = cost.as_of.as_ref().unwrap();
    assert_eq!((as_of.seconds, as_of.nanos), (start + 1_000, 0));
    assert_eq!(event.occurred_at, cost.as_of);
    assert_eq!(cost.accrued.as_ref().unwrap().micros, 10_000_000);
    assert_eq!(cost.burn_rate.as_ref().unwrap().micros, 36_000_000);
    assert_eq!(
        (cost.class(), cost.charged_seconds),
        (CostClass::Open, 1_000)
    );
    assert_eq!(cost.reason, "threshold");

    engine.kill().await;
    let before = site.rows(OUTBOX).await;
    let engine = site.start(&login(&nats, "mute")).await.unwrap();
    // The next one passes its amount in the first evaluation after the start, which has looked at the first job, too.
    outside
        .publish(&job_event(EventType::JobStarted, running(2, 1_500)))
        .await;
    // JetStream would drop a repeat, the outbox has it.
    let new = new_in_outbox(&site, &before, 2).await;
    assert_eq!(new, estimated_and_accrued(2));
    engine.kill().await;
    let engine = site.start(&login(&nats, "free")).await.unwrap();
    let costs = outside.costs(4).await;
    let lines: Vec<String> = costs[2..].iter().map(written).collect();
    assert_eq!(lines, ["cost.estimated", "accrued 10 10"]);
    assert_eq!(costs[3].1.job.as_ref().unwrap().job_id, 2);

    // At its end a job passes what is left, before its final cost. The amount of the very end is passed no more.
    let end = |seconds: i64| {
        let mut record = ended(job.clone(), "COMPLETED", 0);
        let end = timestamp(chrono::DateTime::from_timestamp(start + seconds, 0).unwrap());
        record.end_time = Some(end);
        record
    };
    outside
        .publish(&job_event(EventType::JobCompleted, end(100_000)))
        .await;
    let costs = outside.costs(6).await;
    let lines: Vec<String> = costs[4..].iter().map(written).collect();
    assert_eq!(lines, ["accrued 100 100", "cost.finalized"]);
    assert!(!costs[4].0.late, "its time is in the future");
    engine.stop().await;
}

async fn of_a_run_that_nobody_saw_only_the_last_day_has_intervals(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let site = site.with_accrual_keys("accrue_every = \"1h\"\n");
    site.write_book(CENT);
    let job = running(1, 3 * 86_400);
    let mut record = ended(job.clone(), "COMPLETED", 0);
    record.end_time = Some(timestamp(Utc::now()));
    for (kind, job) in [
        (EventType::JobStarted, job),
        (EventType::JobCompleted, record),
    ] {
        outside.publish(&job_event(kind, job)).await;
    }
    let engine = site.start(&nats.toml()).await.unwrap();
    // The estimate, three amounts, 24 hours, and the final cost.
    let costs = outside.costs(29).await;
    let of = |reason: &str| {
        costs
            .iter()
            .filter(|(_, cost)| cost.reason == reason)
            .count()
    };
    assert_eq!([of("threshold"), of("interval")], [3, 24]);
    assert_eq!(costs[28].0.r#type, "cost.finalized");
    engine.stop().await;
}

async fn a_run_whose_end_is_still_in_the_bus_passes_no_later_amount(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    site.write_book(CENT);
    let engine = site.start(&nats.toml()).await.unwrap();
    let job = running(1, 1_500);
    let started = job_event(EventType::JobStarted, job.clone());
    outside.publish(&started).await;
    outside.costs(1).await;
    engine.kill().await;
    // It ended before it cost ten units, which nobody has handled when the next engine starts.
    let start = job.start_time.as_ref().unwrap().seconds;
    let mut record = ended(job, "COMPLETED", 0);
    record.end_time = chrono::DateTime::from_timestamp(start + 500, 0).map(timestamp);
    outside
        .publish(&job_event(EventType::JobCompleted, record))
        .await;
    let site = site.with_accruals();
    let engine = site.start(&nats.toml()).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, running(2, 1_500)))
        .await;
    let costs = outside.costs(4).await;
    // The end may have been sent to the killed engine, and come again after that of the second job.
    let mut lines: Vec<String> = costs.iter().map(written).collect();
    lines[..3].sort_unstable();
    let expected = [
        "cost.estimated",
        "cost.estimated",
        "cost.finalized",
        "accrued 10 10",
    ];
    assert_eq!(lines, expected);
    assert_eq!(costs[3].1.job.as_ref().unwrap().job_id, 2);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_the_commit_publishes_the_same_bytes_once() {
    let nats = NatsServer::start_with(USERS).await;
    let outside = Outside::connect(&nats, Some("free")).await;
    let site = Site::new(EXAMPLE).with_accruals();
    site.write_book(CENT);
    let engine = site.start(&login(&nats, "mute")).await.unwrap();
    let started = job_event(EventType::JobStarted, running(3, 1_500));
    outside.publish(&started).await;
    mesh_testkit::wait_until(
        "both are in the outbox",
        crate::support::DEADLINE,
        async || site.rows(OUTBOX).await.len() == 2,
    )
    .await;
    engine.kill().await;
    let committed = site.rows(OUTBOX).await;
    let engine = site.start(&login(&nats, "free")).await.unwrap();
    // The next job's events come after an evaluation of all jobs.
    outside
        .publish(&job_event(EventType::JobStarted, running(4, 1_500)))
        .await;
    let published = outside.messages("slurm.*.cost.>", 4).await;
    let bytes = published[..2].iter().map(|message| message.body.to_vec());
    assert!(bytes.eq(committed.into_iter().map(|(_, body)| body)));
    let job = |at: usize| published[at].event().unwrap().job().unwrap().job_id;
    assert_eq!([2, 3].map(job), [4, 4]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_engines_on_one_database_one_publishes() {
    const JOBS: u32 = 40;
    let nats = NatsServer::start_with(USERS).await;
    let outside = Outside::connect(&nats, Some("free")).await;
    let url = Postgres::shared().await.create_database();
    let site = || {
        let site = Site::at(EXAMPLE, url.clone()).with_accruals();
        site.write_book(CENT);
        site
    };
    let sites = [site(), site(), site()];
    let first = sites[0].start(&login(&nats, "free")).await.unwrap();
    let second = sites[1].start(&login(&nats, "free")).await.unwrap();
    for id in 1..=JOBS {
        let started = job_event(EventType::JobStarted, running(id, 15_000));
        outside.publish(&started).await;
    }
    let costs = outside.costs(3 * JOBS as usize).await;
    // A third engine evaluates all of them for the first time.
    first.kill().await;
    second.stop().await;
    let before = sites[2].rows(OUTBOX).await;
    let third = sites[2].start(&login(&nats, "mute")).await.unwrap();
    let marker = job_event(EventType::JobStarted, running(9_999, 1_500));
    outside.publish(&marker).await;
    // JetStream would drop a repeat, the outbox has it.
    let new = new_in_outbox(&sites[2], &before, 2).await;
    assert_eq!(new, estimated_and_accrued(9_999));
    let of_job = |id: u32| {
        let own = costs
            .iter()
            .filter(move |(_, cost)| cost.job.as_ref().unwrap().job_id == id);
        own.map(written).collect::<Vec<_>>()
    };
    for id in 1..=JOBS {
        let expected = ["cost.estimated", "accrued 10 10", "accrued 100 100"];
        assert_eq!(of_job(id), expected, "job {id}");
    }
    let ids: BTreeSet<&str> = costs.iter().map(|(event, _)| event.id.as_str()).collect();
    assert_eq!(ids.len(), costs.len());
    third.kill().await;
}
