//! Access, published alike from `sacctmgr` and from slurmrestd.

use std::collections::BTreeMap;

use mesh_events::Event;
use mesh_events::proto::mesh::user::v1::UserEvent;

use crate::cluster;
use crate::mesh::Mesh;
use crate::users::{FAST, baseline, of_user, sacctmgr, wait_history};

const KEYS: [&str; 2] = ["account/ward ", "user/rita "];

/// Returns the test's own events by id, without data that only the commands have: actor, time, and Slurm's ids.
fn facts(mesh: &Mesh) -> BTreeMap<String, UserEvent> {
    let is_ours = |event: &Event| KEYS.iter().any(|key| key.trim_end() == event.entity_key());
    let events = mesh.events().into_iter().filter(is_ours);
    let facts = events.map(|event| {
        let payload = UserEvent {
            association: 0,
            transaction: 0,
            ..of_user(&event).unwrap().clone()
        };
        (event.id, payload)
    });
    facts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn slurmrestd_and_sacctmgr_report_the_same_access() {
    let (cluster, _guard) = cluster::shared().await;
    let (commands, rest) = (Mesh::start().await, Mesh::start().await);
    let over_rest = rest.ingest_over_rest(cluster, FAST).await.ready().await;
    let by_commands = commands.ingest(cluster, FAST).await.ready().await;
    baseline(&commands).await;
    baseline(&rest).await;
    let mut published: Vec<String> = Vec::new();
    // Changes, and their events in this order.
    for (changes, news) in [
        (
            &["add account ward parent=acme", "add user rita account=ward"][..],
            &[
                "account/ward user.access_granted Account >ward",
                "user/rita user.access_granted Account >ward",
            ][..],
        ),
        (
            &[
                "modify account ward set GrpTRES=cpu=9,mem=4G,gres/gpu=3 GrpWall=1-02:03:00 MaxJobs=7 parent=physics",
                "modify user rita where account=ward set MaxTRES=mem=5000M MaxWall=02:03:04 qos=high,normal DefaultQOS=high Fairshare=parent",
            ],
            &[
                "account/ward user.access_changed GrpTRES >cpu=9,gres/gpu=3,mem=4G",
                "account/ward user.access_changed GrpWall >1-02:03:00",
                "account/ward user.access_changed MaxJobs >7",
                "account/ward user.access_changed Parent acme>physics",
                "user/rita user.access_granted QOS >high",
                "user/rita user.access_changed DefaultQOS >high",
                "user/rita user.access_changed Fairshare 1>parent",
                "user/rita user.access_changed MaxTRES >mem=5000M",
                "user/rita user.access_changed MaxWall >02:04:00",
            ],
        ),
        // One by one or all at once, depending on the polls: the order of publication is the same.
        (
            &[
                "add user rita account=tiny partition=cpu",
                "modify user rita set adminlevel=Operator",
                "modify user rita set DefaultAccount=tiny",
                "add coordinator account=ward names=rita",
            ],
            &[
                "user/rita user.access_granted Account >tiny",
                "user/rita user.access_granted AdminLevel >Operator",
                "user/rita user.access_changed DefaultAccount ward>tiny",
                "user/rita user.access_granted Coordinator >ward",
            ],
        ),
        // Without a log, a loss is accepted only after ten polls.
        (
            &["delete user rita", "delete account ward"],
            &[
                "account/ward user.access_revoked Account ward>",
                "user/rita user.access_revoked AdminLevel Operator>",
                "user/rita user.access_revoked Coordinator ward>",
                "user/rita user.access_revoked Account tiny>",
                "user/rita user.access_revoked Account ward>",
            ],
        ),
    ] {
        for change in changes {
            sacctmgr(cluster, "root", change).await;
        }
        published.extend(news.iter().map(|line| (*line).to_owned()));
        published.sort_by_key(|line| line.split(' ').next().map(str::to_owned));
        let by_root: Vec<String> = published
            .iter()
            .map(|line| {
                // slurmdbd does not log that an account moves.
                let by = if line.contains(" Parent ") {
                    "?"
                } else {
                    "root"
                };
                format!("{line} by {by}")
            })
            .collect();
        let without_actor: Vec<String> = published
            .iter()
            .map(|line| format!("{line} by ?"))
            .collect();
        wait_history(&commands, &KEYS, &by_root).await;
        wait_history(&rest, &KEYS, &without_actor).await;
    }
    assert_eq!(facts(&commands), facts(&rest));
    for (mesh, asked) in [(&commands, "sacctmgr"), (&rest, "slurmrestd")] {
        let about_access = |event: &Event| event.r#type.starts_with("user.access_");
        let mut events = mesh.events().into_iter().filter(about_access);
        assert!(events.all(|event| event.source_detail == asked), "{asked}");
    }
    rest.assert_no_duplicates();
    over_rest.stop().await;
    by_commands.stop().await;
}
