//! Tests which entries each caller may see through REST.

use mesh_events::EventType;
use mesh_events::proto::mesh::event::v1::Event;
use mesh_testkit::fixtures::{self, CLUSTER};

use crate::api::{Api, get, job_id};
use crate::job_history::life;
use crate::support::{
    Database, audit_entry, audit_fact, node_event, of_user, on_both, serve, user,
};

on_both!(
    users_see_only_their_own_data,
    coordinators_see_their_accounts_on_their_cluster,
);

async fn users_see_only_their_own_data(database: Database) {
    let mut events = life("alice", &fixtures::job(1));
    events.extend(life("bob", &fixtures::job(2)));
    events.push(node_event("n1", 1));
    let api = Api::with(database, &events).await;
    api.store
        .append("MESH_AUDIT", 1, vec![audit_fact(&audit_entry(1))])
        .await
        .unwrap();
    let alice = serve(&api.store, user("alice"), 1000, 100).await;

    let owners = async |query: &str| -> Vec<String> {
        let (status, page) = get(&alice, &format!("/v1/events?{query}")).await;
        assert_eq!(status, 200, "{page}");
        let entries = page["entries"].as_array().unwrap();
        entries
            .iter()
            .map(|entry| {
                entry["event"]["data"]["owner"]["user"]
                    .as_str()
                    .unwrap_or("nobody")
                    .to_owned()
            })
            .collect()
    };
    assert_eq!(owners("").await, ["alice"; 5]);
    assert_eq!(owners("user=alice").await.len(), 5);
    // All jobs ran on one node, which has no owner.
    assert_eq!(owners("node=n1").await, ["alice"; 5]);
    for query in [
        "type=audit.*",
        "type=node.*",
        "type=capture.*",
        "job=2",
        "type=audit.delivery",
    ] {
        assert!(owners(query).await.is_empty(), "{query}");
    }
    assert_eq!(get(&alice, &format!("/v1/jobs/{CLUSTER}/1")).await.0, 200);
    // A job of another user and a nonexistent job look the same.
    let (status, another) = get(&alice, &format!("/v1/jobs/{CLUSTER}/2")).await;
    let (_, none) = get(&alice, &format!("/v1/jobs/{CLUSTER}/3")).await;
    assert_eq!(status, 404);
    assert_eq!(
        another["detail"].as_str().unwrap().replace("job 2", ""),
        none["detail"].as_str().unwrap().replace("job 3", "")
    );
    assert_eq!(get(&alice, "/v1/events?user=bob").await.0, 403);
    // With an administrator's cursor, a user still sees only their own entries.
    let (_, page) = api.get("/v1/events?limit=1").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(owners(&format!("cursor={cursor}")).await, ["alice"; 4]);
    // The head contains no personal data.
    let (status, head) = get(&alice, "/v1/ledger/head").await;
    assert_eq!(
        (
            status,
            head["seq"].as_u64(),
            head["chain"].as_str().unwrap().len()
        ),
        (200, Some(12), 64)
    );
}

async fn coordinators_see_their_accounts_on_their_cluster(database: Database) {
    let in_account = |account: &str, mut event: Event| {
        event.owner.as_mut().unwrap().account = account.into();
        event
    };
    let of_bob = |job| of_user("bob", EventType::JobSubmitted, fixtures::job(job));
    let api = Api::with(
        database,
        &[
            in_account("physics", of_bob(1)),
            in_account("chemistry", of_bob(2)),
            in_account(
                "biology",
                of_user("carol", EventType::JobSubmitted, fixtures::job(3)),
            ),
            node_event("n1", 1),
        ],
    )
    .await;
    let carol = user("carol");
    for (caller, jobs) in [
        (carol.clone(), vec![3]),
        (carol.clone().coordinating(CLUSTER, "physics"), vec![1, 3]),
        (carol.clone().coordinating("elsewhere", "physics"), vec![3]),
    ] {
        let url = serve(&api.store, caller.clone(), 1000, 100).await;
        let (status, page) = get(&url, "/v1/events").await;
        assert_eq!(status, 200, "{page}");
        let seen: Vec<u64> = page["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(job_id)
            .collect();
        assert_eq!(seen, jobs, "{:?}", caller.accounts);
        // A filter for another user returns what the caller may see of that user. It is refused if
        // that can only be nothing.
        let (status, page) = get(&url, "/v1/events?user=bob").await;
        match caller.accounts.is_empty() {
            true => assert_eq!(status, 403),
            false => assert_eq!(
                page["entries"].as_array().unwrap().len(),
                usize::from(jobs.contains(&1))
            ),
        }
        let another = get(&url, &format!("/v1/jobs/{CLUSTER}/2")).await.0;
        assert_eq!(another, 404);
    }
}
