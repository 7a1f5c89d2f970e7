//! Claims of replicas on runs.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use mesh_db::Location;
use mesh_db::sql::Sql;
use mesh_testkit::{NatsServer, Postgres, script, wait_until};
use serde_json::json;
use workflow_trigger::adapters::store::Store;
use workflow_trigger::domain::intent::Backend;

use crate::cluster::shared;
use crate::support::{DEADLINE, Site, bus, on_both};

on_both!(a_claim_is_kept_from_a_clock_that_is_behind);

async fn a_claim_is_kept_from_a_clock_that_is_behind(site: Site) {
    let connect = || {
        let location = Location::parse(&site.database(), &site.path("")).unwrap();
        Store::connect(&location).unwrap()
    };
    let (first, second) = (connect(), connect());
    first.database.prepare().await.unwrap();
    let now = Utc::now();
    let planned = Sql::new(
        "INSERT INTO intents (key, rule_owner, rule_name, generation, state, event_id, event_type, cluster, event_at, fired_by, root, depth, action, is_firing, starts_job, created_at, updated_at, next_at) VALUES ('k', 'alice', 'r', 1, 'planned', 'e', 'job.completed', 'testbed', 1, '', 'e', 0, '', 1, 1, 1, 1, 1)",
    );
    let planned = first.database.change("plan", planned, Vec::new());
    assert!(planned.await.unwrap());
    let claim = async |store: &Store, at: TimeDelta| {
        let claimed = store.claim(Backend::Slurm, 10, now + at).await.unwrap();
        claimed.len()
    };
    let minutes = TimeDelta::minutes;
    assert_eq!(claim(&first, minutes(0)).await, 1);
    // It read its clock before the claim, or its clock is behind.
    for at in [-TimeDelta::microseconds(1), minutes(-5), minutes(9)] {
        assert_eq!(claim(&second, at).await, 0, "{at}");
    }
    assert_eq!(claim(&second, minutes(11)).await, 1, "the claim is over");
    // A clock that was wrong by a day keeps a run from nobody.
    assert_eq!(claim(&first, TimeDelta::days(1)).await, 1);
    assert_eq!(claim(&second, minutes(12)).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_another_driver_has_found_is_no_copy() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let url = Postgres::shared().await.create_database();
    let site = Site::new(&url);
    // The answer to a submission comes late.
    let dir = site.path("program");
    std::fs::create_dir(&dir).unwrap();
    let text = format!(
        "request=$(cat)\nanswer=$(printf '%s' \"$request\" | {}/trigger-submitter \"$@\")\ncase $request in\n*'\"submit\"'*) touch {dir}/submitted; until [ -e {dir}/go ]; do sleep 0.05; done ;;\nesac\nprintf '%s\\n' \"$answer\"",
        cluster.program_dir.display(),
        dir = dir.display()
    );
    script(&dir.join("trigger-submitter"), &text);
    let go = cluster.results.join("claims");
    site.script(
        "wait.sh",
        &format!("until [ -e {} ]; do sleep 0.1; done", go.display()),
    );
    let tables = "[[workflow-trigger.rules]]\nname = \"wait\"\nowner = \"alice\"\non = { manual = true }\naction = { submit = \"wait.sh\", memory = \"10M\", output = \"/dev/null\" }\n".to_owned()
        + &cluster.submitter_in(&dir);
    let trigger = site
        .start(&nats, "confirm_after = \"100ms\"", &tables)
        .await;
    let key = trigger.fire("wait", "1", json!({})).await;
    let submitted = dir.join("submitted");
    wait_until("the job is submitted", DEADLINE, async || {
        submitted.exists()
    })
    .await;
    // As the ten minutes of a claim would.
    let location = Location::parse(&url, &site.path("")).unwrap();
    let store = Store::connect(&location).unwrap();
    let end = Sql::new("UPDATE intents SET claimed_until = 0");
    let ended = store.database.change("end claim", end, Vec::new());
    assert!(ended.await.unwrap());
    let run = trigger.wait_run(&key, "released").await;
    std::fs::write(dir.join("go"), "").unwrap();
    // With what is under way.
    trigger.stop().await;
    let job = u32::try_from(run["job_id"].as_u64().unwrap()).unwrap();
    std::fs::write(go, "").unwrap();
    mesh_testkit::wait_for("the job has ended", Duration::from_secs(120), async || {
        let state = cluster.field(job, "JobState").await;
        assert_ne!(state, "CANCELLED");
        (state == "COMPLETED").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_gone_after_an_attempt_of_its_release_is_not_submitted_again() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let url = Postgres::shared().await.create_database();
    let site = Site::new(&url);
    let file = cluster.results.join("gone");
    site.script("gone.sh", &format!("echo ran >> {}", file.display()));
    let tables = "[[workflow-trigger.rules]]\nname = \"gone\"\nowner = \"alice\"\non = { manual = true }\naction = { submit = \"gone.sh\", memory = \"10M\", output = \"/dev/null\" }\n".to_owned()
        + &cluster.submitter();
    let trigger = site
        .start(&nats, "confirm_after = \"100ms\"", &tables)
        .await;
    let key = trigger.fire("gone", "1", json!({})).await;
    wait_until("the job has run", DEADLINE, async || {
        cluster.lines("gone").len() == 1
    })
    .await;
    let location = Location::parse(&url, &site.path("")).unwrap();
    let store = Store::connect(&location).unwrap();
    let settled = Sql::new("SELECT key FROM intents WHERE state = 'released' AND next_at IS NULL");
    wait_until("the release is checked", DEADLINE, async || {
        let rows = store.database.rows("read run", &settled).await.unwrap();
        !rows.is_empty()
    })
    .await;
    // As if the service had been killed after the release, before it stored that, and the controller had purged the job since.
    let purged = Sql::new(
        "UPDATE intents SET state = 'confirmed', released_at = NULL, job_id = 60000000, claimed_until = 0, next_at = 1",
    );
    let purged = store.database.change("set back", purged, Vec::new());
    assert!(purged.await.unwrap());
    let run = trigger.wait_run(&key, "given_up").await;
    let error = run["error"].as_str().unwrap();
    assert!(error.contains("it may have run"), "{error}");
    assert_eq!(run["attempts"], 1);
    assert_eq!(cluster.lines("gone").len(), 1);
    trigger.stop().await;
}
