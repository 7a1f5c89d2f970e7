//! Configuration faults are reported once and clearly. Temporary faults are waited for.

use std::os::unix::fs::PermissionsExt as _;

use integration::{Cluster, ClusterOptions, Mesh, MeshOptions, Slurm as _, wait_for};

use crate::support::{PATIENCE, agrees, options};

/// Checks that `smesh up` ends with a message that contains these parts.
async fn refuses(cluster: &Cluster, name: &str, options: MeshOptions, parts: &[&str]) {
    let mut mesh = Mesh::set_up(cluster, name, &options).await.unwrap();
    mesh.spawn().unwrap();
    let status = wait_for("`smesh up` ends", PATIENCE, async || mesh.ended())
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}; it says {}", mesh.log()));
    assert!(
        status.code().is_some_and(|code| code != 0),
        "{name}: {status}"
    );
    let log = mesh.log();
    let errors: Vec<&str> = log
        .lines()
        .filter(|line| line.starts_with("error:"))
        .collect();
    assert_eq!(errors.len(), 1, "{name}: one message in {log}");
    for part in parts {
        assert!(
            errors[0].contains(part),
            "{name}: {part:?} in {:?}",
            errors[0]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_configuration_is_refused_and_slurm_is_waited_for() {
    let cluster = Cluster::start(&ClusterOptions::small("wrong"))
        .await
        .unwrap();
    let overlay = |text: &str| MeshOptions {
        overlay: text.to_owned(),
        ..MeshOptions::default()
    };
    let key = overlay("[ingest]\npoll_intervall = \"1s\"");
    refuses(&cluster, "key", key, &["mesh.toml", "poll_intervall"]).await;
    let key = overlay("[mesh]\nclutser = \"x\"");
    refuses(&cluster, "mesh-key", key, &["mesh.toml", "clutser"]).await;
    let url = overlay(
        "[[webhook-dispatcher.endpoints]]\nname = \"typo\"\nurl = \"htp//nowhere\"\nsecret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"",
    );
    refuses(&cluster, "url", url, &["typo", "url"]).await;
    let url = overlay("[mesh.nats]\nurl = \"nats://\"");
    refuses(&cluster, "nats-url", url, &["nats://"]).await;
    let book = MeshOptions {
        price_book: Some(
            "name = \"x\"\nversion = \"1\"\ncurrency = \"EUR\"\nmode = \"cheap\"\n".into(),
        ),
        ..MeshOptions::default()
    };
    refuses(&cluster, "book", book, &["price-book.toml", "mode"]).await;
    port_in_use(&cluster).await;
    without_slurm(&cluster).await;
}

async fn port_in_use(cluster: &Cluster) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let token = cluster.path("token");
    std::fs::write(&token, "a-token-of-enough-characters").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let listen = MeshOptions {
        overlay: format!("[mesh.api]\nlisten = \"{address}\"\ntoken_file = {token:?}"),
        ..MeshOptions::default()
    };
    let port = address.port().to_string();
    refuses(cluster, "port", listen, &["mesh.api.listen", &port]).await;
}

/// Slurm may recover, so the mesh retries and reports what it waits for.
async fn without_slurm(cluster: &Cluster) {
    let mut mesh = Mesh::set_up(cluster, "mesh", &options("")).await.unwrap();
    for daemon in ["slurmctld", "munge"] {
        cluster.control("stop", daemon).await.unwrap();
        mesh.spawn().unwrap();
        // Conditions reported by all services so far.
        wait_for("it says what it waits for", PATIENCE, async || {
            let log_text = mesh.log_text();
            Ok(
                (log_text.contains("not ready yet") && log_text.contains("slurmctld"))
                    .then_some(()),
            )
        })
        .await
        .unwrap_or_else(|error| panic!("without {daemon}: {error}; {}", mesh.log()));
        assert!(
            mesh.ended().unwrap().is_none(),
            "it keeps trying without {daemon}"
        );
        for (path, status) in [("/readyz", 503), ("/livez", 200)] {
            wait_for(path, PATIENCE, async || {
                let answer = mesh.get(path).await;
                Ok(answer
                    .is_ok_and(|answer| answer.status == status)
                    .then_some(()))
            })
            .await
            .unwrap();
        }
        cluster.control("start", daemon).await.unwrap();
        wait_for("it is ready once Slurm is there", PATIENCE, async || {
            Ok(mesh.is_ready().await.then_some(()))
        })
        .await
        .unwrap_or_else(|error| panic!("with {daemon} back: {error}; {}", mesh.log()));
        if daemon == "slurmctld" {
            assert!(mesh.stop().await.unwrap().success());
            std::fs::remove_file(mesh.config().with_file_name("up.out")).unwrap();
        }
    }
    let job = cluster.submit("alice", &[], "true").await.unwrap();
    agrees(cluster, &mesh, &[job]).await;
}
