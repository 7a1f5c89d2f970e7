//! `smesh why` on a real cluster, in the situations in which Slurm's own words say too little or something wrong.
//!
//! All situations are made side by side on one cluster. Each answer is compared with what was done (cause, actor, whether waiting helps),
//! and each amount in it with Slurm's own records ([`records`]).

mod records;
mod situations;

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use integration::{Cluster, ClusterOptions, Error, Mesh, MeshOptions, Slurm as _, wait_for};
use serde_json::Value;

/// Time for all answers to be right, once the situations are made. Boot failures take a minute, and a busy machine reads the evidence every half minute.
const PATIENCE: Duration = Duration::from_secs(600);

/// Partitions of one or two nodes each, so that situations do not disturb each other; and licenses.
const PARTITIONS: &str = "
Licenses=matlab:2
PartitionName=closed Nodes=n1 AllowAccounts=ml State=UP
PartitionName=closedqos Nodes=n1 AllowQos=high State=UP
PartitionName=short Nodes=n1 MaxTime=5 State=UP
PartitionName=single Nodes=n[1-2] MaxNodes=1 State=UP
PartitionName=one Nodes=n1 State=UP
PartitionName=off Nodes=n1 State=DOWN
PartitionName=partq Nodes=n[1-2] State=UP
PartitionName=main Nodes=n[1-3] State=UP
PartitionName=turn Nodes=n4 State=UP
PartitionName=dead Nodes=n5 State=UP
PartitionName=broken Nodes=n6 State=UP
PartitionName=maint Nodes=n7 State=UP
PartitionName=taken Nodes=n8 State=UP
PartitionName=upper Nodes=n9 PriorityTier=10 State=UP
PartitionName=lower Nodes=n9 PriorityTier=1 PreemptMode=REQUEUE State=UP
";

/// QOS of the situations.
const QOS: [&str; 4] = [
    "memq GrpTRES=mem=1000",
    "partq GrpTRES=cpu=2",
    "onejob MaxJobsPerUser=1",
    "onecpu MaxTRESPerJob=cpu=1",
];

/// What an answer must say.
struct Expected {
    job: String,
    text: &'static str,
    class: &'static str,
    actor: &'static str,
    needs_act: bool,
}

fn expected(
    job: impl ToString,
    text: &'static str,
    class: &'static str,
    actor: &'static str,
    needs_act: bool,
) -> Expected {
    let job = job.to_string();
    Expected {
        job,
        text,
        class,
        actor,
        needs_act,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_situation_is_explained_by_its_cause() {
    let folder = tempfile::Builder::new()
        .prefix("mesh-why-")
        .tempdir_in("/tmp")
        .unwrap();
    let cluster = cluster(folder.path()).await;
    for qos in QOS {
        let arguments: Vec<&str> = ["sacctmgr", "-i", "add", "qos"]
            .into_iter()
            .chain(qos.split(' '))
            .collect();
        ask(&cluster, &arguments).await;
    }
    ask(
        &cluster,
        &[
            "sacctmgr",
            "-i",
            "modify",
            "user",
            "alice",
            "set",
            "qos+=memq,partq,onejob,onecpu",
        ],
    )
    .await;
    ask(
        &cluster,
        &["scontrol", "update", "partitionname=partq", "qos=partq"],
    )
    .await;
    let mut mesh = mesh(&cluster).await;

    // Cloud nodes that never boot. The answer while they boot is looked at first: they fail after 50 s.
    // The evidence is read while a job waits.
    submit(&cluster, &["--hold"]).await;
    let cloud = submit(&cluster, &["-p", "cloud", "-N", "2"]).await;
    let booting = answer(&mesh, &cloud, "booting for it").await;
    assert_eq!(
        booting["explanation"]["stage"], "provisioning",
        "{booting:#}"
    );

    let mut all = situations::limits(&cluster).await;
    all.extend(situations::refused(&cluster).await);
    all.extend(situations::nodes(&cluster).await);
    all.extend(situations::people(&cluster).await);
    all.push(expected(
        cloud,
        "failed to boot",
        "node_unavailable",
        "admin",
        true,
    ));

    let mut wrong = String::new();
    for problem in settle(&cluster, &mesh, &all).await {
        writeln!(wrong, "--- {problem}").unwrap();
    }
    for (name, outcome) in [
        ("turn", turn(&cluster, &mesh).await),
        ("stages", stages(&cluster, &mesh).await),
        ("slurmctld away", away(&cluster, &mesh, &all).await),
    ] {
        if let Err(problem) = outcome {
            writeln!(wrong, "--- {name}: {problem}").unwrap();
        }
    }
    mesh.stop().await.unwrap();
    assert!(
        wrong.is_empty(),
        "{} answers looked at; wrong:\n{wrong}",
        all.len()
    );
}

/// A cluster whose jobs named `slow` are prepared until `folder` is gone.
async fn cluster(folder: &Path) -> Cluster {
    executable(folder);
    let prolog = folder.join("prolog");
    let script = format!(
        "#!/bin/sh\nwhile [ \"$SLURM_JOB_NAME\" = slow ] && [ -e {} ]; do /bin/sleep 0.2; done\nexit 0\n",
        prolog.display()
    );
    std::fs::write(&prolog, script).unwrap();
    executable(&prolog);
    let conf = folder.join("extra.conf");
    std::fs::write(
        &conf,
        format!("PrologSlurmctld={}\n{PARTITIONS}", prolog.display()),
    )
    .unwrap();
    let options = ClusterOptions {
        name: "why".to_owned(),
        knobs: vec![
            ("NODES", "11".into()),
            ("GPU_NODES", "2".into()),
            ("CLOUD", "2".into()),
            ("RESUME_TIMEOUT", "50".into()),
            ("CLOUD_BOOT", "3600".into()),
            ("EXTRA_CONF", conf.display().to_string()),
        ],
        hooks: false,
    };
    Cluster::start(&options).await.unwrap()
}

/// SlurmUser runs it.
fn executable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

async fn mesh(cluster: &Cluster) -> Mesh {
    let overlay = "[ingest]\nevidence_interval = \"1s\"\npoll_interval = \"1s\"\n[pending-explainer]\npoll_interval = \"500ms\"\n";
    let options = MeshOptions {
        overlay: overlay.to_owned(),
        ..MeshOptions::default()
    };
    let mut mesh = Mesh::set_up(cluster, "mesh", &options).await.unwrap();
    mesh.start().await.unwrap();
    mesh
}

/// Jobs that wait for each other only: who is ahead, the plan, and the priority are Slurm's.
async fn turn(cluster: &Cluster, mesh: &Mesh) -> Result<(), String> {
    let holder = submit(cluster, &["-p", "turn", "-n4"]).await;
    running(cluster, &holder).await;
    // A held job is not ahead of others.
    submit(cluster, &["-p", "turn", "--hold"]).await;
    let first = submit(cluster, &["-p", "turn", "-n4"]).await;
    let second = submit(cluster, &["-p", "turn,off", "-n4"]).await;
    for (job, ahead, text) in [
        (&first, 0, "node is in use"),
        (&second, 1, "one job is ahead of it in partition turn"),
    ] {
        let expected = [expected(job, text, "waiting_turn", "wait", false)];
        if let Some(problem) = settle(cluster, mesh, &expected).await.pop() {
            return Err(problem);
        }
        let what = format!("{job} has {ahead} ahead, with Slurm's plan and priority");
        let found = settled(&what, async || {
            let answer = fetch(mesh, job).await;
            let ahead_of_it = answer["jobs_ahead"] == ahead;
            (
                ahead_of_it && records::plan_and_priority(cluster, job, &answer).await,
                answer,
            )
        });
        found.await?;
    }
    Ok(())
}

/// Jobs that do not wait any more, and ids that nobody knows.
async fn stages(cluster: &Cluster, mesh: &Mesh) -> Result<(), String> {
    let slow = submit(cluster, &["-J", "slow"]).await;
    // Before the maintenance; the nodes of `main` are full.
    let job = submit(cluster, &["-p", "maint", "-t5"]).await;
    running(cluster, &job).await;
    stage(mesh, &slow, "configuring", "being prepared").await?;
    stage(mesh, &job, "running", "It runs on").await?;
    ask(cluster, &["scontrol", "suspend", &job]).await;
    stage(mesh, &job, "running", "It is suspended").await?;
    ask(cluster, &["scancel", &job]).await;
    let unknown = mesh.get("/v1/queue/why/999999").await.unwrap();
    if unknown.status != 404 {
        return Err(format!("an unknown id: {}", unknown.body));
    }
    // Its answer comes from the explainer, or from the ledger if that has never seen it wait.
    let mut last = String::new();
    let ended = wait_for("it has ended", PATIENCE, async || {
        let printed = mesh.smesh(&["why", &job]).await?;
        last = String::from_utf8_lossy(&printed.stdout).into_owned();
        Ok::<_, Error>(last.contains("CANCELLED").then_some(()))
    });
    ended.await.map_err(|error| format!("{error}: {last}"))
}

/// slurmctld is away: the answer states its age.
async fn away(cluster: &Cluster, mesh: &Mesh, all: &[Expected]) -> Result<(), String> {
    let held = all
        .iter()
        .find(|expected| expected.class == "held")
        .unwrap();
    cluster.control("kill", "slurmctld").await.unwrap();
    let found = settled("the answer has the age of what was read last", async || {
        let answer = fetch(mesh, &held.job).await;
        let as_of = answer["queue_as_of"]
            .as_str()
            .and_then(|time| time.parse().ok());
        let is_old =
            as_of.is_some_and(|as_of: DateTime<Utc>| Utc::now() - as_of > TimeDelta::seconds(10));
        (is_old && is_right(held, &answer["explanation"]), answer)
    });
    found.await?;
    let text = mesh.smesh(&["why", &held.job]).await.unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    text.contains("As of: ").then_some(()).ok_or(text)
}

async fn stage(mesh: &Mesh, job: &str, stage: &str, text: &str) -> Result<(), String> {
    let what = format!("{job} is {stage}");
    let found = settled(&what, async || {
        let answer = fetch(mesh, job).await;
        let explanation = &answer["explanation"];
        let summary = explanation["summary"].as_str().unwrap_or_default();
        (
            explanation["stage"] == stage && summary.contains(text),
            answer,
        )
    });
    found.await
}

/// Waits until each answer is as expected and as Slurm's records are. Returns those that do not become so.
async fn settle(cluster: &Cluster, mesh: &Mesh, all: &[Expected]) -> Vec<String> {
    let mut wrong: Vec<(&Expected, Value)> =
        all.iter().map(|expected| (expected, Value::Null)).collect();
    let settled = wait_for("all answers are right", PATIENCE, async || {
        let mut still_wrong = Vec::new();
        for (expected, _) in &wrong {
            let answer = fetch(mesh, &expected.job).await;
            let explanation = &answer["explanation"];
            if !(is_right(expected, explanation) && records::agree(cluster, explanation).await) {
                still_wrong.push((*expected, answer));
            }
        }
        wrong = still_wrong;
        Ok::<_, Error>(wrong.is_empty().then_some(()))
    });
    // What is wrong is returned with the answer.
    settled.await.ok();
    let problem = |(expected, answer): &(&Expected, Value)| {
        format!(
            "job {}: {} {} {}, not {:#}",
            expected.job, expected.text, expected.class, expected.actor, answer["explanation"]
        )
    };
    wrong.iter().map(problem).collect()
}

fn is_right(expected: &Expected, explanation: &Value) -> bool {
    let text = |key: &str| explanation[key].as_str().unwrap_or_default();
    let needs_act = explanation["needsAct"].as_bool().unwrap_or_default();
    let has_start = explanation["expectedStart"].is_string();
    let found = (text("reasonClass"), text("actor"), needs_act);
    text("summary").contains(expected.text)
        && found == (expected.class, expected.actor, expected.needs_act)
        // What needs an act has no start, and an answer without a start has the reason.
        && !(needs_act && has_start)
        && has_start == text("noEstimateBecause").is_empty()
}

/// Waits for a condition on an answer; the last answer if it does not become true.
async fn settled(what: &str, mut look: impl AsyncFnMut() -> (bool, Value)) -> Result<(), String> {
    let mut last = Value::Null;
    let outcome = wait_for(what, PATIENCE, async || {
        let (holds, answer) = look().await;
        last = answer;
        Ok(holds.then_some(()))
    });
    match outcome.await {
        Ok(()) => Ok(()),
        Err(error) => Err(format!("{error}: {:#}", last["explanation"])),
    }
}

/// The answer about a job, once its sentence contains a text.
async fn answer(mesh: &Mesh, job: &str, text: &str) -> Value {
    let mut last = Value::Null;
    let found = wait_for(text, PATIENCE, async || {
        last = fetch(mesh, job).await;
        let summary = last["explanation"]["summary"].as_str().unwrap_or_default();
        Ok::<_, Error>(summary.contains(text).then(|| last.clone()))
    })
    .await;
    found.unwrap_or_else(|error| panic!("{error}: {last:#}"))
}

async fn fetch(mesh: &Mesh, job: &str) -> Value {
    let answer = mesh.get(&format!("/v1/queue/why/{job}")).await.unwrap();
    serde_json::from_str(&answer.body).unwrap_or(Value::Null)
}

async fn ask(cluster: &Cluster, command: &[&str]) -> String {
    cluster.ask("root", command).await.unwrap()
}

/// Submits a small job of alice. Later options win.
async fn submit(cluster: &Cluster, options: &[&str]) -> String {
    let options = [&["-p", "main", "--mem=10", "-t10"][..], options].concat();
    cluster
        .submit("alice", &options, "sleep 900")
        .await
        .unwrap()
        .to_string()
}

async fn running(cluster: &Cluster, job: &str) {
    if let Err(error) = cluster.wait_state(job, &["RUNNING"], PATIENCE).await {
        let queue = ask(cluster, &["squeue", "-o", "%i %P %T %r %C %N"]).await;
        panic!("{error}\n{queue}");
    }
}
