//! The cost of a running job passes amounts while `smesh up` is killed.

use integration::{Cluster, ClusterOptions, Fact, Mesh, MeshOptions, Slurm as _, scenario};
use mesh_events::EventType;
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;

use crate::support::{PATIENCE, options};

/// Two units per second and node.
const BOOK: &str = "name = \"fast\"\nversion = \"1\"\ncurrency = \"EUR\"\nmode = \"whole_node\"\n[[node_type]]\nname = \"all\"\ncpu = 4\nmem = 4000\ngpu = 4\n\
    [[node_type.price]]\non_demand = \"7200.00\"\n";

fn cost(fact: &Fact) -> &CostEvent {
    match &fact.event.payload {
        Some(Payload::Cost(cost)) => cost,
        other => panic!("{other:?}"),
    }
}

fn units(money: &Option<Money>) -> i64 {
    money.as_ref().map_or(0, |money| money.micros / 1_000_000)
}

/// Amount that was passed, cost so far, and seconds since the start.
fn passed(facts: &[Fact]) -> Vec<(i64, i64, i64)> {
    let accrued = facts
        .iter()
        .filter(|fact| fact.kind == EventType::CostAccrued);
    accrued
        .map(|fact| {
            let cost = cost(fact);
            let start = cost.job.as_ref().unwrap().start_time.as_ref().unwrap();
            let as_of = cost.as_of.as_ref().unwrap();
            assert_eq!(fact.event.occurred_at, cost.as_of);
            let since = as_of.seconds - start.seconds;
            (units(&cost.threshold), units(&cost.accrued), since)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn amounts_are_passed_once_at_their_second_though_the_mesh_is_killed() {
    let cluster = Cluster::start(&ClusterOptions::small("accrual"))
        .await
        .unwrap();
    let options = MeshOptions {
        price_book: Some(BOOK.to_owned()),
        ..options("")
    };
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options).await.unwrap();
    mesh.start().await.unwrap();
    cluster.ring(&mesh.hook_config()).unwrap();
    let job = cluster.submit("alice", &[], "sleep 90").await.unwrap();
    let first = mesh.wait_facts("10 units are passed", PATIENCE, "cost.accrued", |facts| {
        (!facts.is_empty()).then(|| passed(facts))
    });
    // As early as it may be, and not when somebody looked.
    assert_eq!(first.await.unwrap()[0], (10, 10, 5));
    mesh.kill().await.unwrap();
    mesh.start().await.unwrap();
    let second = mesh.wait_facts("100 units are passed", PATIENCE, "cost.accrued", |facts| {
        (facts.len() >= 2).then(|| passed(facts))
    });
    let both = [(10, 10, 5), (100, 100, 50)];
    assert_eq!(second.await.unwrap(), both);
    mesh.kill().await.unwrap();
    mesh.start().await.unwrap();
    let last = mesh.wait_facts("the job has its cost", PATIENCE, "cost.*", |facts| {
        let is_final = |fact: &Fact| fact.kind == EventType::CostFinalized;
        facts.iter().any(is_final).then(|| facts.to_vec())
    });
    let facts = last.await.unwrap();
    assert_eq!(passed(&facts), both, "job {job}");
    assert_eq!(scenario::repeated(&facts), Vec::<String>::new());
    let total = &facts.last().unwrap();
    let run = cost(total).job.as_ref().unwrap();
    let seconds = [&run.end_time, &run.start_time].map(|time| time.as_ref().unwrap().seconds);
    assert_eq!(units(&cost(total).total), 2 * (seconds[0] - seconds[1]));
}
