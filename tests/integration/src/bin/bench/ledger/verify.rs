//! Speed of verifying a ledger, compared with its limits: a bare read of the same rows, and SHA-256 of the same bytes.

use std::io::Cursor;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ledger::{Location, Store, verify_database};
use ledger_format::chain::GENESIS;
use ledger_format::checkpoint::Checkpoint;
use ledger_format::export::{ExportLine, FORMAT, Header, HexHash};
use ledger_format::file::{self, VerifyOptions};
use ledger_format::merkle::Frontier;
use ledger_format::note::PrivateKey;
use ledger_format::verify::{StoredEntry, Verifier};
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::database::{postgres, sqlite};
use crate::process::cpu_time;
use crate::report::Line;

/// Entries verified without a database.
const IN_MEMORY: u64 = 100_000;
/// Rows per read, as in the verification.
const PAGE: i64 = 1000;

/// Verifies a database, and an export of its first entries.
pub async fn measure(name: &str, location: &Location) -> anyhow::Result<Vec<Line>> {
    let (start, cpu) = (Instant::now(), cpu_time(std::process::id())?);
    let verified = verify_database(location, |_| ())
        .await
        .context("what was appended verifies")?;
    let took = start.elapsed();
    let cpu = cpu_time(std::process::id())?.saturating_sub(cpu);
    let rate = |took: Duration| verified.count as f64 / took.as_secs_f64();
    let bare = rate(read(location).await?);
    let mut lines = vec![
        Line::value(format!("{name}: bare read of the rows"), "entries/s", bare),
        Line::value(
            format!("{name}: verified, payloads and index"),
            "entries/s",
            rate(took),
        )
        .against(bare, "bare read")
        .budget("≥ 120,000", rate(took) >= 120_000.0),
        Line::value(
            format!("{name}: the same, by CPU time"),
            "entries/s/core",
            rate(cpu),
        ),
    ];
    lines.extend(in_memory(name, &entries(location, IN_MEMORY).await?)?);
    Ok(lines)
}

/// Reads every row that the verification reads, and does nothing else.
async fn read(location: &Location) -> anyhow::Result<Duration> {
    const ROWS: [&str; 4] = [
        "SELECT seq, id, leaf, chain FROM entries",
        "SELECT seq, recorded_at, cluster, subject, body FROM payloads",
        "SELECT * FROM event_index",
        "SELECT seq, block FROM event_nodes",
    ];
    let page = |rows: &str, after: i64| {
        let last = after + PAGE;
        AssertSqlSafe(format!(
            "{rows} WHERE seq > {after} AND seq <= {last} ORDER BY seq"
        ))
    };
    let mut after = 0;
    let start = Instant::now();
    match location {
        Location::Sqlite(_) => {
            let mut connection = sqlite(location)?.read_only(true).connect().await?;
            loop {
                let mut entries = 0;
                for (n, rows) in ROWS.into_iter().enumerate() {
                    let rows = sqlx::query(page(rows, after)).persistent(false);
                    let rows = rows.fetch_all(&mut connection).await?;
                    entries = if n == 0 { rows.len() } else { entries };
                }
                if entries == 0 {
                    connection.close().await?;
                    return Ok(start.elapsed());
                }
                after += PAGE;
            }
        }
        Location::Postgres(_) => {
            let mut connection = postgres(location)?.connect().await?;
            loop {
                let mut entries = 0;
                for (n, rows) in ROWS.into_iter().enumerate() {
                    let rows = sqlx::query(page(rows, after)).persistent(false);
                    let rows = rows.fetch_all(&mut connection).await?;
                    entries = if n == 0 { rows.len() } else { entries };
                }
                if entries == 0 {
                    connection.close().await?;
                    return Ok(start.elapsed());
                }
                after += PAGE;
            }
        }
    }
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
        let what = format!("{name}: an export, {threads} threads");
        lines.push(Line::value(what, "entries/s", took).against(sha, "SHA-256"));
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
