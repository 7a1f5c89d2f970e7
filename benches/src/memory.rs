//! Memory of `smesh up` (all six services in one process) and of its nats-server.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use integration::{Cluster, ClusterOptions, Mesh, MeshOptions};
use mesh_bus::Bus;
use mesh_testkit::fixtures;

use crate::Arguments;
use crate::load::{Receiver, deliver};
use crate::process::Memory;
use crate::report::{Line, Section};

/// First port of the Slurm cluster it watches.
/// Pause after the start, before "idle" is measured.
const SETTLE: Duration = Duration::from_secs(15);

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let receiver = Receiver::start().await?;
    let cluster = Cluster::start(&ClusterOptions {
        hooks: false,
        ..ClusterOptions::small(fixtures::CLUSTER)
    })
    .await?;
    let mut mesh = Mesh::set_up(
        &cluster,
        "mesh",
        &MeshOptions {
            overlay: receiver.endpoint(),
            ..MeshOptions::default()
        },
    )
    .await?;
    mesh.start().await?;
    let data = mesh.data_dir();
    let bus = bus(&data).await?;
    tokio::time::sleep(SETTLE).await;
    let (smesh, nats) = (mesh.pid().context("smesh up runs")?, nats_pid(&data)?);
    let (idle, nats_idle) = (Memory::of(smesh)?, Memory::of(nats)?);
    let through = deliver(&bus, &receiver, 0, arguments.rate, arguments.seconds).await?;
    let (loaded, nats_loaded) = (Memory::of(smesh)?, Memory::of(nats)?);
    bus.close().await;
    mesh.stop().await?;
    through.check()?;

    Ok(Section {
        title: "smesh up, all six services",
        lines: vec![
            Line::value("resident, idle", "MiB", idle.resident)
                .budget("≤ 6 × 30 MiB", idle.resident <= 180.0),
            Line::value("resident, after the load", "MiB", loaded.resident),
            Line::value("most during the load", "MiB", loaded.peak).budget_if(
                arguments.rate >= 5_000,
                "≤ 6 × 100 MiB at 5,000/s",
                loaded.peak <= 600.0,
            ),
            Line::value("its nats-server, idle", "MiB", nats_idle.resident),
            Line::value(
                "its nats-server, after the load",
                "MiB",
                nats_loaded.resident,
            ),
            Line::value("its nats-server, most", "MiB", nats_loaded.peak),
            Line::times("publish → on disk in JetStream", &through.stored),
            Line::times("publish → signed POST received", &through.received),
        ],
        notes: vec![format!(
            "{} job starts at {}/s, each recorded by the ledger, priced, and delivered; {} lost, {} twice; a small real Slurm is polled at the same time",
            through.events, arguments.rate, through.lost, through.twice
        )],
    })
}

/// A connection to its nats-server, with the generated credentials.
async fn bus(data: &Path) -> anyhow::Result<Bus> {
    let private = |name: &str| {
        let path = data.join("private").join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        anyhow::Ok(text.trim().to_owned())
    };
    let config = mesh_bus::Config {
        url: format!("nats://127.0.0.1:{}", private("nats.port")?),
        user: Some("admin".into()),
        password: Some(private("nats-passwords/admin")?.into()),
        provision: false,
        ..mesh_bus::Config::default()
    };
    Ok(Bus::connect(&config, "admin").await?)
}

fn nats_pid(data: &Path) -> anyhow::Result<u32> {
    Ok(std::fs::read_to_string(data.join("private/nats.pid"))?
        .trim()
        .parse()?)
}
