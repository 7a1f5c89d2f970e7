//! The disk of NATS is full while jobs start and end, and until the controller has purged them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use integration::{Cluster, ClusterOptions, Mesh, Slurm as _, lives, wait_for};
use mesh_testkit::SmallDisk;

use crate::accounting;
use crate::support::{PATIENCE, agrees, options, submit_all};

#[tokio::test(flavor = "multi_thread")]
async fn what_happened_while_the_disk_was_full_is_told_afterwards() {
    let mut of_cluster = ClusterOptions::small("full");
    of_cluster.knobs.push(("MINJOBAGE", "5".into()));
    let cluster = Cluster::start(&of_cluster).await.unwrap();
    let disk = SmallDisk::mount("64m");
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options("")).await.unwrap();
    let private = mesh.data_dir().join("private");
    fs::create_dir_all(&private).unwrap();
    for folder in [&mesh.data_dir(), &private] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    symlink(disk.path(), private.join("jetstream")).unwrap();
    mesh.start().await.unwrap();
    cluster.ring(&mesh.hook_config()).unwrap();
    let mut jobs = submit_all(&cluster, "alice", 1, "true").await.unwrap();
    agrees(&cluster, &mesh, &jobs).await;

    disk.fill();
    let during = submit_all(&cluster, "alice", 20, "true").await.unwrap();
    let expected = wait_for("they have ended", PATIENCE, async || {
        Ok(accounting::complete(&cluster, &during).await)
    });
    let expected = expected.await.unwrap();
    for job in &during {
        let command = ["scontrol", "show", "job", &job.to_string()];
        wait_for("the controller has forgotten them", PATIENCE, async || {
            Ok(cluster.ask("root", &command).await.is_err().then_some(()))
        })
        .await
        .unwrap();
    }
    assert!(!mesh.is_ready().await, "the disk is full");
    let mut before = lives(&mesh.facts("").await.unwrap());
    before.retain(|run, _| during.contains(&run.0));
    assert!(
        before.len() < expected.len(),
        "nothing was stored: {before:?}"
    );

    disk.empty();
    // As `smesh-hook-flush.timer` does every minute. No hook is called any more.
    let config = mesh.hook_config();
    let flush = ["hooks", "flush", "--hook-config", config.to_str().unwrap()];
    wait_for("the spool is empty", PATIENCE, async || {
        let flushed = mesh.smesh(&flush).await?;
        Ok(flushed.status.success().then_some(()))
    })
    .await
    .unwrap();
    jobs.extend(during);
    agrees(&cluster, &mesh, &jobs).await;
}
