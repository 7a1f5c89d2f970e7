//! Load of the mesh on slurmctld: CPU time and RPCs (`sdiag`), for the same small workload with and without `smesh up`.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use integration::{Cluster, ClusterOptions, Mesh, MeshOptions, Slurm as _};
use mesh_testkit::fixtures;

use crate::Arguments;
use crate::process::cpu_time;
use crate::report::{Line, Section};

/// First port of the Slurm cluster.
/// Duration of the workload of one job per second.
const WINDOW: Duration = Duration::from_secs(30);
/// Pause between the start of the mesh and the measurement, because the initial reads are not steady load.
const SETTLE: Duration = Duration::from_secs(15);

pub async fn measure(_: &Arguments) -> anyhow::Result<Section> {
    let cluster = Cluster::start(&ClusterOptions::small(fixtures::CLUSTER)).await?;
    let mut mesh = Mesh::set_up(&cluster, "mesh", &MeshOptions::default()).await?;
    // The hooks have no configuration yet. The first window is a warm-up.
    window(&cluster).await?;
    let without = window(&cluster).await?;
    cluster.ring(&mesh.hook_config())?;
    mesh.start().await?;
    tokio::time::sleep(SETTLE).await;
    let with = window(&cluster).await?;
    mesh.stop().await?;
    Ok(Section {
        title: "slurmctld, asked by the mesh",
        lines: vec![
            Line::value("CPU without the mesh", "ms/min", without.cpu),
            Line::value("CPU with smesh up and hooks", "ms/min", with.cpu)
                .against(without.cpu, "without"),
            Line::value("RPCs without the mesh", "RPCs/min", without.rpcs),
            Line::value("RPCs with smesh up and hooks", "RPCs/min", with.rpcs)
                .against(without.rpcs, "without"),
        ],
        notes: vec![format!(
            "one job of `true` per second for {} s, two nodes; repeated with the mesh; CPU of slurmctld without its hooks",
            WINDOW.as_secs()
        )],
    })
}

/// Activity of slurmctld, per minute.
struct Load {
    cpu: f64,
    rpcs: f64,
}

/// Runs the workload once.
async fn window(cluster: &Cluster) -> anyhow::Result<Load> {
    let pid = std::fs::read_to_string(cluster.dir().join("run/slurmctld.pid"))?;
    let pid: u32 = pid.trim().parse()?;
    cluster.ask("root", &["sdiag", "--reset"]).await?;
    let (began, cpu) = (Instant::now(), cpu_time(pid)?);
    let mut jobs = Duration::ZERO;
    while jobs < WINDOW {
        cluster.submit("alice", &["--mem=10"], "true").await?;
        jobs += Duration::from_secs(1);
        tokio::time::sleep((began + jobs).saturating_duration_since(Instant::now())).await;
    }
    let cpu = cpu_time(pid)?.saturating_sub(cpu);
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let printed = cluster.ask("root", &["sdiag"]).await?;
    Ok(Load {
        cpu: cpu.as_secs_f64() * 1_000.0 / minutes,
        rpcs: f64::from(rpcs(&printed).context("sdiag counts RPCs by type")?) / minutes,
    })
}

/// Sum of all RPCs in `sdiag`'s table by type, whose lines contain `count:`.
pub fn rpcs(printed: &str) -> Option<u32> {
    let (_, table) = printed.split_once("Remote Procedure Call statistics by message type")?;
    let (table, _) = table.split_once("Remote Procedure Call statistics by user")?;
    let counts = table.lines().filter_map(|line| {
        let (_, rest) = line.split_once("count:")?;
        rest.split_ascii_whitespace().next()?.parse::<u32>().ok()
    });
    Some(counts.sum())
}
