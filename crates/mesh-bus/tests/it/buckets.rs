use mesh_bus::PutError;
use mesh_events::catalogue::BUCKET_INGEST;
use mesh_testkit::NatsServer;

use crate::connect;

#[tokio::test(flavor = "multi_thread")]
async fn a_write_over_an_outdated_reading_is_refused() {
    let nats = NatsServer::start().await;
    let bucket = connect(&nats, "ingest")
        .await
        .bucket(BUCKET_INGEST)
        .await
        .unwrap();
    let first = bucket.put("c1.0", "a".into(), None).await.unwrap();
    let second = bucket.put("c1.0", "b".into(), Some(first)).await.unwrap();
    assert!(matches!(
        bucket.put("c1.0", "c".into(), Some(first)).await,
        Err(PutError::Conflict { .. })
    ));
    assert!(matches!(
        bucket.put("c1.0", "c".into(), None).await,
        Err(PutError::Conflict { .. })
    ));
    let entry = bucket.get("c1.0").await.unwrap().unwrap();
    assert_eq!(
        (entry.value.as_ref(), entry.revision),
        (b"b".as_ref(), second)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_loads_only_its_own_shards() {
    let nats = NatsServer::start().await;
    let bucket = connect(&nats, "ingest")
        .await
        .bucket(BUCKET_INGEST)
        .await
        .unwrap();
    assert!(bucket.load("c1").await.unwrap().is_empty());
    for key in ["c1.0", "c11.0"] {
        bucket.put(key, key.into(), None).await.unwrap();
    }
    let keys: Vec<_> = bucket
        .load("c1")
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    assert_eq!(keys, ["c1.0"]);
}
