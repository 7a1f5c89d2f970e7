//! The service is killed at named and at random points: every event's job runs once, counted by what the jobs wrote.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use chrono::TimeDelta;
use mesh_events::EventType;
use mesh_testkit::{NatsServer, script, wait_until};
use rand::RngExt as _;

use crate::cluster::{Cluster, shared};
use crate::support::{Site, bus, end, publish};

/// Requests at which the service is killed, before they are sent and after they are answered but not recorded.
const POINTS: [&str; 7] = [
    "submit-before",
    "submit-after",
    "find-after",
    "confirm-before",
    "confirm-after",
    "release-before",
    "release-after",
];
/// Events at a time after the named points, killed at random.
const RANDOM_EVENTS: u32 = 40;
/// Kills at random, at least; more with `KILLS=1000`.
const RANDOM_KILLS: u32 = 4;

/// A program in front of `trigger-submitter` that kills the service at a named point, once: before or after a request with this word.
pub fn killer(cluster: &Cluster, dir: &Path) {
    let real = cluster.program_dir.join("trigger-submitter");
    let text = format!(
        "request=$(cat)\npoint=$(cat {point} 2>/dev/null)\ncase $request in\n*'\"'\"${{point%%-*}}\"'\"'*) ;;\n*) point= ;;\nesac\nif [ \"${{point#*-}}\" = before ] && rm {point}; then kill -9 $PPID; exit 1; fi\nanswer=$(printf '%s' \"$request\" | {real} \"$@\")\nif [ \"${{point#*-}}\" = after ] && rm {point}; then kill -9 $PPID; fi\nprintf '%s\\n' \"$answer\"",
        point = dir.join("point").display(),
        real = real.display(),
    );
    script(&dir.join("trigger-submitter"), &text);
}

pub struct Process {
    config: PathBuf,
    child: Child,
    starts: u32,
}

impl Process {
    pub fn start(config: PathBuf) -> Self {
        Self {
            child: Self::spawn(&config),
            config,
            starts: 1,
        }
    }

    fn spawn(config: &Path) -> Child {
        Command::new(env!("CARGO_BIN_EXE_workflow-trigger"))
            .args(["--config".as_ref(), config.as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Starts it again if it is dead.
    pub fn keep_alive(&mut self) {
        if self.is_dead() {
            self.child = Self::spawn(&self.config);
            self.starts += 1;
        }
    }

    /// True if it answers nobody any more.
    pub fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_runs_once_however_often_the_service_is_killed() {
    let cluster = shared().await;
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let dir = site.path("program");
    std::fs::create_dir(&dir).unwrap();
    killer(cluster, &dir);
    let results = cluster.results.join("killed");
    std::fs::create_dir(&results).unwrap();
    chmod_all(&results);
    site.script(
        "count.sh",
        &format!(
            "echo $SLURM_JOB_ID >> {}/$MESH_EVENT_NUMBER",
            results.display()
        ),
    );
    let tables = "[[workflow-trigger.rules]]\nname = \"count\"\nowner = \"alice\"\n[workflow-trigger.rules.on]\ntypes = [\"job.completed\"]\n[workflow-trigger.rules.action]\nsubmit = \"count.sh\"\nmemory = \"10M\"\noutput = \"/dev/null\"\nenvironment = { MESH_EVENT_NUMBER = \"{{ job.job_id }}\" }\n[workflow-trigger.rules.limits]\nper_hour = 100000\n[workflow-trigger.limits]\nper_user_hour = 100000\nper_hour = 100000\n".to_owned()
        + &cluster.submitter_in(&dir);
    let keys = "confirm_after = \"200ms\"\nretry_initial_interval = \"100ms\"";
    let config = site.configure(&nats, keys, &tables);
    let mut process = Process::start(config);
    let runs = |number: u32| {
        let file = results.join(number.to_string());
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().count()
    };
    let event = |number: u32| end(EventType::JobCompleted, number, "alice", TimeDelta::zero());
    let deadline = Duration::from_secs(180);
    let mut number = 0;
    for point in POINTS {
        number += 1;
        let starts = process.starts;
        let at = dir.join("point");
        if point == "find-after" {
            // A search follows an attempt whose outcome is unknown.
            std::fs::write(&at, "submit-after").unwrap();
            publish(&bus, &event(number)).await;
            wait_until("killed after a submission", deadline, async || !at.exists()).await;
            std::fs::write(&at, point).unwrap();
        } else {
            std::fs::write(&at, point).unwrap();
            publish(&bus, &event(number)).await;
        }
        wait_until(point, deadline, async || {
            process.keep_alive();
            runs(number) > 0 && !at.exists()
        })
        .await;
        assert!(process.starts > starts, "{point}: not killed");
    }
    let least = std::env::var("KILLS").map_or(RANDOM_KILLS, |text| text.parse().unwrap());
    let (mut kills, mut last) = (0, number);
    while kills < least {
        let first = last + 1;
        last += RANDOM_EVENTS;
        for number in first..=last {
            publish(&bus, &event(number)).await;
        }
        // On a slow machine it would hardly start before the next kill: it gets more time after each kill without progress.
        let (mut longest, mut ran) = (1_500, 0);
        wait_until("all jobs ran", deadline * 2, async || {
            let pause = rand::rng().random_range(50..longest);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let run = (first..=last).filter(|number| runs(*number) > 0).count();
            let all = (first..=last).count();
            if run < all {
                process.kill();
                kills += 1;
                process.keep_alive();
                longest = if run > ran { 1_500 } else { longest * 3 / 2 };
                ran = run;
            }
            run == all
        })
        .await;
    }
    // What is still on its way would run now: everything in the queue is a held copy, or there is nothing.
    process.keep_alive();
    wait_until("nothing is left but held copies", deadline, async || {
        let queue = cluster
            .run("root", &["squeue", "-h", "-u", "alice", "-o", "%T %r %k"])
            .await;
        let ours = |line: &&str| line.contains("smesh:1:");
        let held = |line: &str| line.contains("JobHeldUser");
        queue.lines().filter(ours).all(held)
    })
    .await;
    let counts: Vec<usize> = (1..=last).map(runs).collect();
    assert!(counts.iter().all(|count| *count == 1), "{counts:?}");
    println!(
        "{last} events, {} starts, {kills} random kills: 0 lost, 0 double",
        process.starts
    );
}

pub fn chmod_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o1777)).unwrap();
}
