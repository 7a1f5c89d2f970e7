//! Many endpoints: they have nothing of their own at nats-server.

use mesh_events::EventType;
use mesh_testkit::{WebhookReceiver, wait_until};

use crate::harness::{DEADLINE, Kind, Mesh, event, on_both, signed};

const ENDPOINTS: usize = 300;
/// Two for each of the 256 shards of names. Streams, consumers and buckets are declared once, by the test as well, and
/// periodically listed.
const MAX_REQUESTS: usize = 2 * 256 + 500;

on_both! {
    a_start_with_many_endpoints_asks_the_server_nothing_for_each,
}

async fn a_start_with_many_endpoints_asks_the_server_nothing_for_each(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let endpoints: Vec<String> = (0..ENDPOINTS)
        .map(|n| {
            let url = receiver.url(&format!("/{n}"));
            signed(&format!("endpoint-{n}"), &url, "types = [\"job.*\"]")
        })
        .collect();
    let mut mesh = Mesh::on(kind).await;
    let mut before = requests(&mesh).await;
    // The first start stores the positions, the second finds them.
    for start in 1..=2 {
        mesh.start_dispatcher(&endpoints).await;
        wait_until("it is ready", DEADLINE, async || mesh.is_ready()).await;
        mesh.publish(&event(EventType::JobStarted, start)).await;
        let expected = ENDPOINTS * start as usize;
        wait_until("every endpoint is told", DEADLINE, async || {
            receiver.received().len() >= expected
        })
        .await;
        mesh.stop().await;
        let now = requests(&mesh).await;
        assert!(
            now - before <= MAX_REQUESTS,
            "start {start} made {} requests",
            now - before
        );
        before = now;
    }
    assert_eq!(receiver.received().len(), 2 * ENDPOINTS, "each told once");
}

/// Number of requests that JetStream has answered.
async fn requests(mesh: &Mesh) -> usize {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let account = async_nats::jetstream::new(client).query_account().await;
    usize::try_from(account.unwrap().requests.total).unwrap()
}
