//! Rules that act as the owner of the event's job.

use axum::http::StatusCode;
use chrono::TimeDelta;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::ExitCode;
use mesh_events::{Event, EventType};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::json;

use crate::cluster::shared;
use crate::support::{DEADLINE, Site, admin, alice, bus, end, publish};

const PARTITION: &str = "batch";
const QUICK: &str = "confirm_after = \"100ms\"";

/// A rule of root's for the jobs of everybody in a partition.
fn rule(action: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = \"all\"\nowner = \"root\"\nrun_as = \"owner_of_event\"\non = {{ types = [\"job.failed\"], users = [\"*\"], partitions = [{PARTITION:?}] }}\naction = {{ {action} }}\nlimits = {{ per_hour = 1 }}\n"
    )
}

fn failed(job: u32, user: &str) -> Event {
    let mut event = end(EventType::JobFailed, job, user, TimeDelta::zero());
    if let Some(Payload::Job(payload)) = &mut event.payload {
        let of = payload.job.as_mut().unwrap();
        of.partition = PARTITION.to_owned();
        of.restarts = Some(0);
        of.exit_code = Some(ExitCode {
            code: 75,
            signal: 0,
        });
    }
    event
}

fn bob() -> Caller {
    Caller::peer("bob", 20_002, Role::User)
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_others_run_again_as_them() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let tables = rule("retry = { exit_codes = [75] }") + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    let results = cluster.results.display();
    let mut last = 0;
    for user in ["bob", "alice"] {
        let file = format!("run_as_{user}");
        let script = format!("id -un >> {results}/{file}; exit 75");
        let job = cluster.sbatch(user, &[], &script).await;
        wait_until("the job has failed", DEADLINE, async || {
            cluster.lines(&file).len() == 1 && cluster.field(job, "JobState").await == "FAILED"
        })
        .await;
        let event = failed(job, user);
        publish(&bus, &event).await;
        let run = trigger.wait_run(&event.id, "done").await;
        assert_eq!(
            (&run["user"], &run["rule"]),
            (&json!(user), &json!("root/all"))
        );
        wait_until("the job ran again", DEADLINE, async || {
            cluster.lines(&file) == [user, user]
        })
        .await;
        last = job;
    }
    // The limits are those of each user: the second one of bob within the hour, whoever else there was.
    let event = failed(last + 1_000, "bob");
    publish(&bus, &event).await;
    let run = trigger.wait_run(&event.id, "refused").await;
    assert!(run["error"].as_str().unwrap().contains("limits.per_hour"));
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_acts_for_permitted_users_only_and_never_as_root() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let tables = rule("submit = \"true.sh\", memory = \"10M\"") + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    for (job, user, words) in [
        (1_000_001, "root", "no rule acts as root"),
        (1_000_002, "nobody", "not in users"),
        (1_000_003, "daemon", "min_uid"),
    ] {
        let event = failed(job, user);
        publish(&bus, &event).await;
        let run = trigger.wait_run(&event.id, "refused").await;
        let error = run["error"].as_str().unwrap();
        assert!(error.contains(words), "{user}: {error}");
    }
    let event = failed(1_000_004, "bob");
    publish(&bus, &event).await;
    let run = trigger.wait_run(&event.id, "released").await;
    let job = u32::try_from(run["job_id"].as_u64().unwrap()).unwrap();
    assert!(cluster.field(job, "UserId").await.starts_with("bob("));
    // bob sees the run and not the rule; alice neither.
    let key = run["key"].as_str().unwrap();
    for (caller, status, runs) in [
        (bob(), StatusCode::OK, 1),
        (alice(), StatusCode::NOT_FOUND, 0),
    ] {
        let path = format!("/v1/trigger-runs/{key}");
        let (found, _) = trigger.ask(caller.clone(), "GET", &path, None).await;
        assert_eq!(found, status, "{}", caller.name);
        let path = "/v1/trigger-runs";
        let (_, list) = trigger.ask(caller.clone(), "GET", path, None).await;
        assert_eq!(list["runs"].as_array().unwrap().len(), runs);
        let path = "/v1/triggers/root/all";
        let (found, _) = trigger.ask(caller, "GET", path, None).await;
        assert_eq!(found, StatusCode::NOT_FOUND);
    }
    // Nobody fires it as somebody.
    let path = "/v1/triggers/root/all/fire";
    let (status, answer) = trigger.ask(admin(), "POST", path, Some(json!({}))).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        answer["detail"].as_str().unwrap().contains("run_as"),
        "{answer}"
    );
    trigger.stop().await;
}
