//! `smesh nats` with a real nats-server.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use mesh_bus::{Bus, Config};
use mesh_events::EventType::JobStarted;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, nats_server};
use tokio_util::sync::CancellationToken;

use crate::mesh::{stderr, stdout};

fn smesh(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smesh"));
    command.args(args).output().unwrap()
}

fn write_users(folder: &Path) -> Output {
    let folder = folder.to_str().unwrap();
    let config = ["nats", "config", "-M", "testbed", "-o", folder];
    let output = smesh(&[&config[..], &["--store", "/nonexistent"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

/// A mesh.toml that connects with the seed of a role.
fn configuration(folder: &Path, nats: &NatsServer, role: &str) -> String {
    let path = folder.join(format!("{role}.toml"));
    let text = format!(
        "[mesh]\ncluster = \"testbed\"\n[mesh.nats]\nurl = \"{}\"\nnkey_file = \"{role}.seed\"\n",
        nats.url()
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_get_their_rights_and_their_secrets_on_a_server_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Of a former version, with all streams in the server's default account.
    fs::write(at("users.conf"), "authorization {\n  users: []\n}\n").unwrap();
    let moving = stderr(&write_users(folder.path()));
    assert!(moving.contains("mv -T '$G' mesh"), "{moving}");
    let before = fs::read_to_string(at("ledger.seed")).unwrap();
    fs::remove_file(at("reader.seed")).unwrap();
    assert_eq!(stderr(&write_users(folder.path())), "");
    assert_eq!(fs::read_to_string(at("ledger.seed")).unwrap(), before);
    let users = fs::read_to_string(at("users.conf")).unwrap();
    assert!(!users.contains(before.trim()), "{users}");
    for name in ["users.conf", "nats.conf", "reader.seed", "hook.password"] {
        secret_file::read(&at(name)).unwrap();
    }
    let checked = Command::new(nats_server())
        .args(["-t", "-c"])
        .arg(at("nats.conf"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", stderr(&checked));

    let nats = NatsServer::start_with(&users).await;
    let provision = |role: &str| {
        let config = configuration(folder.path(), &nats, role);
        smesh(&["--config", &config, "nats", "provision", "--timeout", "5s"])
    };
    let refused = provision("ledger");
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    let done = provision("admin");
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(stdout(&done).contains("SLURM_EVENTS"), "{}", stdout(&done));
    assert!(provision("admin").status.success(), "again");

    let connect = async |role: &str| {
        let config = Config {
            url: nats.url(),
            nkey_file: Some(at(&format!("{role}.seed"))),
            provision: false,
            ..Config::default()
        };
        let bus = Bus::connect(&config, role).await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        bus
    };
    let event = job_event(JobStarted, job(1));
    connect("ingest").await.publish(&event).await.unwrap();
    assert!(connect("reader").await.publish(&event).await.is_err());
    let hook = Config {
        url: nats.url(),
        user: Some("hook".into()),
        password_file: Some(at("hook.password")),
        provision: false,
        ..Config::default()
    };
    let hook = Bus::connect(&hook, "hook").await.unwrap();
    hook.ready(&CancellationToken::new()).await.unwrap();
    hook.publish_raw(
        "mesh.testbed.hook.PrologSlurmctld".into(),
        "1",
        b"x".to_vec(),
    )
    .await
    .unwrap();
}

#[test]
fn an_unavailable_server_is_reported_in_time() {
    let folder = tempfile::tempdir().unwrap();
    write_users(folder.path());
    let config = folder.path().join("mesh.toml");
    let text = "[mesh]\ncluster = \"testbed\"\n[mesh.nats]\nurl = \"nats://127.0.0.1:1\"\nnkey_file = \"admin.seed\"\n";
    fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let unreachable = smesh(&["--config", config, "nats", "provision", "--timeout", "2s"]);
    assert_eq!(unreachable.status.code(), Some(1));
    assert!(
        stderr(&unreachable).contains("Connection refused"),
        "{}",
        stderr(&unreachable)
    );
    fs::write(folder.path().join("ledger.seed"), "nonsense").unwrap();
    let folder = folder.path().to_str().unwrap();
    let broken = smesh(&["nats", "config", "-M", "testbed", "-o", folder]);
    assert!(
        stderr(&broken).contains("ledger.seed"),
        "{}",
        stderr(&broken)
    );
}
