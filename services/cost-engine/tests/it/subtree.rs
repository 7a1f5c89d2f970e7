//! Budgets of an account and those below it.

use mesh_bus::Bus;
use mesh_events::EventType;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_runtime::api::AccountParent;
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::service::TestService;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::{Value, json};

use crate::api::get;
use crate::support::{DEADLINE, Outside, Site, on_both};

const BUCKET: &str = "mesh_coordinators";

/// The jobs of the fixtures are in November 2025.
fn budgets(amount: &str) -> String {
    let budget = |name: &str, scope: &str| {
        format!(
            "[[budget]]\nname = \"{name}\"\nscope = {{ {scope} }}\nfrom = 2025-11-01\nto = 2025-12-01\namount = \"{amount}\"\n"
        )
    };
    let scopes = [
        ("nlp", "account = \"nlp\", subtree = true"),
        (
            "here",
            "account = \"nlp\", subtree = true, cluster = \"testbed\"",
        ),
        (
            "vision",
            "account = [\"vision\", \"nobody\"], subtree = true",
        ),
        ("alone", "account = \"nlp\""),
    ];
    scopes.map(|(name, scope)| budget(name, scope)).concat()
}

/// Writes the parent of an account as ingest does.
async fn put_parent(bus: &Bus, cluster: &str, account: &str, parent: &str) {
    let value = AccountParent {
        cluster: cluster.to_owned(),
        account: account.to_owned(),
        parent: parent.to_owned(),
    };
    let bucket = bus.bucket(BUCKET).await.unwrap();
    let key = format!("{cluster}.account.{account}");
    let revision = bucket.get(&key).await.unwrap().map(|entry| entry.revision);
    let value = serde_json::to_vec(&value).unwrap();
    bucket.put(&key, value.into(), revision).await.unwrap();
}

/// Publishes a run of two hours: 0.68.
async fn run(outside: &Outside, id: u32, cluster: &str, account: &str) {
    let end = ended(job(id), "COMPLETED", 7200);
    let mut event = job_event(EventType::JobCompleted, end);
    event.owner.as_mut().unwrap().account = account.into();
    event.cluster = cluster.into();
    outside.publish(&event).await;
}

/// Waits until budgets `nlp`, `here`, `vision` and `alone` have settled these costs.
async fn settled(engine: &TestService, expected: [&str; 4]) {
    let names = ["nlp", "here", "vision", "alone"];
    let found = async || {
        let mut found = Vec::new();
        for name in names {
            let path = format!("/v1/budgets/{name}");
            let (_, budget) = get(&engine.router, "root", &path).await;
            found.push(budget["settled_micros"].clone());
        }
        found
    };
    wait_until(&format!("settled {expected:?}"), DEADLINE, async || {
        found().await == expected
    })
    .await;
}

on_both!(accounts_below_count_by_the_tree_of_their_cluster_also_without_the_bucket);

async fn accounts_below_count_by_the_tree_of_their_cluster_also_without_the_bucket(site: Site) {
    let nats = NatsServer::start().await;
    let outside = Outside::connect(&nats, None).await;
    for (cluster, account, parent) in [
        ("testbed", "root", ""),
        ("testbed", "nlp", "root"),
        ("testbed", "nlp-a", "nlp"),
        ("testbed", "nlp-a-1", "nlp-a"),
        ("other", "vision", "root"),
        ("other", "nlp-a", "vision"),
    ] {
        put_parent(&outside.bus, cluster, account, parent).await;
    }
    site.write_budgets(&budgets("4.00"));
    let engine = site.start(&nats.toml()).await.unwrap();
    run(&outside, 1, "testbed", "nlp").await;
    run(&outside, 2, "testbed", "nlp-a").await;
    run(&outside, 3, "testbed", "nlp-a-1").await;
    run(&outside, 4, "testbed", "physics").await;
    run(&outside, 5, "other", "nlp-a").await;
    settled(&engine, ["2040000", "2040000", "680000", "680000"]).await;
    let (_, nlp) = get(&engine.router, "root", "/v1/budgets/nlp").await;
    assert_eq!(
        nlp["scope"],
        json!({"account": ["nlp"], "subtree": true}),
        "{nlp}"
    );
    let unknown = async |name: &str| -> Value {
        let path = format!("/v1/budgets/{name}");
        get(&engine.router, "root", &path).await.1["unknown_accounts"].clone()
    };
    // `vision` has no run, but an account below it.
    wait_until("only nobody is unknown", DEADLINE, async || {
        unknown("vision").await == json!(["nobody"])
    })
    .await;

    // An account that moves takes its costs along, also those of accounts below it.
    put_parent(&outside.bus, "other", "vision", "nlp").await;
    settled(&engine, ["2720000", "2040000", "680000", "680000"]).await;

    // A deleted account keeps its place; with the next run there was an evaluation after the delete.
    let client = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let bucket = client.get_key_value(BUCKET).await.unwrap();
    bucket.delete("testbed.account.nlp-a-1").await.unwrap();
    run(&outside, 6, "testbed", "nlp").await;
    let all = ["3400000", "2720000", "680000", "1360000"];
    settled(&engine, all).await;
    engine.kill().await;

    // Restarted without the bucket, the costs are the same, and nothing is cleared before the amount is raised.
    client.delete_key_value(BUCKET).await.unwrap();
    let engine = site.start(&nats.toml()).await.unwrap();
    settled(&engine, all).await;
    site.write_budgets(&budgets("100.00"));
    let messages = outside.messages("slurm.*.user.>", 5).await;
    let nlp: Vec<_> = messages
        .iter()
        .map(|message| message.event().unwrap())
        .filter(|event| event.entity_key() == "budget/nlp")
        .map(|event| match event.payload {
            Some(Payload::User(payload)) => {
                let quota = payload.quota.unwrap();
                let percent = quota.percent();
                (event.r#type, quota.threshold, percent, quota.scope)
            }
            other => panic!("no quota: {other:?}"),
        })
        .collect();
    let scope = vec!["account=nlp with subaccounts".to_owned()];
    let expected = [
        ("user.quota_high", 50, 51),
        ("user.quota_high", 80, 85),
        ("user.quota_cleared", 80, 3),
    ];
    let expected = expected
        .map(|(kind, threshold, percent)| (kind.to_owned(), threshold, percent, scope.clone()));
    assert_eq!(nlp, expected);
    engine.stop().await;
}
