//! Foreign bytes in the keys of the state buckets: capture goes on, and what was lost is a gap.

use async_nats::jetstream::kv::Store;
use futures_util::TryStreamExt as _;
use mesh_events::Event;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::wait_for;

use crate::cluster;
use crate::mesh::{DEADLINE, Mesh};
use crate::users::{baseline, sacctmgr};

const FAST: &str = "poll_interval = \"500ms\"\nusage_delay = \"1s\"\nidentity_reload_interval = \"200ms\"\n[ingest.users]\ninterval = \"1s\"";
const GARBAGE: &[u8] = b"\xff\x00not ours";

async fn bucket(mesh: &Mesh, name: &str) -> Store {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream.get_key_value(name).await.unwrap()
}

async fn keys(bucket: &Store) -> Vec<String> {
    let keys = bucket.keys().await.unwrap();
    keys.try_collect().await.unwrap()
}

/// Overwrites the keys of a bucket that match. Returns how many.
async fn overwrite(mesh: &Mesh, name: &str, matches: impl Fn(&str) -> bool) -> usize {
    let bucket = bucket(mesh, name).await;
    let mut keys = keys(&bucket).await;
    keys.retain(|key| !key.contains(".damaged.") && matches(key));
    for key in &keys {
        bucket.put(key, GARBAGE.into()).await.unwrap();
    }
    keys.len()
}

/// Returns the values that were put aside.
async fn put_aside(mesh: &Mesh, name: &str) -> usize {
    let bucket = bucket(mesh, name).await;
    let mut keys = keys(&bucket).await;
    keys.retain(|key| key.starts_with("ingest.damaged."));
    for key in &keys {
        let value = bucket.get(key).await.unwrap().unwrap();
        assert_eq!(value, GARBAGE, "{key}");
    }
    keys.len()
}

/// Waits until every key can be read again.
async fn wait_written(mesh: &Mesh, name: &str) {
    let bucket = bucket(mesh, name).await;
    wait_for("the keys are written", DEADLINE, async || {
        for key in keys(&bucket).await {
            let value = bucket.get(&key).await.ok()??;
            if !key.contains(".damaged.") && value == GARBAGE {
                return None;
            }
        }
        Some(())
    })
    .await;
}

fn gaps(mesh: &Mesh) -> Vec<CaptureEvent> {
    let gap = |event: Event| match event.payload {
        Some(Payload::Capture(gap))
            if event.r#type == "capture.gap_closed" && gap.source == "state" =>
        {
            Some(gap)
        }
        _ => None,
    };
    mesh.events().into_iter().filter_map(gap).collect()
}

async fn wait_gaps(mesh: &Mesh, count: usize) {
    let description = format!("{count} gaps");
    wait_for(&description, DEADLINE, async || {
        (gaps(mesh).len() >= count).then_some(())
    })
    .await;
}

fn access_events(mesh: &Mesh) -> usize {
    let events = mesh.events().into_iter();
    events
        .filter(|event| event.r#type.starts_with("user."))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_bytes_in_stored_state_are_put_aside_and_capture_goes_on() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    baseline(&mesh).await;
    let script = cluster.until_let_go();
    let (first, second) = (
        cluster.sbatch(&[], &script).await,
        cluster.sbatch(&[], &script).await,
    );
    let held = cluster
        .sbatch(&["--hold", "--begin=now+1hour"], "true")
        .await;
    let done = cluster.sbatch(&[], "exit 3").await;
    for job in [first, second] {
        mesh.wait_history(job, "submitted started").await;
    }
    mesh.wait_history(held, "submitted held").await;
    mesh.wait_history(done, "submitted started failed").await;
    let before = access_events(&mesh);
    ingest.stop().await;

    let is_shard = |key: &str| !key.ends_with(".meta") && !key.ends_with(".writer");
    let of_jobs = overwrite(&mesh, "mesh_ingest", is_shard).await;
    let of_users = overwrite(&mesh, "mesh_users", is_shard).await;
    assert!(of_jobs >= 4 && of_users > 1);
    assert_eq!(overwrite(&mesh, "mesh_leases", |_| true).await, 1);
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    wait_gaps(&mesh, 2).await;
    assert_eq!(put_aside(&mesh, "mesh_ingest").await, of_jobs);
    assert_eq!(put_aside(&mesh, "mesh_users").await, of_users);
    let found = gaps(&mesh);
    assert!(found.iter().all(|gap| !gap.not_recoverable.is_empty()));
    let jobs = found.iter().find(|gap| gap.message.contains("of jobs"));
    assert!(jobs.unwrap().recovered >= 9, "{found:?}");
    cluster.let_go(first);
    mesh.wait_history(first, "submitted started completed")
        .await;
    let id = held.to_string();
    cluster.run("root", &["scontrol", "release", &id]).await;
    mesh.wait_history(held, "submitted held released").await;
    // With a count that was used, the bus would drop it.
    cluster.run("root", &["scontrol", "hold", &id]).await;
    mesh.wait_history(held, "submitted held released held")
        .await;
    mesh.wait_event("what a job used", |_| mesh.updates_of(first).len() == 1)
        .await;
    // From here on a change is news.
    wait_written(&mesh, "mesh_users").await;
    assert_eq!(access_events(&mesh), before);
    sacctmgr(cluster, "root", "modify user carol set maxjobs=77").await;
    mesh.wait_event("access has changed", |event| {
        event.r#type == "user.access_changed"
    })
    .await;
    sacctmgr(cluster, "root", "modify user carol set maxjobs=-1").await;
    ingest.stop().await;

    let is_state = |key: &str| !key.ends_with(".writer");
    overwrite(&mesh, "mesh_ingest", is_state).await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    wait_gaps(&mesh, 3).await;
    assert!(gaps(&mesh)[2].message.contains("of the cluster"));
    cluster.let_go(second);
    mesh.wait_history(second, "submitted started completed")
        .await;
    cluster.run("alice", &["scancel", &id]).await;
    mesh.wait_history(held, "submitted held released held cancelled")
        .await;
    let new = cluster.sbatch(&[], "true").await;
    mesh.wait_history(new, "submitted started completed").await;
    mesh.wait_history(done, "submitted started failed").await;
    mesh.assert_no_duplicates();
    wait_written(&mesh, "mesh_ingest").await;
    ingest.stop().await;
    // What was written meanwhile can be read.
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    assert_eq!(gaps(&mesh).len(), 3);
    ingest.stop().await;
}
