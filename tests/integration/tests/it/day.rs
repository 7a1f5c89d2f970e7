//! The demo's day, compared with accounting, with and without hooks.

use integration::scenario::{self, Day};
use integration::{Cluster, ClusterOptions, Fact, Mesh, recorded_ids, wait_for};

use crate::accounting;
use crate::ids::are_reproducible;
use crate::support::{PATIENCE, agrees, options};

#[tokio::test(flavor = "multi_thread")]
async fn a_day_is_published_as_in_accounting_with_and_without_hooks() {
    let cluster = Cluster::start(&ClusterOptions::full("day")).await.unwrap();
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options("")).await.unwrap();
    // A second mesh polls the same cluster. It gets no doorbells.
    let mut deaf = Mesh::set_up(&cluster, "deaf", &options("")).await.unwrap();
    mesh.start().await.unwrap();
    deaf.start().await.unwrap();
    cluster.ring(&mesh.hook_config()).unwrap();

    let day = scenario::play(&cluster, &mesh).await.unwrap();
    as_expected(&mesh, &day).await;
    let jobs: Vec<u32> = day.expected.iter().map(|part| part.job).collect();
    let facts = agrees(&cluster, &mesh, &jobs).await;
    let runs = accounting::runs(&cluster, &jobs).await.unwrap();
    assert_eq!(accounting::differences(&runs, &facts), Vec::<String>::new());
    has_identities(&facts);
    let folder = tempfile::tempdir().unwrap();
    are_reproducible(&mesh, folder.path()).await;
    assert!(!by_hook(&facts).is_empty(), "the hooks rang the first mesh");

    let same = wait_for("both know the same facts", PATIENCE, async || {
        let (facts, published) = (mesh.facts("").await?, deaf.facts("").await?);
        Ok((recorded_ids(&published) == recorded_ids(&facts)).then_some(()))
    });
    let same = same.await;
    let (facts, published) = (mesh.facts("").await.unwrap(), deaf.facts("").await.unwrap());
    let (ours, theirs) = (recorded_ids(&facts), recorded_ids(&published));
    let describe = |facts: &[Fact], ids: &std::collections::BTreeSet<&str>| {
        facts
            .iter()
            .filter(|fact| !ids.contains(fact.event.id.as_str()) && fact.is_recorded())
            .map(|fact| format!("{} {}", fact.kind, fact.event.entity_key()))
            .collect::<Vec<_>>()
    };
    assert!(
        same.is_ok(),
        "only with hooks: {:?}; only without: {:?}",
        describe(&facts, &theirs),
        describe(&published, &ours)
    );
    assert_eq!(
        by_hook(&published),
        Vec::<String>::new(),
        "nothing rang the second mesh"
    );
}

async fn as_expected(mesh: &Mesh, day: &Day) {
    let complaints = |facts: &[Fact]| {
        let mut all = scenario::complaints(&day.expected, facts);
        all.extend(scenario::node_complaints(facts));
        all
    };
    let done = mesh.wait_facts("the day is told", PATIENCE, "", |facts| {
        complaints(facts).is_empty().then_some(())
    });
    if let Err(error) = done.await {
        let facts = mesh.facts("").await.unwrap();
        panic!("{error}: {:#?}", complaints(&facts));
    }
}

/// Facts that a doorbell caused ingest to read.
fn by_hook(facts: &[Fact]) -> Vec<String> {
    use mesh_events::proto::mesh::event::v1::Source;
    facts
        .iter()
        .filter(|fact| fact.event.source() == Source::Hook)
        .map(|fact| {
            let key = fact.event.entity_key();
            format!("{} {key}, by {}", fact.kind, fact.event.source_detail)
        })
        .collect()
}

fn has_identities(facts: &[Fact]) {
    for fact in facts.iter().filter(|fact| fact.run().is_some()) {
        let owner = fact.event.owner.as_ref().unwrap();
        let identity = owner.identity.as_ref().unwrap();
        assert_eq!(identity.email, format!("{}@example.org", owner.user));
        assert_eq!(identity.issuer, "https://id.example.org");
    }
}
