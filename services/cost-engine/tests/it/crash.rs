//! A committed cost is published in any case.

use mesh_events::EventType;
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::{NatsServer, wait_until};

use crate::support::{DEADLINE, EXAMPLE, Outside, Site};

const OUTBOX: &str = "SELECT event_id, body FROM outbox ORDER BY seq";

/// Two users, one of which may not publish costs.
const USERS: &str = r#"authorization { users = [
    { user: "free", password: "x" },
    { user: "mute", password: "x", permissions: { publish: { deny: ["slurm.*.cost.>"] } } }
] }"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_commit_and_publish_loses_nothing_and_doubles_nothing() {
    let nats = NatsServer::start_with(USERS).await;
    let (outside, site) = (
        Outside::connect(&nats, Some("free")).await,
        Site::new(EXAMPLE),
    );
    let login = |user: &str| {
        format!(
            "url = \"{}\"\nuser = \"{user}\"\npassword = \"x\"",
            nats.url()
        )
    };

    let engine = site.start(&login("mute")).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, job(20)))
        .await;
    outside
        .publish(&job_event(
            EventType::JobCompleted,
            ended(job(20), "COMPLETED", 60),
        ))
        .await;
    wait_until("two costs in the outbox", DEADLINE, async || {
        site.rows(OUTBOX).await.len() == 2
    })
    .await;
    engine.kill().await;
    let committed = site.rows(OUTBOX).await;

    // The next process publishes them first, byte for byte.
    let engine = site.start(&login("free")).await.unwrap();
    let published = outside.messages("slurm.*.cost.>", 2).await;
    let bytes: Vec<(String, Vec<u8>)> = published
        .iter()
        .map(|message| {
            (
                message.header("Nats-Msg-Id").unwrap().to_owned(),
                message.body.to_vec(),
            )
        })
        .collect();
    assert_eq!(bytes, committed);
    wait_until("an empty outbox", DEADLINE, async || {
        site.rows(OUTBOX).await.is_empty()
    })
    .await;
    engine.kill().await;

    // Only once: the third process has nothing to publish.
    let engine = site.start(&login("free")).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, job(21)))
        .await;
    let all = outside.messages("slurm.*.cost.>", 3).await;
    assert_eq!(all[2].event().unwrap().job().unwrap().job_id, 21);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_may_be_unavailable_when_a_cost_is_due() {
    let mut nats = NatsServer::start().await;
    let site = Site::new(EXAMPLE);
    let outside = Outside::connect(&nats, None).await;
    let engine = site.start(&nats.toml()).await.unwrap();
    outside
        .publish(&job_event(EventType::JobStarted, job(22)))
        .await;
    outside.costs(1).await;
    nats.restart().await;
    // The test's own publish waits until the server is back.
    let completed = job_event(EventType::JobCompleted, ended(job(22), "COMPLETED", 60));
    outside
        .bus
        .publish_until_done(&completed, &tokio_util::sync::CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(outside.costs(2).await[1].0.r#type, "cost.finalized");
    engine.stop().await;
}
