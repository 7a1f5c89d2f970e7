//! Terms of leadership, on a real nats-server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_bus::Bus;
use mesh_events::catalogue::BUCKET_NODES;
use mesh_runtime::{ConfigFile, Context};
use mesh_testkit::NatsServer;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::DEADLINE;

/// Nobody repeats a write of a term that is over. As a problem it would keep a standby from being ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_of_a_term_is_no_problem_after_it() {
    let nats = Arc::new(NatsServer::start().await);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.toml");
    let config = format!(
        "[mesh]\ncluster = \"c\"\ndata_dir = \".\"\n[mesh.nats]\n{}",
        nats.toml()
    );
    std::fs::write(&path, config).unwrap();
    let shutdown = CancellationToken::new();
    let context = Context::new(
        ConfigFile::load(&[], Some(&path)).unwrap(),
        shutdown.clone(),
    );
    let context = context.unwrap();
    let bus = Bus::connect(&context.mesh.nats, "node-watcher")
        .await
        .unwrap();
    bus.ready(&shutdown).await.unwrap();

    let (problems, mut begun) = mpsc::unbounded_channel();
    let (writer, leading) = (bus.clone(), context.clone());
    let (is_first, stop) = (AtomicBool::new(true), shutdown.clone());
    let terms = tokio::spawn(async move {
        let term = |_| {
            let (bus, problems) = (writer.clone(), problems.clone());
            let (is_first, stop) = (is_first.swap(false, Ordering::Relaxed), stop.clone());
            let nats = Arc::clone(&nats);
            async move {
                problems.send(bus.problem()).unwrap();
                if !is_first {
                    stop.cancelled().await;
                    return Ok(());
                }
                let bucket = bus.bucket(BUCKET_NODES).await.unwrap();
                nats.pause();
                bucket.put("c.n1", "x".into(), None).await.unwrap_err();
                nats.resume();
                // Not while the connection itself is the problem.
                while !bus
                    .problem()
                    .is_some_and(|problem| problem.contains("does not store"))
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok::<_, std::convert::Infallible>(())
            }
            .boxed()
        };
        leading.lead(&writer, || {}, term).await
    });
    let mut next = async || {
        tokio::time::timeout(DEADLINE, begun.recv())
            .await
            .unwrap()
            .unwrap()
    };
    assert_eq!(next().await, None, "the first term");
    assert_eq!(next().await, None, "the term after a failed write");
    shutdown.cancel();
    terms.await.unwrap().unwrap();
}
