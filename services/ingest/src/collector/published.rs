//! Restores what was published, but not stored before a crash.
//!
//! What is published again has the same id, but a later record need not show the same: a run that loses its node in the second of its
//! submission starts again under the same submit time (seen on 22.05), and a lookup whose answer was published may time out now.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Bus, StoredMessages};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::{Event, subject};
use mesh_runtime::error_chain;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::adapters::fenced::{BACKOFF, pause};
use crate::adapters::store::{Meta, Store};
use crate::domain::{RunStore, restore};

/// Clocks of NATS and of this host may differ this much.
const MAX_CLOCK_DIFFERENCE: TimeDelta = TimeDelta::minutes(2);
/// NATS works, because the state was read from it. What fails repeatedly is the right to read the stream.
const MAX_ATTEMPTS: usize = 3;

/// Adds what was published since the last stored poll to the run store. Returns the shards that it changed.
///
/// # Errors
/// On shutdown.
pub(super) async fn restore_published(
    bus: &Bus,
    cluster: &str,
    meta: &Meta,
    run_store: &mut RunStore,
    shutdown: &CancellationToken,
) -> Result<BTreeSet<u32>, Error> {
    let mut changed = BTreeSet::new();
    let mut backoff = BACKOFF;
    for attempt in 1..=MAX_ATTEMPTS {
        let messages = unstored(bus, cluster, meta);
        let Err(error) = restore_all(messages, run_store, &mut changed).await else {
            return Ok(changed);
        };
        let error = error_chain(&error);
        if attempt < MAX_ATTEMPTS {
            tracing::warn!(error, "published events not read, retrying");
            pause(shutdown, &mut backoff).await?;
        } else {
            tracing::error!(
                error,
                "published events not read: events from just before a crash may be published again with other content; check the \
                 rights of the NATS user ingest (smesh nats config)"
            );
        }
    }
    Ok(changed)
}

/// Returns the events whose states may not be stored.
fn unstored(bus: &Bus, cluster: &str, meta: &Meta) -> StoredMessages {
    let jobs = format!("slurm.{}.job.>", subject::token(cluster));
    if meta.published > 0 {
        return bus.stored_messages_after(SLURM_EVENTS, jobs, meta.published);
    }
    let watermark = DateTime::from_timestamp(meta.watermark, 0).unwrap_or_default();
    bus.stored_messages_since(SLURM_EVENTS, jobs, watermark - MAX_CLOCK_DIFFERENCE)
}

async fn restore_all(
    mut stored: StoredMessages,
    run_store: &mut RunStore,
    changed: &mut BTreeSet<u32>,
) -> Result<(), mesh_bus::Error> {
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
            if let Some((run, state)) = restore(run_store, &event, now) {
                tracing::info!(
                    run = run.entity_key(),
                    r#type = event.r#type,
                    "restored from the bus"
                );
                changed.insert(Store::shard_of(&state));
                run_store.put(run, state);
            }
        }
    }
}
