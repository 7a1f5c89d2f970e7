//! `smesh up` is killed while 50 jobs run.

use integration::Mesh;
use mesh_events::EventType;

use crate::support::{PATIENCE, agrees, small, submit_all};

#[tokio::test(flavor = "multi_thread")]
async fn fifty_jobs_are_published_once_each_although_smesh_is_killed_twice() {
    let (cluster, mut mesh) = small("killed", "").await;
    let jobs = submit_all(&cluster, "bob", 50, "sleep 0.3").await.unwrap();
    for starts in [8, 25] {
        started(&mesh, starts).await;
        mesh.kill().await.unwrap();
        mesh.start().await.unwrap();
    }
    let facts = agrees(&cluster, &mesh, &jobs).await;
    assert!(
        facts.iter().all(|fact| fact.kind != EventType::JobBaseline),
        "a restart is no first start"
    );
    // Costs survive as well: one estimate and one final cost for each run.
    let costs = mesh.wait_facts(
        "every run has its final cost",
        PATIENCE,
        "cost.*",
        // Facts about usage may adjust them by then.
        |costs| {
            let adjusted = EventType::CostAdjusted;
            let count = costs.iter().filter(|cost| cost.kind != adjusted).count();
            (count == 100).then_some(())
        },
    );
    costs.await.unwrap();
}

async fn started(mesh: &Mesh, count: usize) {
    let starts = mesh.wait_facts("jobs have started", PATIENCE, "job.started", |facts| {
        (facts.len() >= count).then_some(())
    });
    starts.await.unwrap();
}
