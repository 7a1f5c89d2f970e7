//! A query that exceeds its time limit is answered with a hint for a better request, and does not
//! affect other callers.

use std::time::Duration;

use ledger::Store;
use mesh_api::ledger::events_service_client::EventsServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::ledger::v1::{
    ExportEventsRequest, GetJobRequest, GetNodeRequest, GetStatsRequest, ListEventsRequest,
};
use mesh_testkit::fixtures::{self, CLUSTER};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::api::get;
use crate::support::{Database, admin, node_event, of_user, on_both, record, serve};

on_both!(slow_queries_are_refused_with_a_remedy);

/// A view that blocks every reader of a row forever.
const ENDLESS_VIEW: &str = "CREATE VIEW event_index AS SELECT r.* FROM real_index r WHERE (
    WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT COUNT(*) FROM n) > r.seq";

async fn slow_queries_are_refused_with_a_remedy(database: Database) {
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    let events = [
        of_user("alice", EventType::JobStarted, fixtures::job(1)),
        node_event("n1", 1),
    ];
    let records = events.iter().map(record).collect();
    store.append("S", 2, records).await.unwrap();
    store.close().await;
    let mut outsider = database.outsider().await;
    let rename = "ALTER TABLE event_index RENAME TO real_index";
    for statement in [rename, ENDLESS_VIEW] {
        outsider.execute(statement).await;
    }
    let longest = Duration::from_secs(2);
    let store = Store::connect_with(&database.location(), None, 2, longest).unwrap();
    let url = serve(&store, admin(), 1000, 100).await;
    for path in [
        "/v1/events".to_owned(),
        // Not by user or another column: on SQLite these queries name an index, and a view has
        // none.
        "/v1/events?job=1".to_owned(),
        "/v1/events?node=n1".to_owned(),
        "/v1/events/stats?by=user".to_owned(),
        "/v1/events/export".to_owned(),
        "/v1/events/stream?after=0".to_owned(),
        format!("/v1/jobs/{CLUSTER}/1"),
        format!("/v1/nodes/{CLUSTER}/n1?at=1s"),
    ] {
        let (status, problem) = get(&url, &path).await;
        assert_eq!(status, 503, "{path}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("narrow the time"), "{path}: {problem}");
        // Other callers do not wait.
        assert_eq!(get(&url, "/v1/ledger/head").await.0, 200);
    }

    let endpoint = Endpoint::from_shared(url).unwrap();
    let mut grpc = EventsServiceClient::new(endpoint.connect().await.unwrap());
    let listed = grpc.list_events(ListEventsRequest::default()).await;
    let summed = grpc.get_stats(GetStatsRequest::default()).await;
    let exported = grpc.export_events(ExportEventsRequest::default()).await;
    let job = GetJobRequest {
        cluster: CLUSTER.into(),
        job: "1".into(),
        at: None,
    };
    let node = GetNodeRequest {
        cluster: CLUSTER.into(),
        node: "n1".into(),
        at: None,
    };
    for status in [
        listed.unwrap_err(),
        summed.unwrap_err(),
        exported.unwrap_err(),
        grpc.get_job(job).await.unwrap_err(),
        grpc.get_node(node).await.unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.message().contains("narrow the time"), "{status}");
    }
}
