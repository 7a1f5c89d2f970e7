//! Jobs that rules submit, and what rules do to jobs.

use std::time::Duration;

use chrono::TimeDelta;
use mesh_events::EventType;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::{NatsServer, wait_for};
use serde_json::{Value, json};

use crate::cluster::shared;
use crate::support::{Site, admin, alice, bus, end, publish};

const QUICK: &str = "confirm_after = \"100ms\"";

fn manual(name: &str, action: &str) -> String {
    format!(
        "[[workflow-trigger.rules]]\nname = {name:?}\nowner = \"alice\"\n[workflow-trigger.rules.on]\nmanual = true\n[workflow-trigger.rules.action]\n{action}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_data_reaches_the_job_byte_for_byte() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let results = cluster.results.display();
    site.script(
        "write.sh",
        &format!(
            "id > {results}/id\nprintf '%s\\0' \"$@\" \"$MESH_EVENT_VALUE\" > {results}/args.new\nenv > {results}/env\nmv {results}/args.new {results}/args"
        ),
    );
    let action = "submit = \"write.sh\"\nargs = [\"{{ data.a }}\", \"{{ data.b }}\", \"{{ data.c }}\", \"{{ data.d }}\", \"{{ data.e }}\"]\nenvironment = { MESH_EVENT_VALUE = \"{{ data.f }}\" }\nmemory = \"10M\"\noutput = \"/dev/null\"\njob_name = \"{{ data.a }}\"";
    let tables = manual("write", action) + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    let values = [
        "$(id); rm -rf /",
        "--uid=0",
        "#SBATCH --uid=0\n\"'`\t%j\\",
        "é ☃ {{ job.name }} {% x %}",
        "",
        "a,LD_PRELOAD=/tmp/x.so,PATH=/evil\n",
    ];
    let data: Value = ["a", "b", "c", "d", "e", "f"]
        .into_iter()
        .zip(values)
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    let key = trigger.fire("write", "hostile", data).await;
    let run = trigger.wait_run(&key, "released").await;
    let file = cluster.results.join("args");
    let bytes = wait_for(
        "the job has written",
        Duration::from_secs(120),
        async || std::fs::read(&file).ok(),
    )
    .await;
    assert_eq!(bytes, (values.join("\0") + "\0").into_bytes());
    // Her own groups, as a login of hers has them.
    let id = cluster.lines("id").join("");
    assert_eq!(id, cluster.run("alice", &["id"]).await.trim());
    let environment = cluster.lines("env");
    assert!(environment.contains(&"MESH_EVENT_RULE=alice/write".to_owned()));
    assert!(
        !environment
            .iter()
            .any(|line| line.starts_with("LD_PRELOAD"))
    );
    let job = u32::try_from(run["job_id"].as_u64().unwrap()).unwrap();
    assert_eq!(cluster.field(job, "Comment").await, key);
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slurms_refusal_is_a_dead_letter_that_can_be_redriven() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let action = "submit = \"true.sh\"\nmemory = \"10M\"\npartition = \"{{ data.partition }}\"";
    let tables = manual("refused", action) + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    let data = json!({"partition": "nowhere"});
    let key = trigger.fire("refused", "1", data).await;
    let run = trigger.wait_run(&key, "refused").await;
    let error = run["error"].as_str().unwrap();
    assert!(error.contains("nvalid partition"), "{error}");
    assert_eq!(trigger.runs("state=dead").await.len(), 1);
    let path = format!("/v1/trigger-runs/{key}/redrive");
    let (status, _) = trigger.ask(alice(), "POST", &path, None).await;
    assert_eq!(status, 202);
    let run = wait_for("refused again", Duration::from_secs(60), async || {
        let runs = trigger.runs("state=dead").await;
        runs.into_iter().find(|run| run["attempts"] == 2)
    })
    .await;
    assert_eq!(run["key"], key);
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_act_on_jobs_of_their_owner_only() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    bus(&nats).await;
    let site = Site::new("");
    let tables = manual("hold", "hold = \"{{ data.job }}\"")
        + &manual(
            "update",
            "update = \"{{ data.job }}\"\ntime = \"{{ data.time }}\"",
        )
        + &manual("cancel", "cancel = \"{{ data.job }}\"")
        + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    let begin = ["--begin=now+1hour"];
    let own = cluster.sbatch("alice", &begin, "true").await;
    let of_bob = cluster.sbatch("bob", &begin, "true").await;
    for (rule, data) in [
        ("hold", json!({"job": own})),
        ("update", json!({"job": own, "time": "1h"})),
        ("cancel", json!({"job": own})),
    ] {
        let key = trigger.fire(rule, "own", data).await;
        trigger.wait_run(&key, "done").await;
        match rule {
            "hold" => assert_eq!(cluster.field(own, "Reason").await, "JobHeldUser"),
            "update" => assert_eq!(cluster.field(own, "TimeLimit").await, "01:00:00"),
            _ => assert_eq!(cluster.field(own, "JobState").await, "CANCELLED"),
        }
    }
    let key = trigger.fire("cancel", "bob", json!({"job": of_bob})).await;
    trigger.wait_run(&key, "refused").await;
    assert_eq!(cluster.field(of_bob, "JobState").await, "PENDING");
    cluster.run("root", &["scancel", &of_bob.to_string()]).await;
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_runs_again_as_often_as_the_rule_says() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let tables = "[[workflow-trigger.rules]]\nname = \"again\"\nowner = \"alice\"\n[workflow-trigger.rules.on]\ntypes = [\"job.failed\", \"job.timeout\"]\n[workflow-trigger.rules.action]\nretry = { exit_codes = [75], time = \"x2\", attempts = 2 }\n".to_owned()
        + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    let results = cluster.results.display();
    let script = format!("echo ran >> {results}/again; exit 75");
    let job = cluster.sbatch("alice", &["--time=2"], &script).await;
    for (restarts, state) in [(0, "done"), (1, "done"), (2, "refused")] {
        wait_for("the job has run", Duration::from_secs(120), async || {
            (cluster.lines("again").len() == restarts as usize + 1).then_some(())
        })
        .await;
        cluster.wait_state(job, "FAILED").await;
        let kind = match restarts {
            1 => EventType::JobTimeout,
            _ => EventType::JobFailed,
        };
        let mut event = end(kind, job, "alice", TimeDelta::zero());
        if let Some(Payload::Job(payload)) = &mut event.payload {
            let of = payload.job.as_mut().unwrap();
            of.restarts = Some(restarts);
            of.time_limit_minutes = Some(2);
            of.exit_code = Some(mesh_events::proto::mesh::job::v1::ExitCode {
                code: 75,
                signal: 0,
            });
        }
        // Each run's end is a fact of its own.
        event.id = mesh_events::EventId::sampled("testbed", "end", kind, u64::from(restarts) + 1)
            .to_string();
        publish(&bus, &event).await;
        let run = trigger.wait_run(&event.id, state).await;
        if state == "refused" {
            let error = run["error"].as_str().unwrap();
            assert!(error.contains("retry.attempts"), "{error}");
        }
    }
    assert_eq!(cluster.lines("again").len(), 3);
    assert_eq!(cluster.field(job, "TimeLimit").await, "00:04:00");
    let (_, rules) = trigger.ask(admin(), "GET", "/v1/triggers", None).await;
    assert_eq!(rules["rules"][0]["action"], "retry");
    trigger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_slurm_has_requeued_is_left_alone() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let tables = "[[workflow-trigger.rules]]\nname = \"again\"\nowner = \"alice\"\n[workflow-trigger.rules.on]\ntypes = [\"job.node_fail\"]\n[workflow-trigger.rules.action]\nretry = { }\n".to_owned()
        + &cluster.submitter();
    let trigger = site.start(&nats, QUICK, &tables).await;
    let job = cluster.sbatch("alice", &[], "sleep 600").await;
    cluster.wait_state(job, "RUNNING").await;
    // As Slurm does after the failure of a node.
    cluster
        .run("root", &["scontrol", "requeue", &job.to_string()])
        .await;
    let restarted = "the job has a restart";
    wait_for(restarted, Duration::from_secs(60), async || {
        (cluster.field(job, "Restarts").await == "1").then_some(())
    })
    .await;
    let mut event = end(EventType::JobNodeFail, job, "alice", TimeDelta::zero());
    if let Some(Payload::Job(payload)) = &mut event.payload {
        payload.job.as_mut().unwrap().restarts = Some(0);
    }
    publish(&bus, &event).await;
    let run = trigger.wait_run(&event.id, "refused").await;
    let error = run["error"].as_str().unwrap();
    assert!(error.contains("runs again already"), "{error}");
    assert_eq!(cluster.field(job, "Restarts").await, "1");
    cluster.run("root", &["scancel", &job.to_string()]).await;
    trigger.stop().await;
}
