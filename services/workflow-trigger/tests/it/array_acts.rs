//! Acts on tasks of arrays. The job id of an array's last task is that of the array.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use mesh_bus::Bus;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::ArrayInfo;
use mesh_events::{EventId, EventType};
use mesh_testkit::{NatsServer, wait_until};
use serde_json::json;

use crate::arrays::jobs;
use crate::cluster::{Cluster, shared};
use crate::support::{DEADLINE, Site, Trigger, bus, end, publish};

fn rule(name: &str, on: &str, action: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\n[workflow-trigger.rules.on]\n{on}\n[workflow-trigger.rules.action]\n{action}\n"
    )
}

/// A field of each task, in order.
async fn fields(cluster: &Cluster, array: u32, name: &str) -> Vec<String> {
    let command = ["scontrol", "show", "job", "-o", &array.to_string()];
    let shown = cluster.run("root", &command).await;
    let value = |line: &str, name: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    let tasks: BTreeMap<String, String> = shown
        .lines()
        .filter_map(|line| Some((value(line, "ArrayTaskId")?, value(line, name)?)))
        .collect();
    tasks.into_values().collect()
}

/// An event about the last task of an array fires the rule.
async fn fire(bus: &Bus, trigger: &Trigger, array: u32, kind: EventType) {
    let mut event = end(kind, array, "alice", TimeDelta::zero());
    if let Some(Payload::Job(payload)) = &mut event.payload {
        let job = payload.job.as_mut().unwrap();
        job.restarts = Some(0);
        job.array = Some(ArrayInfo {
            job_id: array,
            task_id: Some(2),
            ..ArrayInfo::default()
        });
    }
    // Each is a fact of its own.
    event.id = EventId::sampled("testbed", "acts", kind, 1).to_string();
    publish(bus, &event).await;
    trigger.wait_run(&event.id, "done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_act_on_the_last_task_of_an_array_is_on_that_task_only() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let of_event = |act: &str, kind: &str, more: &str| {
        let action = format!("{act} = \"{{{{ job.job_id }}}}\"\n{more}");
        rule(act, &format!("types = [{kind:?}]"), &action)
    };
    let tables = of_event(
        "signal",
        "job.completed",
        "signal_name = \"USR1\"\nbatch_only = true",
    ) + &of_event("update", "job.failed", "time = \"5m\"")
        + &of_event("requeue", "job.timeout", "")
        + &of_event("cancel", "job.out_of_memory", "")
        + &rule(
            "array",
            "types = [\"job.node_fail\"]",
            "cancel = \"{{ job.array_job_id }}\"",
        )
        + &rule(
            "task",
            "manual = true",
            "cancel = \"{{ data.array }}_{{ data.task }}\"",
        )
        + &cluster.submitter();
    let keys = "retry_initial_interval = \"100ms\"";
    let trigger = site.start(&nats, keys, &tables).await;
    let file = cluster.results.join("array-acts");
    let script = format!(
        "trap 'echo signal $SLURM_ARRAY_TASK_ID >> {file}' USR1; echo up >> {file}; while :; do sleep 0.1; done",
        file = file.display()
    );
    let array = cluster.sbatch("alice", &["--array=0-2"], &script).await;
    let lines = || cluster.lines("array-acts");
    wait_until("the tasks run", DEADLINE, async || lines().len() == 3).await;
    assert_eq!(jobs(cluster, array).await[&2], array, "the array's own id");
    fire(&bus, &trigger, array, EventType::JobCompleted).await;
    wait_until("the task has the signal", DEADLINE, async || {
        lines().len() > 3
    })
    .await;
    fire(&bus, &trigger, array, EventType::JobFailed).await;
    let limits = fields(cluster, array, "TimeLimit").await;
    assert_eq!(limits, ["00:10:00", "00:10:00", "00:05:00"]);
    fire(&bus, &trigger, array, EventType::JobTimeout).await;
    let restarts = fields(cluster, array, "Restarts").await;
    assert_eq!(restarts, ["0", "0", "1"]);
    fire(&bus, &trigger, array, EventType::JobOutOfMemory).await;
    let states = fields(cluster, array, "JobState").await;
    assert_eq!(states, ["RUNNING", "RUNNING", "CANCELLED"]);
    // A task by its index.
    let data = json!({"array": array, "task": 0});
    let key = trigger.fire("task", "1", data).await;
    trigger.wait_run(&key, "done").await;
    wait_until("the task is cancelled", DEADLINE, async || {
        let states = fields(cluster, array, "JobState").await;
        assert_eq!(states[1..], ["RUNNING", "CANCELLED"]);
        states[0] == "CANCELLED"
    })
    .await;
    fire(&bus, &trigger, array, EventType::JobNodeFail).await;
    wait_until("the array is cancelled", DEADLINE, async || {
        let states = fields(cluster, array, "JobState").await;
        states.iter().all(|state| state == "CANCELLED")
    })
    .await;
    let signals: Vec<String> = lines()
        .into_iter()
        .filter(|line| line.starts_with("signal"))
        .collect();
    assert_eq!(signals, ["signal 2"]);
    trigger.stop().await;
}
