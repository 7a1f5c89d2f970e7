//! What `smesh up` holds: all six services in one process, and the nats-server it started.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use mesh_bus::Bus;
use mesh_testkit::build;

use crate::Arguments;
use crate::load::{Receiver, deliver};
use crate::process::{Memory, Running, program, wait_until};
use crate::report::{Line, Section};

/// After the start, before "idle" is read.
const SETTLE: Duration = Duration::from_secs(5);

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let receiver = Receiver::start().await?;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let config = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = \"{}\"\ndata_dir = {data:?}\n[slurm]\nconf = {:?}\n{}",
        build::CLUSTER,
        folder.path().join("no-slurm-here.conf"),
        receiver.endpoint()
    );
    std::fs::write(&config, text)?;
    let mut smesh = Running::start(
        Command::new(program("smesh")?)
            .arg("--config")
            .arg(&config)
            .arg("up"),
        &folder.path().join("log"),
    )?;
    let socket = data.join("api.sock");
    wait_until("smesh up", Duration::from_secs(60), async || {
        smesh.check()?;
        Ok(socket.exists())
    })
    .await?;
    let bus = bus(&data).await?;
    wait_until(
        "the webhook's consumer",
        Duration::from_secs(60),
        async || {
            smesh.check()?;
            Ok(bus.connected()
                && !bus
                    .endpoint_consumers()
                    .await
                    .unwrap_or_default()
                    .is_empty())
        },
    )
    .await?;
    tokio::time::sleep(SETTLE).await;
    let nats = nats_pid(&data)?;
    let (idle, nats_idle) = (Memory::of(smesh.pid())?, Memory::of(nats)?);
    let through = deliver(&bus, &receiver, 0, arguments.rate, arguments.seconds).await?;
    let (loaded, nats_loaded) = (Memory::of(smesh.pid())?, Memory::of(nats)?);
    bus.close().await;
    smesh.stop()?;
    through.check()?;

    Ok(Section {
        title: "smesh up, all six services",
        lines: vec![
            Line::value("resident, idle", "MiB", idle.resident)
                .budget("≤ 6 × 30 MiB", idle.resident <= 180.0),
            Line::value("resident, after the load", "MiB", loaded.resident),
            Line::value("most during the load", "MiB", loaded.peak)
                .budget("≤ 6 × 100 MiB", loaded.peak <= 600.0),
            Line::value("its nats-server, idle", "MiB", nats_idle.resident),
            Line::value(
                "its nats-server, after the load",
                "MiB",
                nats_loaded.resident,
            ),
            Line::value("its nats-server, most", "MiB", nats_loaded.peak),
            Line::times("publish → signed POST received", &through.received),
        ],
        notes: vec![format!(
            "{} job starts at {}/s, each kept by the ledger, priced, and delivered; {} lost, {} twice; no Slurm attached",
            through.events, arguments.rate, through.lost, through.twice
        )],
    })
}

/// A connection to its nats-server, with the credentials it made.
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
