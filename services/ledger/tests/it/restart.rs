//! kill -9 of the ledger and of NATS in the middle of a load: nothing is lost or duplicated.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ledger::verify_database;
use mesh_events::EventType;
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures;
use tokio_util::sync::CancellationToken;

use crate::support::{Database, Process, bus, on_both};

on_both!(killed_during_a_load_it_holds_the_same_set_with_a_dense_sequence,);

const JOBS: u32 = 1500;

async fn killed_during_a_load_it_holds_the_same_set_with_a_dense_sequence(database: Database) {
    let mut nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let done = Arc::new(AtomicBool::new(false));
    let publisher = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            let shutdown = CancellationToken::new();
            let mut ids = HashSet::new();
            for first in (1..=JOBS).step_by(50) {
                let events: Vec<_> = (first..first + 50)
                    .flat_map(|id| {
                        [EventType::JobSubmitted, EventType::JobStarted]
                            .map(|kind| fixtures::job_event(kind, fixtures::job(id)))
                    })
                    .collect();
                ids.extend(events.iter().map(|event| event.id.clone()));
                bus.publish_all(events, &shutdown).await.unwrap();
            }
            done.store(true, Ordering::SeqCst);
            ids
        }
    });

    // Killed after each bit of progress, so that it is always in the middle of its work.
    let mut kills = 0;
    let mut seen = 0;
    while !done.load(Ordering::SeqCst) || kills < 3 {
        process
            .until("it goes on", async |process| {
                let head = process.head().await.unwrap_or_default();
                head >= (seen + 200).min(u64::from(JOBS) * 2)
            })
            .await;
        seen = process.head().await.unwrap_or(seen);
        process.kill();
        if kills == 1 {
            nats.restart().await;
        }
        process.restart();
        kills += 1;
        if kills >= 8 {
            break;
        }
    }
    let ids = publisher.await.unwrap();
    let count = ids.len() as u64;
    assert_eq!(count, u64::from(JOBS) * 2);
    process
        .until("all events", async |process| {
            process.head().await >= Some(count)
        })
        .await;

    let mut reader = database.outsider().await;
    let seqs = reader.numbers("SELECT seq FROM entries ORDER BY seq").await;
    assert!(
        seqs.into_iter().eq(1..=count.cast_signed()),
        "the sequence is dense"
    );
    let stored_ids = reader.texts("SELECT id FROM entries").await;
    assert_eq!(HashSet::from_iter(stored_ids), ids, "the same set");
    let verified = verify_database(&database.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, count);
}
