//! `smesh replay`: the output for a user, with the services' permissions on NATS as `smesh up` grants them.

use mesh_events::EventType;
use mesh_testkit::{ReceivedRequest, WebhookReceiver, fixtures};
use serde_json::Value;

use crate::mesh::{TIMEOUT, stderr, stdout};
use crate::others::{as_other, publish, with_an_event_of_alice};

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_is_begun_waited_for_and_in_the_audit() {
    let receiver = WebhookReceiver::start().await;
    let endpoint = format!(
        "\n[[webhook-dispatcher.endpoints]]\nname = \"pipeline\"\nurl = \"{}\"\nallow_http = true\nallow_private = [\"127.0.0.0/8\"]\n\
         secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"\ntypes = [\"job.started\"]\n",
        receiver.url("/hook")
    );
    let mesh = with_an_event_of_alice(|mesh| {
        let path = mesh.path("mesh.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        mesh_testkit::write_private(&path, text + &endpoint);
    })
    .await;
    let json = |args: &[&str]| -> Value {
        let output = mesh.run(&[&["--json"], args].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let start = ["replay", "start", "--type", "job.started", "--job", "7"];
    let done = json(&[&start[..], &["--wait", "--key", "k"]].concat());
    assert_eq!((&done["state"], &done["sent"]), (&"done".into(), &1.into()));
    let repeated = json(&[&start[..], &["--key", "k"]].concat());
    assert_eq!(repeated["id"], done["id"]);
    let id = done["id"].as_str().unwrap();

    let listed = stdout(&mesh.run(&["replay", "list", "--state", "done"]));
    assert!(listed.contains(id) && listed.contains("100%"), "{listed}");
    let final_status = stdout(&mesh.run(&["replay", "show", id, "--wait"]));
    assert!(
        final_status.contains("1 events, up to entry"),
        "{final_status}"
    );
    let ended = mesh.run(&["replay", "cancel", id]);
    assert!(stderr(&ended).contains("it has already ended: done"));
    let absent = mesh.run(&["replay", "start", "--to-endpoint", "absent"]);
    assert!(
        stderr(&absent).contains("no webhook endpoint \"absent\""),
        "{}",
        stderr(&absent)
    );
    let wrong = mesh.run(&["replay", "start", "--type", "audit.read"]);
    assert!(stderr(&wrong).contains("is not replayed"), "{wrong:?}");

    // To an endpoint that received the event when it happened.
    let message = json(&["replay", "start", "--to-endpoint", "pipeline", "--wait"]);
    let replay = message["id"].as_str().unwrap();
    let repeated = |request: &&ReceivedRequest| {
        let header = request.headers.get("webhook-replay");
        header.is_some_and(|id| id == replay)
    };
    mesh_testkit::wait_until("the endpoint is told again", TIMEOUT, async || {
        receiver.received().iter().any(|request| repeated(&request))
    })
    .await;
    let requests = receiver.received();
    let request = requests.iter().find(repeated).unwrap();
    assert_eq!(request.json()["type"], "org.slurm-mesh.job.started.v1");
    assert_eq!(request.json()["replayid"], replay);

    mesh_testkit::wait_until("it is in the audit", TIMEOUT, async || {
        let audit = mesh.run(&["events", "--type", "audit.replay", "--json"]);
        stdout(&audit)
            .lines()
            .filter(|line| line.contains(id))
            .count()
            == 2
    })
    .await;

    // Another user sees neither the replay nor the events.
    let socket = mesh.path("data/api.sock");
    let other = |args: &[&str]| {
        let socket = ["--socket", socket.to_str().unwrap()];
        let output = as_other(&mesh.path("smesh"), &[&socket, args].concat());
        (stdout(&output), stderr(&output))
    };
    assert!(
        other(&["replay", "show", id])
            .1
            .contains("or you may not see it")
    );
    let (own, problem) = other(&["replay", "start", "--wait", "--json"]);
    let own: Value = serde_json::from_str(&own).unwrap_or_else(|_| panic!("{problem}"));
    assert_eq!((&own["state"], &own["sent"]), (&"done".into(), &0.into()));
    for endpoint in ["absent", "pipeline"] {
        let (_, refused) = other(&["replay", "start", "--to-endpoint", endpoint]);
        let expected = format!("no webhook endpoint \"{endpoint}\", or you may not use it");
        assert!(refused.contains(&expected), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_receives_own_events_at_an_own_endpoint() {
    let receiver = WebhookReceiver::start().await;
    let mesh = with_an_event_of_alice(|mesh| {
        let path = mesh.path("mesh.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let allow = "[webhook-dispatcher]\nallow_http = true\nallow_subnets = [\"127.0.0.0/8\"]\n";
        let text = match text.contains("[webhook-dispatcher]\n") {
            true => text.replacen("[webhook-dispatcher]\n", allow, 1),
            false => text + "\n" + allow,
        };
        std::fs::write(&path, text).unwrap();
    })
    .await;
    let mut own = fixtures::job_event(EventType::JobStarted, fixtures::job(8));
    own.owner.as_mut().unwrap().user = "nobody".into();
    publish(&mesh, &own).await;
    mesh.wait_until("nobody's event is in the ledger", || {
        stdout(&mesh.run(&["events", "--job", "8"])).contains("job.started")
    });

    let socket = mesh.path("data/api.sock");
    let unprivileged = |args: &[&str]| {
        let socket = ["--socket", socket.to_str().unwrap()];
        let output = as_other(&mesh.path("smesh"), &[&socket, args].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    let address = receiver.url("/mine");
    unprivileged(&["webhooks", "add", "mine", &address, "--type", "job.started"]);
    let start = [
        "--json",
        "replay",
        "start",
        "--wait",
        "--to-endpoint",
        "mine",
    ];
    let done = unprivileged(&[&start[..], &["--type", "job.started"]].concat());
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["state"], &done["sent"]), (&"done".into(), &1.into()));
    mesh_testkit::wait_until("their endpoint is told", TIMEOUT, async || {
        !receiver.received().is_empty()
    })
    .await;
    // An administrator may see more, but the replay sends only what the endpoint's filter accepts.
    let start = start.map(|argument| {
        if argument == "mine" {
            "nobody/mine"
        } else {
            argument
        }
    });
    let all: Value = serde_json::from_str(&stdout(&mesh.run(&start))).unwrap();
    assert!(all["sent"].as_u64().unwrap() >= 2, "{all}");
    mesh_testkit::wait_until("it is told again", TIMEOUT, async || {
        receiver.received().len() == 2
    })
    .await;
    let message = receiver.received();
    let replays = message
        .iter()
        .map(|request| request.header("webhook-replay"));
    assert_eq!(
        replays.collect::<Vec<_>>(),
        [&done, &all].map(|replay| replay["id"].as_str().unwrap())
    );
    let owner = |request: &ReceivedRequest| request.json()["data"]["owner"]["user"].clone();
    assert!(message.iter().all(|request| owner(request) == "nobody"));

    unprivileged(&["webhooks", "remove", "mine"]);
    mesh_testkit::wait_until("it is not there any more", TIMEOUT, async || {
        let missing = mesh.run(&["replay", "start", "--to-endpoint", "nobody/mine"]);
        stderr(&missing).contains("no webhook endpoint \"nobody/mine\"")
    })
    .await;
}
