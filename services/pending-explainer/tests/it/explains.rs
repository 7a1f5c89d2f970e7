//! Explanations of events and snapshots.

use chrono::{TimeDelta, Utc};
use mesh_events::{EventId, EventType, subject};
use mesh_testkit::{NatsServer, fixtures};

use crate::harness::{
    bus, explained, explanation, published_so_far, row, snapshot, start, waiting,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_is_explained_once_per_class() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    let submitted = waiting(1, EventType::JobSubmitted, "None", 1);
    let pending = waiting(1, EventType::JobPending, "Resources", 2);
    let still = waiting(1, EventType::JobPending, "Priority", 3);
    let held = waiting(1, EventType::JobHeld, "JobHeldUser", 4);
    for event in [&submitted, &pending, &still, &held] {
        bus.publish(event).await.unwrap();
    }
    let events = explained(&bus, 2).await;
    let expected = [(&pending, "waiting_turn"), (&held, "held")];
    for (event, (cause, class)) in events.iter().zip(expected) {
        assert_eq!(
            event.id,
            EventId::derived(cause.id.parse().unwrap(), EventType::QueueExplained, 0).to_string()
        );
        assert_eq!(
            event.correlation.as_ref().unwrap().event_ids,
            [cause.id.as_str()]
        );
        assert_eq!(event.owner, cause.owner);
        assert_eq!(event.job(), cause.job());
        assert_eq!(explanation(event).reason_class, class);
        assert_eq!(
            subject::of(event).unwrap(),
            "slurm.testbed.queue.explained.cpu.alice"
        );
    }
    service.stop().await;
    assert_eq!(published_so_far(&bus).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_started_job_is_not_explained_any_more() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    bus.publish(&waiting(1, EventType::JobPending, "Dependency", 1))
        .await
        .unwrap();
    explained(&bus, 1).await;
    let started = mesh_events::Event {
        run_seq: 2,
        ..fixtures::job_event(EventType::JobStarted, fixtures::job(1))
    };
    bus.publish(&started).await.unwrap();
    bus.publish(&waiting(2, EventType::JobPending, "Dependency", 1))
        .await
        .unwrap();
    explained(&bus, 2).await;
    snapshot(
        &bus,
        vec![row(1, 5, Some(Utc::now() + TimeDelta::hours(2)))],
        Utc::now() + TimeDelta::seconds(2),
    )
    .await;
    bus.publish(&waiting(3, EventType::JobPending, "Dependency", 1))
        .await
        .unwrap();
    let events = explained(&bus, 3).await;
    assert_eq!(
        events
            .iter()
            .filter(|event| event.job().unwrap().job_id == 1)
            .count(),
        1
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expected_start_of_the_snapshot_is_published_once() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    let pending = waiting(1, EventType::JobPending, "Priority", 1);
    bus.publish(&pending).await.unwrap();
    explained(&bus, 1).await;
    let start = Utc::now() + TimeDelta::hours(2);
    // Two seconds ahead, because a snapshot of the same second as the event would count as older.
    snapshot(
        &bus,
        vec![row(1, 5, Some(start)), row(2, 9, None)],
        Utc::now() + TimeDelta::seconds(2),
    )
    .await;
    let events = explained(&bus, 2).await;
    assert_eq!(
        events[1].id,
        EventId::derived(pending.id.parse().unwrap(), EventType::QueueExplained, 1).to_string()
    );
    let published = explanation(&events[1]);
    assert_eq!(
        published.expected_start.as_ref().unwrap().seconds,
        start.timestamp()
    );
    assert!(
        published
            .summary
            .starts_with("One waiting job of higher priority is ahead of it in partition cpu."),
        "{}",
        published.summary
    );
    // It moves by an hour, but ten minutes have not passed.
    snapshot(
        &bus,
        vec![row(1, 5, Some(start + TimeDelta::hours(1)))],
        Utc::now() + TimeDelta::seconds(4),
    )
    .await;
    bus.publish(&waiting(2, EventType::JobPending, "Priority", 1))
        .await
        .unwrap();
    explained(&bus, 3).await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_no_event_is_parked_and_does_not_stop_the_others() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    bus.publish_raw(
        "slurm.testbed.job.pending.cpu.alice".into(),
        "junk",
        b"\xff\xff".to_vec(),
    )
    .await
    .unwrap();
    bus.publish(&waiting(1, EventType::JobPending, "Priority", 1))
        .await
        .unwrap();
    use futures_util::StreamExt as _;
    let mut events = Box::pin(
        bus.follow("slurm.*.queue.>", mesh_bus::StartPosition::Sequence(1))
            .await
            .unwrap(),
    );
    let event = tokio::time::timeout(crate::harness::DEADLINE, events.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .event()
        .unwrap();
    assert_eq!(event.job().unwrap().job_id, 1);
    service.stop().await;
}
