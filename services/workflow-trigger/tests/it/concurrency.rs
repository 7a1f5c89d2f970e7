//! What becomes of a run while others with its key have not ended.

use axum::http::StatusCode;
use chrono::TimeDelta;
use mesh_events::EventType;
use mesh_testkit::NatsServer;
use serde_json::{Value, json};

use crate::cluster::shared;
use crate::support::{Site, Trigger, alice, bus, end, on_both, publish};

on_both!(
    a_run_is_skipped_while_one_has_not_ended,
    a_run_that_waits_is_replaced
);

const NO_SLURM: &str = "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
const REFUSED: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;

fn rule(concurrency: &str, script: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = \"one\"\nowner = \"alice\"\non = {{ manual = true }}\naction = {{ submit = {script:?}, memory = \"10M\", output = \"/dev/null\" }}\nlimits = {{ queue = \"{{{{ data.key }}}}\", concurrency = {concurrency:?} }}\n"
    )
}

async fn fire(trigger: &Trigger, key: &str) -> (StatusCode, Value) {
    let path = "/v1/triggers/alice/one/fire";
    let body = json!({"data": {"key": key}});
    trigger.ask(alice(), "POST", path, Some(body)).await
}

/// Fires, and returns the key of the run.
async fn fired(trigger: &Trigger, key: &str) -> String {
    let (status, answer) = fire(trigger, key).await;
    assert_eq!(status, ACCEPTED, "{answer}");
    answer["key"].as_str().unwrap().to_owned()
}

async fn a_run_is_skipped_while_one_has_not_ended(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let tables = rule("skip", "true.sh") + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    fired(&trigger, "a").await;
    // More often than a faulty rule may be refused.
    for _ in 0..6 {
        let (status, answer) = fire(&trigger, "a").await;
        assert_eq!(status, REFUSED);
        let words = answer["detail"].as_str().unwrap();
        assert!(words.contains("limits.concurrency = \"skip\""), "{words}");
    }
    fired(&trigger, "b").await;
    trigger.stop().await;
}

async fn a_run_that_waits_is_replaced(site: Site) {
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let tables = rule("replace", "true.sh") + NO_SLURM;
    let trigger = site.start(&nats, "", &tables).await;
    let first = fired(&trigger, "a").await;
    trigger.wait_run(&first, "submitting").await;
    let other = fired(&trigger, "b").await;
    let second = fired(&trigger, "a").await;
    trigger.wait_run(&second, "planned").await;
    let third = fired(&trigger, "a").await;
    let run = trigger.wait_run(&second, "refused").await;
    assert_eq!(run["error"], format!("replaced by run {third}"));
    // The first one may be at Slurm, so the third one waits for its end. Another key is not concerned.
    trigger.wait_run(&third, "planned").await;
    trigger.wait_run(&first, "submitting").await;
    trigger.wait_run(&other, "submitting").await;
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_is_cancelled_for_the_next_one() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    site.script("sleep.sh", "sleep 600");
    let tables = rule("replace", "sleep.sh") + &cluster.submitter();
    let keys = "confirm_after = \"100ms\"";
    let trigger = site.start(&nats, keys, &tables).await;
    let mut last: Option<(String, u32)> = None;
    for _ in 0..3 {
        let key = fired(&trigger, "a").await;
        if let Some((replaced, job)) = last {
            cluster.wait_state(job, "CANCELLED").await;
            let words = format!("replaced by run {key}");
            crate::support::wait_until_run(&trigger, &replaced, |run| run["error"] == words).await;
            // Its turn comes with the event of that end, and not before.
            trigger.wait_run(&key, "planned").await;
            let event = end(EventType::JobCancelled, job, "alice", TimeDelta::zero());
            publish(&bus, &event).await;
        }
        let run = trigger.wait_run(&key, "released").await;
        let job = u32::try_from(run["job_id"].as_u64().unwrap()).unwrap();
        cluster.wait_state(job, "RUNNING").await;
        last = Some((key, job));
    }
    let (_, job) = last.unwrap();
    cluster.run("root", &["scancel", &job.to_string()]).await;
    trigger.stop().await;
}
