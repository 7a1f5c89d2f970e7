//! Every transition that Slurm 22.05 can be made to take, all at once on one cluster without hooks; then compared with accounting run by
//! run.
//!
//! Each part covers a known problem of other tools: requeue and preemption read as a failure or as a second job, an unrecognised node
//! failure, the requeue of a held job, dependencies that can never be met.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_events::RunKey;
use mesh_events::proto::mesh::event::v1::ActorKind;

use crate::cluster::{Cluster, NAME};
use crate::mesh::{Mesh, payload};

const SETTINGS: &str =
    "poll_interval = \"500ms\"\nusage_delay = \"1s\"\nmissing_record_timeout = \"90s\"";
/// `spare`: jobs in it are cancelled, not requeued, when the partition `cpu` needs the node.
const CONF: &str = "PartitionName=spare Nodes=n[1-2] PriorityTier=1 PreemptMode=CANCEL MaxTime=1:00:00 DefaultTime=10:00 State=UP
DependencyParameters=kill_invalid_depend
";

struct Play {
    cluster: Cluster,
    mesh: Mesh,
}

impl Play {
    async fn scontrol(&self, arguments: &[&str]) {
        let command = [&["scontrol"], arguments].concat();
        self.cluster.run("root", &command).await;
    }

    async fn cancel(&self, job: u32) {
        self.cluster
            .run("alice", &["scancel", &job.to_string()])
            .await;
    }

    async fn history(&self, job: u32, history: &str) {
        self.mesh.wait_history(job, history).await;
    }

    /// A node fails: one job returns to the queue, one must not.
    async fn node_failure(&self) -> Vec<u32> {
        let on_n4 = ["-pgpu", "-wn4"];
        let rerun = self
            .cluster
            .sbatch(&[&on_n4[..], &["--requeue"]].concat(), "sleep 300")
            .await;
        let once = self
            .cluster
            .sbatch(&[&on_n4[..], &["--no-requeue"]].concat(), "sleep 300")
            .await;
        self.history(rerun, "submitted started").await;
        self.history(once, "submitted started").await;
        let down = ["update", "NodeName=n4", "State=DOWN", "Reason=test"];
        self.scontrol(&down).await;
        self.history(once, "submitted started node_fail").await;
        self.history(rerun, "submitted started node_fail | submitted")
            .await;
        let resume = ["update", "NodeName=n4", "State=RESUME"];
        self.scontrol(&resume).await;
        self.history(rerun, "submitted started node_fail | submitted started")
            .await;
        self.cancel(rerun).await;
        self.history(
            rerun,
            "submitted started node_fail | submitted started cancelled",
        )
        .await;
        vec![rerun, once]
    }

    /// A job of a higher partition takes the node: one job is requeued, one is cancelled.
    async fn preemption(&self) -> Vec<u32> {
        let requeued = self
            .cluster
            .sbatch(&["-plow", "-wn3", "-n4"], "sleep 300")
            .await;
        let cancelled = self
            .cluster
            .sbatch(&["-pspare", "-wn2", "-n4"], "sleep 300")
            .await;
        self.history(requeued, "submitted started").await;
        // Other jobs may take its node at any moment.
        self.mesh.wait_passed(cancelled, "submitted started").await;
        let better = self
            .cluster
            .sbatch(&["-pgpu", "-wn3", "-n4"], "sleep 1")
            .await;
        let other = self
            .cluster
            .sbatch(&["-pcpu", "-wn2", "-n4"], "sleep 1")
            .await;
        self.history(cancelled, "submitted started preempted").await;
        self.history(requeued, "submitted started preempted | submitted started")
            .await;
        for winner in [better, other] {
            self.history(winner, "submitted started completed").await;
        }
        self.cancel(requeued).await;
        let history = "submitted started preempted | submitted started cancelled";
        self.history(requeued, history).await;
        vec![requeued, cancelled, better, other]
    }

    /// Requeued into a hold, and requeued after its end.
    async fn requeues(&self) -> Vec<u32> {
        let special = self.cluster.sbatch(&["--requeue"], "sleep 300").await;
        let finished = self.cluster.sbatch(&["--requeue"], "true").await;
        self.history(special, "submitted started").await;
        self.scontrol(&["requeuehold", "State=SpecialExit", &special.to_string()])
            .await;
        self.history(special, "submitted started requeued | submitted held")
            .await;
        self.history(finished, "submitted started completed").await;
        self.scontrol(&["requeue", &finished.to_string()]).await;
        let history = "submitted started completed | submitted started completed";
        self.history(finished, history).await;
        self.scontrol(&["release", &special.to_string()]).await;
        let history = "submitted started requeued | submitted held released started";
        self.history(special, history).await;
        self.cancel(special).await;
        self.history(special, &format!("{history} cancelled")).await;
        // Accounting of 22.05 has overwritten the row of the completed run: nothing to compare.
        vec![special]
    }

    async fn held_by_an_admin(&self) -> Vec<u32> {
        let job = self.cluster.sbatch(&["--begin=now+1hour"], "true").await;
        self.history(job, "submitted").await;
        self.scontrol(&["hold", &job.to_string()]).await;
        self.history(job, "submitted held").await;
        let held = self.mesh.last(job, "job.held");
        assert_eq!(held.actor.unwrap().kind(), ActorKind::Admin);
        self.scontrol(&["release", &job.to_string()]).await;
        self.history(job, "submitted held released").await;
        self.cancel(job).await;
        self.history(job, "submitted held released cancelled").await;
        vec![job]
    }

    async fn dependencies(&self) -> Vec<u32> {
        let good = self.cluster.sbatch(&[], "sleep 1").await;
        let bad = self.cluster.sbatch(&[], "exit 1").await;
        let after = async |job: u32, more: &[&str]| {
            let dependency = format!("-dafterok:{job}");
            let arguments = [&[dependency.as_str()], more].concat();
            self.cluster.sbatch(&arguments, "true").await
        };
        let met = after(good, &[]).await;
        let killed = after(bad, &["--kill-on-invalid-dep=yes"]).await;
        let stuck = after(bad, &["--kill-on-invalid-dep=no"]).await;
        self.history(bad, "submitted started failed").await;
        self.history(met, "submitted started completed").await;
        self.history(killed, "submitted cancelled").await;
        // Both possible reasons have the same class.
        let waits = |event: &mesh_events::Event| {
            event.r#type == "job.pending"
                && event
                    .job()
                    .is_some_and(|job| job.job_id == stuck && job.reason.starts_with("Dependency"))
        };
        self.mesh.wait_event("it waits", waits).await;
        self.cancel(stuck).await;
        self.history(stuck, "submitted cancelled").await;
        vec![good, bad, met, killed, stuck]
    }

    /// Runs when no other job can be preempted for a component. Otherwise a component would return its nodes, and Slurm lets it wait for
    /// two minutes and the next backfill: a row of the table in docs/reference/job-events.md.
    async fn components(&self) -> Vec<u32> {
        let leader = self
            .cluster
            .sbatch(
                &["-n1", "--wrap=sleep 1", ":", "-n1", "--mem=10"],
                "sleep 1",
            )
            .await;
        for (offset, job) in [leader, leader + 1].into_iter().enumerate() {
            self.history(job, "submitted started completed").await;
            let end = self.mesh.last(job, "job.completed");
            let het = end.job().unwrap().het.unwrap();
            assert_eq!((het.job_id, het.offset), (leader, offset as u32));
        }
        vec![leader, leader + 1]
    }

    async fn resize(&self) -> Vec<u32> {
        let job = self.cluster.sbatch(&["-N2", "-pgpu"], "sleep 300").await;
        self.history(job, "submitted started").await;
        let update = [&format!("JobId={job}")[..], "NumNodes=1"];
        let command = [&["scontrol", "update"], &update[..]].concat();
        self.cluster.run("alice", &command).await;
        self.history(job, "submitted started resized").await;
        let resized = self.mesh.last(job, "job.resized");
        assert_eq!(resized.job().unwrap().node_count, 1);
        self.cancel(job).await;
        self.history(job, "submitted started resized cancelled")
            .await;
        vec![job]
    }

    async fn reservation(&self) -> Vec<u32> {
        let reservation = [
            "create",
            "reservationname=later",
            "starttime=now+1hour",
            "duration=10",
            "users=alice",
            "nodes=n2",
        ];
        self.scontrol(&reservation).await;
        let job = self.cluster.sbatch(&["--reservation=later"], "true").await;
        self.history(job, "submitted").await;
        let submitted = self.mesh.of_job(job).remove(0);
        assert_eq!(submitted.job().unwrap().reservation, "later");
        self.cancel(job).await;
        self.history(job, "submitted cancelled").await;
        vec![job]
    }

    async fn arrays(&self) -> Vec<u32> {
        let throttled = self.cluster.sbatch(&["--array=0-2%1"], "sleep 300").await;
        let requeued = self
            .cluster
            .sbatch(&["--array=0-1", "--requeue"], "sleep 300")
            .await;
        self.history(requeued, "submitted | started | started")
            .await;
        self.scontrol(&["requeue", &format!("{requeued}_1")]).await;
        let history = "submitted | started | started requeued | submitted started";
        self.history(requeued, history).await;
        self.cancel(requeued).await;
        let history =
            "submitted | started cancelled | started requeued | submitted started cancelled";
        self.history(requeued, history).await;
        let update = [
            "update",
            &format!("JobId={throttled}"),
            "ArrayTaskThrottle=3",
        ];
        self.history(throttled, "submitted | started").await;
        self.scontrol(&update).await;
        self.history(throttled, "submitted | started | started | started")
            .await;
        self.cancel(throttled).await;
        let tasks = " | started cancelled".repeat(3);
        self.history(throttled, &format!("submitted{tasks}")).await;
        vec![throttled, requeued]
    }

    /// Returns the ended runs of these jobs in accounting: job and task, submit time, whether it started, its end.
    async fn accounting(&self, jobs: &[u32]) -> BTreeSet<(String, i64, bool, String)> {
        let ids: Vec<String> = jobs.iter().map(u32::to_string).collect();
        let format = "--format=JobID,Submit,NodeList,State,End";
        let list = ids.join(",");
        let command = [
            "env",
            "SLURM_TIME_FORMAT=%s",
            "sacct",
            "-aDXPn",
            "-j",
            &list,
            format,
        ];
        let answer = self.cluster.run("root", &command).await;
        let mut runs = BTreeSet::new();
        let mut resized = BTreeMap::new();
        for line in answer.lines() {
            let [job, submit, nodes, state, end] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("{line:?}");
            };
            let submit: i64 = submit.parse().unwrap();
            let name = state.split(' ').next().unwrap().to_lowercase();
            let started = nodes.contains('n') && nodes != "None assigned";
            // The rest of a resized run counts as submitted at the resize.
            let first = resized.remove(job).unwrap_or(submit);
            if name == "resizing" {
                resized.insert(job, first);
                continue;
            }
            if end.parse::<i64>().is_err() {
                // Accounting does not know the end yet.
                continue;
            }
            // A component that returned its nodes.
            let name = if name == "pending" { "requeued" } else { &name };
            runs.insert((job.replace('+', "-"), first, started, name.to_owned()));
        }
        runs
    }

    /// Returns the same from the events.
    fn published(&self, jobs: &[u32]) -> BTreeSet<(String, i64, bool, String)> {
        let mut runs = BTreeSet::new();
        for job in jobs {
            let events = self.mesh.of_job(*job);
            for end in events
                .iter()
                .filter(|event| event.kind().is_ok_and(mesh_events::EventType::is_end))
            {
                let run = RunKey::parse(NAME, end.entity_key()).unwrap();
                let started = events.iter().any(|event| {
                    event.r#type == "job.started" && event.entity_key() == end.entity_key()
                });
                let id = &end.job().unwrap().display_id;
                let name = end.r#type.trim_start_matches("job.").to_owned();
                runs.insert((id.replace('+', "-"), run.submit_time, started, name));
            }
        }
        runs
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transition_is_published_as_in_accounting() {
    let conf = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(conf.path(), CONF).unwrap();
    let knobs = [("EXTRA_CONF", conf.path().to_str().unwrap())];
    let play = Play {
        cluster: Cluster::up(&knobs).await,
        mesh: Mesh::start().await,
    };
    let ingest = play
        .mesh
        .ingest(&play.cluster, SETTINGS)
        .await
        .ready()
        .await;
    let parts = tokio::join!(
        play.node_failure(),
        play.preemption(),
        play.requeues(),
        play.held_by_an_admin(),
        play.dependencies(),
        play.reservation(),
        play.arrays(),
    );
    // These need all of two nodes in a partition that the others use.
    let alone = tokio::join!(play.resize(), play.components());
    let (a, b, c, d, e, f, g) = parts;
    let jobs = [a, b, c, d, e, f, g, alone.0, alone.1].concat();
    // slurmdbd of 22.05 is a second or more behind.
    let published = play.published(&jobs);
    let patience = tokio::time::Instant::now() + Duration::from_secs(180);
    loop {
        let accounting = play.accounting(&jobs).await;
        if published == accounting {
            break;
        }
        assert!(
            tokio::time::Instant::now() < patience,
            "told {published:#?}, accounting {accounting:#?}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // A run that continues another one names it.
    for event in play.mesh.events() {
        if let Some(continues) = event.job().and(payload_of(&event)) {
            let cause = continues.cause.as_str();
            let causes = ["requeued", "preempted", "node_fail", "completed"];
            assert!(causes.contains(&cause), "{cause}");
        }
    }
    // Every started run has published its usage, once.
    let started = |kind: &str| -> BTreeSet<String> {
        let events = play.mesh.events().into_iter();
        let events = events.filter(|event| event.r#type == kind);
        events.map(|event| event.entity_key().to_owned()).collect()
    };
    play.mesh
        .wait_event("what every run used", |_| {
            started("job.started") == started("job.updated")
        })
        .await;
    play.mesh.assert_no_duplicates();
    ingest.stop().await;
}

fn payload_of(
    event: &mesh_events::Event,
) -> Option<&mesh_events::proto::mesh::job::v1::Continuation> {
    payload(event).continues.as_ref()
}
