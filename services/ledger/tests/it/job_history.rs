//! REST: the history of a job with all its runs, also by Slurm's other id forms.

use chrono::TimeDelta;
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, HetInfo, Job};
use mesh_events::{EventType, RunKey, timestamp};
use mesh_testkit::fixtures::{self, CLUSTER};
use serde_json::Value;

use crate::api::{Api, get, submitted_at};
use crate::support::{Database, node_event, of_user, on_both, serve, user};

on_both!(
    a_job_history_has_runs_by_age_and_events_by_time,
    a_job_history_has_pending_reasons_and_node_events,
    arrays_and_heterogeneous_jobs_are_found_in_slurms_id_forms,
    a_history_that_is_too_long_is_truncated,
);

/// Returns the events submitted, started, cost estimated, completed and final cost, in a possible
/// order of arrival.
pub fn life(user: &str, job: &Job) -> Vec<Event> {
    let money = |micros| {
        Some(Money {
            micros,
            currency: "EUR".into(),
        })
    };
    let mut ended = fixtures::ended(job.clone(), "COMPLETED", 60);
    ended.exit_code = Some(ExitCode { code: 0, signal: 0 });
    let mut submission = of_user(
        user,
        EventType::JobSubmitted,
        Job {
            state: "PENDING".into(),
            ..job.clone()
        },
    );
    submission.occurred_at = job.submit_time;
    let mut estimate = of_user(user, EventType::CostEstimated, job.clone());
    let mut total = of_user(user, EventType::CostFinalized, ended.clone());
    total.occurred_at = ended.end_time;
    for (event, estimated, sum) in [
        (&mut estimate, money(900), None),
        (&mut total, None, money(700)),
    ] {
        if let Some(Payload::Cost(cost)) = &mut event.payload {
            (cost.estimated, cost.total) = (estimated, sum);
        }
    }
    let completed = of_user(user, EventType::JobCompleted, ended);
    vec![
        completed,
        of_user(user, EventType::JobStarted, job.clone()),
        submission,
        estimate,
        total,
    ]
}

async fn a_job_history_has_runs_by_age_and_events_by_time(database: Database) {
    let mut events = life("alice", &submitted_at(5, 3600));
    events.extend(life("alice", &submitted_at(5, 0)));
    events.extend(life("alice", &submitted_at(6, 0)));
    let api = Api::with(database, &events).await;
    let (status, history) = api.get(&format!("/v1/jobs/{CLUSTER}/5")).await;
    assert_eq!(status, 200, "{history}");
    assert_eq!(history["truncated"], false);
    let runs = history["runs"].as_array().unwrap();
    let keys: Vec<&str> = runs
        .iter()
        .map(|run| run["run"].as_str().unwrap())
        .collect();
    assert_eq!(keys, [submitted_at(5, 0).run, submitted_at(5, 3600).run]);
    for run in runs {
        let types: Vec<&str> = run["timeline"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["event"]["data"]["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            types,
            [
                "job.submitted",
                "job.started",
                "cost.estimated",
                "job.completed",
                "cost.finalized"
            ]
        );
        let summary = &run["summary"];
        assert_eq!(summary["state"], "COMPLETED");
        assert_eq!(summary["exit_code"]["code"], 0);
        assert_eq!(
            (
                summary["cost"]["kind"].as_str(),
                summary["cost"]["micros"].as_str()
            ),
            (Some("final"), Some("700"))
        );
        assert!(summary["ended"].as_str() > summary["started"].as_str());
    }
    let (status, _) = api.get(&format!("/v1/jobs/{CLUSTER}/7")).await;
    assert_eq!(status, 404);
    let (status, _) = api.get("/v1/jobs/elsewhere/5").await;
    assert_eq!(status, 404);
    let (status, problem) = api.get(&format!("/v1/jobs/{CLUSTER}/five")).await;
    assert_eq!(
        (
            status,
            problem["detail"].as_str().unwrap().contains("123_4")
        ),
        (400, true)
    );
}

async fn a_job_history_has_pending_reasons_and_node_events(database: Database) {
    // It runs from second 10 to 70.
    let job = Job {
        nodes: "n[1-2]".into(),
        ..fixtures::job(5)
    };
    let mut explained = of_user("alice", EventType::QueueExplained, job.clone());
    explained.occurred_at = Some(timestamp(fixtures::submit_time() + TimeDelta::seconds(5)));
    let mut events = life("alice", &job);
    events.push(explained);
    for (n, (node, seconds)) in [("n2", 9), ("n2", 40), ("n3", 40), ("n1", 130), ("n1", 131)]
        .into_iter()
        .enumerate()
    {
        let mut event = node_event(node, n as u64);
        event.occurred_at = Some(timestamp(
            fixtures::submit_time() + TimeDelta::seconds(seconds),
        ));
        events.push(event);
    }
    let api = Api::with(database, &events).await;
    let of_alice = serve(&api.store, user("alice"), 1000, 100).await;
    let found = |run: &Value| -> Vec<String> {
        let timeline = run["timeline"].as_array().unwrap();
        let kind = |entry: &Value| entry["event"]["data"]["type"].as_str().unwrap().to_owned();
        timeline.iter().map(kind).collect()
    };
    let path = format!("/v1/jobs/{CLUSTER}/5");
    for url in [&api.url, &of_alice] {
        let (status, history) = get(url, &path).await;
        assert_eq!(status, 200, "{history}");
        assert_eq!(
            found(&history["runs"][0]),
            [
                "job.submitted",
                "queue.explained",
                "job.started",
                "cost.estimated",
                "node.down",
                "job.completed",
                "cost.finalized",
                "node.down"
            ]
        );
        let seqs = history["runs"][0]["timeline"].as_array().unwrap().iter();
        let nodes: Vec<_> = seqs
            .map(|entry| &entry["event"]["data"]["node"]["node"]["name"])
            .filter(|name| !name.is_null())
            .collect();
        assert_eq!(nodes, ["n2", "n1"]);
    }
    let at = (fixtures::submit_time() + TimeDelta::seconds(30)).to_rfc3339();
    let (_, history) = api
        .get(&format!("{path}?at={}", at.replace('+', "%2B")))
        .await;
    assert!(!found(&history["runs"][0]).contains(&"node.down".to_owned()));
}

fn task(array: u32, raw: u32, task: u32) -> Job {
    let mut job = fixtures::job(raw);
    job.array = Some(ArrayInfo {
        job_id: array,
        task_id: Some(task),
        ..ArrayInfo::default()
    });
    job.run = RunKey {
        task_id: Some(task),
        ..fixtures::run(array)
    }
    .entity_key();
    job
}

fn component(leader: u32, offset: u32) -> Job {
    let mut job = fixtures::job(leader + offset);
    job.het = Some(HetInfo {
        job_id: leader,
        offset,
    });
    job
}

async fn arrays_and_heterogeneous_jobs_are_found_in_slurms_id_forms(database: Database) {
    let events: Vec<Event> = [
        task(100, 101, 1),
        task(100, 102, 2),
        task(100, 100, 3),
        component(200, 0),
        component(200, 1),
    ]
    .into_iter()
    .map(|job| fixtures::job_event(EventType::JobStarted, job))
    .collect();
    let api = Api::with(database, &events).await;
    assert_eq!(api.jobs("job=100").await, [101, 102, 100]);
    assert_eq!(api.jobs("job=100_2").await, [102]);
    assert_eq!(api.jobs("job=102").await, [102]);
    assert_eq!(api.jobs("job=200").await, [200, 201]);
    assert_eq!(api.jobs("job=200%2B1").await, [201]);
    let (_, history) = api.get(&format!("/v1/jobs/{CLUSTER}/100")).await;
    assert_eq!(history["runs"].as_array().unwrap().len(), 3);
    let (_, history) = api.get(&format!("/v1/jobs/{CLUSTER}/200+1")).await;
    assert_eq!(history["runs"][0]["run"], fixtures::job(201).run);
}

async fn a_history_that_is_too_long_is_truncated(database: Database) {
    let events: Vec<Event> = (1..=150)
        .map(|n| fixtures::job_event(EventType::JobStarted, task(100, 100 + n, n)))
        .collect();
    let api = Api::with(database, &events).await;
    let (_, history) = api.get(&format!("/v1/jobs/{CLUSTER}/100")).await;
    assert_eq!(
        (
            history["truncated"].as_bool(),
            history["runs"].as_array().unwrap().len()
        ),
        (Some(true), 100)
    );
}
