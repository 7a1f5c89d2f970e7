//! Which QOS may be used, which one is used unless another is asked for, and in which accounts: told from a real slurmdbd.

use crate::cluster;
use crate::mesh::Mesh;
use crate::users::{FAST, baseline, sacctmgr, story, wait_story};

#[tokio::test(flavor = "multi_thread")]
async fn qos_default_qos_and_membership_are_told_one_by_one() {
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
            "user/quin access_granted QOS >high by root",
        ),
        (
            "modify user quin where account=qlab set defaultqos=high",
            "user/quin access_changed DefaultQOS >high by root",
        ),
        (
            "modify user quin set defaultaccount=qalt",
            "user/quin access_changed DefaultAccount qlab>qalt by root",
        ),
        (
            "modify user quin where account=qlab set defaultqos=-1",
            "user/quin access_changed DefaultQOS high> by root",
        ),
        (
            "modify user quin where account=qlab set qos-=high",
            "user/quin access_revoked QOS high> by root",
        ),
        // Whoever is below the account may use it, too: told once.
        (
            "modify account qalt set qos+=low",
            "account/qalt access_granted QOS >low by root",
        ),
        (
            "modify account qalt set qos-=low",
            "account/qalt access_revoked QOS low> by root",
        ),
        (
            "delete user quin where account=qlab",
            "user/quin access_revoked Account qlab> by root",
        ),
        (
            "delete user quin where account=qalt",
            "user/quin access_revoked Account qalt> by root",
        ),
    ];
    let keys = ["user/quin ", "account/q"];
    let mut expected: Vec<&str> = Vec::new();
    for (command, told) in steps {
        sacctmgr(cluster, "root", command).await;
        expected.push(told);
        // By whom they are about, in the order of telling.
        expected.sort_by_key(|line| line.split(' ').next());
        wait_story(&mesh, &keys, &expected).await;
    }
    for account in ["qlab", "qalt"] {
        sacctmgr(cluster, "root", &format!("delete account {account}")).await;
    }
    ingest.stop().await;
    assert!(
        story(&mesh, &keys)
            .starts_with(&["account/qalt access_granted QOS >low by root".to_owned()])
    );
    mesh.assert_no_duplicates();
}
