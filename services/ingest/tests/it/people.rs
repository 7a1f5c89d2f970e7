//! Identities and logins.

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::proto::mesh::hook::v1::{Doorbell, Login};
use mesh_events::{Event, subject, timestamp};
use mesh_testkit::wait_for;
use prost::Message as _;

use crate::cluster::{self, NAME};
use crate::mesh::Mesh;
use crate::users::{DEADLINE, FAST, baseline, history, of_user, wait_history};

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
    let alice = ["user/alice user.identity_linked"];
    let linked = "user/alice user.identity_linked Identity al-1 at https://id.example.org (map-file)>al-2 at https://id.example.org (map-file) by ?";
    wait_history(&mesh, &alice, &[linked]).await;
    // Removed from the map: the next source applies.
    mesh.identities("[users.zoe]\nissuer = \"https://id.example.org\"\nsubject = \"z-1\"\n");
    let fallen_back = "user/alice user.identity_linked Identity al-2 at https://id.example.org (map-file)>alice at https://ldap.example.org (getent) by ?";
    wait_history(&mesh, &alice, &[linked, fallen_back]).await;
    let known =
        "user/zoe user.identity_linked Identity >z-1 at https://id.example.org (map-file) by ?";
    wait_history(&mesh, &["user/zoe "], &[known]).await;
    // An unreadable map, and a restart: no identity is lost or republished.
    mesh.identities("[users.alice\n");
    ingest.stop().await;
    let ingest = mesh.ingest(cluster, &settings).await.ready().await;
    mesh.identities("[users.zoe]\nissuer = \"https://id.example.org\"\nsubject = \"z-2\"\n");
    let changed = "user/zoe user.identity_linked Identity z-1 at https://id.example.org (map-file)>z-2 at https://id.example.org (map-file) by ?";
    wait_history(&mesh, &["user/zoe "], &[known, changed]).await;
    assert_eq!(history(&mesh, &alice), [linked, fallen_back]);
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
async fn a_login_is_published_once_and_a_flood_is_limited() {
    let (cluster, _guard) = cluster::shared().await;
    let mesh = Mesh::start().await;
    let settings = "[ingest.users]\nlogins_per_minute = 5";
    let ingest = mesh.ingest(cluster, settings).await.ready().await;
    let ring = async |doorbell: &Doorbell, delivery: &str| {
        let id = format!("{}{delivery}", doorbell.id);
        let subject = subject::doorbell(NAME, "Pam");
        mesh.bus
            .publish_raw(subject, &id, doorbell.encode_to_vec())
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
        let by = |event: &Event| of_user(event).is_some_and(|user_event| user_event.user == user);
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
    wait_for("alice's login", DEADLINE, async || {
        (!of("alice").is_empty()).then_some(())
    })
    .await;
    // Pending doorbells are answered before it stops.
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
    // The limit applies per minute, and a slow machine may need two.
    let published = of("mallory").len();
    assert!(
        (5..=10).contains(&published),
        "{published} of mallory's 39 logins were told"
    );
}
