//! Access, published from a real slurmdbd.

use std::time::Duration;

use mesh_events::proto::mesh::event::v1::{ActorKind, event::Payload};
use mesh_events::proto::mesh::user::v1::UserEvent;
use mesh_events::{Event, from_timestamp};
use mesh_runtime::api::AccountParent;
use mesh_testkit::wait_for;

use crate::cluster::{self, Cluster, NAME};
use crate::mesh::Mesh;
use crate::stand_in::StandIn;

pub const FAST: &str = "identity_reload_interval = \"200ms\"\n[ingest.users]\ninterval = \"1s\"";
/// Reads everything at every poll, whatever the log contains.
const EAGER: &str = "identity_reload_interval = \"200ms\"\n[ingest.users]\ninterval = \"1s\"\nfull_interval = \"1s\"";
pub const DEADLINE: Duration = Duration::from_secs(180);

pub fn of_user(event: &Event) -> Option<&UserEvent> {
    match event.payload.as_ref() {
        Some(Payload::User(user)) => Some(user),
        _ => None,
    }
}

/// Returns the lines about access and identities that begin with these texts, in order, with their actors.
pub fn history(mesh: &Mesh, beginnings: &[&str]) -> Vec<String> {
    let mut events: Vec<Event> = mesh.events();
    events.retain(|event| of_user(event).is_some());
    events.sort_by_key(|event| (event.entity_key().to_owned(), event.run_seq));
    let summary = |event: &Event| {
        let payload = of_user(event).unwrap();
        let by = event.actor.as_ref().map_or("?", |actor| &actor.user);
        let kind = &event.r#type;
        format!(
            "{} {kind} {} {}>{} by {by}",
            event.entity_key(),
            payload.attribute,
            payload.before,
            payload.after
        )
    };
    let lines = events.iter().map(summary);
    lines
        .filter(|line| {
            beginnings
                .iter()
                .any(|beginning| line.starts_with(beginning))
        })
        .collect()
}

pub async fn wait_history<T>(mesh: &Mesh, beginnings: &[&str], expected: &[T])
where
    T: std::fmt::Debug,
    String: PartialEq<T>,
{
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while history(mesh, beginnings) != expected {
        assert!(
            tokio::time::Instant::now() < deadline,
            "expected {expected:#?}, found {:#?}",
            history(mesh, beginnings)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until existing access is known, so that what follows is a change.
pub async fn baseline(mesh: &Mesh) {
    let key = format!("{NAME}.meta");
    wait_for("access and people are known", DEADLINE, async || {
        let entry = mesh
            .bus
            .bucket("mesh_users")
            .await
            .ok()?
            .get(&key)
            .await
            .ok()??;
        let meta: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        (meta["access_known"] == true && meta["people_known"] == true).then_some(())
    })
    .await;
}

pub async fn sacctmgr(cluster: &Cluster, user: &str, arguments: &str) {
    let mut command = vec!["sacctmgr", "-i", "-Q"];
    command.extend(arguments.split(' '));
    cluster.run(user, &command).await;
}

/// Waits until the bucket has this parent of an account; `None` without the account.
async fn wait_parent(mesh: &Mesh, account: &str, expected: Option<&str>) {
    let key = format!("{NAME}.account.{account}");
    wait_for(&format!("the parent of {account}"), DEADLINE, async || {
        let bucket = mesh.bus.bucket("mesh_coordinators").await.ok()?;
        let entry = bucket.get(&key).await.ok()?;
        let found: Option<AccountParent> =
            entry.map(|entry| serde_json::from_slice(&entry.value).unwrap());
        let found = found.as_ref().map(|found| found.parent.as_str());
        (found == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_is_published_once_with_its_actor() {
    let (cluster, _guard) = cluster::shared().await;
    sacctmgr(cluster, "root", "add account old parent=acme").await;
    sacctmgr(cluster, "root", "add user olga account=old").await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    baseline(&mesh).await;
    let keys = ["account/lab ", "user/lin ", "user/olga "];
    sacctmgr(cluster, "root", "add account lab parent=acme").await;
    sacctmgr(cluster, "root", "add user lin account=lab").await;
    sacctmgr(
        cluster,
        "root",
        "add coordinator account=lab names=alice,lin",
    )
    .await;
    let mut expected = vec![
        "account/lab user.access_granted Account >lab by root",
        "user/lin user.access_granted Account >lab by root",
        "user/lin user.access_granted Coordinator >lab by root",
    ];
    let grown = |expected: &mut Vec<&'static str>, more: &[&'static str]| {
        expected.extend(more);
        // By entity, in the order of publication.
        expected.sort_by_key(|line| line.split(' ').next().unwrap());
    };
    // One by one or all at once, depending on the polls: the order of publication is the same.
    wait_history(&mesh, &keys, &expected).await;
    wait_parent(&mesh, "lab", Some("acme")).await;
    // A coordinator made this change, and has a known identity.
    sacctmgr(
        cluster,
        "alice",
        "modify user lin where account=lab set MaxJobs=3",
    )
    .await;
    grown(
        &mut expected,
        &["user/lin user.access_changed MaxJobs >3 by alice"],
    );
    wait_history(&mesh, &keys, &expected).await;
    let event = mesh
        .wait_event("the limit", |event| {
            of_user(event).is_some_and(|payload| payload.attribute == "MaxJobs")
        })
        .await;
    let actor = event.actor.as_ref().unwrap();
    assert_eq!(actor.kind(), ActorKind::Admin);
    assert_eq!(actor.identity.as_ref().unwrap().subject, "al-1");
    let payload = of_user(&event).unwrap();
    assert_eq!(
        (payload.user.as_str(), payload.account.as_str()),
        ("lin", "lab")
    );
    assert_eq!(payload.settings["MaxJobs"], "3");
    assert!(payload.qos.contains(&"normal".to_owned()));
    assert!(payload.transaction > 0 && payload.association > 0);
    // Slurm's time of it, not that of ingest.
    let [occurred, observed] = [&event.occurred_at, &event.observed_at]
        .map(|at| from_timestamp(at.as_ref().unwrap()).unwrap());
    assert_eq!(occurred.timestamp_subsec_nanos(), 0);
    assert!(occurred <= observed);

    // Changes during downtime are published afterwards, once.
    ingest.stop().await;
    sacctmgr(
        cluster,
        "root",
        "modify user lin set adminlevel=Operator qos+=high",
    )
    .await;
    sacctmgr(
        cluster,
        "root",
        "modify account lab set GrpTRES=cpu=4 qos+=low",
    )
    .await;
    sacctmgr(cluster, "root", "delete user olga").await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    grown(
        &mut expected,
        &[
            "account/lab user.access_granted QOS >low by root",
            "account/lab user.access_changed GrpTRES >cpu=4 by root",
            "user/lin user.access_granted QOS >high by root",
            "user/lin user.access_granted AdminLevel >Operator by root",
            "user/olga user.access_revoked Account old> by root",
        ],
    );
    wait_history(&mesh, &keys, &expected).await;
    // A crash instead, and everything is removed.
    ingest.crash().await;
    sacctmgr(cluster, "root", "delete user lin").await;
    sacctmgr(cluster, "root", "delete account lab").await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    grown(
        &mut expected,
        &[
            "account/lab user.access_revoked Account lab> by root",
            "user/lin user.access_revoked AdminLevel Operator> by root",
            "user/lin user.access_revoked Coordinator lab> by root",
            "user/lin user.access_revoked Account lab> by root",
        ],
    );
    wait_history(&mesh, &keys, &expected).await;
    wait_parent(&mesh, "lab", None).await;
    wait_parent(&mesh, "old", Some("acme")).await;
    ingest.stop().await;
    sacctmgr(cluster, "root", "delete account old").await;
    assert_eq!(history(&mesh, &keys), expected);
    mesh.assert_no_duplicates();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_slurmdbd_no_access_is_revoked() {
    let (cluster, _guard) = cluster::exclusive().await;
    let mesh = Mesh::start().await;
    let ingest = mesh.ingest(cluster, EAGER).await.ready().await;
    baseline(&mesh).await;
    for (daemon, times) in [("slurmdbd", 1), ("mariadb", 2)] {
        cluster.ctl("kill", daemon).await;
        wait_for("slurmdbd is down", DEADLINE, async || {
            let downs = |event: &&Event| event.r#type == "capture.source_down";
            (mesh.events().iter().filter(downs).count() >= times).then_some(())
        })
        .await;
        cluster.ctl("start", daemon).await;
        wait_for("slurmdbd is up", DEADLINE, async || {
            let ups = |event: &&Event| event.r#type == "capture.source_up";
            (mesh.events().iter().filter(ups).count() >= times).then_some(())
        })
        .await;
    }
    wait_for("slurmdbd has its database", DEADLINE, async || {
        let ask = ["sacctmgr", "-nP", "show", "cluster"];
        cluster.attempt("root", &ask).await.ok()
    })
    .await;
    sacctmgr(
        cluster,
        "root",
        "modify user carol where account=tiny set MaxJobs=77",
    )
    .await;
    wait_history(
        &mesh,
        &["user/carol "],
        &["user/carol user.access_changed MaxJobs >77 by root"],
    )
    .await;
    let about_users: Vec<Event> = mesh
        .events()
        .into_iter()
        .filter(|event| of_user(event).is_some())
        .collect();
    assert_eq!(about_users.len(), 1, "{about_users:#?}");
    sacctmgr(
        cluster,
        "root",
        "modify user carol where account=tiny set MaxJobs=-1",
    )
    .await;
    ingest.stop().await;
}

/// Real commands, except for a sacctmgr that leaves out some rows.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_user_revokes_nothing() {
    let (cluster, _guard) = cluster::shared().await;
    let stand_in = StandIn::new(cluster);
    let mesh = Mesh::start().await;
    let ingest = mesh
        .ingest_through(&stand_in, cluster, EAGER)
        .await
        .ready()
        .await;
    baseline(&mesh).await;
    let cut = |command: &str, lines: u32| {
        format!(
            "case \"$*\" in *\"show {command}\"*) \"$real\" \"$@\" | head -n {lines}; exit 0;; esac\n"
        )
    };
    let overrides = [
        "case \"$*\" in *\"show assoc\"*) exit 0;; esac\n".to_owned(),
        cut("assoc", 3) + &cut("user", 2),
        // Nothing contradicts this lie, so it must end: it would be accepted finally.
        format!(
            "[ $(cat \"$here/left\" | wc -c) -gt 5 ] || {{ case \"$*\" in *\"show assoc\"*) printf x >>\"$here/left\"; esac; {} }}\n",
            cut("assoc", 3)
        ),
    ];
    std::fs::write(stand_in.bin_dir().join("left"), "").unwrap();
    for override_output in &overrides {
        let asked = || {
            let calls = stand_in.calls();
            calls
                .iter()
                .filter(|call| call.contains("show assoc"))
                .count()
        };
        stand_in.override_output("sacctmgr", override_output);
        let target = asked() + 4;
        wait_for("it was asked several times", DEADLINE, async || {
            (asked() >= target).then_some(())
        })
        .await;
    }
    // Carol is left out everywhere for six polls; changes of others are published meanwhile.
    std::fs::write(stand_in.bin_dir().join("left"), "").unwrap();
    let without_carol = "case \"$*\" in *\"show assoc\"*) printf x >>\"$here/left\"; esac\n\
        [ $(cat \"$here/left\" | wc -c) -gt 12 ] || { case \"$*\" in *\"show assoc\"*|*\"show user\"*) \"$real\" \"$@\" | grep -v carol; exit 0;; esac; }\n";
    stand_in.override_output("sacctmgr", without_carol);
    sacctmgr(
        cluster,
        "root",
        "modify user bob where account=ml set MaxSubmitJobs=55",
    )
    .await;
    let bob = "user/bob user.access_changed MaxSubmitJobs >55 by root";
    wait_history(&mesh, &["user/bob ", "user/carol "], &[bob]).await;
    stand_in.truth("sacctmgr");
    let keys = [
        "user/bob ",
        "user/carol ",
        "user/alice user.access_revoked Account",
        "account/physics ",
        "account/tiny ",
    ];
    wait_history(&mesh, &keys, &[bob]).await;
    sacctmgr(
        cluster,
        "root",
        "modify user bob where account=ml set MaxSubmitJobs=-1",
    )
    .await;
    ingest.stop().await;
}
