//! Checks that streams and buckets store messages. Data lost there is lost for all consumers, and the fault may go unnoticed while
//! nothing is published.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use mesh_bus::{Bus, Config, StorageState};
use mesh_runtime::Context;

use super::{Finding, Grade};
use crate::backup::create::LastBackup;
use crate::up::nats_child;

const SUBJECT: &str = "streams";
/// Time limit for connecting; a healthy server on the same host needs far less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Older backups are a warning. The bus has the events of 14 days, so a week is left to notice.
const MAX_BACKUP_AGE: TimeDelta = TimeDelta::days(7);

pub(super) async fn streams(context: &Context, findings: &mut Vec<Finding>) {
    let unknown = |found: String, fix: &str| Finding::new(SUBJECT, Grade::Unknown, found, fix);
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

/// Whether there is a recent backup by `smesh backup`.
pub(super) fn backup(context: &Context) -> Finding {
    let finding = |grade, found: String, fix: &str| Finding::new("backup", grade, found, fix);
    let Some(last) = LastBackup::read(&context.mesh.data_dir) else {
        let fix = "make one regularly: `smesh backup --help`";
        return finding(
            Grade::Warning,
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
        return finding(Grade::Warning, found, fix);
    }
    finding(Grade::Good, found, "")
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
        findings.push(Finding::new(SUBJECT, Grade::Bad, found, fix));
    }
    if broken == 0 {
        let found = format!("all {count} streams and buckets store");
        findings.push(Finding::new(SUBJECT, Grade::Good, found, ""));
    }
}
