//! Reads of other users' data are recorded for the audit before the data is returned, and with the
//! number of rows at the end of the minute, or when a stream has ended.

use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_events::EventType;
use mesh_events::catalogue::BUCKET_READS;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_events::proto::mesh::ledger::v1::{
    EventFilter, ExportEventsRequest, ListEventsRequest, TailEventsRequest,
};
use mesh_testkit::{NatsServer, Port, fixtures};
use prost::Message as _;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use crate::support::{Database, Process, bus, of_user, secret};

/// Publishes two starts of alice's jobs and one of bob's, and waits until the ledger has them.
async fn three_starts(nats: &NatsServer, process: &Process) {
    let events: Vec<Event> = [("alice", 1), ("alice", 2), ("bob", 3)]
        .map(|(user, job)| of_user(user, EventType::JobStarted, fixtures::job(job)))
        .into();
    let bus = bus(nats, "admin").await;
    bus.publish_all(events, &CancellationToken::new())
        .await
        .unwrap();
    process
        .until("three entries", async |process| {
            process.head().await >= Some(3)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_cannot_be_audited_is_not_returned() {
    let mut nats = NatsServer::start().await;
    let database = Database::sqlite();
    let process = Process::start(&nats, &database).await;
    three_starts(&nats, &process).await;
    let paths = [
        "/v1/events",
        "/v1/events/export",
        "/v1/events/export?format=csv",
        "/v1/events/stream?after=0",
        "/v1/events/stats?by=user",
        "/v1/kpis?by=user",
        "/v1/jobs/testbed/1",
        "/v1/ledger/export",
    ];
    let ask = async |path: &str| {
        let answer = process.request(path).send().await.unwrap();
        let retry = answer.headers().contains_key("retry-after");
        (answer.status().as_u16(), retry, answer.text().await)
    };
    process
        .until("a signed ledger", async |process| {
            process.get("/v1/ledger/export?from=2").await.is_some()
        })
        .await;
    // A different request from those below, so its audit entry does not cover them.
    let history = process.get("/v1/jobs/testbed/2").await.unwrap();
    assert!(history.contains("alice"));

    nats.kill();
    let answers = futures_util::future::join_all(paths.iter().map(async |path| ask(path).await));
    for (path, (status, retry, text)) in paths.iter().zip(answers.await) {
        let text = text.unwrap();
        assert_eq!((status, retry), (503, true), "{path}: {text}");
        assert!(text.contains("audit"), "{path}: {text}");
        for name in ["alice", "bob", "train-1"] {
            assert!(!text.contains(name), "{path}: {text}");
        }
    }
    // Responses without personal data need no audit.
    for path in ["/v1/ledger/head", "/v1/events?user=nobody"] {
        assert_eq!(ask(path).await.0, 200, "{path}");
    }
    nats.restart().await;
    process
        .until("it is shown again", async |process| {
            process.get("/v1/jobs/testbed/1").await.is_some()
        })
        .await;
}

/// A query whose three pages name two people.
const QUERY: &str = "/v1/events?type=job.*&limit=1";

async fn three_pages(process: &Process) {
    let mut path = QUERY.to_owned();
    for page in 1..=3 {
        let answer = process.json(&path).await.unwrap();
        let cursor = answer["next_cursor"].as_str();
        assert_eq!(cursor.is_some(), page < 3);
        path = format!("{QUERY}&cursor={}", cursor.unwrap_or_default());
    }
}

/// Waits for the entry of the query, and compares it.
async fn one_entry_of_three_pages(process: &Process) -> String {
    process
        .until("the entry of all pages", async |process| {
            !reads(process, QUERY, "answer").await.is_empty()
        })
        .await;
    let found = reads(process, QUERY, "answer").await;
    assert_eq!(found.len(), 1, "{found:?}");
    let (id, read) = &found[0];
    assert_eq!((&read["pages"], &read["rows"]), (&json!("3"), &json!("3")));
    assert_eq!(read["whose"], json!(["alice", "bob"]));
    assert!(reads(process, QUERY, "end").await.is_empty());
    id.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_pages_of_one_query_are_one_entry() {
    let nats = NatsServer::start().await;
    let database = Database::sqlite();
    let mut process = Process::start(&nats, &database).await;
    three_starts(&nats, &process).await;
    three_pages(&process).await;
    // The end of the service also ends the minute.
    process.stop().await;
    process.restart();
    one_entry_of_three_pages(&process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_loses_no_page() {
    let nats = NatsServer::start().await;
    let database = Database::sqlite();
    let mut process = Process::start(&nats, &database).await;
    three_starts(&nats, &process).await;
    three_pages(&process).await;
    // With SIGKILL.
    process.kill();
    process.restart();
    let id = one_entry_of_three_pages(&process).await;
    // It is published once, and removed from where it waited.
    let bucket = bus(&nats, "admin")
        .await
        .bucket(BUCKET_READS)
        .await
        .unwrap();
    process
        .until("it waits no more", async |_| {
            let left = bucket.all().await.unwrap();
            let mut left = left
                .iter()
                .map(|stored| AuditEntry::decode(stored.value.clone()).unwrap().id);
            !left.any(|left| left == id)
        })
        .await;
    assert_eq!(one_entry_of_three_pages(&process).await, id);
}

/// All pages of a query, one event each, over REST.
async fn rest_pages(address: &str, token: &str) -> usize {
    let query = format!("http://{address}/v1/events?type=job.*&limit=1");
    let (mut url, mut pages) = (query.clone(), 0);
    loop {
        let page = reqwest::Client::new().get(&url).bearer_auth(token).send();
        let page: Value = page.await.unwrap().json().await.unwrap();
        pages += 1;
        match page["next_cursor"].as_str() {
            Some(cursor) => url = format!("{query}&cursor={cursor}"),
            None => break pages,
        }
    }
}

/// The same over gRPC.
async fn grpc_pages(address: &str, token: &str) -> usize {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();
    let bearer: tonic::metadata::MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
    let mut client =
        EventsServiceClient::with_interceptor(channel, move |mut request: tonic::Request<()>| {
            let metadata = request.metadata_mut();
            metadata.insert("authorization", bearer.clone());
            Ok(request)
        });
    let (mut cursor, mut pages) = (String::new(), 0);
    loop {
        let request = ListEventsRequest {
            types: vec!["job.*".into()],
            limit: 1,
            cursor,
            ..ListEventsRequest::default()
        };
        let page = client.list_events(request).await.unwrap().into_inner();
        pages += 1;
        cursor = page.next_cursor;
        if cursor.is_empty() {
            break pages;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_has_one_entry_per_query_and_minute_over_rest_and_grpc() {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let port = Port::take();
    let address = port.address();
    let callers =
        ["finance", "revision"].map(|name| (name, format!("the token of {name}, which is long")));
    let mut api = format!("[mesh.api]\nlisten = \"{address}\"\n");
    for (name, token) in &callers {
        let file = secret(folder.path(), name, token);
        api +=
            &format!("[[mesh.api.tokens]]\nname = '{name}'\nfile = {file:?}\nrole = 'auditor'\n");
    }
    let database = Database::sqlite();
    let mut process = Process::start_with(&nats, &database, "", &api).await;
    three_starts(&nats, &process).await;
    let requests = ["GET /v1/events?type=job.*", "ListEvents"];
    let entries = async |process: &Process, phase: &str| {
        let mut all = Vec::new();
        for request in requests {
            for (name, _) in &callers {
                let mut found = reads(process, request, phase).await;
                found.retain(|(_, read)| read["reader"] == format!("token:{name}"));
                all.push(found);
            }
        }
        all
    };
    let counts = async |process: &Process, phase: &str| -> Vec<usize> {
        entries(process, phase).await.iter().map(Vec::len).collect()
    };
    for minute in 1..=2 {
        for (_, token) in &callers {
            assert_eq!(rest_pages(&address.to_string(), token).await, 3);
            assert_eq!(grpc_pages(&address.to_string(), token).await, 3);
        }
        if minute == 2 {
            // The end of the service also ends the minute.
            process.stop().await;
            process.restart();
        }
        process
            .until("an entry of all pages", async |process| {
                counts(process, "answer").await == [minute; 4]
            })
            .await;
        for (id, answer) in entries(&process, "answer").await.concat() {
            let found = (&answer["pages"], &answer["rows"]);
            assert_eq!(found, (&json!("3"), &json!("3")), "{id}: {answer}");
        }
        assert_eq!(counts(&process, "end").await, [0; 4]);
    }
}

/// Returns the audited reads of a request, with their ids.
async fn reads(process: &Process, of: &str, phase: &str) -> Vec<(String, Value)> {
    let page = process.json("/v1/events?type=audit.read&limit=1000").await;
    let entries = page.map(|page| page["entries"].as_array().unwrap().clone());
    let found = entries.unwrap_or_default().into_iter().map(|entry| {
        let event = &entry["event"];
        let id = event["id"].as_str().unwrap().to_owned();
        (id, event["data"]["read"].clone())
    });
    found
        .filter(|(_, read)| read["request"].as_str().unwrap().contains(of))
        .filter(|(_, read)| read["phase"] == phase)
        .collect()
}

/// Waits for the end of the only stream of a request, and compares its audit entry.
async fn ended(process: &Process, of: &str, reader: &str, rows: &str, users: Value) {
    process
        .until(of, async |process| {
            !reads(process, of, "end").await.is_empty()
        })
        .await;
    let begun = reads(process, of, "begin").await;
    let ended = reads(process, of, "end").await;
    assert_eq!((begun.len(), ended.len()), (1, 1), "{begun:?} {ended:?}");
    let ((id, begun), (_, ended)) = (&begun[0], &ended[0]);
    // Zero is omitted.
    assert_eq!(
        (&begun["rows"], &begun["reader"]),
        (&Value::Null, &json!(reader))
    );
    assert_eq!(
        (
            &ended["rows"],
            &ended["whose"],
            &ended["begun"],
            &ended["reader"]
        ),
        (&json!(rows), &users, &json!(id), &json!(reader)),
        "{ended}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stream_is_audited_with_counts_and_users() {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let token = "the token of an auditor, which is long";
    let file = secret(folder.path(), "token", token);
    let port = Port::take();
    let address = port.address();
    let api = format!(
        "[mesh.api]\nlisten = \"{address}\"\n[[mesh.api.tokens]]\nname = 'finance'\nfile = {file:?}\nrole = 'auditor'\n"
    );
    let database = Database::sqlite();
    let process = Process::start_with(&nats, &database, "", &api).await;
    three_starts(&nats, &process).await;

    // Server-sent events: the client disconnects in the middle of a stream.
    let path = "/v1/events/stream?after=0&type=job.*";
    let mut stream = process.request(path).send().await.unwrap();
    let mut received = String::new();
    while received.matches("data: ").count() < 3 {
        let chunk = stream.chunk().await.unwrap().unwrap();
        received.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    drop(stream);
    ended(&process, path, "root", "3", json!(["alice", "bob"])).await;

    // gRPC, with a token.
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut client =
        EventsServiceClient::with_interceptor(channel, move |mut request: tonic::Request<()>| {
            let bearer = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", bearer);
            Ok(request)
        });
    let request = TailEventsRequest {
        filter: Some(EventFilter {
            user: "alice".into(),
            ..EventFilter::default()
        }),
        after_seq: Some(0),
        ..TailEventsRequest::default()
    };
    let mut tail = client.tail_events(request).await.unwrap().into_inner();
    for _ in 0..2 {
        tail.message().await.unwrap().unwrap();
    }
    drop(tail);
    let reader = "token:finance";
    ended(&process, "TailEvents", reader, "2", json!(["alice"])).await;
    let request = ExportEventsRequest {
        filter: Some(EventFilter {
            types: vec!["job.*".into()],
            ..EventFilter::default()
        }),
        fields: vec!["seq".into()],
    };
    let mut export = client.export_events(request).await.unwrap().into_inner();
    while export.message().await.unwrap().is_some() {}
    let users = json!(["alice", "bob"]);
    ended(&process, "ExportEvents", reader, "3", users).await;

    // Exports: one row per line.
    for (path, lines, rows, users) in [
        (
            "/v1/events/export?type=job.*&until=1s",
            3,
            "3",
            json!(["alice", "bob"]),
        ),
        (
            "/v1/events/export?format=csv&user=bob",
            1 + 1,
            "1",
            json!(["bob"]),
        ),
    ] {
        let text = process.get(path).await.unwrap();
        assert_eq!(text.lines().count(), lines, "{text}");
        ended(&process, path, "root", rows, users).await;
    }
}
