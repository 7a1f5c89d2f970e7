//! Plays the day.

use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{FutureExt as _, future::LocalBoxFuture};
use mesh_events::EventType;

use super::{Day, Expected, Impossible};
use crate::{Cluster, Error, Mesh, Slurm, wait_for};

/// User of the administrator's actions.
pub const MANAGER: &str = "root";

/// Time limit for a job to reach the state its part waits for.
const PATIENCE: Duration = Duration::from_secs(180);
/// Longer than any part.
const LONG: &str = "sleep 600";
const SUCCESS: &[&str] = &["submitted", "started", "completed"];

/// Environment of the parts.
struct Environment<'a> {
    cluster: &'a Cluster,
    mesh: &'a Mesh,
}

type Part<'a> = LocalBoxFuture<'a, Result<Vec<Expected>, Error>>;

fn one<'a>(part: impl Future<Output = Result<Expected, Error>> + 'a) -> Part<'a> {
    part.map(|expected| expected.map(|expected| vec![expected]))
        .boxed_local()
}

/// Plays the whole day on a [`crate::ClusterOptions::full`] cluster. Returns when every part is done. Jobs may still run.
///
/// # Errors
/// If Slurm refuses a command, or an awaited state does not occur.
pub async fn play(cluster: &Cluster, mesh: &Mesh) -> Result<Day, Error> {
    let environment = Environment { cluster, mesh };
    // Before any submission, because one job must find this state.
    environment
        .admin(&[
            "scontrol",
            "update",
            "NodeName=n4",
            "State=DRAIN",
            "Reason=fan is loud",
        ])
        .await?;
    let mut parts: Vec<Part<'_>> = vec![
        one(environment.success()),
        one(environment.gpus()),
        one(environment.failure()),
        one(environment.time_out()),
        one(environment.cancelled_while_waiting()),
        one(environment.cancelled_while_running()),
        one(environment.array()),
        environment.qos_limit().boxed_local(),
        one(environment.drained_node()),
        one(environment.cloud()),
        one(environment.requeue()),
    ];
    let mut impossible = Vec::new();
    if cluster.fact("oom").as_deref() == Some("yes") {
        parts.push(one(environment.out_of_memory()));
    } else {
        impossible.push(Impossible {
            title: "out of memory",
            why: cluster.fact("oom_why").unwrap_or_default(),
        });
    }
    let mut expected = try_join_all(parts).await?.concat();
    expected.sort_by_key(|part| part.job);
    Ok(Day {
        expected,
        impossible,
    })
}

impl Environment<'_> {
    async fn admin(&self, command: &[&str]) -> Result<(), Error> {
        self.cluster.ask(MANAGER, command).await.map(drop)
    }

    async fn submit(&self, user: &str, options: &[&str], script: &str) -> Result<u32, Error> {
        self.cluster.submit(user, options, script).await
    }

    /// Waits until the mesh has published an event of a job.
    async fn wait_event(&self, job: u32, kind: EventType) -> Result<(), Error> {
        let description = format!("{kind} of job {job} is in the ledger");
        let path = format!("/v1/events?job={job}&type={kind}");
        wait_for(&description, PATIENCE, async || {
            let answer = self.mesh.get(&path).await?.json();
            let entries = answer["entries"].as_array();
            Ok(entries
                .is_some_and(|entries| !entries.is_empty())
                .then_some(()))
        })
        .await
    }

    /// Waits for the `pending` event and the explanation of a job. Two polls must see the same state.
    async fn explained(&self, job: u32) -> Result<(), Error> {
        self.wait_event(job, EventType::QueueExplained).await?;
        self.wait_event(job, EventType::JobPending).await
    }

    async fn running(&self, job: u32) -> Result<(), Error> {
        self.cluster
            .wait_state(&job.to_string(), &["RUNNING"], PATIENCE)
            .await
    }

    async fn success(&self) -> Result<Expected, Error> {
        let job = self
            .submit("alice", &["-Aphysics", "-Jsimulate"], "sleep 2")
            .await?;
        Ok(Expected::new("success", "alice", job, SUCCESS))
    }

    async fn gpus(&self) -> Result<Expected, Error> {
        let options = ["-Aml", "-pgpu", "-wn3", "--gres=gpu:a100:2", "-Jtrain"];
        let job = self.submit("bob", &options, "sleep 5").await?;
        Ok(Expected::new("two GPUs", "bob", job, SUCCESS))
    }

    async fn failure(&self) -> Result<Expected, Error> {
        let job = self
            .submit("alice", &["-Aphysics", "-Janalyse"], "exit 3")
            .await?;
        let event_names = ["submitted", "started", "failed"];
        Ok(Expected::new("exit status 3", "alice", job, &event_names))
    }

    /// `tail` buffers the whole endless line.
    async fn out_of_memory(&self) -> Result<Expected, Error> {
        let script = "head -c 400M /dev/zero | tail";
        let job = self
            .submit("bob", &["-Aml", "--mem=60", "-Jload"], script)
            .await?;
        let event_names = ["submitted", "started", "out_of_memory"];
        Ok(Expected::new("out of memory", "bob", job, &event_names))
    }

    /// Slurm checks time limits every 30 s (seen on 22.05). An end time in the past is found within that time.
    async fn time_out(&self) -> Result<Expected, Error> {
        let job = self.submit("carol", &["-Jtoo-long"], LONG).await?;
        self.running(job).await?;
        let job_id = format!("JobId={job}");
        self.admin(&["scontrol", "update", &job_id, "EndTime=now+1"])
            .await?;
        let event_names = ["submitted", "started", "timeout"];
        Ok(Expected::new("time limit", "carol", job, &event_names))
    }

    async fn cancelled_while_waiting(&self) -> Result<Expected, Error> {
        let options = ["-Aml", "--begin=now+1hour", "-Jtomorrow"];
        let job = self.submit("bob", &options, "true").await?;
        self.explained(job).await?;
        let id = job.to_string();
        self.cluster.ask("bob", &["scancel", &id]).await?;
        let event_names = ["submitted", "cancelled"];
        Ok(Expected::new("cancelled while waiting", "bob", job, &event_names).explained())
    }

    async fn cancelled_while_running(&self) -> Result<Expected, Error> {
        let job = self
            .submit("alice", &["-Aphysics", "-Jmistake"], LONG)
            .await?;
        self.running(job).await?;
        let id = job.to_string();
        self.cluster.ask("alice", &["scancel", &id]).await?;
        let event_names = ["submitted", "started", "cancelled"];
        Ok(Expected::new(
            "cancelled while running",
            "alice",
            job,
            &event_names,
        ))
    }

    async fn array(&self) -> Result<Expected, Error> {
        let options = ["-Aml", "--array=0-9", "-Jsweep"];
        let job = self.submit("bob", &options, "sleep 1").await?;
        let array = Expected::new("array of ten tasks", "bob", job, &["submitted"]);
        Ok((0..10).fold(array, |array, task| {
            array.task(task, &["started", "completed"])
        }))
    }

    /// The QOS allows each user one running job.
    async fn qos_limit(&self) -> Result<Vec<Expected>, Error> {
        let options = ["-Aphysics", "--qos=limited", "-Jfirst"];
        let first = self.submit("alice", &options, LONG).await?;
        let options = ["-Aphysics", "--qos=limited", "-Jsecond"];
        let second = self.submit("alice", &options, "sleep 1").await?;
        self.running(first).await?;
        self.explained(second).await?;
        let id = first.to_string();
        self.cluster.ask("alice", &["scancel", &id]).await?;
        let event_names = ["submitted", "started", "cancelled"];
        Ok(vec![
            Expected::new("uses up a QOS limit", "alice", first, &event_names),
            Expected::new("over a QOS limit", "alice", second, SUCCESS).explained(),
        ])
    }

    async fn drained_node(&self) -> Result<Expected, Error> {
        let options = ["-Aml", "-pgpu", "-wn4", "--gres=gpu:a100:1", "-Jwants-n4"];
        let job = self.submit("bob", &options, "sleep 1").await?;
        self.explained(job).await?;
        // A node that is resumed before the next poll would never be seen drained.
        let drained = self
            .mesh
            .wait_facts("n4 is drained", PATIENCE, "node.drained", |facts| {
                (!facts.is_empty()).then_some(())
            });
        drained.await?;
        self.admin(&["scontrol", "update", "NodeName=n4", "State=RESUME"])
            .await?;
        Ok(Expected::new("waits for a drained node", "bob", job, SUCCESS).explained())
    }

    async fn cloud(&self) -> Result<Expected, Error> {
        // A node that has booted before the next poll would never be seen booting.
        self.cluster.control("pause", "power").await?;
        let options = ["-Aphysics", "-pcloud", "-Jburst"];
        let job = self.submit("alice", &options, "sleep 2").await?;
        let booting = self.mesh.wait_facts(
            "a cloud node boots",
            PATIENCE,
            "node.provisioning",
            |facts| (!facts.is_empty()).then_some(()),
        );
        booting.await?;
        self.cluster.control("continue", "power").await?;
        Ok(Expected::new("wakes a cloud node", "alice", job, SUCCESS))
    }

    /// Runs at least two seconds: on 22.05 a job that is requeued in its first second keeps its submit time.
    async fn requeue(&self) -> Result<Expected, Error> {
        let script = "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] || sleep 600";
        let job = self
            .submit("bob", &["-Aml", "--requeue", "-Jagain"], script)
            .await?;
        let id = job.to_string();
        let marks = self.cluster.clock();
        wait_for(
            "the job to be requeued runs for 2 s",
            PATIENCE,
            async || {
                let begin = marks.when("begin", &id, 0);
                Ok(begin.filter(|at| at.elapsed() > Duration::from_secs(2)))
            },
        )
        .await?;
        self.admin(&["scontrol", "requeue", &id]).await?;
        let event_names = ["submitted", "started", "requeued"];
        Ok(Expected::new("requeued", "bob", job, &event_names).then(SUCCESS))
    }
}
