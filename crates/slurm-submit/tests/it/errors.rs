//! What Slurm refuses, and what is unknown.

use std::time::Duration;

use mesh_testkit::{wait_for, wait_until};
use slurm_submit::{Acted, Confirmation, SubmitError};

use crate::cluster::{exclusive, shared};

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_slurms_words_and_number() {
    let (cluster, _guard) = shared().await;
    let submitter = cluster.submitter();
    let refused = async |field: &str, text: &str, number: u32| {
        let mut job = cluster.job("refused", "true");
        job.fields.set(field, text).unwrap();
        let error = submitter.submit(&job).await.unwrap_err();
        let SubmitError::Refused { words, errno } = &error else {
            panic!("{field} = {text}: {error}");
        };
        assert_eq!(*errno, Some(number), "{words}");
        assert_eq!(submitter.find("alice", &job.key).await, Ok(Vec::new()));
    };
    refused("partition", "none", 2000).await;
    refused("account", "none", 2045).await;
    refused("qos", "none", 2066).await;
    refused("dependency", "afterok:none", 2038).await;
    let mut job = cluster.job("refused", "true");
    job.script = "echo hello".to_owned();
    let error = submitter.submit(&job).await.unwrap_err();
    assert_eq!(error.kind(), "refused");
    assert!(error.to_string().contains("script"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_limit_of_submissions_is_transient() {
    let (cluster, _guard) = shared().await;
    let submitter = cluster.submitter();
    let limit = |max: &str| {
        let set = format!("MaxSubmitJobs={max}");
        cluster.slurm.run_as(
            "root",
            &["sacctmgr", "-i", "modify", "user", "carol", "set", &set],
        );
    };
    limit("0");
    let mut job = cluster.job("limit", "true");
    job.owner = "carol".to_owned();
    // The limit reaches slurmctld a moment later.
    let error = wait_for("a limit", Duration::from_secs(30), async || match submitter
        .submit(&job)
        .await
    {
        Err(error) => Some(error),
        Ok(id) => {
            submitter.cancel("carol", id, &job.key).await.unwrap();
            None
        }
    })
    .await;
    assert_eq!(error.kind(), "transient", "{error}");
    limit("-1");
    let id = wait_for("no limit", Duration::from_secs(30), async || {
        submitter.submit(&job).await.ok()
    })
    .await;
    let cancelled = submitter.cancel("carol", id, &job.key).await;
    assert_eq!(cancelled, Ok(Acted::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_unknown_and_the_job_is_found_later() {
    let (cluster, _guard) = exclusive().await;
    let job = cluster.job("unknown", "true");
    let slow = cluster.slow();
    let error = cluster.impatient("1s").submit(&job).await.unwrap_err();
    assert_eq!(error.kind(), "unknown", "{error}");
    drop(slow);
    let submitter = cluster.submitter();
    let found = wait_for("the job", Duration::from_secs(60), async || {
        submitter.find("alice", &job.key).await.unwrap().pop()
    })
    .await;
    assert!(found.status.held, "{found:?}");
    let cancelled = submitter.cancel("alice", found.job_id, &job.key).await;
    assert_eq!(cancelled, Ok(Acted::Done));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_controller_is_transient_and_confirms_nothing() {
    let (cluster, _guard) = exclusive().await;
    let submitter = cluster.submitter();
    let job = cluster.job("stopped", "true");
    let id = submitter.submit(&job).await.unwrap();
    cluster.slurm.ctl("stop", "slurmctld");
    let other = cluster.job("stopped-2", "true");
    let error = submitter.submit(&other).await.unwrap_err();
    assert_eq!(error.kind(), "transient", "{error}");
    assert!(submitter.find("alice", &job.key).await.is_err());
    let confirmation = submitter.confirm("alice", id, &job.key).await.unwrap();
    assert!(
        matches!(confirmation, Confirmation::Unknown(_)),
        "{confirmation:?}"
    );
    let error = submitter.release("alice", id, &job.key).await.unwrap_err();
    assert_eq!(error.kind(), "transient", "{error}");
    cluster.slurm.ctl("start", "slurmctld");
    wait_until("the controller", Duration::from_secs(60), async || {
        submitter.find("alice", &other.key).await == Ok(Vec::new())
    })
    .await;
    let cancelled = submitter.cancel("alice", id, &job.key).await;
    assert_eq!(cancelled, Ok(Acted::Done));
    let SubmitError::Transient { .. } = error else {
        panic!("{error}");
    };
}
