//! Each caller sees the same entries through every method.

use mesh_events::EventType;
use mesh_events::proto::mesh::ledger::v1::{
    EventFilter, ExportEventsRequest, GetJobRequest, GetNodeRequest, GetStatsRequest,
    ListEventsRequest, TailEventsRequest,
};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{self, CLUSTER};
use tonic::Code;

use super::{client, export, of};
use crate::support::{
    DEADLINE, Database, admin, audit_entry, audit_fact, node_event, of_user, on_both, record,
    serve, user,
};

on_both!(each_caller_sees_the_same_by_grpc_and_by_streams);

/// Returns the sequences of the first entries in a stream of server-sent events.
async fn streamed(url: &str, count: usize) -> Vec<u64> {
    let url = format!("{url}/v1/events/stream?after=0&fields=seq");
    let mut response = reqwest::get(url).await.unwrap();
    let (mut text, mut seqs) = (String::new(), Vec::new());
    while seqs.len() < count {
        let chunk = tokio::time::timeout(DEADLINE, response.chunk());
        let chunk = chunk.await.expect("an entry in time").unwrap();
        text.push_str(std::str::from_utf8(&chunk.expect("an open stream")).unwrap());
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        seqs = data
            .filter_map(|data| serde_json::from_str::<serde_json::Value>(data).ok())
            .map(|entry| entry["seq"].as_u64().unwrap())
            .collect();
    }
    seqs
}

async fn each_caller_sees_the_same_by_grpc_and_by_streams(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    let owned = |name: &str, account: &str, job: u32| {
        let mut event = of_user(name, EventType::JobStarted, fixtures::job(job));
        event.owner.as_mut().unwrap().account = account.into();
        event
    };
    let events = [
        owned("alice", "physics", 1),
        owned("bob", "chemistry", 2),
        node_event("n1", 1),
        owned("alice", "physics", 3),
        owned("bob", "chemistry", 4),
    ];
    let mut records: Vec<_> = events.iter().map(record).collect();
    records.insert(3, audit_fact(&audit_entry(1)));
    store.append("S", 1, records).await.unwrap();

    let carol = user("carol");
    let nothing: &[u64] = &[];
    for (caller, seqs, users) in [
        (user("alice"), &[1, 5][..], vec!["alice"]),
        (user("bob"), &[2, 6], vec!["bob"]),
        (carol.clone(), nothing, vec![]),
        (
            carol.clone().coordinating(CLUSTER, "physics"),
            &[1, 5],
            vec!["alice"],
        ),
        (carol.coordinating("elsewhere", "physics"), nothing, vec![]),
        (
            Caller::peer("eve", 20_002, Role::Auditor),
            &[1, 2, 3, 5, 6],
            vec!["alice", "bob"],
        ),
        (admin(), &[1, 2, 3, 5, 6], vec!["alice", "bob"]),
    ] {
        let label = format!("{} {}", caller.name, caller.role_name());
        let sees_all = caller.sees_everything();
        let url = serve(&store, caller, 1000, 100).await;
        let mut grpc = client(url.clone()).await;
        let listed = grpc.list_events(ListEventsRequest::default()).await;
        let entries = listed.unwrap().into_inner().entries;
        let listed: Vec<u64> = entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(listed, seqs, "{label}");

        let request = TailEventsRequest {
            after_seq: Some(0),
            ..TailEventsRequest::default()
        };
        let mut tail = grpc.tail_events(request).await.unwrap().into_inner();
        let mut tailed = Vec::new();
        for _ in seqs {
            let entry = tokio::time::timeout(DEADLINE, tail.message()).await;
            let entry = entry.expect("an entry in time").unwrap().unwrap().entry;
            tailed.push(entry.unwrap().seq);
        }
        assert_eq!(tailed, seqs, "{label}");
        let exported = export(&mut grpc, ExportEventsRequest::default()).await;
        let exported: Vec<u64> = exported.unwrap().iter().map(|entry| entry.seq).collect();
        assert_eq!(exported, seqs, "{label}");
        assert_eq!(streamed(&url, seqs.len()).await, seqs, "{label}");

        let request = GetStatsRequest {
            filter: None,
            by: vec!["user".into()],
        };
        let sums = grpc.get_stats(request).await.unwrap().into_inner().rows;
        let summed: Vec<&str> = sums.iter().map(|row| row.group["user"].as_str()).collect();
        assert_eq!(summed, users, "{label}");

        for (job, seq) in [("1", 1), ("2", 2)] {
            let request = GetJobRequest {
                cluster: CLUSTER.into(),
                job: job.into(),
                at: None,
            };
            let found = grpc.get_job(request).await.map_err(|error| error.code());
            match seqs.contains(&seq) {
                true => assert_eq!(found.unwrap().into_inner().runs.len(), 1, "{label}"),
                false => assert_eq!(found.unwrap_err(), Code::NotFound, "{label} {job}"),
            }
        }
        let request = GetNodeRequest {
            cluster: CLUSTER.into(),
            node: "n1".into(),
            at: None,
        };
        assert_eq!(grpc.get_node(request).await.is_ok(), sees_all, "{label}");
        let audit = ListEventsRequest {
            types: vec!["audit.*".into()],
            ..ListEventsRequest::default()
        };
        let audit = grpc.list_events(audit).await.unwrap().into_inner().entries;
        assert_eq!(audit.len(), usize::from(sees_all), "{label}");
        let of_audit = EventFilter {
            types: vec!["audit.*".into()],
            ..EventFilter::default()
        };
        let audit = export(&mut grpc, of(of_audit, &["seq"])).await.unwrap();
        assert_eq!(audit.len(), usize::from(sees_all), "{label}");
        let of_bob = EventFilter {
            user: "bob".into(),
            ..EventFilter::default()
        };
        let of_bob = export(&mut grpc, of(of_bob, &[])).await;
        let listed = reqwest::get(format!("{url}/v1/events/export?user=bob")).await;
        match listed.unwrap().status().as_u16() {
            200 => assert!(of_bob.is_ok(), "{label}"),
            403 => assert_eq!(of_bob.unwrap_err(), Code::PermissionDenied, "{label}"),
            other => panic!("{label}: {other}"),
        }
    }
}
