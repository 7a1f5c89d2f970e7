//! A controller that is killed before it has saved a job.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mesh_testkit::wait_until;
use slurm_submit::{Acted, Confirmation};
use slurm_types::JobId;

use crate::cluster::{Cluster, exclusive};

/// slurmctld saves its state in the background: a job that it accepted a moment ago is gone after a crash, and the next job gets its id.
#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_lost_job_is_not_taken_for_it_when_a_stranger_has_it() {
    let (cluster, _guard) = exclusive().await;
    let submitter = cluster.submitter();
    // The saved ids end with this job.
    let first = cluster.job("lost-first", "true");
    let saved_last = submitter.submit(&first).await.unwrap();
    saved(cluster, saved_last).await;
    let unsaved = UnsavedState::begin(cluster).await;
    let job = cluster.job("lost", "true");
    let id = submitter.submit(&job).await.unwrap();
    unsaved.restart_slurmctld(cluster);
    wait_until("the controller", Duration::from_secs(60), async || {
        submitter.find("alice", &job.key).await.is_ok()
    })
    .await;
    let lost = submitter.confirm("alice", id, &job.key).await;
    assert_eq!(lost, Ok(Confirmation::Absent));
    assert_eq!(
        submitter.release("alice", id, &job.key).await,
        Ok(Acted::Absent)
    );
    let mut others = cluster.job("another", "true");
    others.owner = "bob".to_owned();
    // Bob has learnt alice's key.
    others.key = job.key.clone();
    let next = submitter.submit(&others).await.unwrap();
    assert_eq!(next, id, "a stranger gets the id");
    let confirmed = submitter.confirm("alice", id, &job.key).await;
    assert_eq!(confirmed, Ok(Confirmation::OtherKey));
    for acted in [
        submitter.release("alice", id, &job.key).await,
        submitter.cancel("alice", id, &job.key).await,
    ] {
        assert_eq!(acted, Ok(Acted::OtherKey));
    }
    // Submitted again, it is another job.
    let again = submitter.submit(&job).await.unwrap();
    assert_ne!(again, id);
    for (owner, job, key) in [
        ("alice", again, &job.key),
        ("bob", id, &job.key),
        ("alice", saved_last, &first.key),
    ] {
        assert_eq!(submitter.cancel(owner, job, key).await, Ok(Acted::Done));
    }
}

/// A folder in place of the file into which slurmctld writes its jobs, so that it cannot save them.
struct UnsavedState(PathBuf);

impl UnsavedState {
    async fn begin(cluster: &Cluster) -> Self {
        let file = cluster.slurm.dir().join("state/job_state.new");
        let made = async || std::fs::create_dir(&file).is_ok();
        wait_until("no save is under way", Duration::from_secs(60), made).await;
        Self(file)
    }

    /// Kills slurmctld and starts it with the jobs that it has saved.
    fn restart_slurmctld(self, cluster: &Cluster) {
        cluster.slurm.ctl("kill", "slurmctld");
        std::fs::remove_dir(self.0).unwrap();
        cluster.slurm.ctl("start", "slurmctld");
    }
}

/// Waits until slurmctld has saved its state with this job. Two changes, since the first save may have older state.
async fn saved(cluster: &Cluster, job: JobId) {
    let state = cluster.slurm.dir().join("state/job_state");
    for nice in ["Nice=1", "Nice=2"] {
        let now = SystemTime::now();
        let id = format!("JobId={job}");
        let change = ["scontrol", "update", &id, nice];
        cluster.slurm.run_as("alice", &change);
        wait_until("the state is saved", Duration::from_secs(60), async || {
            let modified = std::fs::metadata(&state).and_then(|file| file.modified());
            modified.is_ok_and(|modified| modified > now)
        })
        .await;
    }
}

/// A controller that is killed right after a release has the job on hold again.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_not_saved_shows_as_held_and_is_repeated() {
    let (cluster, _guard) = exclusive().await;
    let submitter = cluster.submitter();
    // Released jobs wait for this one, so that only the controller's state decides.
    let first = cluster.job("held-first", "true");
    let blocker = submitter.submit(&first).await.unwrap();
    let file = cluster.results.join("held");
    let script = format!("echo run >> {}", file.display());
    let mut job = cluster.job("held", &script);
    job.fields.dependency = Some(format!("afterok:{blocker}"));
    let id = submitter.submit(&job).await.unwrap();
    saved(cluster, id).await;
    let unsaved = UnsavedState::begin(cluster).await;
    let released = submitter.release("alice", id, &job.key).await;
    assert_eq!(released, Ok(Acted::Done));
    unsaved.restart_slurmctld(cluster);
    wait_until("the controller", Duration::from_secs(60), async || {
        submitter.find("alice", &job.key).await.is_ok()
    })
    .await;
    let confirmed = submitter.confirm("alice", id, &job.key).await.unwrap();
    let Confirmation::Present(status) = confirmed else {
        panic!("{confirmed:?}");
    };
    assert!(status.held, "{status:?}");
    for (job, key) in [(blocker, &first.key), (id, &job.key)] {
        let released = submitter.release("alice", job, key).await;
        assert_eq!(released, Ok(Acted::Done));
    }
    wait_until("it runs", Duration::from_secs(120), async || file.exists()).await;
}
