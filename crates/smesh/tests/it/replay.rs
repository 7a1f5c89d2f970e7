//! `smesh replay`: what a person sees of a replay, with the rights of the services on NATS as `smesh up` gives them.

use serde_json::Value;

use crate::mesh::{SOON, stderr, stdout};
use crate::others::{as_other, with_an_event_of_alice};

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_begun_waited_for_and_in_the_audit() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let json = |args: &[&str]| -> Value {
        let output = mesh.run(&[&["--json"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let start = ["replay", "start", "--type", "job.started", "--job", "7"];
    let done = json(&[&start[..], &["--wait", "--key", "k"]].concat());
    assert_eq!((&done["state"], &done["sent"]), (&"done".into(), &1.into()));
    let again = json(&[&start[..], &["--key", "k"]].concat());
    assert_eq!(again["id"], done["id"]);
    let id = done["id"].as_str().unwrap();

    let listed = stdout(&mesh.run(&["replay", "list", "--state", "done"]));
    assert!(listed.contains(id) && listed.contains("100%"), "{listed}");
    let shown = stdout(&mesh.run(&["replay", "show", id, "--wait"]));
    assert!(shown.contains("1 events, up to entry"), "{shown}");
    let ended = mesh.run(&["replay", "cancel", id]);
    assert!(stderr(&ended).contains("it has ended already: done"));
    let absent = mesh.run(&["replay", "start", "--to-endpoint", "absent"]);
    assert!(
        stderr(&absent).contains("there is no webhook endpoint absent"),
        "{}",
        stderr(&absent)
    );
    let wrong = mesh.run(&["replay", "start", "--type", "audit.read"]);
    assert!(stderr(&wrong).contains("is not replayed"), "{wrong:?}");

    mesh_testkit::wait_until("it is in the audit", SOON, async || {
        let audit = mesh.run(&["events", "--type", "audit.replay", "--json"]);
        stdout(&audit)
            .lines()
            .filter(|line| line.contains(id))
            .count()
            == 2
    })
    .await;

    // Another sees neither the replay nor the events.
    let socket = mesh.path("data/api.sock");
    let other = |args: &[&str]| {
        let socket = ["--socket", socket.to_str().unwrap()];
        let output = as_other(&mesh.path("smesh"), &[&socket, args].concat());
        (stdout(&output), stderr(&output))
    };
    assert!(
        other(&["replay", "show", id])
            .1
            .contains("or it is not yours")
    );
    let (own, problem) = other(&["replay", "start", "--wait", "--json"]);
    let own: Value = serde_json::from_str(&own).unwrap_or_else(|_| panic!("{problem}"));
    assert_eq!((&own["state"], &own["sent"]), (&"done".into(), &0.into()));
    let (_, refused) = other(&["replay", "start", "--to-endpoint", "absent"]);
    assert!(refused.contains("only administrators"), "{refused}");
}
