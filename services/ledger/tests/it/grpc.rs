//! gRPC gives the same answers as REST, on the same address.

use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::ledger::v1::{
    EventFilter, GetJobRequest, GetNodeRequest, GetStatsRequest, ListEventsRequest,
    TailEventsRequest,
};
use mesh_testkit::build::{self, CLUSTER};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::{
    Database, admin, audit_entry, audit_fact, fact, node_event, of_user, on_both, serve, user,
};

on_both!(answers_are_those_of_rest,);

async fn client(url: String) -> EventsServiceClient<Channel> {
    EventsServiceClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap())
}

async fn answers_are_those_of_rest(database: Database) {
    let store = database.store().await;
    let events = [
        of_user("alice", EventType::JobSubmitted, build::job(1)),
        of_user("bob", EventType::JobSubmitted, build::job(2)),
        of_user("alice", EventType::JobStarted, build::job(1)),
    ];
    store
        .append("S", 3, events.iter().map(fact).collect())
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
    let story = alice.get_job(of_job("1")).await.unwrap().into_inner();
    assert_eq!((story.runs.len(), story.runs[0].timeline.len()), (1, 2));
    assert_eq!(story.runs[0].summary.as_ref().unwrap().user, "alice");
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

#[tokio::test(flavor = "multi_thread")]
async fn filters_sums_nodes_and_the_tail_are_those_of_rest_too() {
    let database = Database::sqlite();
    let store = database.store().await;
    let events = [
        of_user("alice", EventType::JobStarted, build::job(1)),
        node_event("n1", 1),
        of_user("bob", EventType::JobStarted, build::job(2)),
    ];
    store
        .append("S", 3, events.iter().map(fact).collect())
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

    // History first, more than a page of it, and then what is appended.
    let mut tail = all
        .tail_events(TailEventsRequest {
            filter: None,
            after_seq: Some(0),
        })
        .await
        .unwrap()
        .into_inner();
    for seq in 1..=3 {
        let entry = tail.message().await.unwrap().unwrap().entry.unwrap();
        assert_eq!(entry.seq, seq);
    }
    let next = of_user("alice", EventType::JobStarted, build::job(4));
    store.append("S", 4, vec![fact(&next)]).await.unwrap();
    let entry = tail.message().await.unwrap().unwrap().entry.unwrap();
    assert_eq!((entry.seq, entry.event), (4, Some(next)));
    let bounded = all
        .tail_events(TailEventsRequest {
            filter: Some(EventFilter {
                to_seq: 3,
                ..EventFilter::default()
            }),
            after_seq: None,
        })
        .await
        .unwrap_err();
    assert_eq!(bounded.code(), Code::InvalidArgument);
}
