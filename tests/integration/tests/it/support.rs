//! Helpers shared by several tests.

use std::time::Duration;

use integration::{Cluster, ClusterOptions, Error, Fact, Mesh, MeshOptions, lives, scenario};

use crate::accounting;

/// Time limit on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Short poll intervals, so that events without a hook are published soon, even if Slurm answers slowly.
pub const QUICK: &str = "[ingest]\npoll_interval = \"1s\"\nmax_poll_interval = \"2s\"\nusage_delay = \"2s\"\n[node-watcher]\npoll_interval = \"1s\"\nmax_poll_interval = \"2s\"\n";

/// Short poll intervals, prices, and additional configuration.
pub fn options(more: &str) -> MeshOptions {
    MeshOptions {
        overlay: format!("{QUICK}{more}"),
        price_book: Some(scenario::PRICE_BOOK.to_owned()),
        identities: Some(scenario::IDENTITIES.to_owned()),
    }
}

/// A small cluster whose hooks are connected to a running mesh.
pub async fn small(name: &str, more: &str) -> (Cluster, Mesh) {
    let cluster = Cluster::start(&ClusterOptions::small(name)).await.unwrap();
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(more))
        .await
        .unwrap();
    mesh.start().await.unwrap();
    cluster.ring(&mesh.hook_config()).unwrap();
    (cluster, mesh)
}

/// Waits until accounting has all these jobs and the ledger's events of them match it, run by run and word by word. Returns all facts.
/// Checks that there is nothing about other jobs, no duplicate, and a valid chain.
pub async fn agrees(cluster: &Cluster, mesh: &Mesh, jobs: &[u32]) -> Vec<Fact> {
    use integration::Slurm as _;
    let outcome = integration::wait_for("ledger and accounting agree", PATIENCE, async || {
        let Some(accounting) = accounting::complete(cluster, jobs).await else {
            return Ok(None);
        };
        let facts = mesh.facts("").await?;
        Ok((accounting == lives(&facts)).then_some(facts))
    })
    .await;
    let facts = match outcome {
        Ok(facts) => facts,
        Err(error) => {
            let accounting = accounting::runs(cluster, jobs).await;
            let accounting = accounting.as_ref().map(accounting::event_names);
            let published = lives(&mesh.facts("").await.unwrap());
            let list: Vec<String> = jobs.iter().map(ToString::to_string).collect();
            let sacct = ["sacct", "-D", "-X", "-j", &list.join(",")];
            let sacct = cluster.ask("root", &sacct).await;
            panic!(
                "{error}\naccounting: {accounting:#?}\nledger: {published:#?}\nsacct: {sacct:#?}"
            );
        }
    };
    assert_eq!(scenario::repeated(&facts), Vec::<String>::new());
    mesh.verify().await.unwrap();
    facts
}

/// Submits several jobs.
pub async fn submit_all(
    cluster: &Cluster,
    user: &str,
    count: usize,
    script: &str,
) -> Result<Vec<u32>, Error> {
    use integration::Slurm as _;
    let mut jobs = Vec::with_capacity(count);
    for _ in 0..count {
        jobs.push(cluster.submit(user, &[], script).await?);
    }
    Ok(jobs)
}
