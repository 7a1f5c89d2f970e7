//! gRPC gives the same answers as REST, on the same address.

use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::ledger::v1::{GetJobRequest, ListEventsRequest};
use mesh_testkit::build::{self, CLUSTER};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::{
    Database, admin, audit_entry, audit_fact, fact, of_user, on_both, serve, user,
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
