//! Actions on existing jobs.

use std::time::Duration;

use mesh_testkit::wait_until;
use slurm_submit::{Acted, Action, Confirmation, JobStatus, JobUpdate, SubmitKey};
use slurm_types::{JobBaseState, JobId, JobRef};

use crate::cluster::shared;

fn present(confirmation: Confirmation) -> JobStatus {
    match confirmation {
        Confirmation::Present(status) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_signals_requeues_changes_and_cancels() {
    let (cluster, _guard) = shared().await;
    let submitter = cluster.submitter();
    let file = cluster.results.join("actions");
    let script = format!(
        "trap 'echo got >> {0}; exit 3' USR1; echo ready >> {0}; while :; do sleep 0.1; done",
        file.display()
    );
    let job = cluster.job("actions", &script);
    let id = submitter.submit(&job).await.unwrap();
    let target = JobRef::Job(id);
    let act = async |action: Action| submitter.act("alice", &target, &action).await;
    let status = async || present(submitter.status("alice", id).await.unwrap());
    assert!(status().await.held);
    assert_eq!(act(Action::Release).await, Ok(Acted::Done));
    let lines = || {
        std::fs::read_to_string(&file)
            .unwrap_or_default()
            .lines()
            .count()
    };
    wait_until("the job runs", Duration::from_secs(60), async || {
        lines() == 1
    })
    .await;
    let signal = Action::Signal {
        signal: "USR1".to_owned(),
        batch: true,
    };
    assert_eq!(act(signal).await, Ok(Acted::Done));
    cluster.ended(id).await;
    assert_eq!(lines(), 2);

    assert_eq!(act(Action::RequeueHold).await, Ok(Acted::Done));
    wait_until("it is held", Duration::from_secs(60), async || {
        status().await.held
    })
    .await;
    let update = Action::Update(JobUpdate {
        time: Some(7),
        memory: Some(20),
        partition: Some("low".to_owned()),
        exclude: Some("n1".to_owned()),
        nodes: None,
    });
    assert_eq!(act(update).await, Ok(Acted::Done));
    let changed = status().await;
    assert_eq!(
        (changed.time_minutes, changed.memory_mib),
        (Some(7), Some(20))
    );
    // The key survives a requeue.
    assert_eq!(changed.key().as_ref(), Some(&job.key));
    assert_eq!(changed.restarts, Some(1));
    assert_eq!(act(Action::Cancel).await, Ok(Acted::Done));
    wait_until("it is cancelled", Duration::from_secs(60), async || {
        status().await.state.is(JobBaseState::Cancelled)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_acts_on_the_jobs_of_others() {
    let (cluster, _guard) = shared().await;
    let submitter = cluster.submitter();
    let job = cluster.job("others", "true");
    let id = submitter.submit(&job).await.unwrap();
    let target = JobRef::Job(id);
    for action in [Action::Release, Action::Cancel, Action::Hold] {
        let error = submitter.act("bob", &target, &action).await.unwrap_err();
        assert_eq!(error.kind(), "refused", "{action:?}: {error}");
    }
    // Bob copies the key.
    for acted in [
        submitter.release("bob", id, &job.key).await,
        submitter.cancel("bob", id, &job.key).await,
    ] {
        assert_eq!(acted, Ok(Acted::OtherKey));
    }
    assert_eq!(submitter.find("bob", &job.key).await, Ok(Vec::new()));
    // Nor does an older action on an id that another job of the same owner has now.
    let other = SubmitKey::new("rule", 1, "another", 0);
    assert_eq!(
        submitter.release("alice", id, &other).await,
        Ok(Acted::OtherKey)
    );
    assert!(present(submitter.confirm("alice", id, &job.key).await.unwrap()).held);
    assert_eq!(
        submitter.cancel("alice", id, &job.key).await,
        Ok(Acted::Done)
    );
    let unknown = JobRef::Job(JobId::new(id.get() + 5_000).unwrap());
    for action in [Action::Release, Action::Cancel, Action::Requeue] {
        let acted = submitter.act("alice", &unknown, &action).await;
        assert_eq!(acted, Ok(Acted::Absent), "{action:?}");
    }
}
