//! What fires nothing, and what stops a loop. No job runs here: the program that submits does not exist.

use chrono::TimeDelta;
use mesh_events::EventType;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Site, alice, bus, end, on_both, publish, rule};

on_both!(
    each_event_is_one_run,
    a_loop_stops_at_the_guard,
    a_replay_of_old_events_fires_nothing,
    a_paused_rule_fires_nothing,
    refusals_in_a_row_pause_a_rule,
    runs_of_a_queue_wait_for_each_other
);

/// What cannot be submitted is rarely attempted: every attempt is a write to the disk.
const SELDOM: &str = "retry_initial_interval = \"1m\"";
const NO_SLURM: &str = "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";

fn now() -> TimeDelta {
    TimeDelta::zero()
}

async fn each_event_is_one_run(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = rule("one", "") + &rule("two", "dry_run = true") + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let event = end(EventType::JobCompleted, 7, "alice", now());
    publish(&bus, &event).await;
    trigger.wait_run(&event.id, "submitting").await;
    // The same event again, with another message id.
    bus.republish(&event, "again").await.unwrap();
    // Of another user, and of another type.
    publish(&bus, &end(EventType::JobCompleted, 8, "bob", now())).await;
    publish(&bus, &end(EventType::JobFailed, 9, "alice", now())).await;
    let last = end(EventType::JobCompleted, 10, "alice", now());
    publish(&bus, &last).await;
    wait_until("the last event is planned", DEADLINE, async || {
        let runs = trigger.runs("").await;
        runs.iter().filter(|run| run["event_id"] == last.id).count() == 2
    })
    .await;
    assert_eq!(trigger.runs("").await.len(), 4);
    assert_eq!(trigger.runs("state=dry_run&rule=alice/two").await.len(), 2);
    trigger.stop().await;
}

async fn a_loop_stops_at_the_guard(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let tables = rule("ping", "") + &rule("pong", "") + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    // Two rules that fire on each other's jobs. Each job's comment has the key of the run that submitted it.
    let mut comment = String::new();
    let mut refused = None;
    for number in 0..20 {
        let mut event = end(EventType::JobCompleted, 100 + number, "alice", now());
        if let Some(Payload::Job(payload)) = &mut event.payload {
            payload.job.as_mut().unwrap().comment = comment.clone();
        }
        publish(&bus, &event).await;
        let mut runs = Vec::new();
        wait_until("both rules have met the event", DEADLINE, async || {
            runs = trigger.runs("").await;
            runs.retain(|run| run["event_id"] == event.id);
            runs.len() == 2
        })
        .await;
        // One of the two goes on: the chain is as deep whichever it is.
        let Some(next) = runs.iter().find(|run| run["state"] != "refused") else {
            refused = Some((number, runs));
            break;
        };
        comment = format!("{} of alice", next["key"].as_str().unwrap());
    }
    let (number, runs) = refused.expect("the loop ends");
    assert_eq!(number, 8);
    for run in runs {
        let error = run["error"].as_str().unwrap();
        assert!(error.contains("limits.depth"), "{error}");
    }
    trigger.stop().await;
}

async fn a_replay_of_old_events_fires_nothing(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let trigger = site
        .start(&nats, SELDOM, &(rule("one", "") + NO_SLURM))
        .await;
    let day = TimeDelta::days(1);
    let old: Vec<_> = (1..=2_000)
        .map(|job| end(EventType::JobCompleted, job, "alice", day))
        .collect();
    bus.publish_all(old, &CancellationToken::new())
        .await
        .unwrap();
    let event = end(EventType::JobCompleted, 5_000, "alice", now());
    publish(&bus, &event).await;
    trigger.wait_run(&event.id, "submitting").await;
    assert_eq!(trigger.runs("").await.len(), 1);
    trigger.stop().await;
}

async fn a_paused_rule_fires_nothing(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let trigger = site
        .start(&nats, SELDOM, &(rule("one", "") + NO_SLURM))
        .await;
    let path = "/v1/triggers/alice/one";
    let why = Some(json!({"reason": "maintenance"}));
    let (status, _) = trigger
        .ask(alice(), "POST", &format!("{path}/pause"), why)
        .await;
    assert_eq!(status, 204);
    let first = end(EventType::JobCompleted, 1, "alice", now());
    publish(&bus, &first).await;
    let run = trigger.wait_run(&first.id, "refused").await;
    assert_eq!(run["error"], "the rule is paused");
    let (_, shown) = trigger.ask(alice(), "GET", path, None).await;
    assert_eq!(shown["paused_because"], "maintenance");
    let (status, _) = trigger
        .ask(alice(), "POST", &format!("{path}/resume"), None)
        .await;
    assert_eq!(status, 204);
    let second = end(EventType::JobCompleted, 2, "alice", now());
    publish(&bus, &second).await;
    trigger.wait_run(&second.id, "submitting").await;
    trigger.stop().await;
}

async fn refusals_in_a_row_pause_a_rule(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    // The event of a completed job has no usage.
    let broken = rule("broken", "") + "args = [\"{{ job.max_rss_mib }}\"]\n";
    let trigger = site.start(&nats, SELDOM, &(broken + NO_SLURM)).await;
    for job in 1..=6 {
        let event = end(EventType::JobCompleted, job, "alice", now());
        publish(&bus, &event).await;
        let run = trigger.wait_run(&event.id, "refused").await;
        let error = run["error"].as_str().unwrap();
        match job {
            6 => assert_eq!(error, "the rule is paused"),
            _ => assert!(error.starts_with("action.args[0]: "), "{error}"),
        }
    }
    trigger.stop().await;
}

async fn runs_of_a_queue_wait_for_each_other(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let queue = "[workflow-trigger.rules.limits]\nrunning = 2\nqueue = \"{{ job.partition }}\"\n";
    let tables = rule("queued", "") + queue + NO_SLURM;
    let trigger = site.start(&nats, SELDOM, &tables).await;
    let event = |number: u32, partition: &str, comment: &str| {
        let mut event = end(EventType::JobCompleted, number, "alice", now());
        if let Some(Payload::Job(payload)) = &mut event.payload {
            let job = payload.job.as_mut().unwrap();
            job.partition = partition.to_owned();
            job.comment = comment.to_owned();
        }
        event
    };
    let events: Vec<_> = (1..=5).map(|number| event(number, "cpu", "")).collect();
    bus.publish_all(events[..1].to_vec(), &CancellationToken::new())
        .await
        .unwrap();
    trigger.wait_run(&events[0].id, "submitting").await;
    for event in &events[1..] {
        publish(&bus, event).await;
    }
    let other = event(9, "gpu", "");
    publish(&bus, &other).await;
    // Of the other queue, and so the last one.
    trigger.wait_run(&other.id, "submitting").await;
    let states = async || -> Vec<String> {
        let runs = trigger.runs("").await;
        let state = |event: &mesh_events::Event| {
            let run = runs.iter().find(|run| run["event_id"] == event.id).unwrap();
            run["state"].as_str().unwrap().to_owned()
        };
        events.iter().map(state).collect()
    };
    trigger.wait_run(&events[1].id, "submitting").await;
    assert_eq!(
        states().await,
        ["submitting", "submitting", "planned", "planned", "planned"]
    );
    // The end of the first one's job gives the third its turn, and no other.
    let first = trigger.wait_run(&events[0].id, "submitting").await;
    let mut ended = event(100, "cpu", first["key"].as_str().unwrap());
    ended.r#type = EventType::JobFailed.to_string();
    publish(&bus, &ended).await;
    trigger.wait_run(&events[2].id, "submitting").await;
    assert_eq!(states().await[3..], ["planned", "planned"]);
    trigger.stop().await;
}
