//! The checks, from the lowest layer up. Later checks report less after an earlier failure.

use std::collections::BTreeMap;
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_runtime::Context;
use slurm_client::Slurm;
use tokio_util::sync::CancellationToken;

use super::{CheckResult, Finding};
use super::{advice, certificates, hooks, storage};
use crate::cli::Global;
use crate::client::{ApiAddress, Query, Readiness, UnguardedClient};
use crate::settings;

/// A larger clock difference makes times in events misleading. Slurm's times are in whole seconds.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(2);
/// Slurm versions the parsers were tested with.
const TESTED: &[&str] = &["22.05", "24.11", "26.05"];

pub(super) async fn all(global: &Global) -> Vec<Finding> {
    let mut findings = Vec::new();
    let context = configuration(global, &mut findings);
    let slurm_config = match context
        .as_ref()
        .map(|context| context.section::<slurm_client::Config>("slurm"))
    {
        Some(Ok(config)) => config,
        Some(Err(error)) => {
            findings.push(Finding::new(
                "configuration",
                CheckResult::Bad,
                mesh_runtime::error_chain(&error),
                "correct [slurm]",
            ));
            slurm_client::Config::default()
        }
        None => slurm_client::Config::default(),
    };
    let by_commands = slurm_config.source == slurm_client::Source::Cli;
    let slurm_client = Slurm::new(slurm_config);
    let printed = slurm(&slurm_client, context.as_ref(), &mut findings).await;
    mesh(global, &mut findings).await;
    if let Some(context) = &context {
        findings.extend(certificates::all(context));
        storage::streams(context, &mut findings).await;
        findings.extend(storage::disk(context));
        findings.push(storage::backup(context));
    }
    let controller = by_commands && printed.is_some();
    let version = slurm_client.version().await.ok();
    hooks::installed(global, controller, version.as_deref(), &mut findings).await;
    hooks::doorbell_end_to_end(context.as_ref(), &mut findings).await;
    findings
}

pub(super) fn configuration(global: &Global, findings: &mut Vec<Finding>) -> Option<Context> {
    match settings::load(global, CancellationToken::new()) {
        Ok(context) => {
            findings.push(Finding::new(
                "configuration",
                CheckResult::Good,
                format!(
                    "{}, cluster {}",
                    context.config_file(),
                    context.mesh.cluster
                ),
                "",
            ));
            Some(context)
        }
        Err(error) => {
            findings.push(Finding::new(
                "configuration",
                CheckResult::Bad,
                mesh_runtime::error_chain(&error),
                "run `smesh init`, or correct the key",
            ));
            None
        }
    }
}

/// Checks commands, munge, slurmctld, slurmdbd, version and clock. Returns the controller's configuration.
pub(super) async fn slurm(
    slurm: &Slurm,
    context: Option<&Context>,
    findings: &mut Vec<Finding>,
) -> Option<BTreeMap<String, String>> {
    match slurm.version().await {
        Ok(version) => {
            let release: String = version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
            let (grade, fix) = if TESTED.contains(&release.as_str()) {
                (CheckResult::Good, String::new())
            } else {
                (
                    CheckResult::Warning,
                    format!(
                        "tested versions: {}; `smesh events --type capture.schema_drift` shows unknown values in its output",
                        TESTED.join(", ")
                    ),
                )
            };
            findings.push(Finding::new(
                slurm.source(),
                grade,
                format!("version {version}"),
                fix,
            ));
        }
        Err(error) => {
            findings.push(Finding::new(
                slurm.source(),
                CheckResult::Bad,
                mesh_runtime::error_chain(&error),
                advice::slurm(&error),
            ));
            return None;
        }
    }
    match slurm.ping().await {
        Ok(ping) if ping.up => findings.push(Finding::new(
            "slurmctld",
            CheckResult::Good,
            ping.lines.join("; "),
            "",
        )),
        Ok(ping) => findings.push(Finding::new(
            "slurmctld",
            CheckResult::Bad,
            ping.lines.join("; "),
            "start slurmctld; see its log",
        )),
        Err(error) => {
            let what = match error {
                slurm_client::Error::MungeDown { .. } => "munge",
                _ => "slurmctld",
            };
            findings.push(Finding::new(
                what,
                CheckResult::Bad,
                mesh_runtime::error_chain(&error),
                advice::slurm(&error),
            ));
        }
    }
    let asked = Utc::now();
    let printed = match slurm.config().await {
        Ok(printed) => printed,
        Err(error) => {
            // A slurmctld that is down has already been reported.
            if !findings
                .iter()
                .any(|finding| finding.grade == CheckResult::Bad)
            {
                let found = format!("its configuration: {}", mesh_runtime::error_chain(&error));
                findings.push(Finding::new(
                    "slurmctld",
                    CheckResult::Bad,
                    found,
                    advice::slurm(&error),
                ));
            }
            return None;
        }
    };
    // Older slurmrestd do not name it.
    if let (Some(context), Some(cluster)) = (context, printed.get("ClusterName"))
        && context.mesh.cluster != *cluster
    {
        let found = format!(
            "slurm.conf has {cluster:?}, mesh.toml has {:?}",
            context.mesh.cluster
        );
        findings.push(Finding::new(
            "cluster",
            CheckResult::Bad,
            found,
            "set [mesh] cluster to the same name: it is part of every event's identity",
        ));
    }
    clock(&printed, asked, findings);
    accounting(slurm, &printed, context, findings).await;
    Some(printed)
}

/// Compares the clocks. The controller's time is in the heading of `scontrol show config`, which slurm-client requests in Unix
/// seconds.
fn clock(printed: &BTreeMap<String, String>, asked: DateTime<Utc>, findings: &mut Vec<Finding>) {
    let reported = printed
        .get("AsOf")
        .and_then(|text| text.parse().ok())
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let Some(reported) = reported else {
        return findings.push(Finding::new(
            "clocks",
            CheckResult::Unknown,
            "slurmctld did not report its time",
            "",
        ));
    };
    let skew = (reported - asked).abs();
    findings.push(if skew > MAX_SKEW {
        let found = format!(
            "this host and the controller differ by {} s",
            skew.num_seconds()
        );
        Finding::new(
            "clocks",
            CheckResult::Bad,
            found,
            "synchronise the clocks of both (chrony, ntpd): times in events are the controller's",
        )
    } else {
        Finding::new(
            "clocks",
            CheckResult::Good,
            "this host and the controller agree",
            "",
        )
    });
}

async fn accounting(
    slurm: &Slurm,
    printed: &BTreeMap<String, String>,
    context: Option<&Context>,
    findings: &mut Vec<Finding>,
) {
    let with_dbd = printed
        .get("AccountingStorageType")
        .is_some_and(|kind| kind.contains("slurmdbd"));
    if !with_dbd {
        let reported = context
            .and_then(|context| context.section::<toml::Table>("ingest").ok())
            .and_then(|table| table.get("accounting")?.as_bool());
        let (grade, fix) = match reported {
            Some(false) => (CheckResult::Good, ""),
            _ => (
                CheckResult::Warning,
                "set accounting = false in [ingest], or run slurmdbd: without it, ends that slurmctld has purged cannot be confirmed",
            ),
        };
        findings.push(Finding::new(
            "slurmdbd",
            grade,
            "this cluster has no accounting",
            fix,
        ));
        return;
    }
    let start = slurm_types::UnixTime::from_secs(Utc::now().timestamp() - 60);
    let started = Instant::now();
    match slurm
        .accounting(&slurm_client::AccountingQuery::Window { start, end: None })
        .await
    {
        Ok(_) => findings.push(Finding::new(
            "slurmdbd",
            CheckResult::Good,
            format!("accounting answers in {} ms", started.elapsed().as_millis()),
            "",
        )),
        Err(error) => findings.push(Finding::new(
            "slurmdbd",
            CheckResult::Bad,
            mesh_runtime::error_chain(&error),
            advice::slurm(&error),
        )),
    }
}

/// Checks the API, and through it every service's view of NATS, Slurm and its database.
async fn mesh(global: &Global, findings: &mut Vec<Finding>) {
    let client = match settings::client(global) {
        // The ledger itself reports what it contradicts.
        Ok(client) => client.unguarded(),
        Err(error) => {
            return findings.push(Finding::new(
                "slurm-mesh",
                CheckResult::Unknown,
                mesh_runtime::error_chain(&error),
                "",
            ));
        }
    };
    match client.readiness().await {
        Ok(readiness) => findings.extend(ready("slurm-mesh", client.address(), readiness)),
        Err(error) => findings.push(Finding::new(
            "slurm-mesh",
            CheckResult::Bad,
            mesh_runtime::error_chain(&error),
            "start `smesh up`",
        )),
    }
    findings.push(ledger(&client).await);
}

/// Findings of an answer about readiness.
pub(super) fn ready(
    subject: &'static str,
    address: &ApiAddress,
    readiness: Readiness,
) -> Vec<Finding> {
    let mut findings = Vec::from_iter(differing_version(readiness.version.as_deref()));
    if readiness.problems.is_empty() {
        let found = format!("ready at {address}");
        findings.push(Finding::new(subject, CheckResult::Good, found, ""));
    }
    for (name, reason) in readiness.problems {
        let fix = advice::not_ready(&name);
        let found = format!("not ready: {name}: {reason}");
        findings.push(Finding::new(subject, CheckResult::Bad, found, fix));
    }
    for (name, text) in readiness.notes {
        let found = format!("{name}: {text}");
        findings.push(Finding::new(subject, CheckResult::Warning, found, ""));
    }
    findings
}

/// Asks the ledger how many entries it has.
pub(super) async fn ledger(client: &UnguardedClient) -> Finding {
    match client.get("/v1/ledger/head", &Query::new()).await {
        Ok(head) => Finding::new(
            "ledger",
            CheckResult::Good,
            format!("{} entries", head["seq"]),
            "",
        ),
        Err(error) => Finding::new(
            "ledger",
            CheckResult::Unknown,
            mesh_runtime::error_chain(&error),
            "",
        ),
    }
}

/// Compares the version of the services with that of this program.
fn differing_version(services: Option<&str>) -> Option<Finding> {
    let own = env!("CARGO_PKG_VERSION");
    let services = services.filter(|services| *services != own)?;
    Some(Finding::new(
        "versions",
        CheckResult::Warning,
        format!("the services are version {services}, this program is {own}"),
        "finish the upgrade: docs/guide/upgrade.md",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_of_the_services_is_a_warning() {
        assert!(differing_version(Some(env!("CARGO_PKG_VERSION"))).is_none());
        let finding = differing_version(Some("0.0.1")).unwrap();
        assert_eq!(finding.grade, CheckResult::Warning);
        assert!(finding.found.contains("0.0.1"), "{finding:?}");
    }
}
