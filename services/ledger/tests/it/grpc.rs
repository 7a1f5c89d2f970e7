//! gRPC gives the same responses as REST, on the same address.

mod visibility;

use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::ledger::v1::{
    EventFilter, ExportEventsRequest, GetJobRequest, GetNodeRequest, GetStatsRequest, LedgerEntry,
    ListEventsRequest, TailEventsRequest,
};
use mesh_testkit::fixtures::{self, CLUSTER};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::{
    DEADLINE, Database, admin, audit_entry, audit_fact, node_event, of_user, on_both, record,
    serve, user,
};

on_both!(
    answers_are_those_of_rest,
    parts_of_entries_and_exports_are_those_of_rest,
);

async fn client(url: String) -> EventsServiceClient<Channel> {
    EventsServiceClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap())
}

async fn answers_are_those_of_rest(database: Database) {
    let store = database.store().await;
    let events = [
        of_user("alice", EventType::JobSubmitted, fixtures::job(1)),
        of_user("bob", EventType::JobSubmitted, fixtures::job(2)),
        of_user("alice", EventType::JobStarted, fixtures::job(1)),
    ];
    store
        .append("S", 3, events.iter().map(record).collect())
        .await
        .unwrap();
    store
        .append("S", 1, vec![audit_fact(&audit_entry(1))])
        .await
        .unwrap();

    let mut all = client(serve(&store, admin(), 1000, 100).await).await;
    let first = all
        .list_events(ListEventsRequest {
            limit: 2,
            ..ListEventsRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(first.entries[0].event.as_ref(), Some(&events[0]));
    let second = all
        .list_events(ListEventsRequest {
            cursor: first.next_cursor,
            limit: 2,
            ..ListEventsRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (second.entries[0].seq, second.next_cursor.as_str()),
        (3, "")
    );
    let audit = all
        .list_events(ListEventsRequest {
            types: vec!["audit.*".into()],
            ..ListEventsRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(audit.entries[0].audit.as_ref(), Some(&audit_entry(1)));

    let bad = all
        .list_events(ListEventsRequest {
            limit: 5000,
            ..ListEventsRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    assert!(bad.message().contains("1 to 1000"), "{}", bad.message());

    let mut alice = client(serve(&store, user("alice"), 1000, 100).await).await;
    let of_job = |job: &str| GetJobRequest {
        cluster: CLUSTER.into(),
        job: job.into(),
        at: None,
    };
    let history = alice.get_job(of_job("1")).await.unwrap().into_inner();
    assert_eq!((history.runs.len(), history.runs[0].timeline.len()), (1, 2));
    assert_eq!(history.runs[0].summary.as_ref().unwrap().user, "alice");
    assert_eq!(
        alice.get_job(of_job("2")).await.unwrap_err().code(),
        Code::NotFound
    );
    let forbidden = alice
        .list_events(ListEventsRequest {
            user: "bob".into(),
            ..ListEventsRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(forbidden.code(), Code::PermissionDenied);
}

/// Returns all entries of an export.
async fn export(
    client: &mut EventsServiceClient<Channel>,
    request: ExportEventsRequest,
) -> Result<Vec<LedgerEntry>, Code> {
    let begun = client.export_events(request).await;
    let mut stream = begun.map_err(|error| error.code())?.into_inner();
    let mut entries = Vec::new();
    while let Some(response) = stream.message().await.map_err(|error| error.code())? {
        entries.push(response.entry.unwrap());
    }
    Ok(entries)
}

fn of(filter: EventFilter, fields: &[&str]) -> ExportEventsRequest {
    ExportEventsRequest {
        filter: Some(filter),
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
    }
}

async fn parts_of_entries_and_exports_are_those_of_rest(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    // More than two pages of an export, with an audit entry in between.
    let started = |n| record(&of_user("alice", EventType::JobStarted, fixtures::job(n)));
    let mut records: Vec<_> = (1..=250).map(started).collect();
    records.insert(100, audit_fact(&audit_entry(1)));
    records.push(record(&node_event("n1", 1)));
    store.append("S", 1, records).await.unwrap();
    let url = serve(&store, admin(), 1000, 100).await;
    let mut grpc = client(url.clone()).await;
    let lines = async |query: &str| -> Vec<serde_json::Value> {
        let text = reqwest::get(format!("{url}/v1/events/export?{query}")).await;
        let text = text.unwrap().text().await.unwrap();
        let line = |line| serde_json::from_str(line).unwrap();
        text.lines().map(line).collect()
    };

    // The complete export, up to the end of the ledger when it began.
    let request = ExportEventsRequest::default();
    let mut stream = grpc.export_events(request).await.unwrap().into_inner();
    let mut exported = vec![stream.message().await.unwrap().unwrap().entry.unwrap()];
    store.append("S", 2, vec![started(999)]).await.unwrap();
    while let Some(response) = stream.message().await.unwrap() {
        exported.push(response.entry.unwrap());
    }
    let whole = lines("to_seq=252").await;
    assert_eq!((exported.len(), whole.len()), (251, 251));
    for (entry, line) in exported.iter().zip(&whole) {
        assert_eq!(line["seq"], entry.seq);
        let data = serde_json::to_value(entry.event.as_ref().unwrap()).unwrap();
        assert_eq!(line["event"]["data"], data);
    }

    // Only the requested parts, the same through each method.
    let fields = [
        "seq",
        "type",
        "source",
        "subject",
        "time",
        "data.owner.user",
        "data.job.job.name",
        "data.node",
    ];
    let filter = EventFilter {
        types: ["job.*", "node.*", "audit.*"].map(str::to_owned).into(),
        to_seq: 252,
        ..EventFilter::default()
    };
    let parts = export(&mut grpc, of(filter.clone(), &fields))
        .await
        .unwrap();
    let query = format!(
        "type=job.*,node.*,audit.*&to_seq=252&fields={}",
        fields.join(",")
    );
    let chosen = lines(&query).await;
    assert_eq!((parts.len(), chosen.len()), (252, 252));
    for (entry, line) in parts.iter().zip(&chosen) {
        assert_eq!(line["seq"], entry.seq);
        let source = &line["event"]["source"];
        if let Some(audit) = &entry.audit {
            let expected = AuditEntry {
                id: String::new(),
                act: None,
                ..audit_entry(1)
            };
            assert_eq!((audit, &entry.event), (&expected, &None));
            continue;
        }
        let event = entry.event.clone().unwrap();
        assert_eq!(*source, format!("/clusters/{}", event.cluster));
        assert_eq!(line["event"]["subject"], event.entity_key());
        assert_eq!((event.id.as_str(), &event.observed_at), ("", &None));
        let mut data = serde_json::to_value(&event).unwrap();
        let object = data.as_object_mut().unwrap();
        for attribute in ["type", "cluster", "entity", "occurredAt"] {
            assert!(object.remove(attribute).is_some(), "{attribute}");
        }
        assert_eq!(line["event"]["data"], data);
    }
    let listed = ListEventsRequest {
        filter: Some(filter.clone()),
        fields: fields.map(str::to_owned).into(),
        limit: 1000,
        ..ListEventsRequest::default()
    };
    let listed = grpc.list_events(listed).await.unwrap().into_inner();
    assert_eq!(listed.entries, parts);
    let request = TailEventsRequest {
        filter: Some(EventFilter {
            to_seq: 0,
            ..filter
        }),
        after_seq: Some(0),
        fields: fields.map(str::to_owned).into(),
    };
    let mut tail = grpc.tail_events(request).await.unwrap().into_inner();
    for part in &parts {
        let entry = tokio::time::timeout(DEADLINE, tail.message()).await;
        let entry = entry.expect("an entry in time").unwrap().unwrap().entry;
        assert_eq!(entry.as_ref(), Some(part));
    }
    let only = export(&mut grpc, of(EventFilter::default(), &["seq"])).await;
    let bare = LedgerEntry {
        seq: 1,
        ..LedgerEntry::default()
    };
    assert_eq!(only.unwrap()[0], bare);

    // An error in the request is reported immediately. Entries that do not exist yet are no error.
    for fields in [&["colour"][..], &["seq", ""], &["seq"; 65]] {
        let error = grpc.export_events(of(EventFilter::default(), fields)).await;
        let error = error.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with("fields: "), "{error}");
    }
    let unknown = EventFilter {
        types: vec!["job.vanished".into()],
        ..EventFilter::default()
    };
    let unknown = export(&mut grpc, of(unknown, &[])).await;
    assert_eq!(unknown.unwrap_err(), Code::InvalidArgument);
    let newer = EventFilter {
        from_seq: 1000,
        ..EventFilter::default()
    };
    assert_eq!(export(&mut grpc, of(newer, &[])).await, Ok(vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_sums_nodes_and_the_tail_are_those_of_rest_too() {
    let database = Database::sqlite();
    let store = database.store().await;
    let events = [
        of_user("alice", EventType::JobStarted, fixtures::job(1)),
        node_event("n1", 1),
        of_user("bob", EventType::JobStarted, fixtures::job(2)),
    ];
    store
        .append("S", 3, events.iter().map(record).collect())
        .await
        .unwrap();
    let mut all = client(serve(&store, admin(), 2, 100).await).await;

    let of_bob = EventFilter {
        user: "bob".into(),
        ..EventFilter::default()
    };
    let page = all
        .list_events(ListEventsRequest {
            filter: Some(of_bob.clone()),
            ..ListEventsRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!((page.entries.len(), page.entries[0].seq), (1, 3));
    let twice = all
        .list_events(ListEventsRequest {
            user: "alice".into(),
            filter: Some(of_bob),
            ..ListEventsRequest::default()
        })
        .await
        .unwrap_err();
    assert!(twice.message().starts_with("filter: "), "{twice}");

    let stats = all
        .get_stats(GetStatsRequest {
            filter: None,
            by: vec!["user".into()],
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(stats.rows.len(), 2);
    assert_eq!(stats.rows[0].group["user"], "alice");
    assert_eq!(stats.rows[0].jobs["started"], 1);
    assert_eq!(stats.rows[0].wait.as_ref().unwrap().p50_seconds, 10);

    let node = all
        .get_node(GetNodeRequest {
            cluster: CLUSTER.into(),
            node: "n1".into(),
            at: None,
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(node.timeline.len(), 1);

    // First more than a page of history, then newly appended entries.
    let mut tail = all
        .tail_events(TailEventsRequest {
            after_seq: Some(0),
            ..TailEventsRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    for seq in 1..=3 {
        let entry = tail.message().await.unwrap().unwrap().entry.unwrap();
        assert_eq!(entry.seq, seq);
    }
    let next = of_user("alice", EventType::JobStarted, fixtures::job(4));
    store.append("S", 4, vec![record(&next)]).await.unwrap();
    let entry = tail.message().await.unwrap().unwrap().entry.unwrap();
    assert_eq!((entry.seq, entry.event), (4, Some(next)));
    let bounded = all
        .tail_events(TailEventsRequest {
            filter: Some(EventFilter {
                to_seq: 3,
                ..EventFilter::default()
            }),
            ..TailEventsRequest::default()
        })
        .await
        .unwrap_err();
    assert_eq!(bounded.code(), Code::InvalidArgument);
}
