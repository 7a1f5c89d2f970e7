//! Another Unix user of the same host sees only their own data.

use std::path::Path;
use std::process::{Command, Output};

use mesh_bus::Bus;
use mesh_events::{Event, EventType};
use mesh_testkit::{copy_program, fixtures};
use tokio_util::sync::CancellationToken;

use crate::mesh::{Mesh, stderr, stdout};

/// Runs a program as an unprivileged user.
pub fn as_other(program: &Path, args: &[&str]) -> Output {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test becomes another user: run it as root"
    );
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(program)
        .args(args)
        .current_dir("/")
        .output()
        .unwrap()
}

/// A mesh whose ledger holds an event of alice, and a `smesh` that other users may execute.
pub async fn with_an_event_of_alice(configure: impl FnOnce(&Mesh)) -> Mesh {
    let mut mesh = Mesh::init();
    configure(&mesh);
    mesh.start();
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(7));
    publish(&mesh, &event).await;
    mesh.wait_until("alice's event is in the ledger", || {
        stdout(&mesh.run(&["events", "--job", "7"])).contains("job.started")
    });
    copy_program(Path::new(env!("CARGO_BIN_EXE_smesh")), &mesh.path("smesh"));
    mesh
}

/// Publishes an event as ingest does.
pub async fn publish(mesh: &Mesh, event: &Event) {
    let bus = bus(mesh, "ingest").await;
    bus.publish_until_done(event, &CancellationToken::new())
        .await
        .unwrap();
}

/// Connects to the mesh's nats-server as a role.
pub async fn bus(mesh: &Mesh, role: &str) -> Bus {
    let port = std::fs::read_to_string(mesh.path("data/private/nats.port")).unwrap();
    let passwords = mesh.path("data/private/nats-passwords");
    let config = mesh_bus::Config {
        url: format!("nats://127.0.0.1:{}", port.trim()),
        user: Some(role.into()),
        password_file: Some(passwords.join(role)),
        provision: false,
        ..mesh_bus::Config::default()
    };
    Bus::connect(&config, role).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn others_jobs_do_not_exist_for_them() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let (smesh, socket) = (mesh.path("smesh"), mesh.path("data/api.sock"));
    let socket = socket.to_str().unwrap();
    let events = as_other(&smesh, &["--socket", socket, "events"]);
    assert!(
        events.status.success() && events.stdout.is_empty(),
        "{events:?}"
    );
    let job = as_other(&smesh, &["--socket", socket, "-M", "testbed", "job", "7"]);
    assert!(
        !job.status.success() && stderr(&job).contains("you may not see it"),
        "{job:?}"
    );
    let asked = as_other(&smesh, &["--socket", socket, "events", "--user", "alice"]);
    assert_eq!(asked.status.code(), Some(77), "{asked:?}");
    let webhooks = |args: &[&str]| {
        let args = [&["--socket", socket, "webhooks"], args].concat();
        let output = as_other(&smesh, &args);
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    assert!(webhooks(&["list"]).contains("no endpoints"));
    let made = webhooks(&[
        "add",
        "mine",
        "https://example.org/x?token=hunter2",
        "--type",
        "job.*",
    ]);
    assert!(
        made.contains("whsec_") && !made.contains("hunter2"),
        "{made}"
    );
    let changed = webhooks(&[
        "edit",
        "mine",
        "--set",
        "timeout=5s",
        "--description",
        "the next step",
    ]);
    assert!(changed.contains("the next step"), "{changed}");
    assert!(webhooks(&["pause", "mine", "--reason", "later"]).contains("paused"));
    assert!(webhooks(&["resume", "mine"]).contains("active"));
    assert!(webhooks(&["rotate", "mine", "--overlap", "1h"]).contains("whsec_"));
    let tried = webhooks(&["test", "mine", "--dry-run"]);
    assert!(tried.contains("org.slurm-mesh.job.completed.v1"), "{tried}");
    let rendered = webhooks(&["preview", "mine", "--type", "job.timeout"]);
    assert!(
        rendered.contains("org.slurm-mesh.job.timeout.v1"),
        "{rendered}"
    );
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("body.json");
    let preview = |body: &str| {
        std::fs::write(&template, body).unwrap();
        mesh.run(&[
            "webhooks",
            "preview",
            "--template",
            template.to_str().unwrap(),
        ])
    };
    let made = preview("{\"job\": {{ job.name }},\n\t\"code\": {{ job.exit_code }}}\n");
    assert_eq!(stdout(&made), "{\"job\": \"train\",\n\t\"code\": 1}\n");
    let wrong = preview("{\n  \"job\": {{ job.nam }}}");
    assert!(
        wrong.status.code() == Some(1) && stderr(&wrong).contains("line 2, column "),
        "{wrong:?}"
    );
    let seen = mesh.run(&["webhooks", "show", "nobody/mine"]);
    assert!(stdout(&seen).contains("users"), "{seen:?}");
    assert!(!stdout(&seen).contains("whsec_"), "{seen:?}");
    assert!(webhooks(&["deliveries", "mine", "--state", "waiting"]).contains("no such"));
    assert!(webhooks(&["dead", "mine", "--since", "7days"]).contains("no such"));
    assert!(webhooks(&["redeliver", "mine"]).contains("no redeliveries"));
    assert!(webhooks(&["redeliver", "mine", "--all"]).contains("is running"));
    assert!(webhooks(&["redeliver", "mine"]).contains("{\"all\":true}"));
    webhooks(&["remove", "mine"]);
    let refused = as_other(
        &smesh,
        &[
            "--socket",
            socket,
            "webhooks",
            "add",
            "y",
            "https://10.0.0.1/",
        ],
    );
    assert!(
        !refused.status.success() && stderr(&refused).contains("url: 10.0.0.1 may not be reached"),
        "{refused:?}"
    );
    assert!(mesh.run(&["job", "7"]).status.success(), "root sees it");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_private_can_be_read_by_them() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    for file in [
        "data",
        "data/private/nats.conf",
        "data/private/nats-passwords/hook",
        "data/ledger.db",
        "data/webhook-dispatcher.db",
        "data/webhook-dispatcher.key",
        "data/cost-engine.db",
    ] {
        let path = mesh.path(file);
        assert!(path.exists(), "{file}");
        let read = as_other(Path::new("/bin/cat"), &[path.to_str().unwrap()]);
        let listed = as_other(Path::new("/bin/ls"), &[path.to_str().unwrap()]);
        assert!(!read.status.success(), "{file}");
        assert!(!path.is_dir() || !listed.status.success(), "{file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nats_server_refuses_clients_without_credentials() {
    let mesh = with_an_event_of_alice(|_| {}).await;
    let port: u16 = std::fs::read_to_string(mesh.path("data/private/nats.port"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    for (user, password) in [(None, ""), (Some("hook"), "guess"), (Some("admin"), "")] {
        let login = user.map(|user| (user, password));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let outcome =
            mesh_hook::nats::Connection::open(([127, 0, 0, 1], port).into(), login, None, deadline)
                .and_then(|mut connection| {
                    connection.publish(&[mesh_hook::nats::Outgoing {
                        subject: "mesh.testbed.hook.x",
                        id: "1",
                        body: b"",
                    }])
                });
        assert!(
            matches!(outcome, Err(mesh_hook::nats::Error::Refused(_))),
            "{user:?}: {outcome:?}"
        );
    }
}
