//! Receivers that are down or always fail do not affect the others.

use std::collections::BTreeSet;

use integration::{Receiver, Slurm as _, wait_for};

use crate::support::{PATIENCE, agrees, small};

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_down_gets_everything_and_a_failing_one_affects_no_other() {
    let receiver = Receiver::start().await.unwrap();
    let mut late = Receiver::start().await.unwrap();
    late.stop().await;
    receiver.answer("never", 500);
    let types = "types = [\"job.*\", \"cost.*\"]";
    let endpoints = [
        receiver.endpoint("good", types),
        // Without a circuit breaker, so that every attempt is made.
        receiver.endpoint(
            "never",
            &format!("{types}\nmax_attempts = 3\nretry = {{ initial_interval = \"50ms\", multiplier = 2 }}\ncircuit_breaker = {{ failure_threshold = 0 }}"),
        ),
        late.endpoint(
            "late",
            &format!("{types}\nmax_attempts = 100000\nretry = {{ initial_interval = \"200ms\", multiplier = 2, max_interval = \"1s\" }}"),
        ),
    ];
    let (cluster, mesh) = small("receivers", &endpoints.concat()).await;
    let mut jobs = Vec::new();
    for script in ["true", "exit 3", "sleep 1"] {
        jobs.push(cluster.submit("alice", &[], script).await.unwrap());
    }
    agrees(&cluster, &mesh, &jobs).await;
    // Started three times; each start and end has its cost.
    let types = "job.submitted,job.started,job.completed,job.failed,cost.*";
    let ids: BTreeSet<String> = mesh
        .wait_facts("all costs", PATIENCE, types, |facts| {
            let ids = facts.iter().map(|fact| fact.event.id.clone());
            (facts.len() == 15).then(|| ids.collect())
        })
        .await
        .unwrap();

    wait_for("the good receiver has everything", PATIENCE, async || {
        Ok(receiver.accepted("good").is_superset(&ids).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(late.deliveries("late").len(), 0, "it was down");
    late.restart().await.unwrap();
    wait_for("the late receiver has everything", PATIENCE, async || {
        Ok(late.accepted("late").is_superset(&ids).then_some(()))
    })
    .await
    .unwrap();

    wait_for(
        "the failing endpoint's dead letters",
        PATIENCE,
        async || {
            let answer = mesh.get("/v1/webhooks/never").await?.json();
            let dead = answer["counts"]["dead"].as_u64();
            Ok(dead
                .is_some_and(|dead| dead >= ids.len() as u64)
                .then_some(()))
        },
    )
    .await
    .unwrap();
    let attempts = receiver.deliveries("never");
    for id in &ids {
        let tried = attempts.iter().filter(|attempt| attempt.id == *id).count();
        assert_eq!(tried, 3, "{id}");
    }
    wait_for(
        "the ledger has a dead letter's audit",
        PATIENCE,
        async || {
            let audit = mesh.get("/v1/events?type=audit.*&limit=1000").await?;
            Ok(audit.body.contains("\"dead").then_some(()))
        },
    )
    .await
    .unwrap();
    // The other receivers get each event once, signed.
    for (receiver, name) in [(&receiver, "good"), (&late, "late")] {
        let deliveries = receiver.deliveries(name);
        assert!(
            deliveries
                .iter()
                .all(|delivery| delivery.signature == Some(Ok(())))
        );
        for id in &ids {
            let came = deliveries.iter().filter(|delivery| delivery.id == *id);
            assert_eq!(came.count(), 1, "{id} at {name}");
        }
    }
}
