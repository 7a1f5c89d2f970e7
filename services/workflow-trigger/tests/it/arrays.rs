//! Retries of arrays: the failed tasks run again together, once, counted by what the tasks wrote.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use chrono::TimeDelta;
use futures_util::StreamExt as _;
use mesh_bus::Bus;
use mesh_events::catalogue::{SLURM_EVENTS, durable};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::ArrayInfo;
use mesh_events::{Event, EventId, EventType};
use mesh_testkit::fixtures::CLUSTER;
use mesh_testkit::{NatsServer, wait_for, wait_until};
use rand::RngExt as _;
use serde_json::Value;

use crate::approval::{decide, user};
use crate::cluster::{Cluster, shared};
use crate::killed::{Process, killer};
use crate::support::{DEADLINE, Site, Trigger, bus, end, on_both, publish};

on_both!(failures_of_an_array_are_one_run);

/// Requests at which the service is killed, before they are sent and after they are answered but not recorded.
const POINTS: [&str; 8] = [
    "tasks-before",
    "tasks-after",
    "requeue_hold-before",
    "requeue_hold-after",
    "update-before",
    "update-after",
    "release-before",
    "release-after",
];
/// Arrays after the named points, killed at random.
const RANDOM_ARRAYS: u32 = 2;
/// Tasks that fail. The last one of the array has the array's own job id.
const FAILING: [u32; 3] = [1, 3, 5];

fn rule(name: &str, retry: &str, more: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\n{more}\n[workflow-trigger.rules.on]\ntypes = [\"job.out_of_memory\"]\n[workflow-trigger.rules.action]\nretry = {{ {retry} }}\n[workflow-trigger.rules.limits]\nper_hour = 1000\n"
    )
}

/// The failure of a task. Each run's end is a fact of its own.
fn failure(array: u32, task: u32, job: u32, restarts: u32) -> Event {
    let kind = EventType::JobOutOfMemory;
    let mut event = end(kind, job, "alice", TimeDelta::zero());
    if let Some(Payload::Job(payload)) = &mut event.payload {
        let of = payload.job.as_mut().unwrap();
        of.restarts = Some(restarts);
        of.req_tres = "cpu=1,mem=10M,node=1".to_owned();
        of.array = Some(ArrayInfo {
            job_id: array,
            task_id: Some(task),
            ..ArrayInfo::default()
        });
    }
    let entity = format!("{array}_{task}");
    event.id = EventId::sampled("testbed", &entity, kind, u64::from(restarts)).to_string();
    event
}

/// The jobs of an array's tasks.
pub async fn jobs(cluster: &Cluster, array: u32) -> BTreeMap<u32, u32> {
    let command = ["scontrol", "show", "job", "-o", &array.to_string()];
    let shown = cluster.run("root", &command).await;
    let value = |line: &str, name: &str| -> Option<u32> {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(name))?.parse().ok()
    };
    let tasks = shown.lines().filter_map(|line| {
        let task = value(line, "ArrayTaskId=")?;
        Some((task, value(line, "JobId=")?))
    });
    tasks.collect()
}

/// How often each task wrote into a folder.
fn runs_of_tasks(results: &Path) -> BTreeMap<u32, usize> {
    let count = |task: u32| {
        let text = std::fs::read_to_string(results.join(task.to_string()));
        text.unwrap_or_default().lines().count()
    };
    (0..6).map(|task| (task, count(task))).collect()
}

/// Submits an array of six tasks that write into a folder. The first run of those in [`FAILING`] is killed, and so is every run of `always`.
/// Task 0 waits for a file.
async fn submit(cluster: &Cluster, results: &Path, always: u32) -> u32 {
    std::fs::create_dir(results).unwrap();
    crate::killed::chmod_all(results);
    let results = results.display();
    let script = format!(
        "t=$SLURM_ARRAY_TASK_ID; echo ran >> {results}/$t; case $t-${{SLURM_RESTART_COUNT:-0}} in 0-*) while [ ! -e {results}/go ]; do sleep 0.1; done;; 1-0|3-0|5-0|{always}-*) kill -9 $$;; esac"
    );
    let array = cluster.sbatch("alice", &["--array=0-5"], &script).await;
    wait_until("all tasks have run", DEADLINE, async || {
        runs_of_tasks(Path::new(&results.to_string()))
            .values()
            .all(|count| *count > 0)
    })
    .await;
    array
}

async fn wait_failed(cluster: &Cluster, job: u32) {
    wait_until("the task has failed", DEADLINE, async || {
        cluster.field(job, "JobState").await == "FAILED"
    })
    .await;
}

async fn wait_tasks(trigger: &Trigger, tasks: &str, state: &str) -> Value {
    let description = format!("a run of tasks {tasks} is {state}");
    wait_for(&description, DEADLINE, async || {
        let runs = trigger.runs("").await;
        runs.into_iter()
            .find(|run| run["tasks"] == tasks && run["state"] == state)
    })
    .await
}

/// Publishes an event, and again with another message id.
async fn publish_twice(bus: &Bus, event: &Event) {
    publish(bus, event).await;
    bus.republish(event, "again").await.unwrap();
}

async fn failures_of_an_array_are_one_run(site: Site) {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    // Nothing acts: the first waits for a person, the second only records, the third has nothing to give.
    let asks = rule("asks", "memory = \"x2\"", "");
    let tables = asks.replace("retry =", "approve = { by = [\"carol\"] }\nretry =")
        + &rule("records", "memory = \"x2\"", "dry_run = true")
        + &rule("full", "memory = \"x2\", memory_max = \"10M\"", "")
        + "[workflow-trigger.submitter]\nprogram_dir = \"/nonexistent\"\n";
    let trigger = site.start(&nats, "", &tables).await;
    for task in FAILING {
        publish_twice(&bus, &failure(100, task, 100 + task, 0)).await;
    }
    publish(&bus, &failure(200, 1, 201, 0)).await;
    wait_until("the last event is planned", DEADLINE, async || {
        trigger.runs("job=200").await.len() == 3
    })
    .await;
    let runs = trigger.runs("").await;
    assert_eq!(runs.len(), 6, "{runs:?}");
    for (rule, state) in [
        ("alice/asks", "approval"),
        ("alice/records", "dry_run"),
        ("alice/full", "refused"),
    ] {
        let of_rule = runs.iter().filter(|run| run["rule"] == rule);
        let mut found: Vec<_> = of_rule
            .map(|run| (run["job_id"].as_u64(), run["tasks"].as_str(), &run["state"]))
            .collect();
        found.sort_unstable_by_key(|(job, ..)| *job);
        let state = &Value::from(state);
        let expected = [
            (Some(100), Some("1,3,5"), state),
            (Some(200), Some("1"), state),
        ];
        assert_eq!(found, expected, "{rule}");
    }
    // Each of its tasks leads to the run.
    let runs = trigger.runs("job=103").await;
    assert_eq!(runs.len(), 3);
    // What was approved stays as the approver saw it: what fails later waits for an approval of its own.
    let waits = runs.iter().find(|run| run["rule"] == "alice/asks").unwrap();
    let key = waits["key"].as_str().unwrap();
    let (status, answer) = decide(&trigger, user("carol"), key, "approve").await;
    assert_eq!(status, 202, "{answer}");
    publish_twice(&bus, &failure(100, 4, 104, 0)).await;
    let later = wait_tasks(&trigger, "4", "approval").await;
    assert_eq!(later["rule"], "alice/asks");
    trigger.wait_run(key, "planned").await;
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_whose_tasks_are_awaited_takes_no_place_of_others() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let limited = rule("limited", "memory = \"x2\"", "") + "running = 1\n";
    let queued = rule("queued", "memory = \"x2\"", "") + "running = 1\nqueue = \"all\"\n";
    for (name, tables) in [("limited", limited), ("queued", queued)] {
        let tables = tables + &cluster.submitter();
        let trigger = site
            .start(&nats, "retry_initial_interval = \"100ms\"", &tables)
            .await;
        let results = [1, 2].map(|n| cluster.results.join(format!("array-{name}-{n}")));
        for folder in &results {
            let array = submit(cluster, folder, 9).await;
            let jobs = jobs(cluster, array).await;
            wait_failed(cluster, jobs[&1]).await;
            publish(&bus, &failure(array, 1, jobs[&1], 0)).await;
            wait_for("its run waits for the other tasks", DEADLINE, async || {
                let runs = trigger.runs(&format!("job={array}")).await;
                runs.into_iter().find(|run| run["state"] == "submitting")
            })
            .await;
        }
        for folder in &results {
            std::fs::write(folder.join("go"), "").unwrap();
        }
        wait_until("both tasks ran again", DEADLINE, async || {
            results.iter().all(|folder| runs_of_tasks(folder)[&1] == 2)
        })
        .await;
        trigger.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_failed_tasks_of_an_array_run_again_as_one() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let tables = rule("again", "memory = \"x2\", attempts = 2", "") + &cluster.submitter();
    let keys = "confirm_after = \"100ms\"\nretry_initial_interval = \"100ms\"";
    let trigger = site.start(&nats, keys, &tables).await;
    let results = cluster.results.join("array");
    let array = submit(cluster, &results, 3).await;
    let jobs = jobs(cluster, array).await;
    assert_eq!(jobs[&5], array, "the last task has the array's id");
    for task in FAILING {
        wait_failed(cluster, jobs[&task]).await;
    }
    publish_twice(&bus, &failure(array, 1, jobs[&1], 0)).await;
    // It is held, and so kept, while another task may still fail.
    wait_until("the first failed task is held", DEADLINE, async || {
        cluster.field(jobs[&1], "Reason").await.contains("Held")
            || cluster.field(jobs[&1], "Priority").await == "0"
    })
    .await;
    for task in [3, 5] {
        publish_twice(&bus, &failure(array, task, jobs[&task], 0)).await;
    }
    let run = wait_tasks(&trigger, "1,3,5", "submitting").await;
    std::fs::write(results.join("go"), "").unwrap();
    trigger.wait_run(run["key"].as_str().unwrap(), "done").await;
    wait_until("the tasks ran again", DEADLINE, async || {
        FAILING
            .iter()
            .all(|task| runs_of_tasks(&results)[task] == 2)
    })
    .await;
    // A second failure is the next attempt. Old events change nothing.
    for (restarts, state) in [(1, "done"), (2, "refused")] {
        wait_failed(cluster, jobs[&3]).await;
        publish(&bus, &failure(array, 1, jobs[&1], 0)).await;
        bus.republish(&failure(array, 1, jobs[&1], 0), &format!("old-{restarts}"))
            .await
            .unwrap();
        publish_twice(&bus, &failure(array, 3, jobs[&3], restarts)).await;
        let run = wait_tasks(&trigger, "3", state).await;
        assert_eq!(run["array_attempt"], restarts + 1);
        if state == "refused" {
            let error = run["error"].as_str().unwrap();
            assert!(error.contains("retry.attempts"), "{error}");
            break;
        }
        wait_until("task 3 ran once more", DEADLINE, async || {
            runs_of_tasks(&results)[&3] == 3
        })
        .await;
    }
    let runs = trigger.runs("").await;
    assert_eq!(runs.len(), 3, "{runs:?}");
    let expected = [(0, 1), (1, 2), (2, 1), (3, 3), (4, 1), (5, 2)];
    assert_eq!(runs_of_tasks(&results), expected.into());
    assert_eq!(cluster.field(jobs[&1], "MinMemoryNode").await, "20M");
    assert_eq!(cluster.field(jobs[&2], "MinMemoryNode").await, "10M");
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_a_killed_process_had_read_joins_its_run() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let results = cluster.results.join("array-read");
    let array = submit(cluster, &results, 9).await;
    let jobs = jobs(cluster, array).await;
    std::fs::write(results.join("go"), "").unwrap();
    for task in FAILING {
        wait_failed(cluster, jobs[&task]).await;
    }
    // The process that has read it never answers, and the bus waits a minute for it.
    publish(&bus, &failure(array, 3, jobs[&3], 0)).await;
    let client = async_nats::connect(nats.url()).await.unwrap();
    let stream = async_nats::jetstream::new(client)
        .get_stream(SLURM_EVENTS)
        .await
        .unwrap();
    let durable = durable(SLURM_EVENTS, "workflow-trigger", CLUSTER);
    let consumer = stream.get_consumer::<pull::Config>(&durable).await.unwrap();
    let mut read = consumer.fetch().max_messages(1).messages().await.unwrap();
    let read = read.next().await.unwrap().unwrap();
    let tables = rule("again", "memory = \"x2\"", "") + &cluster.submitter();
    let keys = "retry_initial_interval = \"100ms\"";
    let trigger = site.start(&nats, keys, &tables).await;
    for task in [1, 5] {
        publish(&bus, &failure(array, task, jobs[&task], 0)).await;
    }
    wait_tasks(&trigger, "1,3,5", "done").await;
    drop(read);
    let runs = trigger.runs("").await;
    assert_eq!(runs.len(), 1, "{runs:?}");
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_after_the_limit_is_another_retry() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let tables = rule("again", "memory = \"x2\"", "") + &cluster.submitter();
    let keys = "array_wait = \"0s\"\nretry_initial_interval = \"100ms\"";
    let trigger = site.start(&nats, keys, &tables).await;
    let results = cluster.results.join("array-limit");
    let array = submit(cluster, &results, 9).await;
    let jobs = jobs(cluster, array).await;
    for task in FAILING {
        wait_failed(cluster, jobs[&task]).await;
        publish(&bus, &failure(array, task, jobs[&task], 0)).await;
        wait_tasks(&trigger, &task.to_string(), "done").await;
    }
    wait_until("the tasks ran again", DEADLINE, async || {
        FAILING
            .iter()
            .all(|task| runs_of_tasks(&results)[task] == 2)
    })
    .await;
    std::fs::write(results.join("go"), "").unwrap();
    let expected = [(0, 1), (1, 2), (2, 1), (3, 2), (4, 1), (5, 2)];
    assert_eq!(runs_of_tasks(&results), expected.into());
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_tasks_run_again_once_however_often_the_service_is_killed() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let dir = site.path("program");
    std::fs::create_dir(&dir).unwrap();
    killer(cluster, &dir);
    let tables = rule("again", "memory = \"x2\"", "") + &cluster.submitter_in(&dir);
    let keys = "retry_initial_interval = \"100ms\"";
    let config = site.configure(&nats, keys, &tables);
    let mut process = Process::start(config);
    let at = dir.join("point");
    let points = POINTS.into_iter().map(Some);
    let all = points.chain((0..RANDOM_ARRAYS).map(|_| None)).enumerate();
    let mut kills = 0;
    let mut submitted = Vec::new();
    for (number, point) in all {
        let results = cluster.results.join(format!("array-killed-{number}"));
        let array = submit(cluster, &results, 9).await;
        submitted.push(array.to_string());
        let jobs = jobs(cluster, array).await;
        for task in FAILING {
            wait_failed(cluster, jobs[&task]).await;
        }
        if let Some(point) = point {
            std::fs::write(&at, point).unwrap();
        }
        for task in FAILING {
            publish_twice(&bus, &failure(array, task, jobs[&task], 0)).await;
        }
        std::fs::write(results.join("go"), "").unwrap();
        let mut longest = 800;
        wait_until("the tasks ran again", DEADLINE, async || {
            if point.is_none() {
                let pause = rand::rng().random_range(50..longest);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                process.kill();
                kills += 1;
                longest = longest * 5 / 4;
            }
            process.keep_alive();
            !at.exists() && FAILING.iter().all(|task| runs_of_tasks(&results)[task] > 1)
        })
        .await;
    }
    process.kill();
    // With the service as it was left, until every run has ended.
    let tables = rule("again", "memory = \"x2\"", "") + &cluster.submitter();
    let trigger = site.start(&nats, keys, &tables).await;
    let arrays = POINTS.len() + RANDOM_ARRAYS as usize;
    let runs = wait_for("every run has ended", DEADLINE, async || {
        let runs = trigger.runs("").await;
        let ended = runs.iter().filter(|run| run["state"] == "done").count();
        (ended >= arrays).then_some(runs)
    })
    .await;
    assert_eq!(runs.len(), arrays, "{runs:?}");
    assert!(runs.iter().all(|run| run["tasks"] == "1,3,5"), "{runs:?}");
    // Other tests hold jobs on this cluster, too.
    let of_arrays = submitted.join(",");
    let queue = cluster
        .run(
            "root",
            &["squeue", "-h", "-j", &of_arrays, "-o", "%i %T %r"],
        )
        .await;
    assert!(!queue.contains("Held"), "{queue}");
    for number in 0..arrays {
        let results = cluster.results.join(format!("array-killed-{number}"));
        let expected = [(0, 1), (1, 2), (2, 1), (3, 2), (4, 1), (5, 2)];
        assert_eq!(runs_of_tasks(&results), expected.into(), "array {number}");
    }
    println!("{arrays} arrays, {kills} random kills");
    trigger.stop().await;
}
