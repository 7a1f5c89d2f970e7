//! The queue snapshot, and who may write it.

use ingest::Error;
use ingest::adapters::chunks::ChunkPublisher;
use mesh_events::catalogue::BUCKET_QUEUE;
use mesh_events::proto::mesh::queue::v1::QueueSnapshot;
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use crate::mesh::Mesh;

/// A snapshot with this number of chunks, identified by the number of running jobs.
fn chunks(count: u32, running: u32) -> Vec<QueueSnapshot> {
    let chunk = |chunk| QueueSnapshot {
        chunk,
        chunks: count,
        running,
        ..QueueSnapshot::default()
    };
    (0..count).map(chunk).collect()
}

async fn stored(mesh: &Mesh) -> Vec<QueueSnapshot> {
    let bucket = mesh.bus.bucket(BUCKET_QUEUE).await.unwrap();
    let entries = bucket.load("c1").await.unwrap().into_iter();
    let chunk = |value| QueueSnapshot::decode(value).unwrap();
    entries.map(|entry| chunk(entry.value)).collect()
}

/// Publishes all chunks, as a poll does.
async fn publish(by: &mut ChunkPublisher, chunks: &[QueueSnapshot]) -> Result<(), Error> {
    for (number, chunk) in chunks.iter().enumerate() {
        assert!(by.publish(number, chunk.encode_to_vec()).await?);
    }
    by.truncate(chunks.len()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_leader_overwrites_no_newer_snapshot() {
    let mesh = Mesh::start().await;
    let stop = CancellationToken::new();
    let take_over = async || {
        ChunkPublisher::take_over(&mesh.bus, BUCKET_QUEUE, "c1", &stop)
            .await
            .unwrap()
    };
    let mut former = take_over().await;
    publish(&mut former, &chunks(3, 1)).await.unwrap();
    assert_eq!(stored(&mesh).await, chunks(3, 1));

    // The next writer knows that there were three.
    let mut present = take_over().await;
    publish(&mut present, &chunks(1, 2)).await.unwrap();
    for late in [chunks(2, 1), chunks(4, 1)] {
        let refused = publish(&mut former, &late).await;
        assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    }
    assert_eq!(stored(&mesh).await, chunks(1, 2));
    publish(&mut present, &chunks(2, 3)).await.unwrap();
    assert_eq!(stored(&mesh).await, chunks(2, 3));
}
