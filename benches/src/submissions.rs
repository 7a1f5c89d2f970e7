//! Events on the bus to jobs that a real slurmctld has accepted: the time that takes at 20 events a second, and the highest rate, compared
//! with as many processes that run sbatch.

use std::collections::HashMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use integration::{Cluster, ClusterOptions};
use mesh_db::Location;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::event::v1::Owner;
use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::fixtures;
use tokio_util::sync::CancellationToken;
use workflow_trigger::adapters::intents::RunQuery;
use workflow_trigger::adapters::store::Store;

use crate::Arguments;
use crate::load::server;
use crate::process::{Running, program, wait_until};
use crate::report::{Line, Section, progress};
use crate::stats::Sorted;

/// Events a second for the time to acceptance.
const RATE: u32 = 20;
/// For how long.
const SECONDS: u32 = 15;
/// Events at once for the highest rate.
const BURST: u32 = 400;
/// Submissions at the same time: those of the service.
const PARALLEL: u32 = 16;
const USER: &str = "alice";
const PATIENCE: Duration = Duration::from_secs(300);
const GOAL_TEXT: &str = "p50 ≤ 60 ms, p99 ≤ 500 ms";
const RATE_GOAL: f64 = 100.0;

pub async fn measure(_: &Arguments) -> anyhow::Result<Section> {
    // Jobs are held for the whole time, so none runs beside the measurement.
    let cluster = Cluster::start(&ClusterOptions {
        name: fixtures::CLUSTER.to_owned(),
        knobs: vec![
            ("ROOT", String::new()),
            ("NODES", "1".into()),
            ("GPU_NODES", "0".into()),
            ("CLOUD", "0".into()),
            ("NODB", "1".into()),
        ],
        hooks: false,
    })
    .await?;
    let (nats, bus) = server().await?;
    let folder = tempfile::tempdir()?;
    let config = configure(folder.path(), &nats.url(), &cluster)?;
    let mut process = Running::start(
        Command::new(program("workflow-trigger")?)
            .arg("--config")
            .arg(&config),
        &folder.path().join("log"),
    )?;
    let location =
        Location::parse("sqlite:workflow-trigger.db", folder.path()).map_err(anyhow::Error::msg)?;
    let store = Store::connect(&location)?;
    let shutdown = CancellationToken::new();
    let counted = Sql::new("SELECT COUNT(*) AS n FROM intents WHERE accepted_at IS NOT NULL");
    let mut accepted = async |count: u32| {
        let description = format!("{count} jobs are accepted");
        wait_until(&description, PATIENCE, async || {
            process.check()?;
            // The service makes its database when it starts.
            let Ok(rows) = store.database.rows("count accepted jobs", &counted).await else {
                return Ok(false);
            };
            let found: i64 = rows.first().map_or(Ok(0), |row| row.get("n"))?;
            Ok(found == i64::from(count))
        })
        .await
    };
    // The first one opens everything.
    bus.publish(&event(1)).await?;
    accepted(1).await?;

    let mut published = HashMap::new();
    let began = tokio::time::Instant::now();
    for number in 0..RATE * SECONDS {
        tokio::time::sleep_until(began + Duration::from_secs(1) * number / RATE).await;
        let event = event(2 + number);
        bus.publish(&event).await?;
        published.insert(event.id, Utc::now());
    }
    accepted(1 + RATE * SECONDS).await?;
    let times = acceptances(&store)
        .await?
        .into_iter()
        .filter_map(|(id, at)| {
            let took = at - *published.get(&id)?;
            // A clock of microseconds.
            Some(took.max(TimeDelta::zero()).to_std().unwrap_or_default())
        });
    let times = Sorted::milliseconds(times);
    let is_met = times.median() <= 60.0 && times.p99() <= 500.0;
    let what = format!("event on the bus → job accepted by slurmctld, {RATE} events/s");
    let latency = progress(Line::times(what, &times).budget(GOAL_TEXT, is_met));

    let first = 2 + RATE * SECONDS;
    let began = Utc::now();
    let events: Vec<Event> = (first..first + BURST).map(event).collect();
    bus.publish_all(events, &shutdown).await?;
    accepted(1 + RATE * SECONDS + BURST).await?;
    let last = acceptances(&store)
        .await?
        .into_iter()
        .map(|(_, at)| at)
        .max();
    let took = last.context("no job is accepted")? - began;
    let rate = f64::from(BURST) / took.as_seconds_f64();
    process.stop()?;
    let raw = raw(&cluster)?;
    ensure!(raw > 0.0, "no raw submission");
    Ok(Section {
        title: "events to jobs",
        lines: vec![
            latency,
            Line::value("sbatch --hold, 16 at a time", "submissions/s", raw),
            Line::value("the service, 16 at a time", "submissions/s", rate)
                .against(raw, "sbatch")
                .budget("≥ 100/s", rate >= RATE_GOAL),
        ],
        notes: vec![format!(
            "one rule, {} events in {SECONDS} s, then {BURST} at once; the service's submit_rate is 1,000/s; jobs stay held",
            RATE * SECONDS
        )],
    })
}

/// The end of a job of the rule's owner.
fn event(number: u32) -> Event {
    let now = timestamp(Utc::now());
    let mut job = fixtures::job(number);
    job.end_time = Some(now);
    let mut event = fixtures::job_event(EventType::JobCompleted, job);
    event.occurred_at = Some(now);
    event.owner = Some(Owner {
        user: USER.to_owned(),
        ..Owner::default()
    });
    event
}

/// Ids of the events whose jobs are accepted, with the times.
async fn acceptances(store: &Store) -> anyhow::Result<Vec<(String, DateTime<Utc>)>> {
    let query = RunQuery {
        limit: u32::MAX,
        ..RunQuery::default()
    };
    let runs = store.runs(&query).await?;
    let accepted = runs
        .into_iter()
        .filter_map(|run| Some((run.cause.event_id, run.accepted_at?)));
    Ok(accepted.collect())
}

/// Writes `mesh.toml`, the script of the rule, and the configuration of the program that submits.
fn configure(folder: &Path, nats: &str, cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let scripts = folder.join("triggers.d");
    std::fs::create_dir_all(&scripts)?;
    std::fs::write(scripts.join("true.sh"), "#!/bin/sh\ntrue\n")?;
    let submitter = folder.join("trigger-submitter.toml");
    std::fs::write(
        &submitter,
        format!(
            "users = [\"{USER}\"]\n[slurm]\nconf = {:?}\nbin_dir = {:?}\n",
            cluster.slurm_conf(),
            cluster.commands()
        ),
    )?;
    let program = program("trigger-submitter")?;
    let programs = program.parent().unwrap_or(Path::new("/"));
    let path = folder.join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\ndata_dir = {folder:?}\n[mesh.nats]\nurl = {nats:?}\n[workflow-trigger]\nconfirm_after = \"60s\"\nsubmit_rate = 1000\n[workflow-trigger.limits]\nper_user_hour = 100000\nper_hour = 100000\n[[workflow-trigger.rules]]\nname = \"next\"\nowner = \"{USER}\"\n[workflow-trigger.rules.on]\ntypes = [\"job.completed\"]\n[workflow-trigger.rules.action]\nsubmit = \"true.sh\"\nmemory = \"10M\"\noutput = \"/dev/null\"\n[workflow-trigger.rules.limits]\nper_hour = 100000\n[workflow-trigger.submitter]\nprogram_dir = {programs:?}\nprogram_config = {submitter:?}\n",
        fixtures::CLUSTER
    );
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The same number of jobs by sbatch alone, as the user. Returns submissions per second.
fn raw(cluster: &Cluster) -> anyhow::Result<f64> {
    let users = cluster.fact("users").context("users of the cluster")?;
    let mut users = users.split(',').filter_map(|user| user.split_once(':'));
    let uid = users.find(|(name, _)| *name == USER);
    let uid: u32 = uid.context("uid of the user")?.1.parse()?;
    let (program, conf) = (cluster.commands().join("sbatch"), cluster.slurm_conf());
    let sbatch = || {
        Command::new(&program)
            .args([
                "--hold",
                "--mem=10M",
                "--output=/dev/null",
                "--chdir=/tmp",
                "--wrap=true",
            ])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SLURM_CONF", &conf)
            .uid(uid)
            .gid(uid)
            .stdout(Stdio::null())
            .status()
    };
    let began = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PARALLEL)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<()> {
                    for _ in 0..BURST / PARALLEL {
                        ensure!(sbatch()?.success(), "sbatch failed");
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .map_err(|_| anyhow::anyhow!("a worker panicked"))?
        })
    })?;
    Ok(f64::from(BURST) / began.elapsed().as_secs_f64())
}
