//! A controller that is killed before it has saved a job.

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
    for attempt in 0..20 {
        let job = cluster.job(&format!("lost-{attempt}"), "true");
        let id = submitter.submit(&job).await.unwrap();
        cluster.slurm.ctl("kill", "slurmctld");
        cluster.slurm.ctl("start", "slurmctld");
        wait_until("the controller", Duration::from_secs(60), async || {
            submitter.find("alice", &job.key).await.is_ok()
        })
        .await;
        let survived = submitter.confirm("alice", id, &job.key).await.unwrap();
        if let Confirmation::Present(_) = survived {
            assert_eq!(
                submitter.cancel("alice", id, &job.key).await,
                Ok(Acted::Done)
            );
            continue;
        }
        assert_eq!(survived, Confirmation::Absent);
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
        assert_eq!(
            submitter.cancel("alice", again, &job.key).await,
            Ok(Acted::Done)
        );
        assert_eq!(submitter.cancel("bob", id, &job.key).await, Ok(Acted::Done));
        return;
    }
    panic!("slurmctld saved every job before it was killed");
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
    for attempt in 0..6 {
        let file = cluster.results.join(format!("held-{attempt}"));
        let script = format!("echo run >> {}", file.display());
        let mut job = cluster.job(&format!("held-{attempt}"), &script);
        job.fields.dependency = Some(format!("afterok:{blocker}"));
        let id = submitter.submit(&job).await.unwrap();
        saved(cluster, id).await;
        let released = submitter.release("alice", id, &job.key).await;
        assert_eq!(released, Ok(Acted::Done));
        cluster.slurm.ctl("kill", "slurmctld");
        cluster.slurm.ctl("start", "slurmctld");
        wait_until("the controller", Duration::from_secs(60), async || {
            submitter.find("alice", &job.key).await.is_ok()
        })
        .await;
        let confirmed = submitter.confirm("alice", id, &job.key).await.unwrap();
        let Confirmation::Present(status) = confirmed else {
            panic!("{confirmed:?}");
        };
        if !status.held {
            continue;
        }
        for (job, key) in [(blocker, &first.key), (id, &job.key)] {
            let released = submitter.release("alice", job, key).await;
            assert_eq!(released, Ok(Acted::Done));
        }
        wait_until("it runs", Duration::from_secs(120), async || file.exists()).await;
        return;
    }
    panic!("slurmctld saved every release before it was killed");
}
