//! Where the reader and the endpoints begin.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use mesh_bus::{Bus, StreamState};
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS, legacy_endpoint_consumer};
use mesh_events::webhook_name;

use super::MAX_RECENT_EVENTS;
use crate::error::Error;
use crate::store::Store;
use crate::stream::cursor::Cursor;

/// Endpoints that were created in the same minute begin with one lookup in the stream.
const SAME_CREATION_SECONDS: i64 = 60;

/// Gives every endpoint a position. Returns where the reader begins, so that every endpoint that is not far behind can be
/// attached, and the cursors.
pub(super) async fn prepare(
    bus: &Bus,
    store: &Store,
    state: &StreamState,
) -> Result<(u64, HashMap<String, Cursor>), Error> {
    let created = state.created;
    let endpoints = store.creations().await?;
    take_over_consumers(bus, store, state, &endpoints).await?;
    // A recreated stream counts from 1 again; a truncated one has other events behind its former end.
    store
        .reset_cursors(SLURM_EVENTS, created, state.last_sequence)
        .await?;
    let mut cursors = store.cursors(SLURM_EVENTS).await?;
    // By the minute: the first creation, and the names.
    let mut new: BTreeMap<i64, (DateTime<Utc>, Vec<String>)> = BTreeMap::new();
    for (name, created_at) in endpoints {
        if !cursors.contains_key(&name) {
            let minute = created_at.timestamp().div_euclid(SAME_CREATION_SECONDS);
            let (first, names) = new.entry(minute).or_insert((created_at, Vec::new()));
            *first = created_at.min(*first);
            names.push(name);
        }
    }
    for (first, names) in new.into_values() {
        let settled = bus.sequence_before(SLURM_EVENTS, first).await?;
        let begin = names.iter().map(|name| (name.clone(), settled)).collect();
        store.begin_cursors(begin, SLURM_EVENTS, created).await?;
        cursors.extend(names.into_iter().map(|name| (name, Cursor::at(settled))));
    }
    let earliest = state
        .last_sequence
        .saturating_sub(MAX_RECENT_EVENTS as u64)
        .max(state.first_sequence.saturating_sub(1));
    let near = cursors
        .values()
        .map(|cursor| cursor.settled)
        .filter(|settled| *settled >= earliest);
    Ok((near.min().unwrap_or(state.last_sequence), cursors))
}

/// Takes over the positions of the consumers that endpoints had in former versions, then deletes these consumers if it may.
async fn take_over_consumers(
    bus: &Bus,
    store: &Store,
    state: &StreamState,
    endpoints: &BTreeMap<String, DateTime<Utc>>,
) -> Result<(), Error> {
    let consumers = bus.legacy_consumers().await?;
    if consumers.is_empty() {
        return Ok(());
    }
    let replays = bus.stream_state(MESH_REPLAY).await?;
    let mut by_name: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for consumer in &consumers {
        by_name.insert((consumer.stream, &consumer.name), consumer.acknowledged);
    }
    for (stream, created) in [
        (SLURM_EVENTS, state.created),
        (MESH_REPLAY, replays.created),
    ] {
        let begin = endpoints.keys().filter_map(|endpoint| {
            let name = legacy_endpoint_consumer(endpoint);
            let own = by_name.get(&(stream, name.as_str())).copied();
            // Before names were per owner, the consumer of a user's endpoint was named by the name alone.
            let (owner, short) = (webhook_name::owner(endpoint), webhook_name::short(endpoint));
            let former = || {
                let name = legacy_endpoint_consumer(short);
                let is_its_own = |one: &&mesh_bus::LegacyConsumer| {
                    one.stream == stream && one.name == name && one.owner == owner
                };
                let found = consumers.iter().find(is_its_own);
                found
                    .filter(|_| !owner.is_empty())
                    .map(|one| one.acknowledged)
            };
            // Nothing acknowledged: it begins at its creation.
            let settled = own.or_else(former).filter(|settled| *settled > 0)?;
            Some((endpoint.clone(), settled))
        });
        store
            .begin_cursors(begin.collect(), stream, created)
            .await?;
    }
    // Without this right the server deletes them when nobody has read them for some time.
    if bus.provisions() {
        for consumer in &consumers {
            bus.delete_legacy_consumer(consumer).await?;
        }
    }
    tracing::info!(
        consumers = consumers.len(),
        "positions of consumers moved to the database"
    );
    Ok(())
}
