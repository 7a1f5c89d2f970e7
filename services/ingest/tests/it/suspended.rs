//! Suspensions that no poll has shown: times that Slurm does not record are not published as observed, and usage is correct.

use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_testkit::wait_for;

use crate::cluster::{self, Cluster};
use crate::doorbell::ring;
use crate::forged::field;
use crate::mesh::{DEADLINE, Mesh};

const SLOW: &str = "poll_interval = \"1h\"\nusage_delay = \"1s\"";

#[tokio::test(flavor = "multi_thread")]
async fn of_two_unobserved_suspensions_only_the_last_resume_is_published() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let job = cluster.sbatch(&[], "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    let id = job.to_string();
    for _ in 0..2 {
        for (act, state) in [("suspend", "SUSPENDED"), ("resume", "RUNNING")] {
            tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
            cluster.run("root", &["scontrol", act, &id]).await;
            cluster.wait_state(job, state).await;
        }
    }
    ring(&mesh, "TaskProlog", job, &[]).await;
    mesh.wait_history(job, "submitted started suspended resumed")
        .await;
    let suspended = mesh.last(job, "job.suspended");
    assert_eq!(suspended.confidence(), Confidence::Inferred);
    let resumed = mesh.last(job, "job.resumed");
    assert_eq!(resumed.confidence(), Confidence::Observed);
    let at = |event: &Event| event.occurred_at.as_ref().unwrap().seconds;
    let last: i64 = field(cluster, job, "SuspendTime").await.parse().unwrap();
    assert_eq!(at(&resumed), last);
    cluster.run("alice", &["scancel", &id]).await;
    cluster.wait_state(job, "CANCELLED").await;
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started suspended resumed cancelled")
        .await;
    mesh.wait_event("what it used", |_| mesh.updates_of(job).len() == 1)
        .await;
    // As long as both together, according to accounting.
    let ask = ["sacct", "-X", "-n", "-P", "-o", "Suspended", "-j", &id];
    let sum = cluster.run("root", &ask).await;
    let seconds: i64 = sum.rsplit(':').next().unwrap().parse().unwrap();
    let published = mesh.last(job, "job.cancelled").job().unwrap().clone();
    let published = i64::try_from(published.suspended_seconds).unwrap();
    assert!(
        seconds >= 4 && (published - seconds).abs() <= 1,
        "{published} {sum}"
    );
    let span = at(&resumed) - at(&suspended);
    assert!((span - seconds).abs() <= 1, "{span} {sum}");
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_failure_in_the_second_of_a_suspend_is_no_resume() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let arguments = ["-p", "gpu", "-w", "n4", "--no-requeue"];
    let job = cluster.sbatch(&arguments, "sleep 300").await;
    cluster.wait_state(job, "RUNNING").await;
    ring(&mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
    let id = job.to_string();
    let acts =
        format!("scontrol suspend {id} && scontrol update NodeName=n4 State=DOWN Reason=test");
    cluster.run("root", &["sh", "-c", &acts]).await;
    cluster.wait_state(job, "NODE_FAIL").await;
    let suspended_at = field(cluster, job, "SuspendTime").await;
    assert_eq!(field(cluster, job, "EndTime").await, suspended_at);
    ring(&mesh, "EpilogSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started suspended node_fail")
        .await;
    let suspended = mesh.last(job, "job.suspended");
    let at = suspended.occurred_at.as_ref().unwrap().seconds;
    assert_eq!(at.to_string(), suspended_at);
    mesh.assert_no_duplicates();
    ingest.stop().await;
    let resume = ["scontrol", "update", "NodeName=n4", "State=RESUME"];
    cluster.run("root", &resume).await;
}

/// Starts a job that does not stop at once when it is suspended: slurmstepd sends SIGTSTP, and SIGSTOP two seconds later (22.05).
async fn started(mesh: &Mesh, cluster: &Cluster) -> u32 {
    let script = format!("trap '' TSTP; {}", cluster.until_let_go());
    let job = cluster.sbatch(&[], &script).await;
    cluster.wait_state(job, "RUNNING").await;
    ring(mesh, "PrologSlurmctld", job, &[]).await;
    mesh.wait_history(job, "submitted started").await;
    tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
    job
}

/// Suspends and resumes a job and lets it end, if possible within one second. Returns whether it was, according to slurmctld.
async fn over_in_a_second(cluster: &Cluster, job: u32) -> bool {
    wait_for("a second begins", DEADLINE, async || {
        let part = chrono::Utc::now().timestamp_subsec_millis();
        (part < 100).then_some(())
    })
    .await;
    let acts = format!("scontrol suspend {job} && scontrol resume {job}");
    cluster.run("root", &["sh", "-c", &acts]).await;
    cluster.let_go(job);
    cluster.wait_state(job, "COMPLETED").await;
    field(cluster, job, "SuspendTime").await == field(cluster, job, "EndTime").await
}

/// Slurm's record has one time for both.
async fn at_most_one_is_observed(mesh: &Mesh, cluster: &Cluster, job: u32, seen: &[Event]) {
    let at = |event: &Event| event.occurred_at.as_ref().unwrap().seconds.to_string();
    let recorded = field(cluster, job, "SuspendTime").await;
    let unseen = mesh.of_job(job).into_iter().filter(|event| {
        ["job.suspended", "job.resumed"].contains(&event.r#type.as_str()) && !seen.contains(event)
    });
    let observed = unseen.filter(|event| event.confidence() == Confidence::Observed);
    let times: Vec<String> = observed.map(|event| at(&event)).collect();
    assert_eq!(times, [recorded], "{:?}", mesh.of_job(job));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_run_that_ends_in_the_second_of_its_only_resume_the_resume_is_inferred() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let mut jobs = 0;
    loop {
        let job = started(&mesh, cluster).await;
        let in_a_second = over_in_a_second(cluster, job).await;
        ring(&mesh, "EpilogSlurmctld", job, &[]).await;
        mesh.wait_history(job, "submitted started suspended resumed completed")
            .await;
        at_most_one_is_observed(&mesh, cluster, job, &[]).await;
        if in_a_second {
            let suspended = mesh.last(job, "job.suspended");
            assert_eq!(suspended.confidence(), Confidence::Observed);
            let resumed = mesh.last(job, "job.resumed");
            assert_eq!(resumed.confidence(), Confidence::Inferred);
            break;
        }
        jobs += 1;
        assert!(jobs < 10, "none was over in the second of its resume");
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_run_that_ends_in_the_second_of_a_later_resume_the_resume_is_inferred() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, SLOW).await.ready().await;
    let mut jobs = 0;
    loop {
        let job = started(&mesh, cluster).await;
        let id = job.to_string();
        cluster.run("root", &["scontrol", "suspend", &id]).await;
        cluster.wait_state(job, "SUSPENDED").await;
        ring(&mesh, "TaskProlog", job, &[]).await;
        mesh.wait_history(job, "submitted started suspended").await;
        let seen = [mesh.last(job, "job.suspended")];
        tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
        cluster.run("root", &["scontrol", "resume", &id]).await;
        cluster.wait_state(job, "RUNNING").await;
        tokio::time::sleep(std::time::Duration::from_millis(2_200)).await;
        let in_a_second = over_in_a_second(cluster, job).await;
        ring(&mesh, "EpilogSlurmctld", job, &[]).await;
        mesh.wait_history(job, "submitted started suspended resumed completed")
            .await;
        let resumed = mesh.last(job, "job.resumed");
        if in_a_second {
            assert_eq!(resumed.confidence(), Confidence::Inferred);
            break;
        }
        at_most_one_is_observed(&mesh, cluster, job, &seen).await;
        jobs += 1;
        assert!(jobs < 10, "none was over in the second of its resume");
    }
    mesh.assert_no_duplicates();
    ingest.stop().await;
}
