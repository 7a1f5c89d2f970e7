//! The state of ingest is on the bus. After it is deleted, ingest restores it before it is needed.

use std::collections::BTreeSet;

use async_nats::jetstream;
use async_nats::jetstream::consumer::PullConsumer;
use mesh_events::catalogue::{BUCKET_INGEST, BUCKET_LEASES, BUCKET_QUEUE, BUCKET_USERS, CONSUMERS};
use mesh_testkit::wait_for;

use crate::cluster::{self, NAME};
use crate::mesh::{DEADLINE, Mesh};

const FAST: &str = "poll_interval = \"500ms\"";

/// Returns the keys of a bucket; none if there is no such bucket.
async fn keys(context: &jetstream::Context, bucket: &str) -> BTreeSet<String> {
    let Ok(stream) = context.get_stream(format!("KV_{bucket}")).await else {
        return BTreeSet::new();
    };
    let info = stream.info_with_subjects(">").await.unwrap();
    let subjects: Vec<_> = futures_util::StreamExt::collect(info).await;
    let subjects = subjects.into_iter().map(|one| one.unwrap().0);
    subjects.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn state_of_ingest_is_restored_while_nothing_happens() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let context = jetstream::new(async_nats::connect(mesh.nats.url()).await.unwrap());
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 600").await;
    mesh.wait_history(job, "submitted started").await;
    let buckets = [BUCKET_INGEST, BUCKET_USERS, BUCKET_QUEUE, BUCKET_LEASES];
    let mut before = Vec::new();
    for bucket in buckets {
        before.push(
            wait_for(bucket, DEADLINE, async || {
                let keys = keys(&context, bucket).await;
                // The fencing key is no state.
                (keys.len() > usize::from(bucket != BUCKET_LEASES)).then_some(keys)
            })
            .await,
        );
    }
    // Including the lease: the next leader starts with the state of the last one.
    for bucket in buckets {
        let deleted = context.delete_stream(format!("KV_{bucket}")).await;
        assert!(deleted.unwrap().success);
    }
    for (bucket, before) in buckets.into_iter().zip(&before) {
        wait_for(&format!("{bucket} is there again"), DEADLINE, async || {
            keys(&context, bucket)
                .await
                .is_superset(before)
                .then_some(())
        })
        .await;
    }
    let consumers = CONSUMERS.iter().filter(|one| one.name == "ingest");
    for consumer in consumers {
        let (stream, durable) = (consumer.stream, consumer.durable(NAME));
        let deleted = context.delete_consumer_from_stream(&durable, stream).await;
        assert!(deleted.unwrap().success);
        wait_for(&format!("{durable} of {stream}"), DEADLINE, async || {
            let found = context.get_consumer_from_stream(&durable, stream).await;
            let _: PullConsumer = found.ok()?;
            Some(())
        })
        .await;
    }
    let consumers = CONSUMERS.iter().filter(|one| one.name == "ingest");
    let consumers =
        consumers.map(|one| format!("consumer {} of {}", one.durable(NAME), one.stream));
    let repaired: Vec<String> = buckets
        .iter()
        .map(|bucket| format!("bucket {bucket} was"))
        .chain(consumers)
        .collect();
    wait_for("it is said", DEADLINE, async || {
        let published = ingest.context.health.notes();
        let published = published.get("ingest.repairs")?;
        repaired
            .iter()
            .all(|one| published.contains(one))
            .then_some(())
    })
    .await;
    ingest.stop().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    cluster.run("root", &["scancel", &job.to_string()]).await;
    mesh.wait_history(job, "submitted started cancelled").await;
    mesh.assert_no_duplicates();
    assert!(
        mesh.of_job(job)
            .iter()
            .all(|event| event.r#type != "job.baseline")
    );
    ingest.stop().await;
}
