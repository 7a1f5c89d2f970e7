//! What several tests need.

use std::time::Duration;

use integration::{Cluster, ClusterOptions, Error, Fact, Mesh, MeshOptions, lives, scenario};

use crate::accounting;

/// How long things may take on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Quick sweeps, so that what no hook tells is told soon, also where Slurm answers slowly.
pub const QUICK: &str = "[ingest]\npoll_interval = \"1s\"\nmax_poll_interval = \"2s\"\nusage_delay = \"2s\"\n[node-watcher]\npoll_interval = \"1s\"\nmax_poll_interval = \"2s\"\n";

/// Quick sweeps, prices, and more configuration.
pub fn options(more: &str) -> MeshOptions {
    MeshOptions {
        overlay: format!("{QUICK}{more}"),
        price_book: Some(scenario::PRICE_BOOK.to_owned()),
        identities: Some(scenario::IDENTITIES.to_owned()),
    }
}

/// A small cluster whose hooks ring a mesh that runs.
pub async fn small(name: &str, base_port: u16, more: &str) -> (Cluster, Mesh) {
    let cluster = Cluster::start(&ClusterOptions::small(name, base_port))
        .await
        .unwrap();
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options(more))
        .await
        .unwrap();
    mesh.start().await.unwrap();
    cluster.ring(&mesh.hook_config()).unwrap();
    (cluster, mesh)
}

/// Waits until accounting has all these jobs and the ledger tells of them what accounting tells, run by run and word by word, then gives all
/// facts.
/// Nothing about other jobs, nothing twice, the chain whole.
pub async fn agrees(cluster: &Cluster, mesh: &Mesh, jobs: &[u32]) -> Vec<Fact> {
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
            let accounting = accounting.as_ref().map(accounting::words);
            let published = lives(&mesh.facts("").await.unwrap());
            panic!("{error}\naccounting: {accounting:#?}\nledger: {published:#?}");
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
