//! The list of webhooks: what it asks the database does not grow with their number.

use axum::http::{Method, StatusCode};
use mesh_testkit::{Receiver, wait_until};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::harness::{DEADLINE, Kind, Mesh, signed};

const ENDPOINTS: usize = 40;
const LISTS: i64 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_webhooks_takes_a_few_queries_however_many_they_are() {
    let receiver = Receiver::start().await;
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
    // What a start and an end take by themselves, looks of every second included, is in both.
    let by_lists = (third - second) - (second - first);
    assert!(by_lists >= LISTS, "{by_lists} queries: they are counted");
    assert!(by_lists < 15 * LISTS, "{by_lists} queries");
}

/// Transactions in the dispatcher's database so far. A connection counts its own when it ends, before it is gone from the list.
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
