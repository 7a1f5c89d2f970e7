//! What a run used, and what was lost, as accounting says it after the end.

use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::job::v1::{Job, Usage};
use mesh_events::{Event, EventId, EventType, RunKey, Slot};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{ended, job, job_event};

use super::little_memory;
use crate::api::get;
use crate::costs::at;
use crate::support::{Outside, Site, on_both, sum};

on_both!(
    what_a_run_used_is_said_once_accounting_has_it,
    a_corrected_cause_moves_what_is_lost,
    a_usage_is_neither_lost_nor_replaced_by_a_worse_one,
);

async fn what_a_run_used_is_said_once_accounting_has_it(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let end = ended(little_memory(7), "COMPLETED", 3600);
    for event in [
        job_event(EventType::JobStarted, little_memory(7)),
        job_event(EventType::JobCompleted, end.clone()),
    ] {
        outside.publish(&event).await;
    }
    let costs = outside.costs(2).await;
    assert_eq!(costs[1].1.waste, None, "nothing is known yet");

    // One of four CPUs, and little memory.
    let used = Usage {
        cpu_seconds: 3600,
        memory_kib: 100 << 10,
        ..Usage::default()
    };
    let measured = Job {
        usage: Some(used),
        time_limit_minutes: Some(120),
        ..end
    };
    let key = RunKey::parse(mesh_testkit::fixtures::CLUSTER, &measured.run).unwrap();
    let updated = Event {
        id: EventId::recorded(&key, Slot::Updated).to_string(),
        ..job_event(EventType::JobUpdated, measured)
    };
    outside.publish(&updated).await;
    let costs = outside.costs(3).await;
    let (event, cost) = &costs[2];
    assert_eq!(
        (event.r#type.as_str(), cost.reason.as_str()),
        ("cost.adjusted", "usage")
    );
    let micros = |money: &Option<mesh_events::proto::mesh::cost::v1::Money>| {
        money.as_ref().map(|money| money.micros)
    };
    assert_eq!(
        [
            micros(&cost.previous),
            micros(&cost.delta),
            micros(&cost.total)
        ],
        [Some(340_000), Some(0), Some(340_000)]
    );
    let waste = cost.waste.as_ref().unwrap();
    assert_eq!(
        (waste.cpu_efficiency_permille, waste.mem_peak_mib),
        (Some(250), Some(100))
    );
    assert_eq!(
        [micros(&waste.rightsized), micros(&waste.unused)],
        [Some(85_000), Some(255_000)]
    );
    // Repeated, it changes nothing. A late fact changes what was unused too.
    outside.republish(&updated, "again").await;
    outside
        .publish(&at(EventType::JobSuspended, little_memory(7), 1800))
        .await;
    let costs = outside.costs(4).await;
    let (_, cost) = &costs[3];
    assert_eq!(cost.reason, "late_fact");
    // A lost record is restored from the event.
    let usage = cost.job.as_ref().unwrap().usage.as_ref().unwrap();
    assert_eq!((usage.cpu_seconds, usage.memory_kib), (3600, 100 << 10));
    let waste = cost.waste.as_ref().unwrap();
    assert_eq!(waste.cpu_efficiency_permille, Some(500));
    let (total, unused) = (micros(&cost.total).unwrap(), micros(&waste.unused).unwrap());
    assert_eq!(Some(total - unused), micros(&waste.rightsized));
    assert_eq!(sum(&costs, 7), total);

    let failed = ended(job(8), "OUT_OF_MEMORY", 3600);
    outside
        .publish(&job_event(EventType::JobOutOfMemory, failed))
        .await;
    let costs = outside.costs(5).await;
    let waste = costs[4].1.waste.as_ref().unwrap();
    assert_eq!((waste.lost.as_str(), &waste.unused), ("oom", &None));
    for attribution in ["end", "slice"] {
        let path = format!("/v1/costs?attribution={attribution}");
        let (_, report) = get(&engine.router, "root", &path).await;
        let row = &report["rows"][0];
        assert_eq!(row["unused_micros"], unused.to_string(), "{report}");
        assert_eq!(row["lost_micros"], serde_json::json!({"oom": "340000"}));
    }
    // The parts of slices add up.
    let half = "2025-11-21T21:40:00Z";
    let mut parts = 0;
    for bounds in [format!("until={half}"), format!("since={half}")] {
        let path = format!("/v1/costs?attribution=slice&{bounds}");
        let (_, report) = get(&engine.router, "root", &path).await;
        let part = report["rows"][0]["unused_micros"].as_str().unwrap_or("0");
        parts += part.parse::<i64>().unwrap();
    }
    assert_eq!(parts, unused);
    engine.stop().await;
}

/// The cost event that an event caused.
fn caused_by<'a>(costs: &'a [(Event, CostEvent)], cause: &Event) -> Vec<&'a CostEvent> {
    let is_caused =
        |event: &Event| event.correlation.as_ref().unwrap().event_ids == [cause.id.as_str()];
    let caused = costs.iter().filter(|(event, _)| is_caused(event));
    caused.map(|(_, cost)| cost).collect()
}

/// A record of an ended run.
fn record(kind: EventType, n: u64, job: Job, usage: Option<Usage>) -> Event {
    let id = EventId::sampled(mesh_testkit::fixtures::CLUSTER, &job.run, kind, n).to_string();
    Event {
        id,
        ..job_event(kind, Job { usage, ..job })
    }
}

async fn a_corrected_cause_moves_what_is_lost(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let failed = ended(little_memory(9), "FAILED", 1800);
    let killed = ended(little_memory(9), "OUT_OF_MEMORY", 1800);
    let corrected = record(EventType::JobCorrected, 1, killed.clone(), None);
    let usage = Usage {
        cpu_seconds: 3600,
        ..Usage::default()
    };
    let measured = record(EventType::JobCorrected, 2, killed, Some(usage));
    for event in [
        &job_event(EventType::JobStarted, little_memory(9)),
        &job_event(EventType::JobFailed, failed),
        &corrected,
        &measured,
    ] {
        outside.publish(event).await;
    }
    let costs = outside.costs(4).await;
    for (cause, efficiency) in [(&corrected, None), (&measured, Some(500))] {
        let cost = caused_by(&costs, cause)[0];
        let waste = cost.waste.as_ref().unwrap();
        assert_eq!(
            (waste.lost.as_str(), waste.cpu_efficiency_permille),
            ("oom", efficiency)
        );
        assert_eq!(cost.delta.as_ref().unwrap().micros, 0);
    }
    // An older correction that comes again does not replace the newer one.
    outside.republish(&corrected, "again").await;
    outside
        .publish(&at(EventType::JobSuspended, little_memory(9), 900))
        .await;
    let (event, cost) = &outside.costs(5).await[4];
    assert_eq!(event.r#type, "cost.adjusted");
    let waste = cost.waste.as_ref().unwrap();
    assert!(waste.cpu_efficiency_permille.is_some(), "{cost:?}");
    let (_, report) = get(&engine.router, "root", "/v1/costs").await;
    let total = cost.total.as_ref().unwrap().micros.to_string();
    let lost = &report["rows"][0]["lost_micros"];
    assert_eq!(lost, &serde_json::json!({"oom": total}), "{report}");
    engine.stop().await;
}

async fn a_usage_is_neither_lost_nor_replaced_by_a_worse_one(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    let end = ended(little_memory(10), "COMPLETED", 3600);
    let updated = |n: u64, cpu_seconds, incomplete| {
        let usage = Usage {
            cpu_seconds,
            incomplete,
            ..Usage::default()
        };
        record(EventType::JobUpdated, n, end.clone(), Some(usage))
    };
    let [first, second] = [updated(1, 3600, false), updated(2, 7200, false)];
    let incomplete = updated(3, 1, true);
    let shorter = ended(little_memory(10), "COMPLETED", 2700);
    let corrected = record(EventType::JobCorrected, 4, shorter, None);
    for event in [
        &job_event(EventType::JobStarted, little_memory(10)),
        &job_event(EventType::JobCompleted, end.clone()),
        &first,
        &second,
    ] {
        outside.publish(event).await;
    }
    outside.republish(&first, "again").await;
    for event in [
        &incomplete,
        &corrected,
        &job_event(EventType::JobStarted, job(999)),
    ] {
        outside.publish(event).await;
    }
    let costs = outside.costs(6).await;
    let efficiency = |cause: &Event| {
        let costs = caused_by(&costs, cause);
        let waste = costs.iter().map(|cost| cost.waste.as_ref().unwrap());
        waste
            .map(|waste| waste.cpu_efficiency_permille)
            .collect::<Vec<_>>()
    };
    assert_eq!(efficiency(&first), [Some(250)]);
    assert_eq!(efficiency(&second), [Some(500)]);
    assert_eq!(efficiency(&incomplete), []);
    assert_eq!(efficiency(&corrected), [Some(666)]);
    engine.stop().await;
}
