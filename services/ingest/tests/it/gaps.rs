//! The public bus has lost events. A ledger reports the gap, and they are republished.

use std::collections::BTreeSet;

use chrono::{Duration, Utc};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::{Entity, event::Payload};
use mesh_events::{Event, EventId, EventType, timestamp};
use mesh_testkit::wait_for;

use crate::cluster::{self, NAME};
use crate::mesh::{DEADLINE, Mesh};

/// Whether Slurm records the fact: not so for pending, holds and usage.
fn is_recorded(event: &Event) -> bool {
    !["job.pending", "job.held", "job.released", "job.updated"].contains(&event.r#type.as_str())
}

fn gap_opened(n: u64, from: chrono::DateTime<Utc>) -> Event {
    let kind = EventType::CaptureGapOpened;
    Event {
        id: EventId::sampled(NAME, "capture/stream/SLURM_EVENTS/1", kind, n).to_string(),
        cluster: NAME.into(),
        r#type: kind.to_string(),
        occurred_at: Some(timestamp(Utc::now())),
        observed_at: Some(timestamp(Utc::now())),
        entity: Some(Entity {
            kind: "cluster".into(),
            key: "capture/stream".into(),
        }),
        payload: Some(Payload::Capture(CaptureEvent {
            source: "stream".into(),
            from: Some(timestamp(from)),
            to: Some(timestamp(Utc::now())),
            ..CaptureEvent::default()
        })),
        ..Event::default()
    }
}

/// Purges the stream, as by its limits, but within the time in which JetStream discards a known message id.
pub async fn lose_everything(mesh: &Mesh) {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream(SLURM_EVENTS).await.unwrap();
    stream.purge().await.unwrap();
}

/// Reports the `n`th gap like a ledger, from the given time on, and waits until it is filled.
pub async fn filled(mesh: &Mesh, n: u64, from: chrono::DateTime<Utc>) -> CaptureEvent {
    let opened = gap_opened(n, from);
    mesh.bus.publish(&opened).await.unwrap();
    let closed = mesh
        .wait_event("the gap is closed", |event| {
            let cause = event.correlation.as_ref();
            event.r#type == "capture.gap_closed"
                && cause.is_some_and(|cause| cause.event_ids == [opened.id.clone()])
        })
        .await;
    let expected = EventId::derived(opened.id.parse().unwrap(), EventType::CaptureGapClosed, 0);
    assert_eq!(closed.id, expected.to_string());
    let Some(Payload::Capture(gap_closed)) = &closed.payload else {
        panic!("an event of capture")
    };
    gap_closed.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_lost_from_the_stream_are_republished_with_the_same_ids() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let begin = Utc::now() - Duration::seconds(1);
    let ingest = mesh
        .ingest(cluster, "poll_interval = \"500ms\"")
        .await
        .ready()
        .await;
    let completed = cluster.sbatch(&[], "true").await;
    let failed = cluster.sbatch(&[], "exit 3").await;
    let array = cluster.sbatch(&["--array=0-2"], "true").await;
    let never = cluster.sbatch(&["--begin=now+1hour"], "true").await;
    let waits = cluster.sbatch(&["--hold"], "true").await;
    let runs = cluster.sbatch(&[], "sleep 300").await;
    let histories = [
        (completed, "submitted started completed"),
        (failed, "submitted started failed"),
        (
            array,
            "submitted | started completed | started completed | started completed",
        ),
        (runs, "submitted started"),
    ];
    for (job, history) in histories {
        mesh.wait_history(job, history).await;
    }
    mesh.wait_event("the held one", |event| {
        event.r#type == "job.submitted" && event.job().unwrap().job_id == waits
    })
    .await;
    cluster.run("alice", &["scancel", &never.to_string()]).await;
    mesh.wait_history(never, "submitted cancelled").await;
    let jobs = [completed, failed, array, never, waits, runs];
    let recorded = |events: Vec<Event>| -> BTreeSet<String> {
        let recorded = events.into_iter().filter(is_recorded);
        recorded.map(|event| event.id).collect()
    };
    let lost: BTreeSet<String> = jobs
        .iter()
        .flat_map(|job| recorded(mesh.of_job(*job)))
        .collect();
    assert_eq!(lost.len(), 3 + 3 + 7 + 2 + 1 + 2);

    lose_everything(&mesh).await;
    let before = mesh.events().len();
    let gap_closed = filled(&mesh, 1, begin).await;
    assert!(gap_closed.recovered >= lost.len() as u64, "{gap_closed:?}");
    assert!(
        gap_closed.not_recoverable.contains("does not record"),
        "{gap_closed:?}"
    );
    let mut republished = mesh.events().split_off(before);
    republished.retain(|event| {
        event.job().is_some_and(|job| {
            let array = job.array.as_ref().map_or(0, |array| array.job_id);
            jobs.contains(&job.job_id) || jobs.contains(&array)
        })
    });
    assert!(
        republished
            .iter()
            .all(|event| event.late || !is_recorded(event))
    );
    assert_eq!(recorded(republished), lost, "the same facts, no others");

    // A time without facts has nothing to republish.
    let gap_closed = filled(&mesh, 2, Utc::now() + Duration::hours(2)).await;
    assert_eq!(gap_closed.recovered, 0);
    for job in [waits, runs] {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
    }
    ingest.stop().await;
}

/// Accounting has overwritten how the first run ended (22.05 and 24.11).
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_finished_job_that_was_requeued_is_republished_as_it_was() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let begin = Utc::now() - Duration::seconds(1);
    let settings = "poll_interval = \"500ms\"\nmissing_record_timeout = \"3s\"";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let job = cluster.sbatch(&["--requeue"], "sleep 300").await;
    let id = job.to_string();
    mesh.wait_history(job, "submitted started").await;
    cluster.run("alice", &["scancel", &id]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    let ended_at = mesh.last(job, "job.cancelled").occurred_at;
    let ended_at = ended_at.unwrap().seconds;
    wait_for("time has passed since its end", DEADLINE, async || {
        (Utc::now().timestamp() > ended_at + 3).then_some(())
    })
    .await;
    cluster.run("root", &["scontrol", "requeue", &id]).await;
    let history = "submitted started cancelled | submitted started";
    mesh.wait_history(job, history).await;
    let facts = |events: Vec<Event>| -> BTreeSet<String> {
        let recorded = events.into_iter().filter(is_recorded);
        let described = recorded.filter(|event| event.r#type != "job.corrected");
        let described = described.map(|event| {
            let (at, confidence) = (event.occurred_at.unwrap().seconds, event.confidence());
            let job = event.job().unwrap();
            let state = match event.r#type.as_str() {
                "job.cancelled" => job.state.as_str(),
                _ => "",
            };
            let end = job.end_time.filter(|_| !state.is_empty());
            let end = end.map(|end| end.seconds);
            let (id, kind) = (&event.id, &event.r#type);
            format!("{id} {kind} {at} {confidence:?} {state} {end:?}")
        });
        described.collect()
    };
    let published = facts(mesh.of_job(job));
    assert_eq!(published.len(), 5);
    lose_everything(&mesh).await;
    let before = mesh.events().len();
    filled(&mesh, 1, begin).await;
    let mut republished = mesh.events().split_off(before);
    republished.retain(|event| event.job().is_some_and(|known| known.job_id == job));
    assert_eq!(facts(republished), published);
    cluster.run("alice", &["scancel", &id]).await;
    ingest.stop().await;
}
