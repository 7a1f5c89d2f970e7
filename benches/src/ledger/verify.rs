//! Speed of verifying a ledger, compared with its limits: a bare read of the same rows, and SHA-256 of the same bytes.

use std::io::Cursor;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use ledger::{INTEGRITY_CACHE_KIB, Location, Store, verify_database};
use ledger_format::chain::GENESIS;
use ledger_format::checkpoint::Checkpoint;
use ledger_format::export::{ExportLine, FORMAT, Header, HexHash};
use ledger_format::file::{self, VerifyOptions};
use ledger_format::merkle::Frontier;
use ledger_format::note::PrivateKey;
use ledger_format::verify::{StoredEntry, Verifier};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either};
use tokio::task::JoinSet;

use super::database::{Kind, location, postgres, sqlite};
use crate::process::{Memory, Stopwatch};
use crate::report::Line;
use crate::stats::Sorted;

/// Entries verified without a database.
const IN_MEMORY: u64 = 100_000;
/// Entries per read.
const PAGE: i64 = 1000;
/// The rows that the verification reads.
const ROWS: [&str; 4] = [
    "SELECT seq, id, leaf, chain FROM entries",
    "SELECT seq, recorded_at, cluster, subject, body FROM payloads",
    "SELECT * FROM event_index",
    "SELECT seq, block FROM event_nodes",
];

/// What is measured in a process of its own.
#[derive(Clone, Copy, ValueEnum)]
pub enum Work {
    /// Read every row that the verification reads, and do nothing else.
    Read,
    /// Verify the ledger.
    Verify,
    /// The part of it that SQLite does: `PRAGMA integrity_check`.
    Integrity,
}

impl Work {
    const fn argument(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Verify => "verify",
            Self::Integrity => "integrity",
        }
    }
}

/// What a piece of work needed.
#[derive(Serialize, Deserialize)]
struct ResourceUsage {
    entries: u64,
    seconds: f64,
    cpu_seconds: f64,
    peak_mib: f64,
}

/// Does one piece of work, and prints what it needed.
pub async fn alone(work: Work, url: &str) -> anyhow::Result<()> {
    let location = location(url)?;
    let watch = Stopwatch::start()?;
    let entries = match work {
        Work::Read => read(&location).await?,
        Work::Verify => {
            let verified = verify_database(&location, |_| ()).await;
            verified.context("what was appended verifies")?.count
        }
        Work::Integrity => integrity(&location).await?,
    };
    let (elapsed, cpu) = watch.stop()?;
    let usage = ResourceUsage {
        entries,
        seconds: elapsed.as_secs_f64(),
        cpu_seconds: cpu.as_secs_f64(),
        peak_mib: Memory::of(std::process::id())?.peak,
    };
    println!("{}", serde_json::to_string(&usage)?);
    Ok(())
}

/// Starts this program for one piece of work, on all cores or on one.
fn start(work: Work, kind: Kind, url: &str, one_core: bool) -> anyhow::Result<ResourceUsage> {
    let program = std::env::current_exe()?;
    let mut command = match one_core {
        true => {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", "0"]).arg(program);
            command
        }
        false => Command::new(program),
    };
    let database = kind.to_possible_value().expect("a kind has a name");
    command.args(["--alone", work.argument(), "--ledger", url]);
    command.args(["--database", database.get_name()]);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{} ended with {}", work.argument(), output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Verifies a database, and an export of its first entries.
pub async fn measure(kind: Kind, url: &str, rounds: u32) -> anyhow::Result<Vec<Line>> {
    let name = kind.name();
    let mut lines = in_memory(name, &entries(&location(url)?, IN_MEMORY).await?)?;
    let cores = file::available_threads();
    let mut medians = Vec::new();
    let (mut peak, mut cpu) = (0.0_f64, Vec::new());
    for one_core in [true, false] {
        let (mut bare, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows_only = Vec::new();
        for _ in 0..rounds {
            let read = start(Work::Read, kind, url, one_core)?;
            let verified = start(Work::Verify, kind, url, one_core)?;
            let rate = |usage: &ResourceUsage| usage.entries as f64 / usage.seconds;
            bare.push(rate(&read));
            ours.push(rate(&verified));
            ratios.push(rate(&verified) / rate(&read));
            cpu.push(verified.entries as f64 / verified.cpu_seconds);
            peak = peak.max(verified.peak_mib);
            if one_core && matches!(kind, Kind::Sqlite) {
                let integrity = start(Work::Integrity, kind, url, one_core)?;
                let seconds = verified.seconds - integrity.seconds;
                rows_only.push(verified.entries as f64 / seconds);
            }
        }
        if !rows_only.is_empty() {
            let rows_only = Sorted::new(rows_only).median();
            let name = format!("{name}: … without SQLite's integrity check, one core");
            let line = Line::value(name, "entries/s", rows_only);
            lines.push(line.budget("≥ 120,000", rows_only >= 120_000.0));
        }
        let of = match one_core {
            true => "one core".to_owned(),
            false => format!("{cores} cores"),
        };
        let median = |samples| Sorted::new(samples).median();
        let (bare, ours, ratio) = (median(bare), median(ours), median(ratios));
        medians.push(ours);
        let verified = Line::value(
            format!("{name}: verified, payloads and index, {of}"),
            "entries/s",
            ours,
        )
        .against(ours / ratio, "bare read, median of the rounds");
        lines.extend([
            Line::value(
                format!("{name}: bare read of the rows, {of}"),
                "entries/s",
                bare,
            ),
            verified.budget_if(!one_core, "≥ 120,000", ours >= 120_000.0),
        ]);
    }
    lines.push(Line::value(
        format!("{name}: the same, by CPU time"),
        "entries/s/core",
        Sorted::new(cpu).median(),
    ));
    if let [one, all] = medians[..] {
        lines.push(Line::value(
            format!("{name}: {cores} cores, compared with one"),
            "times",
            all / one,
        ));
    }
    lines.push(
        Line::value(format!("{name}: peak while verifying"), "MiB", peak)
            .budget("≤ 100", peak <= 100.0),
    );
    Ok(lines)
}

/// Lets SQLite check its file as the verification does, with the same page cache.
async fn integrity(location: &Location) -> anyhow::Result<u64> {
    let mut connection = sqlite(location)?.read_only(true).connect().await?;
    let cache = format!("PRAGMA cache_size = -{INTEGRITY_CACHE_KIB}");
    sqlx::query(AssertSqlSafe(cache))
        .execute(&mut connection)
        .await?;
    let found: String = sqlx::query_scalar("PRAGMA integrity_check(1)")
        .fetch_one(&mut connection)
        .await?;
    if found != "ok" {
        bail!("SQLite found: {found}");
    }
    let entries: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM entries")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    Ok(u64::try_from(entries)?)
}

/// Reads every row that the verification reads, with a connection for each core.
async fn read(location: &Location) -> anyhow::Result<u64> {
    let connections = file::available_threads() as i64;
    let mut readers = JoinSet::new();
    for first in 0..connections {
        let location = location.clone();
        readers.spawn(async move { read_pages(&location, first, connections).await });
    }
    let mut entries = 0;
    while let Some(read) = readers.join_next().await {
        entries += read??;
    }
    Ok(entries)
}

/// Reads every `step`th page of rows.
async fn read_pages(location: &Location, first: i64, step: i64) -> anyhow::Result<u64> {
    let mut connection = match location {
        Location::Sqlite(_) => Either::Left(sqlite(location)?.read_only(true).connect().await?),
        Location::Postgres(_) => Either::Right(postgres(location)?.connect().await?),
    };
    let mut entries = 0;
    let mut page = first;
    loop {
        let (after, last) = (page * PAGE, (page + 1) * PAGE);
        let mut rows = [0; 4];
        for (count, select) in rows.iter_mut().zip(ROWS) {
            let select = format!("{select} WHERE seq > $1 AND seq <= $2 ORDER BY seq");
            let select = AssertSqlSafe(select);
            *count = match &mut connection {
                Either::Left(sqlite) => {
                    let select = sqlx::query(select).bind(after).bind(last);
                    select.fetch_all(sqlite).await?.len()
                }
                Either::Right(postgres) => {
                    let select = sqlx::query(select).bind(after).bind(last);
                    select.fetch_all(postgres).await?.len()
                }
            };
        }
        if rows[0] == 0 {
            break;
        }
        entries += rows[0] as u64;
        page += step;
    }
    match connection {
        Either::Left(sqlite) => sqlite.close().await?,
        Either::Right(postgres) => postgres.close().await?,
    }
    Ok(entries)
}

async fn entries(location: &Location, count: u64) -> anyhow::Result<Vec<StoredEntry>> {
    let store = Store::open(location, 1).await?;
    let mut entries: Vec<StoredEntry> = Vec::new();
    loop {
        let after = entries.len() as u64;
        let more = store.entries(after, count).await?;
        if more.is_empty() {
            break;
        }
        entries.extend(more);
    }
    store.close().await;
    Ok(entries)
}

/// Leaves, chain and tree alone, on one core. And an export, including parsing, on one core and on all.
fn in_memory(name: &str, entries: &[StoredEntry]) -> anyhow::Result<Vec<Line>> {
    let count = entries.len() as f64;
    let rate = |took: Duration| count / took.as_secs_f64();
    let start = Instant::now();
    let mut hash = Sha256::new();
    for entry in entries {
        hash.update(&entry.id);
        if let Some(payload) = &entry.payload {
            hash.update(&payload.cluster);
            hash.update(&payload.subject);
            hash.update(&payload.body);
        }
    }
    std::hint::black_box(hash.finalize());
    let sha = rate(start.elapsed());

    let start = Instant::now();
    let mut verifier = Verifier::default();
    for entry in entries {
        verifier
            .next(entry)
            .map_err(|bad| anyhow::anyhow!("{bad}"))?;
        verifier.take_subtrees();
    }
    let alone = rate(start.elapsed());

    let (text, key) = export(entries)?;
    let mut lines = vec![
        Line::value(
            format!("{name}: SHA-256 of the same bytes"),
            "entries/s/core",
            sha,
        ),
        Line::value(
            format!("{name}: leaves, chain and tree"),
            "entries/s/core",
            alone,
        )
        .against(sha, "SHA-256")
        .budget("≥ 300,000", alone >= 300_000.0),
    ];
    for threads in [1, file::available_threads()] {
        let keys = [key.public()];
        let start = Instant::now();
        let options = VerifyOptions {
            keys: &keys,
            trusted: &[],
            threads,
            progress: &mut |_, _, _| (),
        };
        file::verify_text(&mut Cursor::new(&text), options)?;
        let took = rate(start.elapsed());
        let description = format!("{name}: an export, {threads} threads");
        lines.push(Line::value(description, "entries/s", took).against(sha, "SHA-256"));
    }
    Ok(lines)
}

/// An export of entries, signed by a new key.
fn export(entries: &[StoredEntry]) -> anyhow::Result<(Vec<u8>, PrivateKey)> {
    const ORIGIN: &str = "example.org/bench";
    let key = PrivateKey::new(ORIGIN, &[1; 32])?;
    let mut tree = Frontier::default();
    let mut text = Vec::new();
    for entry in entries {
        tree.push(entry.leaf.as_slice().try_into()?);
        let line = ExportLine::of(entry.clone()).map_err(|bad| anyhow::anyhow!("{bad}"))?;
        serde_json::to_writer(&mut text, &line)?;
        text.push(b'\n');
    }
    let checkpoint = Checkpoint {
        origin: ORIGIN.to_owned(),
        size: tree.size(),
        root: tree.root(),
    };
    let header = Header {
        export: FORMAT.to_owned(),
        from: 1,
        chain: HexHash(GENESIS),
        edge: Vec::new(),
        checkpoint: checkpoint.sign(&[&key])?,
    };
    let mut whole = serde_json::to_vec(&header)?;
    whole.push(b'\n');
    whole.extend(text);
    Ok((whole, key))
}
