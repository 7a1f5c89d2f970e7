//! `smesh doctor --service`: services as processes, each at an address of its own, as the pod of `helm test` asks them.

use std::process::Output;

use integration::{Cluster, ClusterOptions, Mesh, Programs, Service, wait_for};
use mesh_testkit::{NatsServer, Port, write_private};

use crate::processes::{PATIENCE, configure, terminate};

/// Runs the doctor with a token. Returns its exit status and what it prints.
async fn doctor(mesh: &Mesh, addresses: &[String], token: &str, more: &[&str]) -> (i32, String) {
    let token = mesh.config().with_file_name(token);
    let mut arguments = vec!["doctor", "--token-file", token.to_str().unwrap()];
    arguments.extend(addresses.iter().map(String::as_str));
    arguments.extend(more);
    let Output {
        status,
        stdout,
        stderr,
    } = mesh.smesh(&arguments).await.unwrap();
    let printed = [stdout, stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    (status.code().unwrap(), printed)
}

/// The line about a subject that has this text.
fn line<'a>(printed: &'a str, subject: &str, text: &str) -> &'a str {
    let mut lines = printed.lines();
    lines
        .find(|line| line.contains(&format!("  {subject} ")) && line.contains(text))
        .unwrap_or_else(|| panic!("{subject}: {text}: {printed}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_checked_at_their_addresses() {
    let options = ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("doctor")
    };
    let cluster = Cluster::start(&options).await.unwrap();
    let mut nats = NatsServer::start().await;
    let mesh = configure(&cluster, &nats, "").await;
    let token = mesh.config().with_file_name("api.token");
    write_private(&token, "the token of an administrator");
    write_private(&mesh.config().with_file_name("other.token"), "another");

    let (mut processes, mut ports, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    for name in Programs::SERVICES {
        let port = Port::take();
        let listen = port.address().to_string();
        addresses.push(format!("--service={name}=http://{listen}"));
        let environment = [
            ("MESH_MESH__API__LISTEN", listen.into()),
            ("MESH_MESH__API__TOKEN_FILE", token.clone().into()),
        ];
        let service = Service::start(&mesh, name, &environment).await;
        processes.push(service.unwrap());
        ports.push(port);
    }
    for process in &mut processes {
        process.wait_ready(200).await.unwrap();
    }

    let (status, printed) = doctor(&mesh, &addresses, "api.token", &[]).await;
    assert_eq!(status, 0, "{printed}");
    for name in Programs::SERVICES {
        line(&printed, name, "ready at http://127.0.0.1:");
    }
    line(&printed, "streams", "streams and buckets store");
    line(&printed, "ledger", "entries");
    // Slurm's commands and hooks are on other hosts.
    for (subject, text) in [
        ("slurm", "names no slurmrestd"),
        ("hooks", "on Slurm's hosts"),
        ("services", "no --service for exporter, workflow-trigger"),
    ] {
        assert!(
            line(&printed, subject, text).starts_with("skip"),
            "{printed}"
        );
    }
    let (status, printed) = doctor(&mesh, &addresses, "api.token", &["--json"]).await;
    assert_eq!(status, 0, "{printed}");
    let findings: Vec<serde_json::Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let grade = |check: &str| {
        let finding = findings.iter().find(|finding| finding["check"] == check);
        finding.unwrap_or_else(|| panic!("{check}: {printed}"))["grade"].clone()
    };
    assert_eq!(
        [grade("node-watcher"), grade("hooks")],
        ["good", "skipped"],
        "{printed}"
    );

    // Readiness needs no token, its reasons do.
    let (status, printed) = doctor(&mesh, &addresses, "other.token", &[]).await;
    assert_eq!(status, 0, "{printed}");
    line(&printed, "ingest", "does not take the token");

    let stopped = processes.iter().position(|one| one.name == "cost-engine");
    terminate(processes.remove(stopped.unwrap())).await;
    let (status, printed) = doctor(&mesh, &addresses, "api.token", &[]).await;
    assert_eq!(status, 1, "{printed}");
    let down = line(&printed, "cost-engine", "does not answer at http://");
    assert!(down.contains("Connection refused"), "{down}");
    assert!(printed.contains("1 problem must be fixed"), "{printed}");

    nats.kill();
    let printed = wait_for("the doctor names NATS", PATIENCE, async || {
        let (status, printed) = doctor(&mesh, &addresses, "api.token", &[]).await;
        assert_eq!(status, 1, "{printed}");
        Ok(printed
            .contains("not ready: ledger.nats: ")
            .then_some(printed))
    });
    let printed = printed.await.unwrap();
    assert!(
        line(&printed, "ledger", "not ready").starts_with("FIX"),
        "{printed}"
    );
    for process in processes {
        terminate(process).await;
    }
}
