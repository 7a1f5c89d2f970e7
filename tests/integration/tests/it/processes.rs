//! The services as separate processes around one nats-server, as run by a site's process manager.

use std::time::Duration;

use integration::{Cluster, ClusterOptions, Mesh, MeshOptions, Programs, Service};
use mesh_testkit::NatsServer;

/// Time limit of all operations.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Starts a service with a clean environment.
pub async fn start(mesh: &Mesh, name: &'static str) -> Service {
    Service::start(mesh, name, &[]).await.unwrap()
}

/// Stops it with SIGTERM: in time and with status 0.
pub async fn terminate(service: Service) {
    let (name, started) = (service.name, std::time::Instant::now());
    let status = service.terminate().await.unwrap();
    assert!(status.success(), "{name} ended with {status}");
    // `drain_deadline` is 10 s.
    assert!(started.elapsed() < Duration::from_secs(60), "{name}");
}

/// A mesh of processes: `mesh.toml` for its own nats-server. Does not start them.
pub async fn configure(cluster: &Cluster, nats: &NatsServer, more: &str) -> Mesh {
    let overlay = format!("[mesh.nats]\nurl = \"{}\"\n{more}", nats.url());
    Mesh::set_up(
        cluster,
        "mesh",
        &MeshOptions {
            overlay,
            ..MeshOptions::default()
        },
    )
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_service_runs_alone_waits_for_nats_and_drains() {
    let options = ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("alone")
    };
    let cluster = Cluster::start(&options).await.unwrap();
    let mut nats = NatsServer::start().await;
    let mesh = configure(&cluster, &nats, "").await;
    nats.kill();

    let mut processes = Vec::new();
    for name in Programs::SERVICES {
        processes.push(start(&mesh, name).await);
    }
    for process in &mut processes {
        let problems = process.wait_ready(503).await.unwrap();
        assert!(
            problems.contains(&format!("{}.nats", process.name)),
            "{}: {problems}",
            process.name
        );
        assert_eq!(process.get("/livez").await.status, 200, "{}", process.name);
    }
    nats.restart().await;
    for process in &mut processes {
        process.wait_ready(200).await.unwrap();
        let metrics = process.get("/metrics").await;
        assert_eq!(metrics.status, 200, "{}", process.name);
        assert!(
            metrics.body.contains("# TYPE"),
            "{}: {}",
            process.name,
            metrics.body
        );
    }
    for process in processes {
        terminate(process).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_never_reached_nats_stops_at_once() {
    let cluster = Cluster::start(&ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("alone2")
    })
    .await
    .unwrap();
    let mut nats = NatsServer::start().await;
    let mesh = configure(&cluster, &nats, "").await;
    nats.kill();
    for name in Programs::SERVICES {
        let mut process = start(&mesh, name).await;
        process.wait_ready(503).await.unwrap();
        terminate(process).await;
    }
}
