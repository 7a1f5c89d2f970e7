//! An export is as large as the ledger, but its memory is bounded, however slowly the client reads.

use std::time::Duration;

use ledger::Store;
use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::ledger::v1::{EventFilter, ExportEventsRequest};
use mesh_testkit::{NatsServer, Port, fixtures};
use tonic::transport::Endpoint;

use crate::support::{Database, Process, on_both, record, secret};

on_both!(exports_of_any_size_are_made_in_little_memory,);

/// Number and size of the entries: far more in total than the ledger may hold in memory.
const ENTRIES: u32 = 8_000;
const SIZE: usize = 16 << 10;
const BATCH: u32 = 100;
/// Number of entries of a first export, which warms up caches and connections.
const FEW: u32 = 800;
/// Maximum additional memory during an export, in bytes. The export is ten times as large.
const MORE: u64 = 12 << 20;
const TOKEN: &str = "the token of an auditor, which is long";

/// Speed of the client.
#[derive(Clone, Copy, Debug)]
enum Pace {
    AsFast,
    /// Pauses after the beginning, so that anything buffered for the client accumulates.
    Hesitating,
}

async fn fill(store: &Store) {
    for first in (1..=ENTRIES).step_by(BATCH as usize) {
        let records = (first..first + BATCH).map(|id| {
            let mut job = fixtures::job(id);
            job.work_dir = format!("/home/{}", "x".repeat(SIZE));
            record(&fixtures::job_event(EventType::JobStarted, job))
        });
        let records = records.collect();
        store.append("SLURM_EVENTS", 1, records).await.unwrap();
    }
}

/// Reads a value of `/proc/PID/status`, in bytes.
fn status(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim_matches(&[':', ' ', '\t'][..]).split(' ').next());
    kib.unwrap().parse::<u64>().unwrap() << 10
}

/// Measures the peak memory of a process during an operation, beyond its memory before.
async fn more(pid: u32, during: impl Future<Output = ()>) -> u64 {
    // Resets the peak in Linux.
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let before = status(pid, "VmRSS");
    during.await;
    status(pid, "VmHWM").saturating_sub(before)
}

async fn hesitate(pace: Pace, read: usize, hesitated: &mut bool) {
    if matches!(pace, Pace::Hesitating) && read > 0 && !*hesitated {
        *hesitated = true;
        // Long enough to produce the whole export if nothing blocked it.
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
}

async fn rest(process: &Process, query: &str, entries: u32, pace: Pace) {
    let request = process.request(&format!("/v1/events/export?{query}"));
    let mut answer = request.send().await.unwrap().error_for_status().unwrap();
    let (mut lines, mut bytes, mut hesitated) = (0, 0, false);
    while let Some(chunk) = answer.chunk().await.unwrap() {
        lines += chunk.iter().filter(|byte| **byte == b'\n').count();
        bytes += chunk.len();
        hesitate(pace, bytes, &mut hesitated).await;
    }
    let heading = usize::from(query.contains("csv"));
    assert_eq!(lines, entries as usize + heading, "{query}");
    assert!(heading == 1 || bytes > entries as usize * SIZE);
}

async fn grpc(
    client: &mut EventsServiceClient<tonic::transport::Channel>,
    entries: u32,
    pace: Pace,
) {
    let mut request = tonic::Request::new(ExportEventsRequest {
        filter: Some(EventFilter {
            to_seq: entries.into(),
            types: vec!["job.*".into()],
            ..EventFilter::default()
        }),
        ..ExportEventsRequest::default()
    });
    let bearer = format!("Bearer {TOKEN}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let mut stream = client.export_events(request).await.unwrap().into_inner();
    let (mut read, mut hesitated) = (0, false);
    while let Some(response) = stream.message().await.unwrap() {
        assert!(response.entry.is_some());
        read += 1;
        hesitate(pace, read, &mut hesitated).await;
    }
    assert_eq!(read, entries as usize);
}

async fn exports_of_any_size_are_made_in_little_memory(database: Database) {
    let store = database.store().await;
    fill(&store).await;
    store.close().await;
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let token = secret(folder.path(), "auditor.token", TOKEN);
    let port = Port::take();
    let address = port.address();
    let api = format!(
        "[mesh.api]\nlisten = \"{address}\"\n[[mesh.api.tokens]]\nname = \"auditor\"\nfile = {token:?}\nrole = \"auditor\"\n"
    );
    let process = Process::start_with(&nats, &database, "", &api).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = EventsServiceClient::new(channel.connect().await.unwrap());
    // The first checkpoint reads all entries.
    process
        .until("it has signed", async |process| {
            process.get("/v1/ledger/checkpoint").await.is_some()
        })
        .await;

    let of = |format: &str, entries: u32| format!("type=job.*&to_seq={entries}{format}");
    for format in ["", "&format=csv"] {
        rest(&process, &of(format, FEW), FEW, Pace::AsFast).await;
    }
    grpc(&mut client, FEW, Pace::AsFast).await;
    let pid = process.pid();
    for pace in [Pace::AsFast, Pace::Hesitating] {
        for format in ["", "&format=csv"] {
            let all = of(format, ENTRIES);
            let held = more(pid, rest(&process, &all, ENTRIES, pace)).await;
            assert!(held < MORE, "{pace:?}, {all}: {} KiB more", held >> 10);
        }
        let held = more(pid, grpc(&mut client, ENTRIES, pace)).await;
        assert!(held < MORE, "{pace:?}, gRPC: {} KiB more", held >> 10);
    }
}
