//! Who may do what, told from a real slurmdbd, and logins.

use std::time::Duration;

use mesh_events::proto::mesh::event::v1::{ActorKind, Confidence, event::Payload};
use mesh_events::proto::mesh::hook::v1::{Doorbell, Login};
use mesh_events::proto::mesh::user::v1::UserEvent;
use mesh_events::{Event, from_timestamp, subject, timestamp};
use mesh_testkit::wait_for;
use prost::Message as _;

use crate::cluster::{self, Cluster, NAME};
use crate::mesh::Mesh;
use crate::stand_in::StandIn;

const FAST: &str = "identity_poll = \"200ms\"\n[ingest.users]\ninterval = \"1s\"";
/// Reads everything at every look, whatever the log says.
const EAGER: &str =
    "identity_poll = \"200ms\"\n[ingest.users]\ninterval = \"1s\"\nfull_interval = \"1s\"";
const DEADLINE: Duration = Duration::from_secs(120);

fn of_user(event: &Event) -> Option<&UserEvent> {
    match event.payload.as_ref() {
        Some(Payload::User(user)) => Some(user),
        _ => None,
    }
}

/// What was told about access and identities, in order, with who did it: the lines that begin like this.
fn story(mesh: &Mesh, beginnings: &[&str]) -> Vec<String> {
    let mut events: Vec<Event> = mesh.events();
    events.retain(|event| of_user(event).is_some());
    events.sort_by_key(|event| (event.entity_key().to_owned(), event.run_seq));
    let words = |event: &Event| {
        let what = of_user(event).unwrap();
        let by = event.actor.as_ref().map_or("?", |actor| &actor.user);
        let kind = event.r#type.trim_start_matches("user.");
        format!(
            "{} {kind} {} {}>{} by {by}",
            event.entity_key(),
            what.attribute,
            what.before,
            what.after
        )
    };
    let lines = events.iter().map(words);
    lines
        .filter(|line| {
            beginnings
                .iter()
                .any(|beginning| line.starts_with(beginning))
        })
        .collect()
}

async fn wait_story(mesh: &Mesh, beginnings: &[&str], expected: &[&str]) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while story(mesh, beginnings) != expected {
        assert!(
            tokio::time::Instant::now() < deadline,
            "expected {expected:#?}, found {:#?}",
            story(mesh, beginnings)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until what everybody has is known, so that what follows is a change.
async fn baseline(mesh: &Mesh) {
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

async fn sacctmgr(cluster: &Cluster, user: &str, arguments: &str) {
    let mut command = vec!["sacctmgr", "-i", "-Q"];
    command.extend(arguments.split(' '));
    cluster.run(user, &command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn access_is_told_once_with_who_gave_it() {
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
        "account/lab access_granted Account >lab by root",
        "user/lin access_granted Account >lab by root",
        "user/lin access_granted Coordinator >lab by root",
    ];
    let grown = |expected: &mut Vec<&'static str>, more: &[&'static str]| {
        expected.extend(more);
        // By whom they are about, in the order of telling.
        expected.sort_by_key(|line| line.split(' ').next().unwrap());
    };
    // One after the other or all at once, as the looks happen to come: the order of telling is the same.
    wait_story(&mesh, &keys, &expected).await;
    // A coordinator did this, and is known as a person.
    sacctmgr(
        cluster,
        "alice",
        "modify user lin where account=lab set MaxJobs=3",
    )
    .await;
    grown(
        &mut expected,
        &["user/lin access_changed MaxJobs >3 by alice"],
    );
    wait_story(&mesh, &keys, &expected).await;
    let event = mesh
        .wait_event("the limit", |event| {
            of_user(event).is_some_and(|what| what.attribute == "MaxJobs")
        })
        .await;
    let actor = event.actor.as_ref().unwrap();
    assert_eq!(actor.kind(), ActorKind::Admin);
    assert_eq!(actor.identity.as_ref().unwrap().subject, "al-1");
    let what = of_user(&event).unwrap();
    assert_eq!((what.user.as_str(), what.account.as_str()), ("lin", "lab"));
    assert_eq!(what.settings["MaxJobs"], "3");
    assert!(what.qos.contains(&"normal".to_owned()));
    assert!(what.transaction > 0 && what.association > 0);
    // Slurm's time of it, not ours.
    let [occurred, observed] = [&event.occurred_at, &event.observed_at]
        .map(|at| from_timestamp(at.as_ref().unwrap()).unwrap());
    assert_eq!(occurred.timestamp_subsec_nanos(), 0);
    assert!(occurred <= observed);

    // What happens while nobody looks is told afterwards, once.
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
            "account/lab access_granted QOS >low by root",
            "account/lab access_changed GrpTRES >cpu=4 by root",
            "user/lin access_granted QOS >high by root",
            "user/lin access_granted AdminLevel >Operator by root",
            "user/olga access_revoked Account old> by root",
        ],
    );
    wait_story(&mesh, &keys, &expected).await;
    // A crash instead, and everything is taken away again.
    ingest.crash().await;
    sacctmgr(cluster, "root", "delete user lin").await;
    sacctmgr(cluster, "root", "delete account lab").await;
    let ingest = mesh.ingest(cluster, FAST).await.ready().await;
    grown(
        &mut expected,
        &[
            "account/lab access_revoked Account lab> by root",
            "user/lin access_revoked AdminLevel Operator> by root",
            "user/lin access_revoked Coordinator lab> by root",
            "user/lin access_revoked Account lab> by root",
        ],
    );
    wait_story(&mesh, &keys, &expected).await;
    ingest.stop().await;
    sacctmgr(cluster, "root", "delete account old").await;
    assert_eq!(story(&mesh, &keys), expected);
    mesh.assert_no_duplicates();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_slurmdbd_nobody_loses_anything() {
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
    sacctmgr(
        cluster,
        "root",
        "modify user carol where account=tiny set MaxJobs=77",
    )
    .await;
    wait_story(
        &mesh,
        &["user/carol "],
        &["user/carol access_changed MaxJobs >77 by root"],
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

/// Real commands, but a sacctmgr that leaves out what a file says.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_leaves_somebody_out_takes_nothing_away() {
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
    let lies = [
        "case \"$*\" in *\"show assoc\"*) exit 0;; esac\n".to_owned(),
        cut("assoc", 3) + &cut("user", 2),
        // Nothing contradicts this, so it must not go on for ever: it would be believed in the end.
        format!(
            "[ $(cat \"$here/left\" | wc -c) -gt 5 ] || {{ case \"$*\" in *\"show assoc\"*) printf x >>\"$here/left\"; esac; {} }}\n",
            cut("assoc", 3)
        ),
    ];
    std::fs::write(stand_in.bin_dir().join("left"), "").unwrap();
    for lie in &lies {
        let asked = || {
            let calls = stand_in.calls();
            calls
                .iter()
                .filter(|call| call.contains("show assoc"))
                .count()
        };
        stand_in.lie("sacctmgr", lie);
        let enough = asked() + 4;
        wait_for("it was asked several times", DEADLINE, async || {
            (asked() >= enough).then_some(())
        })
        .await;
    }
    stand_in.truth("sacctmgr");
    sacctmgr(
        cluster,
        "root",
        "modify user bob where account=ml set MaxSubmitJobs=55",
    )
    .await;
    let keys = [
        "user/bob ",
        "user/alice access_revoked Account",
        "account/physics ",
        "account/tiny ",
    ];
    wait_story(
        &mesh,
        &keys,
        &["user/bob access_changed MaxSubmitJobs >55 by root"],
    )
    .await;
    sacctmgr(
        cluster,
        "root",
        "modify user bob where account=ml set MaxSubmitJobs=-1",
    )
    .await;
    ingest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_are_linked_when_they_become_known_or_change() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = format!(
        "{FAST}\n[ingest.identity]\ngetent_issuer = \"https://ldap.example.org\"\ngetent_field = \"name\""
    );
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    baseline(&mesh).await;
    mesh.identities("[users.alice]\nissuer = \"https://id.example.org\"\nsubject = \"al-2\"\n");
    let alice = ["user/alice identity_linked"];
    let linked = "user/alice identity_linked Identity al-1 at https://id.example.org (map-file)>al-2 at https://id.example.org (map-file) by ?";
    wait_story(&mesh, &alice, &[linked]).await;
    // Not in the map any more: the next source counts.
    mesh.identities("[users.zoe]\nissuer = \"https://id.example.org\"\nsubject = \"z-1\"\n");
    let fallen_back = "user/alice identity_linked Identity al-2 at https://id.example.org (map-file)>alice at https://ldap.example.org (getent) by ?";
    wait_story(&mesh, &alice, &[linked, fallen_back]).await;
    let known = "user/zoe identity_linked Identity >z-1 at https://id.example.org (map-file) by ?";
    wait_story(&mesh, &["user/zoe "], &[known]).await;
    // A map that cannot be read, and a restart: nobody is forgotten, nobody is told again.
    mesh.identities("[users.alice\n");
    ingest.stop().await;
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    mesh.identities("[users.zoe]\nissuer = \"https://id.example.org\"\nsubject = \"z-2\"\n");
    let changed = "user/zoe identity_linked Identity z-1 at https://id.example.org (map-file)>z-2 at https://id.example.org (map-file) by ?";
    wait_story(&mesh, &["user/zoe "], &[known, changed]).await;
    assert_eq!(story(&mesh, &alice), [linked, fallen_back]);
    ingest.stop().await;
}

fn login(id: &str, user: &str) -> Doorbell {
    Doorbell {
        id: id.to_owned(),
        hook: "Pam".to_owned(),
        cluster: NAME.to_owned(),
        host: "login1".to_owned(),
        called_at: Some(timestamp(chrono::Utc::now())),
        login: Some(Login {
            user: user.to_owned(),
            remote_host: "198.51.100.7".to_owned(),
            service: "sshd".to_owned(),
            tty: "ssh".to_owned(),
        }),
        ..Doorbell::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_told_once_and_a_flood_of_them_is_bounded() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "[ingest.users]\nlogins_per_minute = 5";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let ring = async |bell: &Doorbell, delivery: &str| {
        let id = format!("{}{delivery}", bell.id);
        let subject = subject::doorbell(NAME, "Pam");
        mesh.bus
            .publish_raw(subject, &id, bell.encode_to_vec())
            .await
            .unwrap();
    };
    let id = |n: u32| format!("01961234-5678-7abc-8def-0123456{n:05}");
    let first = login(&id(0), "alice");
    // The spool may deliver a doorbell twice.
    ring(&first, "").await;
    ring(&first, "-again").await;
    ring(&login("no-uuid", "alice"), "").await;
    for n in 1..40 {
        ring(&login(&id(n), "mallory"), "").await;
    }
    ring(&login(&id(40), "bob"), "").await;
    let logins = || -> Vec<Event> {
        let is_login = |event: &Event| event.r#type == "user.login";
        mesh.events().into_iter().filter(is_login).collect()
    };
    let of = |user: &str| -> Vec<Event> {
        let by = |event: &Event| of_user(event).is_some_and(|what| what.user == user);
        logins().into_iter().filter(by).collect()
    };
    wait_for("bob's login", DEADLINE, async || {
        (!of("bob").is_empty()).then_some(())
    })
    .await;
    wait_for("some of mallory's", DEADLINE, async || {
        (of("mallory").len() >= 5).then_some(())
    })
    .await;
    // What it holds is answered before it stops.
    ingest.stop().await;
    let alice = &of("alice")[0];
    assert_eq!(alice.confidence(), Confidence::Inferred);
    assert_eq!(
        alice
            .owner
            .as_ref()
            .unwrap()
            .identity
            .as_ref()
            .unwrap()
            .subject,
        "al-1"
    );
    let session = of_user(alice).unwrap().login.as_ref().unwrap();
    assert_eq!(
        (session.host.as_str(), session.remote_host.as_str()),
        ("login1", "198.51.100.7")
    );
    mesh.assert_no_duplicates();
    // The budget begins anew each minute, and a slow machine may need two of them.
    let told = of("mallory").len();
    assert!(
        (5..=10).contains(&told),
        "{told} of mallory's 39 logins were told"
    );
}
