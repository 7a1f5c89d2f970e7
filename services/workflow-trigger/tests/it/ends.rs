//! Ends of jobs that rules submitted.

use chrono::TimeDelta;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventId, EventType};
use mesh_testkit::{NatsServer, wait_for};
use serde_json::{Value, json};

use crate::support::{DEADLINE, Site, Trigger, bus, end, on_both, publish};

on_both!(the_last_end_of_a_job_is_shown);

/// The end of a job of a run, after so many restarts.
fn end_of(key: &str, kind: EventType, ago: i64, restarts: u32) -> Event {
    let mut event = end(kind, 7, "alice", TimeDelta::seconds(ago));
    if let Some(Payload::Job(payload)) = &mut event.payload {
        let job = payload.job.as_mut().unwrap();
        key.clone_into(&mut job.comment);
        job.restarts = Some(restarts);
    }
    event.id = EventId::sampled("testbed", "end", kind, restarts.into()).to_string();
    event
}

async fn wait_ended(trigger: &Trigger, key: &str, how: &str) -> Value {
    wait_for(&format!("it ended as {how}"), DEADLINE, async || {
        let runs = trigger.runs("").await;
        runs.into_iter()
            .find(|run| run["key"] == key && run["ended_as"] == how)
    })
    .await
}

async fn the_last_end_of_a_job_is_shown(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let rule = |name: &str, on: &str, action: &str| {
        format!(
            "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\non = {{ {on} }}\naction = {{ {action} }}\n"
        )
    };
    // Nothing is submitted: the jobs are those of the events.
    let tables = rule("job", "manual = true", "submit = \"true.sh\"")
        + &rule("seen", "types = [\"job.boot_fail\"]", "notify = \"seen\"")
        + "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";
    let trigger = site.start(&nats, "", &tables).await;
    let key = trigger.fire("job", "1", json!({})).await;
    let failed = end_of(&key, EventType::JobOutOfMemory, 60, 0);
    publish(&bus, &failed).await;
    let run = wait_ended(&trigger, &key, "out_of_memory").await;
    assert_eq!(run["restarts"], Value::Null);
    publish(&bus, &end_of(&key, EventType::JobCompleted, 30, 1)).await;
    let run = wait_ended(&trigger, &key, "completed").await;
    assert_eq!(run["restarts"], 1);
    // What is late or comes again changes nothing.
    bus.republish(&failed, "again").await.unwrap();
    let last = end(EventType::JobBootFail, 8, "alice", TimeDelta::zero());
    publish(&bus, &last).await;
    trigger.wait_run(&last.id, "done").await;
    let run = wait_ended(&trigger, &key, "completed").await;
    assert_eq!(run["restarts"], 1);
    trigger.stop().await;
}
