//! A thousand pollers of `squeue` against one slurmctld, with `smesh squeue` and with squeue itself.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use integration::{Cluster, ClusterOptions, Mesh, MeshOptions, Slurm as _};
use mesh_testkit::fixtures;
use tokio::process::Command;

use crate::Arguments;
use crate::controller::rpcs;
use crate::process::{cpu_time, wait_until};
use crate::report::{Line, Section};
use crate::stats::Sorted;

/// First port of the Slurm cluster.
/// Pause of a poller between two polls: Nextflow's.
const PAUSE: Duration = Duration::from_secs(60);
/// Nextflow's poll.
const POLL: [&str; 8] = [
    "--noheader",
    "-o",
    "%i %t",
    "-t",
    "all",
    "-u",
    "alice",
    "--all",
];
/// Waiting jobs, beside those that run.
const JOBS: u32 = 500;

pub async fn measure(arguments: &Arguments) -> anyhow::Result<Section> {
    let cluster = Cluster::start(&ClusterOptions::small(fixtures::CLUSTER)).await?;
    let options = MeshOptions {
        overlay: "[ingest]\nlist_interval = \"10s\"\n".to_owned(),
        ..MeshOptions::default()
    };
    let mut mesh = Mesh::set_up(&cluster, "mesh", &options).await?;
    for _ in 0..JOBS {
        cluster
            .submit("alice", &["--mem=10", "-t60", "--hold"], "true")
            .await?;
    }
    mesh.start().await?;
    let ours = || {
        let mut command = mesh.command();
        command.arg("squeue").args(POLL);
        command
    };
    let theirs = || cluster.command("root", &[&["squeue"], &POLL[..]].concat());
    wait_until("both print the same", Duration::from_secs(60), async || {
        let (own, squeue) = (ours().output().await?, theirs().output().await?);
        Ok(own.status.success() && own.stdout == squeue.stdout)
    })
    .await?;

    let up = mesh.pid().context("smesh up runs")?;
    let idle = window(&cluster, up, 0, theirs).await?;
    let with = window(&cluster, up, arguments.pollers, ours).await?;
    let without = window(&cluster, up, arguments.pollers, theirs).await?;
    mesh.stop().await?;
    Ok(Section {
        title: "pollers of squeue",
        lines: vec![
            Line::value("RPCs with squeue", "RPCs/min", without.rpcs),
            Line::value("RPCs with smesh squeue", "RPCs/min", with.rpcs)
                .against(without.rpcs, "squeue"),
            Line::value("RPCs without pollers", "RPCs/min", idle.rpcs),
            Line::value("CPU of slurmctld with squeue", "ms/min", without.controller),
            Line::value(
                "CPU of slurmctld with smesh squeue",
                "ms/min",
                with.controller,
            )
            .against(without.controller, "squeue"),
            Line::value(
                "CPU of slurmctld without pollers",
                "ms/min",
                idle.controller,
            ),
            Line::value("CPU of smesh up with smesh squeue", "ms/min", with.mesh),
            Line::value("CPU of smesh up without pollers", "ms/min", idle.mesh),
            Line::times("an answer of squeue", &without.answers),
            Line::times("an answer of smesh squeue", &with.answers)
                .against(without.answers.median(), "squeue"),
        ],
        notes: vec![format!(
            "{} pollers of {JOBS} waiting jobs, each once in {} s, as Nextflow; ingest.list_interval = 10 s",
            arguments.pollers,
            PAUSE.as_secs()
        )],
    })
}

/// What one round of polls took, per minute.
struct Load {
    rpcs: f64,
    controller: f64,
    mesh: f64,
    answers: Sorted,
}

/// Every poller polls once, at a time of its own.
async fn window(
    cluster: &Cluster,
    mesh: u32,
    pollers: u32,
    poll: impl Fn() -> Command,
) -> anyhow::Result<Load> {
    let pid = std::fs::read_to_string(cluster.dir().join("run/slurmctld.pid"))?;
    let controller: u32 = pid.trim().parse()?;
    cluster.ask("root", &["sdiag", "--reset"]).await?;
    let (began, before) = (Instant::now(), [cpu_time(controller)?, cpu_time(mesh)?]);
    let polls = (0..pollers).map(|poller| {
        let mut command = poll();
        async move {
            let offset = PAUSE.mul_f64(f64::from(poller) / f64::from(pollers));
            tokio::time::sleep(offset.saturating_sub(began.elapsed())).await;
            let asked = Instant::now();
            let output = command.output().await?;
            let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
            ensure!(
                output.status.success() && lines >= JOBS as usize,
                "a poll failed: {output:?}"
            );
            anyhow::Ok(asked.elapsed())
        }
    });
    let answers = join_all(polls).await;
    let answers = answers.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    tokio::time::sleep(PAUSE.saturating_sub(began.elapsed())).await;
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let took = |pid, before| {
        let cpu = cpu_time(pid)?.saturating_sub(before);
        anyhow::Ok(cpu.as_secs_f64() * 1_000.0 / minutes)
    };
    let (controller, mesh) = (took(controller, before[0])?, took(mesh, before[1])?);
    let printed = cluster.ask("root", &["sdiag"]).await?;
    let rpcs = rpcs(&printed).context("sdiag counts RPCs by type")?;
    Ok(Load {
        rpcs: f64::from(rpcs) / minutes,
        controller,
        mesh,
        answers: Sorted::milliseconds(answers),
    })
}
