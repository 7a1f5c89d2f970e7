//! People with tokens of a real OIDC provider query the ledger. Each sees exactly what they may
//! see, on every route.

use std::net::SocketAddr;

use bytes::Bytes;
use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_bus::Bus;
use mesh_events::EventType;
use mesh_events::catalogue::BUCKET_COORDINATORS;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_events::proto::mesh::ledger::v1::ListEventsRequest;
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, OidcProvider, Port, wait_until};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use crate::support::{DEADLINE, Database, Process, bus, node_event, of_user};

/// Callers, the jobs that they see, and whether they see nodes and may export the ledger.
const VIEWS: [(&str, &[u64], bool); 5] = [
    ("alice", &[1], false),
    // She owns no jobs, but coordinates bob's account.
    ("carol", &[2], false),
    ("dave", &[], false),
    ("audit-1", &[1, 2, 3], true),
    ("admins-1", &[1, 2, 3], true),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_sees_what_the_token_permits() {
    mesh_runtime::install_crypto_provider();
    let provider = OidcProvider::start();
    let nats = NatsServer::start().await;
    let bus = bus(&nats, "admin").await;
    coordinates(&bus, "carol", "art").await;
    let database = Database::sqlite();
    let (mut process, address) = ledger(&provider, &nats, &database).await;
    let in_account = |account: &str, mut event: Event| {
        event.owner.as_mut().unwrap().account = account.into();
        event
    };
    // alice is `al` in Slurm, according to the identity map.
    let events = vec![
        in_account(
            "physics",
            of_user("al", EventType::JobStarted, fixtures::job(1)),
        ),
        in_account(
            "art",
            of_user("bob", EventType::JobStarted, fixtures::job(2)),
        ),
        in_account(
            "lab",
            of_user("erin", EventType::JobStarted, fixtures::job(3)),
        ),
        node_event("n1", 1),
    ];
    let shutdown = CancellationToken::new();
    bus.publish_all(events, &shutdown).await.unwrap();
    process
        .until("signed", async |process| {
            process.head().await >= Some(4) && process.get("/v1/ledger/export").await.is_some()
        })
        .await;

    for algorithm in ["RS256", "ES256", "EdDSA"] {
        for (client, jobs, all) in VIEWS {
            let token = provider.token(client, "mesh", algorithm).await;
            let label = format!("{client} {algorithm}");
            if client == "carol" {
                // The ledger watches the bucket that ingest writes.
                wait_until("carol coordinates", DEADLINE, async || {
                    get(address, "/v1/whoami", &token)
                        .await
                        .1
                        .contains("\"art\"")
                })
                .await;
            }
            check(address, &token, &label, jobs, all).await;
        }
    }
    foreign_keys(address, &provider).await;
    // The audit names them as the provider does. The end of the service also ends the minute of each query.
    process.stop().await;
    process.restart();
    process
        .until("the reads of all three", async |process| {
            let reads = process.get("/v1/events?type=audit.read&limit=1000").await;
            let reads = reads.unwrap_or_default();
            ["carol", "audit-1", "admins-1"]
                .iter()
                .all(|one| reads.contains(one))
        })
        .await;
    let reads = process.json("/v1/events?type=audit.read&limit=1000").await;
    let reads = reads.unwrap()["entries"].as_array().unwrap().clone();
    let reads: Vec<&Value> = reads
        .iter()
        .map(|entry| &entry["event"]["data"]["read"])
        .collect();
    for (subject, role) in [
        ("carol", "coordinator"),
        ("audit-1", "auditor"),
        ("admins-1", "admin"),
    ] {
        let read = reads.iter().find(|read| read["subject"] == subject);
        let read = read.unwrap_or_else(|| panic!("{subject} is in the audit"));
        assert_eq!(
            (&read["issuer"], &read["role"], &read["authentication"]),
            (&json!(provider.issuer()), &json!(role), &json!("oidc"))
        );
    }
    for read in &reads {
        let subject = read["subject"].as_str().unwrap_or_default();
        assert!(
            !["alice", "dave"].contains(&subject),
            "saw their own: {read}"
        );
    }
}

/// Writes the coordinators as ingest does.
async fn coordinates(bus: &Bus, user: &str, account: &str) {
    let value = json!({ "cluster": CLUSTER, "user": user, "accounts": [account] });
    let bucket = bus.bucket(BUCKET_COORDINATORS).await.unwrap();
    let key = format!("{CLUSTER}.user.{user}");
    let value = Bytes::from(value.to_string());
    bucket.put(&key, value, None).await.unwrap();
}

async fn ledger(
    provider: &OidcProvider,
    nats: &NatsServer,
    database: &Database,
) -> (Process, SocketAddr) {
    let (issuer, port) = (provider.issuer(), Port::take());
    let address = port.address();
    let map = database.folder.path().join("identity.toml");
    std::fs::write(
        &map,
        format!("[users.al]\nissuer = {issuer:?}\nsubject = 'alice'\n"),
    )
    .unwrap();
    let api = format!(
        "[mesh.api]\nlisten = \"{address}\"\n[[mesh.api.oidc]]\nissuer = {issuer:?}\naudience = ['mesh']\n\
         user_claim = 'preferred_username'\nadmin_groups = ['admins']\nauditor_groups = ['audit']\n"
    );
    let map = format!("identity_map = {map:?}\n");
    let process = Process::start_with(nats, database, &map, &api).await;
    (process, address)
}

async fn get(address: SocketAddr, path: &str, token: &str) -> (u16, String) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http
        .get(format!("http://{address}{path}"))
        .bearer_auth(token);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// Sends requests to every route.
async fn check(address: SocketAddr, token: &str, label: &str, jobs: &[u64], all: bool) {
    let json = async |path: &str| -> (u16, Value) {
        let (status, text) = get(address, path, token).await;
        (status, serde_json::from_str(&text).unwrap_or_default())
    };
    let job_of = |entry: &Value| entry["event"]["data"]["job"]["job"]["jobId"].as_u64();
    let (_, page) = json("/v1/events?type=job.*").await;
    let listed = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(job_of);
    assert_eq!(sorted(listed), jobs, "{label}: {page}");
    let (_, text) = get(address, "/v1/events/export?type=job.*", token).await;
    let exported = text
        .lines()
        .filter_map(|line| job_of(&serde_json::from_str(line).unwrap()));
    assert_eq!(sorted(exported), jobs, "{label}: {text}");
    let (_, sums) = json("/v1/events/stats?by=name").await;
    assert_eq!(
        sums["rows"].as_array().unwrap().len(),
        jobs.len(),
        "{label}"
    );
    for job in 1..=3 {
        let (status, _) = json(&format!("/v1/jobs/{CLUSTER}/{job}")).await;
        let expected = if jobs.contains(&job) { 200 } else { 404 };
        assert_eq!(status, expected, "{label}: job {job}");
    }
    let (status, _) = json(&format!("/v1/nodes/{CLUSTER}/n1")).await;
    assert_eq!(status, if all { 200 } else { 404 }, "{label}");
    let (status, _) = json("/v1/ledger/export").await;
    assert_eq!(status, if all { 200 } else { 403 }, "{label}");

    let channel = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut request = tonic::Request::new(ListEventsRequest {
        types: vec!["job.*".into()],
        ..ListEventsRequest::default()
    });
    let bearer = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let page = EventsServiceClient::new(channel).list_events(request).await;
    let entries = page.unwrap().into_inner().entries;
    let listed = entries
        .iter()
        .filter_map(|entry| Some(u64::from(entry.event.as_ref()?.job()?.job_id)));
    assert_eq!(sorted(listed), jobs, "{label}: {entries:?}");
}

fn sorted(jobs: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut jobs: Vec<u64> = jobs.collect();
    jobs.sort_unstable();
    jobs
}

/// Requests without a valid token get no data.
async fn foreign_keys(address: SocketAddr, provider: &OidcProvider) {
    let mut late = provider.claims();
    late["exp"] = json!(late["iat"].as_i64().unwrap() - 3_600);
    let tokens = [
        provider.token("alice", "other", "ES256").await,
        provider.forge("EdDSA", json!({}), late).await,
        provider
            .forge("RS256", json!({ "alg": "none" }), provider.claims())
            .await,
        provider
            .forge("RS256", json!({ "alg": "HS256" }), provider.claims())
            .await,
    ];
    for token in &tokens {
        for path in [
            "/v1/events",
            "/v1/events/stream",
            "/v1/jobs/testbed/1",
            "/v1/ledger/head",
        ] {
            let (status, text) = get(address, path, token).await;
            assert_eq!(status, 401, "{path}: {text}");
        }
    }
}
