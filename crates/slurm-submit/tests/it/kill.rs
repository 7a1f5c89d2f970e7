//! Clients that are killed while they submit: every event runs once. Counted by what the jobs themselves write.
//!
//! The client is this test binary itself, started again for [`client`]. It records job ids in files, as a service would in its database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mesh_testkit::wait_until;
use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use slurm_submit::{Acted, SubmitKey, Submitter};
use slurm_types::{JobId, JobState};

use crate::chosen;
use crate::cluster::{Cluster, PROGRAM, exclusive, shared};

/// How a client submits.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    /// Look for the key, submit on hold, record, release.
    Hold,
    /// `sbatch`, and again if there is no answer.
    Retry,
    /// Look for the key, then `sbatch`.
    LookUp,
    /// An id chosen for each event, by slurmrestd.
    ChosenId,
}

impl Method {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Hold, "hold"),
        (Self::Retry, "retry"),
        (Self::LookUp, "look-up"),
        (Self::ChosenId, "chosen-id"),
    ];

    fn name(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        all.find(|(method, _)| *method == self).unwrap().1
    }
}

/// Events of a test, and where their job ids are recorded.
struct Events<'a> {
    cluster: &'a Cluster,
    name: String,
    method: Method,
    count: usize,
    /// The id of the first event's job, if ids are chosen.
    first_id: u32,
    records: PathBuf,
}

impl<'a> Events<'a> {
    fn new(cluster: &'a Cluster, name: &str, method: Method, count: usize) -> Self {
        let records = cluster.slurm.dir().join(format!("records-{name}"));
        std::fs::create_dir(&records).unwrap();
        Self {
            cluster,
            name: name.to_owned(),
            method,
            count,
            first_id: 0,
            records,
        }
    }

    fn start_client(&self) -> Child {
        let cluster = self.cluster;
        let (program_dir, config) = match self.method {
            Method::ChosenId => (
                Path::new(PROGRAM).parent().unwrap().to_owned(),
                chosen::chosen_config(cluster),
            ),
            _ => (cluster.program_dir.clone(), cluster.config.clone()),
        };
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "kill::client"])
            .env("CLIENT_METHOD", self.method.name())
            .env("CLIENT_NAME", &self.name)
            .env("CLIENT_EVENTS", self.count.to_string())
            .env("CLIENT_RECORDS", &self.records)
            .env("CLIENT_RESULTS", &cluster.results)
            .env("CLIENT_PROGRAM_DIR", program_dir)
            .env("CLIENT_FIRST_ID", self.first_id.to_string())
            .env("CLIENT_CONFIG", config)
            .env("CLIENT_CLUSTER", cluster.slurm.dir())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn key(&self, event: usize) -> SubmitKey {
        key(&self.name, event)
    }

    fn are_done(&self) -> bool {
        (0..self.count).all(|event| self.records.join(format!("{event}.done")).exists())
    }

    /// Kills clients at random points until all events are done; returns how many were killed.
    fn kill_clients(&self, longest: Duration, rng: &mut SmallRng) -> usize {
        let mut kills = 0;
        while !self.are_done() {
            let mut client = self.start_client();
            let pause = rng.random_range(0..longest.as_millis());
            let end = Instant::now() + Duration::from_millis(u64::try_from(pause).unwrap());
            while Instant::now() < end && client.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            if client.try_wait().unwrap().is_none() {
                // The client alone, or with a part of its processes, or with all of them.
                kill(&mut client, rng.random_range(0..3), rng);
                kills += 1;
            }
        }
        kills
    }

    /// Waits until nothing is under way any more, and returns how often each event ran.
    async fn runs(&self) -> Vec<usize> {
        let submitter = self.cluster.submitter();
        let keys: BTreeSet<SubmitKey> = (0..self.count).map(|event| self.key(event)).collect();
        wait_until(
            "no request is under way",
            Duration::from_secs(120),
            async || {
                !processes()
                    .any(|(_, command)| keys.iter().any(|key| command.contains(key.as_str())))
            },
        )
        .await;
        wait_until(
            "all jobs have ended or are held",
            Duration::from_secs(300),
            async || {
                for key in &keys {
                    let Ok(jobs) = submitter.find("alice", key).await else {
                        return false;
                    };
                    let is_over = |state: &JobState| state.is_terminal();
                    if !jobs
                        .iter()
                        .all(|job| job.status.held || is_over(&job.status.state))
                    {
                        return false;
                    }
                }
                true
            },
        )
        .await;
        let written = std::fs::read_dir(&self.cluster.results).unwrap();
        let written: Vec<String> = written
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        (0..self.count)
            .map(|event| {
                let prefix = format!("{}-{event}.", self.name);
                written
                    .iter()
                    .filter(|name| name.starts_with(&prefix))
                    .count()
            })
            .collect()
    }

    /// Cancels the held copies; returns how many there were.
    async fn cancel_twins(&self) -> usize {
        let submitter = self.cluster.submitter();
        let winners: BTreeMap<SubmitKey, JobId> = (0..self.count)
            .map(|event| {
                let record = std::fs::read_to_string(self.records.join(format!("{event}.job")));
                (self.key(event), record.unwrap().parse().unwrap())
            })
            .collect();
        let twins = async || {
            let keys = winners.keys().cloned().collect();
            let mut held = submitter.find_held("alice", keys).await.unwrap();
            held.retain(|job| winners[&job.key] != job.job_id);
            held
        };
        let found = twins().await;
        for twin in &found {
            let cancelled = submitter.cancel("alice", twin.job_id, &twin.key).await;
            assert_eq!(cancelled, Ok(Acted::Done));
        }
        assert_eq!(twins().await, Vec::new());
        found.len()
    }
}

fn key(name: &str, event: usize) -> SubmitKey {
    SubmitKey::new(name, 1, &event.to_string(), 0)
}

/// All processes with their command lines.
fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&command).into_owned()))
    })
}

/// The processes that a process has started, with theirs.
fn descendants(of: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, after_name) = stat.rsplit_once(')')?;
        after_name.split_whitespace().nth(1)?.parse().ok()
    };
    let parents: Vec<(u32, u32)> = processes()
        .filter_map(|(pid, _)| Some((pid, parent(pid)?)))
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while next < found.len() {
        let children = parents.iter().filter(|(_, parent)| *parent == found[next]);
        let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
        found.extend(children);
        next += 1;
    }
    found.split_off(1)
}

/// Kills a client, and of its processes none, some, or all.
fn kill(client: &mut Child, extent: u32, rng: &mut SmallRng) {
    let started = descendants(client.id());
    client.kill().unwrap();
    for pid in started {
        if extent == 2 || (extent == 1 && rng.random_bool(0.5)) {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            // It may have ended.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    }
    client.wait().unwrap();
}

/// The client. Records `EVENT.job` before it releases and `EVENT.done` afterwards.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a program of the other tests of this file"]
async fn client() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let method = variable("CLIENT_METHOD");
    let method = Method::ALL.into_iter().find(|(_, name)| *name == method);
    let method = method.unwrap().0;
    let events: usize = variable("CLIENT_EVENTS").parse().unwrap();
    let submitter = Submitter::new(slurm_submit::Config {
        program_dir: Some(variable("CLIENT_PROGRAM_DIR").into()),
        program_config: Some(variable("CLIENT_CONFIG").into()),
    });
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let submitter = submitter.clone();
        tasks.spawn(async move {
            for event in (worker..events).step_by(4) {
                finish(&submitter, method, event).await;
            }
        });
    }
    tasks.join_all().await;
}

async fn finish(submitter: &Submitter, method: Method, event: usize) {
    let variable = |name: &str| std::env::var(name).unwrap();
    let records = PathBuf::from(variable("CLIENT_RECORDS"));
    let (job_file, done_file) = (
        records.join(format!("{event}.job")),
        records.join(format!("{event}.done")),
    );
    let name = variable("CLIENT_NAME");
    let key = key(&name, event);
    let script = format!(
        "touch {}/{name}-{event}.$SLURM_JOB_ID",
        variable("CLIENT_RESULTS")
    );
    if method == Method::ChosenId {
        let first: u32 = variable("CLIENT_FIRST_ID").parse().unwrap();
        let id = JobId::new(first + u32::try_from(event).unwrap()).unwrap();
        let submission = submission(&key, &script);
        while !done_file.exists() {
            if submitter.put(&submission, id).await == Ok(id) {
                record(&job_file, &id.to_string());
                record(&done_file, "");
            }
        }
        return;
    }
    while !done_file.exists() {
        let recorded = std::fs::read_to_string(&job_file).ok();
        let job: Option<JobId> = match recorded.and_then(|text| text.parse().ok()) {
            Some(job) => Some(job),
            None => {
                let found = match method {
                    Method::Retry => Ok(Vec::new()),
                    _ => submitter.find("alice", &key).await,
                };
                match found.map(|jobs| jobs.first().map(|job| job.job_id)) {
                    Ok(Some(job)) => Some(job),
                    Ok(None) if method == Method::Hold => {
                        submit_on_hold(submitter, &key, &script).await
                    }
                    Ok(None) => sbatch(Path::new(&variable("CLIENT_CLUSTER")), &key, &script).await,
                    Err(_) => None,
                }
            }
        };
        let Some(job) = job else {
            continue;
        };
        record(&job_file, &job.to_string());
        let is_done = method != Method::Hold
            || match submitter.release("alice", job, &key).await {
                Ok(Acted::Done) => true,
                Ok(Acted::Absent | Acted::OtherKey) => {
                    std::fs::remove_file(&job_file).unwrap();
                    false
                }
                Err(_) => false,
            };
        if is_done {
            record(&done_file, "");
        }
    }
}

async fn submit_on_hold(submitter: &Submitter, key: &SubmitKey, script: &str) -> Option<JobId> {
    submitter.submit(&submission(key, script)).await.ok()
}

fn submission(key: &SubmitKey, script: &str) -> slurm_submit::Submission {
    slurm_submit::Submission {
        key: key.clone(),
        owner: "alice".to_owned(),
        script: format!("#!/bin/sh\n{script}\n"),
        args: Vec::new(),
        environment: BTreeMap::new(),
        fields: slurm_submit::JobFields {
            memory: Some(10),
            output: Some("/dev/null".to_owned()),
            ..slurm_submit::JobFields::default()
        },
    }
}

/// As workflow systems submit.
async fn sbatch(cluster: &Path, key: &SubmitKey, script: &str) -> Option<JobId> {
    let output = tokio::process::Command::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/cluster/as"
    ))
    .arg(cluster)
    .args([
        "alice",
        "sbatch",
        "--parsable",
        "--mem=10",
        "--output=/dev/null",
    ])
    .arg(format!("--comment={key}"))
    .arg(format!("--wrap={script}"))
    .output()
    .await
    .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Writes a file that is there as a whole or not at all.
fn record(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Number of kills; more with `KILLS=1000`.
fn kills(default: usize) -> usize {
    std::env::var("KILLS").map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_runs_once_however_often_its_client_is_killed() {
    let (cluster, _guard) = shared().await;
    let mut rng = SmallRng::seed_from_u64(1);
    let (mut killed, mut twins, mut batches) = (0, 0, 0);
    while killed < kills(20) {
        let batch = Events::new(cluster, &format!("batch{batches}"), Method::Hold, 40);
        killed += batch.kill_clients(Duration::from_millis(200), &mut rng);
        batches += 1;
        assert_eq!(
            batch.runs().await,
            [1; 40],
            "batch {batches}, {killed} kills"
        );
        twins += batch.cancel_twins().await;
    }
    let events = batches * 40;
    println!("{events} events, {killed} kills, {twins} held copies cancelled: 0 lost, 0 double");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_with_a_chosen_id_runs_once_however_often_its_client_is_killed() {
    let (cluster, _guard) = exclusive().await;
    if chosen::submitter(cluster).await.is_none() {
        return;
    }
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut killed, mut batches) = (0, 0);
    while killed < kills(20) {
        let name = format!("chosen{batches}");
        let mut batch = Events::new(cluster, &name, Method::ChosenId, 40);
        batch.first_id = chosen::FIRST + 100 + batches * 40;
        // Each submission first asks slurmrestd for its versions, which takes a second.
        killed += batch.kill_clients(Duration::from_secs(4), &mut rng);
        batches += 1;
        assert_eq!(
            batch.runs().await,
            [1; 40],
            "batch {batches}, {killed} kills"
        );
    }
    let events = batches * 40;
    println!("{events} events with chosen ids, {killed} kills: 0 lost, 0 double");
}

/// Starts a client for one event, kills it when the controller has its request, and starts another one.
async fn killed_under_a_slow_plugin(events: &Events<'_>) {
    let key = events.key(0);
    let arrived = events.cluster.results.join("arrived");
    let slow = events.cluster.slow();
    let mut first = events.start_client();
    wait_until(
        "the controller has a request",
        Duration::from_secs(60),
        async || {
            let arrived = std::fs::read_to_string(&arrived).unwrap_or_default();
            arrived.contains(key.as_str())
        },
    )
    .await;
    let started = descendants(first.id());
    first.kill().unwrap();
    for pid in started {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
    first.wait().unwrap();
    let mut second = events.start_client();
    wait_until(
        "the second client is done",
        Duration::from_secs(120),
        async || events.are_done(),
    )
    .await;
    assert!(second.wait().unwrap().success());
    drop(slow);
}

/// A request that is under way is invisible. So looking for the key before submitting is not enough, and a hold is.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_makes_a_second_run_only_without_hold() {
    let (cluster, _guard) = exclusive().await;
    for (name, method, expected) in [
        ("slow-retry", Method::Retry, 2),
        ("slow-look-up", Method::LookUp, 2),
        ("slow-hold", Method::Hold, 1),
    ] {
        let events = Events::new(cluster, name, method, 1);
        killed_under_a_slow_plugin(&events).await;
        assert_eq!(events.runs().await, [expected], "{name}");
        if method == Method::Hold {
            assert_eq!(events.cancel_twins().await, 1);
        }
    }
}

/// The comparison: what workflow systems do. Not asserted to fail at every point, only to duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn submitting_again_without_an_answer_duplicates() {
    let (cluster, _guard) = shared().await;
    let mut rng = SmallRng::seed_from_u64(2);
    let events = Events::new(cluster, "naive", Method::Retry, 40);
    let killed = events.kill_clients(Duration::from_millis(400), &mut rng);
    let runs = events.runs().await;
    let doubles = runs.iter().filter(|runs| **runs > 1).count();
    println!(
        "sbatch and retry: {killed} kills, {doubles} of {} events ran more than once",
        events.count
    );
    assert!(doubles > 0, "{killed} kills");
}
