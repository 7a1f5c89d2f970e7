//! Lists: the queries for the list of webhooks do not grow with their number, and all pages of deliveries can be
//! read.

use std::collections::HashSet;

use axum::http::{Method, StatusCode};
use mesh_events::EventType;
use mesh_events::proto::mesh::webhook::v1::ListDeliveriesRequest;
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::again::client;
use crate::harness::{DEADLINE, Kind, Mesh, event, on_both, signed};

const ENDPOINTS: usize = 40;
const LISTS: i64 = 50;
const DEAD: u32 = 23;
const PAGE: usize = 5;

on_both!(dead_letters_are_listed_to_the_last_while_more_come,);

async fn dead_letters_are_listed_to_the_last_while_more_come(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(404));
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    for n in 0..DEAD {
        mesh.publish(&event(EventType::JobStarted, n)).await;
    }
    mesh.wait_for_count("pipeline", "dead", DEAD.into()).await;
    let path = format!("/v1/webhooks/pipeline/deliveries?state=dead&limit={PAGE}");
    let mut sizes = Vec::new();
    let mut listed = HashSet::new();
    let mut next = Some(String::new());
    while let Some(cursor) = next.take() {
        let at = if cursor.is_empty() {
            path.clone()
        } else {
            format!("{path}&cursor={cursor}")
        };
        let (status, page) = mesh.call(Method::GET, &at).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let deliveries = page["deliveries"].as_array().unwrap();
        sizes.push(deliveries.len());
        listed.extend(deliveries.iter().map(|one| one["event_id"].to_string()));
        next = page["next_cursor"].as_str().map(str::to_owned);
        // Deliveries created in the meantime are newer than all that are listed.
        let more = DEAD + u32::try_from(sizes.len()).unwrap();
        mesh.publish(&event(EventType::JobStarted, more)).await;
        mesh.wait_for_count("pipeline", "dead", more.into()).await;
    }
    assert_eq!((sizes, listed.len()), (vec![5, 5, 5, 5, 3], DEAD as usize));

    let mut client = client(&mesh).await;
    let mut request = ListDeliveriesRequest {
        name: "pipeline".into(),
        limit: 20,
        ..ListDeliveriesRequest::default()
    };
    let mut sizes = Vec::new();
    loop {
        let page = client.list_deliveries(request.clone()).await.unwrap();
        let page = page.into_inner();
        sizes.push(page.deliveries.len());
        request.cursor = page.next_cursor;
        if request.cursor.is_empty() {
            break;
        }
    }
    assert_eq!(sizes, [20, 8]);

    let (status, problem) = mesh.call(Method::GET, &format!("{path}&cursor=x")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    assert!(
        problem
            .to_string()
            .contains("next_cursor of the page before")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_webhooks_takes_a_few_queries_however_many_they_are() {
    let receiver = WebhookReceiver::start().await;
    let endpoints: Vec<String> = (0..ENDPOINTS)
        .map(|n| signed(&format!("endpoint-{n}"), &receiver.url("/"), ""))
        .collect();
    let mut mesh = Mesh::start_on(Kind::Postgres, &endpoints).await;
    mesh.stop().await;
    let first = transactions(&mesh).await;
    mesh.run(&endpoints).await;
    mesh.stop().await;
    let second = transactions(&mesh).await;
    mesh.run(&endpoints).await;
    for _ in 0..LISTS {
        let (status, answer) = mesh.call(Method::GET, "/v1/webhooks").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["webhooks"].as_array().unwrap().len(), ENDPOINTS);
    }
    mesh.stop().await;
    let third = transactions(&mesh).await;
    // Both differences include the queries of a start, an end and the polls of every second.
    let by_lists = (third - second) - (second - first);
    assert!(by_lists >= LISTS, "{by_lists} queries: they are counted");
    assert!(by_lists < 15 * LISTS, "{by_lists} queries");
}

/// Transactions in the dispatcher's database so far. A connection reports its own when it ends, before it leaves the
/// list.
async fn transactions(mesh: &Mesh) -> i64 {
    let options: PgConnectOptions = mesh.database.parse().unwrap();
    let mut connection = options
        .clone()
        .database("postgres")
        .connect()
        .await
        .unwrap();
    let name = options.get_database().unwrap();
    wait_until("every connection has ended", DEADLINE, async || {
        let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        let others: i64 = sqlx::query_scalar(others)
            .bind(name)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        others == 0
    })
    .await;
    let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
    let query = sqlx::query_scalar(sql).bind(name);
    query.fetch_one(&mut connection).await.unwrap()
}
