//! Memory of a ledger during a complete export, and the speed of the export.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mesh_testkit::{NatsServer, fixtures};

use crate::process::{Memory, Running, program, wait_until};
use crate::report::Line;

/// The export first computes the tree over all entries.
const PATIENCE: Duration = Duration::from_secs(600);

pub async fn measure(name: &str, url: &str, count: u32) -> anyhow::Result<[Line; 4]> {
    let nats = NatsServer::start().await;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("mesh.toml");
    let text = format!(
        "[mesh]\ncluster = {:?}\ndata_dir = {:?}\n[mesh.nats]\nurl = {:?}\n[ledger.db]\nurl = {url:?}\n",
        fixtures::CLUSTER,
        folder.path(),
        nats.url()
    );
    std::fs::write(&path, text)?;
    let mut ledger = Running::start(
        Command::new(program("ledger")?).arg("--config").arg(&path),
        &folder.path().join("log"),
    )?;
    let http = reqwest::Client::builder()
        .unix_socket(folder.path().join("ledger.sock"))
        .build()?;
    let begun = Instant::now();
    wait_until("a ledger that has signed", PATIENCE, async || {
        ledger.check()?;
        let answer = http.get("http://ledger/v1/ledger/checkpoint").send().await;
        Ok(answer.is_ok_and(|answer| answer.status().is_success()))
    })
    .await?;
    let ready = begun.elapsed();
    let idle = Memory::of(ledger.pid())?;
    Memory::reset_peak(ledger.pid())?;
    let start = Instant::now();
    let request = http.get("http://ledger/v1/events/export?type=job.*&type=cost.*&type=queue.*&type=node.*&type=user.*&type=capture.*");
    let mut answer = request.send().await?.error_for_status()?;
    let mut lines = 0_u32;
    while let Some(chunk) = answer.chunk().await.context("all of an export")? {
        lines += u32::try_from(chunk.iter().filter(|byte| **byte == b'\n').count())?;
    }
    let took = start.elapsed();
    let peak_bytes = Memory::of(ledger.pid())?.peak;
    ledger.stop()?;
    if lines < count {
        bail!("of {count} entries {lines} were exported");
    }
    Ok([
        Line::value(
            format!("{name}: start to first checkpoint"),
            "s",
            ready.as_secs_f64(),
        ),
        Line::value(
            format!("{name}: exported as NDJSON"),
            "facts/s",
            f64::from(lines) / took.as_secs_f64(),
        ),
        Line::value(
            format!("{name}: resident before the export"),
            "MiB",
            idle.resident,
        ),
        Line::value(format!("{name}: most during the export"), "MiB", peak_bytes)
            .budget("≤ 100 MiB", peak_bytes <= 100.0),
    ])
}
