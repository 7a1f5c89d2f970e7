use futures_util::future::join_all;
use mesh_events::catalogue::{BUCKETS, CONSUMERS, RETIRED_CONSUMERS, STREAMS};
use mesh_testkit::NatsServer;
use tokio_util::sync::CancellationToken;

use crate::connect;

#[tokio::test(flavor = "multi_thread")]
async fn however_many_wait_for_the_bus_it_is_declared_once() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    let shutdown = CancellationToken::new();
    let waiting = join_all((0..100).map(|_| bus.ready(&shutdown)));
    assert!(waiting.await.iter().all(Result::is_ok));
    // A missing stream costs one more request to look it up.
    let once = 2 * STREAMS.len() + CONSUMERS.len() + RETIRED_CONSUMERS.len() + 2 * BUCKETS.len();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let account = async_nats::jetstream::new(client).query_account().await;
    let requests = usize::try_from(account.unwrap().requests.total).unwrap();
    assert!((1..=2 * once).contains(&requests), "{requests} requests");
}
