//! Tests appending in batches: in order, and with lookups by index.

use mesh_events::EventType;
use mesh_testkit::{NatsServer, fixtures, wait_until};
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Database, Outsider, Process, bus, on_both, record};

on_both!(entries_have_the_order_of_the_stream,);

/// One batch is decoded while another is stored.
async fn entries_have_the_order_of_the_stream(database: Database) {
    const JOBS: u32 = 1000;
    let nats = NatsServer::start().await;
    let bus = bus(&nats, "admin").await;
    let events = (1..=JOBS)
        .map(|id| fixtures::job_event(EventType::JobSubmitted, fixtures::job(id)))
        .collect();
    let shutdown = CancellationToken::new();
    bus.publish_all(events, &shutdown).await.unwrap();
    let process = Process::start(&nats, &database).await;
    process
        .until("all entries", async |process| {
            process.head().await == Some(JOBS.into())
        })
        .await;
    let published = crate::replay::messages(&nats, "SLURM_EVENTS", "").await;
    let published = published.iter().map(|one| one.header("Nats-Msg-Id"));
    let mut reader = database.outsider().await;
    let entries = reader.texts("SELECT id FROM entries ORDER BY seq").await;
    assert!(published.eq(entries.iter().map(String::as_str)));
}

/// Also while the table is so small that PostgreSQL would rather scan it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_looks_for_ids_by_their_index() {
    let database = Database::postgres().await;
    let store = database.store().await;
    for first in (1..=1_000).step_by(100) {
        let jobs = (first..first + 100).map(fixtures::job);
        let events = jobs.map(|job| fixtures::job_event(EventType::JobStarted, job));
        let records: Vec<_> = events.map(|event| record(&event)).collect();
        store.append("S", 1, records.clone()).await.unwrap();
        // Ids are looked for only if the index refused one.
        let again = store.append("S", 1, records).await.unwrap();
        assert_eq!(again.duplicates, 100);
    }
    // The server counts what a session did at its end.
    store.close().await;
    let mut reader = database.outsider().await;
    let count = async |reader: &mut Outsider, column: &str| {
        let sql = format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = 'entries'");
        reader.numbers(&sql).await[0]
    };
    wait_until("the scans are counted", DEADLINE, async || {
        count(&mut reader, "idx_scan").await > 0
    })
    .await;
    assert_eq!(count(&mut reader, "seq_tup_read").await, 0);
}
