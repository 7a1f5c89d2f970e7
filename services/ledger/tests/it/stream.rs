//! `/v1/events/stream`: entries as they are appended, with the permissions and filters of a
//! listing.

use std::time::Duration;

use ledger::Store;
use mesh_events::EventType;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_testkit::{NatsServer, fixtures, wait_for};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{
    DEADLINE, Database, Process, admin, bus, of_user, on_both, record, serve, user,
};

on_both!(
    entries_arrive_as_they_are_appended_and_a_reader_resumes,
    a_stream_returns_the_same_as_a_listing,
    a_client_that_is_cut_off_again_and_again_sees_each_entry_once,
    a_client_sees_each_entry_once_although_the_ledger_is_killed_again_and_again,
);

const TIMEOUT: Duration = Duration::from_secs(60);

/// A client of a stream.
struct Reader {
    response: reqwest::Response,
    received: String,
}

impl Reader {
    async fn open(url: &str, query: &str) -> Self {
        Self::resume(url, query, None).await
    }

    /// Reconnects as clients of server-sent events do: with the last id that they saw.
    async fn resume(url: &str, query: &str, last: Option<u64>) -> Self {
        let mut request = reqwest::Client::new().get(format!("{url}/v1/events/stream?{query}"));
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        Self {
            response,
            received: String::new(),
        }
    }

    async fn next(&mut self) -> Value {
        self.next_before_end().await.expect("an open stream")
    }

    /// Returns the next entry, or `None` if the connection is cut before it is complete.
    async fn next_before_end(&mut self) -> Option<Value> {
        loop {
            if let Some((block, rest)) = self.received.split_once("\n\n") {
                let data = block
                    .lines()
                    .find_map(|line| line.strip_prefix("data: "))
                    .map(str::to_owned);
                self.received = rest.to_owned();
                if let Some(data) = data {
                    return Some(serde_json::from_str(&data).unwrap());
                }
                continue;
            }
            let chunk = tokio::time::timeout(TIMEOUT, self.response.chunk())
                .await
                .expect("an entry in time");
            let chunk = chunk.ok().flatten()?;
            self.received.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn next_seq(&mut self) -> u64 {
        self.next().await["seq"].as_u64().unwrap()
    }
}

async fn append(store: &Store, jobs: impl Iterator<Item = u32>) {
    let records = jobs
        .map(|id| {
            record(&fixtures::job_event(
                EventType::JobStarted,
                fixtures::job(id),
            ))
        })
        .collect();
    store.append("SLURM_EVENTS", 1, records).await.unwrap();
}

async fn entries_arrive_as_they_are_appended_and_a_reader_resumes(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    append(&store, 1..=3).await;
    let url = serve(&store, admin(), 2, 100).await;

    // First more than a page, then entries one by one.
    let mut reader = Reader::open(&url, "after=1").await;
    assert_eq!((reader.next_seq().await, reader.next_seq().await), (2, 3));
    append(&store, 4..=8).await;
    for seq in 4..=8 {
        assert_eq!(reader.next_seq().await, seq);
    }
    append(&store, 9..=9).await;
    assert_eq!(reader.next_seq().await, 9);

    let mut resume = Reader::open(&url, "after=7").await;
    assert_eq!(resume.next_seq().await, 8);
    let mut from_now = Reader::open(&url, "").await;
    append(&store, 10..=10).await;
    assert_eq!(from_now.next_seq().await, 10);
}

async fn a_stream_returns_the_same_as_a_listing(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    let url = serve(&store, user("bob"), 1000, 100).await;
    let mut reader = Reader::open(&url, "type=job.*").await;
    append(&store, 1..=3).await;
    let of_bob = of_user("bob", EventType::JobStarted, fixtures::job(4));
    store
        .append("SLURM_EVENTS", 1, vec![record(&of_bob)])
        .await
        .unwrap();
    // The first entry he gets is his own: he may not see alice's three entries before it.
    assert_eq!(reader.next_seq().await, 4);
    // Filters by node as well as by type.
    let mut of_node = Reader::open(&url, "node=n17&after=0").await;
    for (id, nodes) in [(5, "n[1-16]"), (6, "n[1-20]")] {
        let job = Job {
            nodes: nodes.into(),
            ..fixtures::job(id)
        };
        let of_bob = record(&of_user("bob", EventType::JobStarted, job));
        let appended = store.append("SLURM_EVENTS", 1, vec![of_bob]);
        appended.await.unwrap();
    }
    assert_eq!(of_node.next_seq().await, 6);

    let refused = reqwest::get(format!("{url}/v1/events/stream?user=alice"))
        .await
        .unwrap();
    assert_eq!(refused.status(), 403);
    let wrong = reqwest::get(format!("{url}/v1/events/stream?limit=3"))
        .await
        .unwrap();
    assert_eq!(wrong.status(), 400);
}

async fn a_client_that_is_cut_off_again_and_again_sees_each_entry_once(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    append(&store, 1..=5).await;
    let url = serve(&store, admin(), 3, 100).await;
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for job in 6..=60 {
                append(&store, job..=job).await;
            }
        }
    });
    let (mut seen, mut last) = (Vec::new(), None);
    while seen.len() < 60 {
        // The first connection starts at the beginning; later ones at the last id seen.
        let mut reader = Reader::resume(&url, "after=0&fields=seq", last).await;
        for _ in 0..(seen.len() % 7 + 1).min(60 - seen.len()) {
            let seq = reader.next_seq().await;
            seen.push(seq);
            last = Some(seq);
        }
    }
    assert_eq!(seen, (1..=60).collect::<Vec<u64>>());
    writer.await.unwrap();
    let wrong = reqwest::Client::new()
        .get(format!("{url}/v1/events/stream"))
        .header("Last-Event-ID", "x")
        .send()
        .await
        .unwrap();
    assert_eq!(wrong.status(), 400);
}

async fn a_client_sees_each_entry_once_although_the_ledger_is_killed_again_and_again(
    database: Database,
) {
    const JOBS: u32 = 400;
    let nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let writer = tokio::spawn(async move {
        for job in 1..=JOBS {
            let event = fixtures::job_event(EventType::JobStarted, fixtures::job(job));
            bus.publish_until_done(&event, &CancellationToken::new())
                .await
                .unwrap();
        }
    });
    let (mut seen, mut last) = (Vec::new(), None::<u64>);
    let mut kills = [50, 51, 200, 399].into_iter().peekable();
    while seen.len() < JOBS as usize {
        let connected = async || {
            let mut request = process.request("/v1/events/stream?after=0&type=job.*");
            if let Some(last) = last {
                request = request.header("Last-Event-ID", last.to_string());
            }
            let response = request.send().await.ok()?;
            (response.status() == 200).then_some(response)
        };
        let response = wait_for("the stream goes on", DEADLINE, connected).await;
        let mut reader = Reader {
            response,
            received: String::new(),
        };
        while seen.len() < JOBS as usize {
            // What was in transit at the kill still arrives, either completely or not at all.
            let Some(entry) = reader.next_before_end().await else {
                break;
            };
            let seq = entry["seq"].as_u64().unwrap();
            assert!(last.is_none_or(|last| last < seq), "{last:?}, then {seq}");
            last = Some(seq);
            seen.push(entry["event"]["id"].as_str().unwrap().to_owned());
            if kills.next_if(|kill| *kill <= seen.len()).is_some() {
                process.kill();
            }
        }
        if seen.len() < JOBS as usize {
            process.restart();
        }
    }
    writer.await.unwrap();
    assert_eq!(kills.next(), None, "it was killed in the middle");
    let mut outsider = database.outsider().await;
    let ids = "SELECT e.id FROM entries e JOIN event_index i ON i.seq = e.seq WHERE i.category = 'job' ORDER BY e.seq";
    assert_eq!(outsider.texts(ids).await, seen, "without gap or duplicate");
}
