//! Checks that streams and buckets store messages. Data lost there is lost for all consumers, and the fault may go unnoticed while
//! nothing is published.

use std::path::Path;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use mesh_bus::{Bus, Config, StorageState};
use mesh_runtime::Context;

use super::{CheckResult, Finding};
use crate::backup::create::LastBackup;
use crate::up::data_dir;
use crate::up::nats_child;
use crate::up::nats_conf::max_store;

const SUBJECT: &str = "streams";
/// Time limit for connecting; a healthy server on the same host needs far less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Older backups are a warning. The bus has the events of 14 days, so a week is left to notice.
const MAX_BACKUP_AGE: TimeDelta = TimeDelta::days(7);

pub(super) async fn streams(context: &Context, findings: &mut Vec<Finding>) {
    let unknown =
        |found: String, fix: &str| Finding::new(SUBJECT, CheckResult::Unknown, found, fix);
    let own = context.mesh.nats.url.is_empty();
    let config = match own {
        true => nats_child::administrator(&context.mesh.data_dir),
        false => Ok(Config {
            provision: false,
            ..context.mesh.nats.clone()
        }),
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            return findings.push(unknown(
                mesh_runtime::error_chain(&error),
                "run doctor as the user of `smesh up` or root, while it runs",
            ));
        }
    };
    match probe(context, &config).await {
        Ok(states) => report(states, own, findings),
        Err(error) => findings.push(unknown(
            mesh_runtime::error_chain(&error),
            "requires a [mesh.nats] user with the role admin, and a running nats-server",
        )),
    }
}

/// Whether the disk has room for what the streams of the own nats-server may store.
pub(super) fn disk(context: &Context) -> Option<Finding> {
    if !context.mesh.nats.url.is_empty() {
        return None;
    }
    let folder = &context.mesh.data_dir;
    let disk = rustix::fs::statvfs(folder).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let reserved = u64::try_from(max_store(context.mesh.nats.events_max_bytes)).ok()?;
    let used = folder_size(&data_dir::private(folder, "jetstream"));
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let found = format!(
        "streams use {:.1} of at most {:.1} GiB, and {:.1} GiB of {} are free",
        gib(used),
        gib(reserved),
        gib(free),
        folder.display()
    );
    Some(if free < reserved.saturating_sub(used) {
        let fix = "make room, or lower [mesh.nats] events_max_bytes: a full disk stops everything";
        Finding::new("disk", CheckResult::Warning, found, fix)
    } else {
        Finding::new("disk", CheckResult::Good, found, "")
    })
}

/// Bytes of the files in a folder; what cannot be read counts as nothing.
fn folder_size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_size(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Whether there is a recent backup by `smesh backup`.
pub(super) fn backup(context: &Context) -> Finding {
    let finding = |grade, found: String, fix: &str| Finding::new("backup", grade, found, fix);
    let Some(last) = LastBackup::read(&context.mesh.data_dir) else {
        let fix = "make one regularly: `smesh backup --help`";
        return finding(
            CheckResult::Warning,
            "no backup by `smesh backup` here".to_owned(),
            fix,
        );
    };
    let age = Utc::now() - last.at;
    let found = format!(
        "of {}, {} days old: {}",
        last.at,
        age.num_days(),
        last.target
    );
    if age > MAX_BACKUP_AGE {
        let fix = "make a new one: events older than 14 days are no longer on the bus";
        return finding(CheckResult::Warning, found, fix);
    }
    finding(CheckResult::Good, found, "")
}

async fn probe(context: &Context, config: &Config) -> Result<Vec<StorageState>, mesh_bus::Error> {
    let bus = Bus::connect(config, "admin").await?;
    // A server that does not answer is noticed by the first request.
    let ready = bus.ready(&context.shutdown);
    let states = match tokio::time::timeout(CONNECT_TIMEOUT, ready).await {
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) | Err(_) => bus.probe_storage().await,
    };
    bus.close().await;
    states
}

fn report(states: Vec<StorageState>, own: bool, findings: &mut Vec<Finding>) {
    let count = states.len();
    let mut broken = 0;
    for StorageState { stream, problem } in states {
        let Some(problem) = problem else { continue };
        broken += 1;
        let fix = match own {
            _ if problem.contains("full:") => {
                "its consumers are too slow, or [mesh.nats] events_max_bytes is too low: publishers wait until it has room"
            }
            true => "free space on the disk of mesh.data_dir; `smesh up` then restarts nats-server",
            false => {
                "free space on the disk of nats-server and restart it: after a write error it stores nothing"
            }
        };
        let found = format!("{stream} does not store: {problem}");
        findings.push(Finding::new(SUBJECT, CheckResult::Bad, found, fix));
    }
    if broken == 0 {
        let found = format!("all {count} streams and buckets store");
        findings.push(Finding::new(SUBJECT, CheckResult::Good, found, ""));
    }
}
