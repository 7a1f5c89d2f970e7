//! The first start on a busy cluster.

use std::collections::BTreeMap;

use integration::{Cluster, ClusterOptions, Mesh, Receiver, Slurm as _, lives};

use crate::support::{PATIENCE, options};

#[tokio::test(flavor = "multi_thread")]
async fn existing_jobs_at_the_first_start_are_only_baseline() {
    let cluster = Cluster::start(&ClusterOptions::small("busy"))
        .await
        .unwrap();
    let submit = async |options: &[&str], script: &str| {
        cluster.submit("alice", options, script).await.unwrap()
    };
    let over = submit(&[], "true").await;
    let running = submit(&[], "sleep 600").await;
    let waiting = submit(&["--begin=now+1hour"], "true").await;
    let array = submit(&["--array=0-1", "--hold"], "true").await;
    for (job, state) in [(over, "COMPLETED"), (running, "RUNNING")] {
        cluster
            .wait_state(&job.to_string(), &[state], PATIENCE)
            .await
            .unwrap();
    }

    let receiver = Receiver::start().await.unwrap();
    let endpoint = receiver.endpoint("all", "types = [\"*\"]");
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(&endpoint))
        .await
        .unwrap();
    mesh.start().await.unwrap();
    cluster.ring(&mesh.hook_config()).unwrap();
    let living = [running, waiting, array];
    published(&mesh, &living, &["baseline"]).await;

    // The receiver gets all ends, but not the baselines.
    for job in living {
        let job = job.to_string();
        cluster.ask("alice", &["scancel", &job]).await.unwrap();
    }
    published(&mesh, &living, &["baseline", "cancelled"]).await;
    let ends = || {
        let deliveries = receiver.deliveries("all");
        let kinds = deliveries.iter().filter_map(|delivery| {
            assert_eq!(delivery.signature, Some(Ok(())));
            let event = delivery.event().unwrap();
            event.r#type.starts_with("job.").then_some(event.r#type)
        });
        kinds.collect::<Vec<_>>()
    };
    integration::wait_for("the ends at the receiver", PATIENCE, async || {
        let ends = ends();
        let cancelled = ends.iter().filter(|kind| *kind == "job.cancelled").count();
        Ok((cancelled >= living.len()).then_some(()))
    })
    .await
    .unwrap();
    assert!(!ends().contains(&"job.baseline".to_owned()));
}

/// Waits until the ledger has exactly these events of exactly these jobs.
async fn published(mesh: &Mesh, jobs: &[u32], event_names: &[&'static str]) {
    let expected: BTreeMap<u32, Vec<&str>> = jobs
        .iter()
        .map(|job| (*job, event_names.to_vec()))
        .collect();
    let by_job = |facts: &[integration::Fact]| {
        lives(facts)
            .into_iter()
            .map(|(run, event_names)| (run.0, event_names))
            .collect::<BTreeMap<_, _>>()
    };
    let done = mesh.wait_facts(
        "the running jobs are published",
        PATIENCE,
        "job.*",
        |facts| (by_job(facts) == expected).then_some(()),
    );
    if let Err(error) = done.await {
        let facts = mesh.facts("job.*").await.unwrap();
        panic!("{error}: {:?} instead of {expected:?}", by_job(&facts));
    }
}
