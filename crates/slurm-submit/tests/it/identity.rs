//! Whose a job is.

use slurm_submit::Acted;

use crate::cluster::shared;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_has_its_owners_groups_limits_and_login_environment() {
    let (cluster, _guard) = shared().await;
    let submitter = cluster.submitter();
    let file = cluster.results.join("identity");
    let script = format!(
        "id > {0}.id; umask > {0}.umask; env -0 > {0}.env; pwd > {0}.pwd",
        file.display()
    );
    let mut job = cluster.job("identity", &script);
    job.environment
        .insert("MESH_EVENT_ID".to_owned(), "e1".to_owned());
    let id = submitter.submit(&job).await.unwrap();
    assert_eq!(
        submitter.release("alice", id, &job.key).await,
        Ok(Acted::Done)
    );
    cluster.ended(id).await;
    let read =
        |suffix: &str| std::fs::read_to_string(format!("{}.{suffix}", file.display())).unwrap();
    assert_eq!(read("id").trim(), cluster.slurm.run_as("alice", &["id"]));
    assert_eq!(read("umask").trim(), "0022");
    assert_eq!(read("pwd").trim(), "/home/alice");
    let env = read("env");
    let variables: Vec<&str> = env.split('\0').collect();
    assert!(variables.contains(&"MESH_EVENT_ID=e1"));
    assert!(variables.contains(&"HOME=/home/alice"));
    // Set for the parsers of this workspace only.
    assert!(!env.contains("SLURM_TIME_FORMAT"));
    assert!(!env.contains("SLURM_BITSTR_LEN"));
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_a_job_have_the_variables_of_its_script() {
    let (cluster, _guard) = shared().await;
    let submitter = cluster.submitter();
    let file = cluster.results.join("steps");
    let script = format!(
        "export OWN=1\nsrun --mem=5 bash -c 'echo $OWN $MESH_EVENT_ID' > {} 2>&1",
        file.display()
    );
    let mut job = cluster.job("steps", &script);
    job.environment
        .insert("MESH_EVENT_ID".to_owned(), "e1".to_owned());
    let id = submitter.submit(&job).await.unwrap();
    submitter.release("alice", id, &job.key).await.unwrap();
    cluster.ended(id).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "1 e1");
}
