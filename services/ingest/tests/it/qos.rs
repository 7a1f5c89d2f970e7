//! Allowed QOS, default QOS and account membership, published from a real slurmdbd.

use crate::cluster;
use crate::mesh::{Mesh, payload};
use crate::users::{FAST, baseline, history, sacctmgr, wait_history};

#[tokio::test(flavor = "multi_thread")]
async fn qos_default_qos_and_membership_are_published_one_by_one() {
    let (cluster, _guard) = cluster::shared().await;
    for command in [
        "add account qlab parent=acme",
        "add account qalt parent=acme",
        "add user quin account=qlab",
        "add user quin account=qalt",
    ] {
        sacctmgr(cluster, "root", command).await;
    }
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    baseline(&mesh).await;
    let steps = [
        (
            "modify user quin where account=qlab set qos+=high",
            "user/quin user.access_granted QOS >high by root",
        ),
        (
            "modify user quin where account=qlab set defaultqos=high",
            "user/quin user.access_changed DefaultQOS >high by root",
        ),
        (
            "modify user quin set defaultaccount=qalt",
            "user/quin user.access_changed DefaultAccount qlab>qalt by root",
        ),
        (
            "modify user quin where account=qlab set defaultqos=-1",
            "user/quin user.access_changed DefaultQOS high> by root",
        ),
        (
            "modify user quin where account=qlab set qos-=high",
            "user/quin user.access_revoked QOS high> by root",
        ),
        // Users below the account may use it, too: published once.
        (
            "modify account qalt set qos+=low",
            "account/qalt user.access_granted QOS >low by root",
        ),
        (
            "modify account qalt set qos-=low",
            "account/qalt user.access_revoked QOS low> by root",
        ),
        (
            "delete user quin where account=qlab",
            "user/quin user.access_revoked Account qlab> by root",
        ),
        (
            "delete user quin where account=qalt",
            "user/quin user.access_revoked Account qalt> by root",
        ),
    ];
    let keys = ["user/quin ", "account/q"];
    let mut expected: Vec<&str> = Vec::new();
    for (command, published) in steps {
        sacctmgr(cluster, "root", command).await;
        expected.push(published);
        // By entity, in the order of publication.
        expected.sort_by_key(|line| line.split(' ').next());
        wait_history(&mesh, &keys, &expected).await;
    }
    for account in ["qlab", "qalt"] {
        sacctmgr(cluster, "root", &format!("delete account {account}")).await;
    }
    ingest.stop().await;
    assert!(
        history(&mesh, &keys)
            .starts_with(&["account/qalt user.access_granted QOS >low by root".to_owned()])
    );
    mesh.assert_no_duplicates();
}

/// `limited` allows one job per user. Neither job requests it: it is the QOS of their partition.
#[tokio::test(flavor = "multi_thread")]
async fn a_qos_reason_may_mean_the_qos_of_the_partition() {
    let (cluster, _guard) = cluster::shared().await;
    let create = "create PartitionName=strict Nodes=n1 QOS=limited State=UP";
    let create: Vec<&str> = std::iter::once("scontrol")
        .chain(create.split(' '))
        .collect();
    cluster.run("root", &create).await;
    let mesh = Mesh::start().await;
    let ingest = mesh
        .ingest(cluster, "poll_interval = \"500ms\"")
        .await
        .ready()
        .await;
    let options = ["--partition=strict", "--qos=normal"];
    let first = cluster.sbatch(&options, "sleep 300").await;
    mesh.wait_history(first, "submitted started").await;
    let second = cluster.sbatch(&options, "true").await;
    let waits = |event: &mesh_events::Event| {
        event.r#type == "job.pending" && event.job().is_some_and(|job| job.job_id == second)
    };
    let pending = mesh.wait_event("the second waits for a limit", waits).await;
    let job = payload(&pending).job.as_ref().unwrap();
    assert_eq!(
        (job.reason.as_str(), job.reason_class.as_str()),
        ("QOSMaxJobsPerUserLimit", "limit")
    );
    // The event has the job's own QOS, which has no limit, and the partition, whose QOS has one.
    assert_eq!(
        (job.qos.as_str(), job.partition.as_str()),
        ("normal", "strict")
    );
    for job in [second, first] {
        cluster.run("alice", &["scancel", &job.to_string()]).await;
    }
    mesh.wait_history(first, "submitted started cancelled")
        .await;
    mesh.wait_history(second, "submitted cancelled").await;
    ingest.stop().await;
    let delete = ["scontrol", "delete", "PartitionName=strict"];
    cluster.run("root", &delete).await;
}
