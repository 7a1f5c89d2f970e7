//! Copies of jobs are cancelled, and nothing else.

use chrono::{TimeDelta, Utc};
use mesh_db::Location;
use mesh_db::sql::Sql;
use mesh_testkit::{NatsServer, Postgres, script, wait_until};
use serde_json::json;
use workflow_trigger::adapters::store::Store;

use crate::cluster::shared;
use crate::support::{DEADLINE, Site, bus};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_recorded_while_copies_are_looked_for_is_none() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let url = Postgres::shared().await.create_database();
    let site = Site::new(&url);
    let rule = "[[workflow-trigger.rules]]\nname = \"copied\"\nowner = \"alice\"\non = { manual = true }\naction = { submit = \"true.sh\", memory = \"10M\", output = \"/dev/null\" }\n";
    let keys = "confirm_after = \"60s\"";
    let trigger = site
        .start(&nats, keys, &(rule.to_owned() + &cluster.submitter()))
        .await;
    let key = trigger.fire("copied", "1", json!({})).await;
    let run = trigger.wait_run(&key, "accepted").await;
    let first = u32::try_from(run["job_id"].as_u64().unwrap()).unwrap();
    trigger.stop().await;
    // Another submission of the same run arrives late.
    let comment = format!("--comment={key}");
    let second = cluster.sbatch("alice", &["--hold", &comment], "true").await;

    // The queue is read late, too. Until then a driver has found that the first job is lost, and recorded the second one.
    let dir = site.path("program");
    std::fs::create_dir(&dir).unwrap();
    let text = format!(
        "request=$(cat)\ncase $request in\n*'\"cancel_twins\"'*|*'\"find_held\"'*) touch {dir}/asked; until [ -e {dir}/go ]; do sleep 0.05; done ;;\nesac\nprintf '%s' \"$request\" | {}/trigger-submitter \"$@\"",
        cluster.program_dir.display(),
        dir = dir.display()
    );
    script(&dir.join("trigger-submitter"), &text);
    let location = Location::parse(&url, &site.path("")).unwrap();
    let store = Store::connect(&location).unwrap();
    let change = async |sql: Sql| {
        let changed = store.database.change("set run", sql, Vec::new());
        assert!(changed.await.unwrap());
    };
    let later = (Utc::now() + TimeDelta::hours(1)).timestamp_micros();
    change(Sql::new("UPDATE intents SET attempts = 2, claimed_until = 0, next_at = ").bind(later))
        .await;
    let trigger = site
        .start(
            &nats,
            keys,
            &(rule.to_owned() + &cluster.submitter_in(&dir)),
        )
        .await;
    let asked = dir.join("asked");
    wait_until("copies are looked for", DEADLINE, async || asked.exists()).await;
    change(Sql::new("UPDATE intents SET job_id = ").bind(second)).await;
    std::fs::write(dir.join("go"), "").unwrap();
    let is_cancelled = async |job| cluster.field(job, "JobState").await == "CANCELLED";
    wait_until("a job is cancelled", DEADLINE, async || {
        is_cancelled(first).await || is_cancelled(second).await
    })
    .await;
    assert!(!is_cancelled(second).await, "the recorded job");
    assert!(is_cancelled(first).await);
    change(Sql::new("UPDATE intents SET next_at = 1")).await;
    trigger.wait_run(&key, "released").await;
    trigger.stop().await;
}
