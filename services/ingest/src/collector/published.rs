//! Restores what was published, but not stored before a crash.
//!
//! What is published again has the same id, but a later record need not show the same: a run that loses its node in the second of its
//! submission starts again under the same submit time (seen on 22.05), and a lookup whose answer was published may time out now.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Bus, StoredMessages};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::{Event, subject};
use mesh_runtime::{Condition, error_chain};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::adapters::capture_state::CaptureState;
use crate::adapters::fenced::{BACKOFF, pause};
use crate::adapters::shards::shard_of;
use crate::domain::{RunStore, restore};

/// Clocks of NATS and of this host may differ this much.
const MAX_CLOCK_DIFFERENCE: TimeDelta = TimeDelta::minutes(2);

/// Adds what was published since the last stored poll to the run store, which has ended runs for `retention`. Returns the shards that it changed.
///
/// Retries until success: without it, a second start of a run would be published with the id of the first one, and dropped as a repetition.
///
/// # Errors
/// On shutdown.
pub(super) async fn restore_published(
    bus: &Bus,
    cluster: &str,
    capture: &CaptureState,
    run_store: &mut RunStore,
    retention: Duration,
    condition: &Condition,
    shutdown: &CancellationToken,
) -> Result<BTreeSet<u32>, Error> {
    let mut changed = BTreeSet::new();
    let mut backoff = BACKOFF;
    loop {
        let restored = async {
            let messages = unstored(bus, cluster, capture).await?;
            restore_all(messages, run_store, retention, &mut changed).await
        };
        let Err(error) = restored.await else {
            condition.ok();
            return Ok(changed);
        };
        let error = error_chain(&error);
        tracing::warn!(error, "published events not read, retrying");
        condition.fail(format!(
            "published events not read, which the NATS user ingest must be allowed to (smesh nats config): {error}"
        ));
        pause(shutdown, &mut backoff).await?;
    }
}

/// Returns the events whose states may not be stored.
async fn unstored(
    bus: &Bus,
    cluster: &str,
    capture: &CaptureState,
) -> Result<StoredMessages, mesh_bus::Error> {
    let jobs = format!("slurm.{}.job.>", subject::token(cluster));
    // A stream that was deleted and declared again counts from 1.
    if capture.published > 0
        && bus.stream_state(SLURM_EVENTS).await?.last_sequence >= capture.published
    {
        return Ok(bus.stored_messages_after(SLURM_EVENTS, jobs, capture.published));
    }
    let before_jump = capture.ahead_from.unwrap_or(capture.watermark);
    let watermark =
        DateTime::from_timestamp(capture.watermark.min(before_jump), 0).unwrap_or_default();
    Ok(bus.stored_messages_since(SLURM_EVENTS, jobs, watermark - MAX_CLOCK_DIFFERENCE))
}

async fn restore_all(
    mut stored: StoredMessages,
    run_store: &mut RunStore,
    retention: Duration,
    changed: &mut BTreeSet<u32>,
) -> Result<(), mesh_bus::Error> {
    let retention = i64::try_from(retention.as_secs()).unwrap_or(i64::MAX);
    loop {
        let messages = stored.next().await?;
        if messages.is_empty() {
            return Ok(());
        }
        let now = Utc::now().timestamp();
        for message in messages {
            // What cannot be decoded was not published by ingest.
            let Ok(event) = Event::from_bytes(&message.body) else {
                continue;
            };
            // By the clock of NATS: the own one may have been ahead.
            let oldest = message.published.timestamp().saturating_sub(retention);
            if let Some((run, state)) = restore(run_store, &event, now, oldest) {
                tracing::info!(
                    run = run.entity_key(),
                    r#type = event.r#type,
                    "restored from the bus"
                );
                changed.insert(shard_of(&state));
                run_store.put(run, state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_bus::Config;
    use mesh_events::proto::mesh::event::v1::event::Payload;
    use mesh_events::proto::mesh::event::v1::{Entity, Source};
    use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
    use mesh_events::{EventId, EventType, RunKey, SCHEMA_VERSION, Slot, timestamp};
    use mesh_runtime::Health;
    use mesh_testkit::{NatsServer, wait_for};
    use pbjson_types::Timestamp;

    use std::sync::Arc;

    use super::*;
    use crate::collector::Collector;
    use crate::identity::IdentityResolver;

    const RETENTION: Duration = Duration::from_secs(3_600);

    fn started(run: &RunKey) -> Event {
        let at = Some(Timestamp {
            seconds: run.submit_time + 1,
            nanos: 0,
        });
        Event {
            id: EventId::recorded(run, Slot::Started).to_string(),
            cluster: run.cluster.clone(),
            r#type: EventType::JobStarted.to_string(),
            occurred_at: at,
            observed_at: Some(timestamp(Utc::now())),
            source: Source::Sweep.into(),
            entity: Some(Entity {
                kind: "job".to_owned(),
                key: run.entity_key(),
            }),
            run_seq: 2,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::Job(JobEvent {
                job: Some(Job {
                    job_id: run.job_id,
                    start_time: at,
                    ..Job::default()
                }),
                ..JobEvent::default()
            })),
            ..Event::default()
        }
    }

    async fn connect(nats: &NatsServer) -> (Bus, CancellationToken) {
        let config = Config {
            url: nats.url(),
            ..Config::default()
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        let shutdown = CancellationToken::new();
        bus.ready(&shutdown).await.unwrap();
        (bus, shutdown)
    }

    fn run() -> RunKey {
        RunKey {
            cluster: "c".to_owned(),
            job_id: 7,
            task_id: None,
            submit_time: Utc::now().timestamp(),
            attempt: 0,
        }
    }

    async fn load(nats: &NatsServer) -> Collector {
        let (bus, shutdown) = connect(nats).await;
        let settings = Arc::new(crate::config::Config::default());
        let identities = Arc::new(IdentityResolver::new(None, &settings.identity));
        let condition = Health::default().condition("ingest.state");
        Collector::load(bus, "c", false, settings, identities, condition, shutdown)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn progress_is_not_stored_before_the_runs_that_it_is_about() {
        let nats = NatsServer::start().await;
        let collector = load(&nats).await;
        collector.state().await.capture.backlog_from = Some(100);
        collector.flush().await.unwrap();
        {
            let mut state = collector.state().await;
            (state.capture.backlog_from, state.capture.published) = (None, 7);
            state.dirty.insert(1);
        }
        let gap = mesh_events::proto::mesh::capture::v1::CaptureEvent::default();
        let kind = EventType::CaptureGapClosed;
        collector.capture(kind, gap.clone()).await.unwrap();
        let killed = load(&nats).await.state().await.capture.clone();
        assert_eq!((killed.backlog_from, killed.published), (Some(100), 0));
        let collector = load(&nats).await;
        {
            let mut state = collector.state().await;
            (state.capture.backlog_from, state.capture.published) = (None, 7);
        }
        collector.flush().await.unwrap();
        collector.capture(kind, gap).await.unwrap();
        let stopped = load(&nats).await.state().await.capture.clone();
        assert_eq!((stopped.backlog_from, stopped.published), (None, 7));
    }

    #[tokio::test]
    async fn an_event_whose_publication_was_not_confirmed_is_published_once_however_late_the_next_start_is()
     {
        let nats = NatsServer::start().await;
        let collector = load(&nats).await;
        let client = async_nats::connect(nats.url()).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let mut stream = jetstream.get_stream(SLURM_EVENTS).await.unwrap();
        let mut config = stream.cached_info().config.clone();
        config.duplicate_window = Duration::from_millis(100);
        jetstream.update_stream(config).await.unwrap();
        let gap = mesh_events::proto::mesh::capture::v1::CaptureEvent::default();
        let kind = EventType::CaptureGapClosed;
        collector.capture(kind, gap).await.unwrap();
        // The bus no longer recognizes the id.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for published in [1, 1] {
            load(&nats).await;
            assert_eq!(stream.info().await.unwrap().state.messages, published);
        }
        // As if it had been killed before it published.
        stream.purge().await.unwrap();
        load(&nats).await;
        assert_eq!(stream.info().await.unwrap().state.messages, 1);
    }

    #[tokio::test]
    async fn what_a_new_stream_has_is_restored_by_its_time() {
        let nats = NatsServer::start().await;
        let collector = load(&nats).await;
        let run = run();
        collector.bus.publish(&started(&run)).await.unwrap();
        {
            // The old stream had more.
            let mut state = collector.state().await;
            state.capture.published = 1_000;
            state.capture.watermark = run.submit_time;
        }
        collector.flush().await.unwrap();
        let next = load(&nats).await;
        assert!(next.state().await.run_store.get(&run).is_some());
    }

    #[tokio::test]
    async fn a_kill_during_the_first_poll_does_not_move_the_beginning_of_capture() {
        let nats = NatsServer::start().await;
        let began = Utc::now().timestamp();
        let mut since = Vec::new();
        for _ in 0..2 {
            let capture = load(&nats).await.state().await.capture.clone();
            since.push(capture.capture_since);
            // The next start is in another second, so that a new beginning would differ.
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
        assert!(since[0] >= began && since[0] == since[1], "{since:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_waits_until_published_events_are_read() {
        let mut nats = NatsServer::start().await;
        let (bus, shutdown) = connect(&nats).await;
        let run = run();
        bus.publish(&started(&run)).await.unwrap();
        nats.kill();
        let health = Health::default();
        let condition = health.condition("ingest.state");
        condition.ok();
        let capture = CaptureState {
            watermark: run.submit_time,
            ..CaptureState::default()
        };
        let restoring = tokio::spawn(async move {
            let mut run_store = RunStore::default();
            let changed = restore_published(
                &bus,
                "c",
                &capture,
                &mut run_store,
                RETENTION,
                &condition,
                &shutdown,
            )
            .await;
            (run_store, changed.unwrap())
        });
        wait_for("it is not ready", Duration::from_secs(60), async || {
            health.problems().contains_key("ingest.state").then_some(())
        })
        .await;
        // Longer than a few attempts take.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert!(!restoring.is_finished());
        nats.restart().await;
        let (run_store, changed) = restoring.await.unwrap();
        let restored = run_store.get(&run).and_then(|state| state.started);
        assert_eq!(restored, Some(run.submit_time + 1));
        assert_eq!(changed.len(), 1);
        assert!(health.problems().is_empty());
    }
}
