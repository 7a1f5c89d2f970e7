//! Checks of services at their addresses, from any host or pod. What is only on the hosts of Slurm and of the services is skipped.

use std::time::Duration;

use futures_util::future::join_all;
use mesh_runtime::{Context, Service as _};
use slurm_client::{Slurm, Source};

use super::{CheckResult, Finding, certificates, checks, storage};
use crate::cli::{Global, ServiceAddress};
use crate::client::UnguardedClient;
use crate::error::Error;
use crate::services::SERVICES;
use crate::settings;

/// Time limit for each answer. A firewall that drops packets answers nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn all(
    global: &Global,
    addresses: &[ServiceAddress],
) -> Result<Vec<Finding>, Error> {
    let mut clients = Vec::with_capacity(addresses.len());
    for ServiceAddress { name, url } in addresses {
        // The ledger itself reports what it contradicts.
        let client = settings::client_of(global, "--service", url)?.unguarded();
        clients.push((*name, client));
    }
    let mut findings = Vec::new();
    let context = configuration(global, &mut findings)?;
    if let Some(context) = &context {
        slurm(context, &mut findings).await;
    }
    let asked = clients.iter().map(|(name, client)| service(name, client));
    findings.extend(join_all(asked).await.into_iter().flatten());
    if let Some(context) = &context {
        findings.extend(certificates::all(context));
        match context.mesh.nats.url.is_empty() {
            true => findings.push(skipped("streams", "[mesh.nats] url is not set here")),
            false => storage::streams(context, &mut findings).await,
        }
    }
    let named = |name: &str| addresses.iter().any(|address| address.name == name);
    let names = SERVICES.iter().map(|service| service.name());
    let others: Vec<&str> = names.filter(|name| !named(name)).collect();
    if !others.is_empty() {
        let found = format!("no --service for {}", others.join(", "));
        findings.push(skipped("services", &found));
    }
    findings.push(skipped(
        "hooks",
        "hooks, doorbells and their spool are on Slurm's hosts: run `smesh doctor` there",
    ));
    findings.push(skipped(
        "disk",
        "free space and the last backup are known on the hosts of the services",
    ));
    Ok(findings)
}

fn skipped(subject: &'static str, found: &str) -> Finding {
    Finding::new(subject, CheckResult::Skipped, found, "")
}

/// Reads the configuration. There need not be one: the addresses are on the command line.
fn configuration(global: &Global, findings: &mut Vec<Finding>) -> Result<Option<Context>, Error> {
    let path = settings::config_path(global)?;
    if global.config.is_none() && !path.exists() {
        let found = format!(
            "there is no {}: Slurm, NATS and its certificates are not checked",
            path.display()
        );
        findings.push(skipped("configuration", &found));
        return Ok(None);
    }
    Ok(checks::configuration(global, findings))
}

async fn slurm(context: &Context, findings: &mut Vec<Finding>) {
    match context.section::<slurm_client::Config>("slurm") {
        Ok(config) if config.source == Source::Rest => {
            checks::slurm(&Slurm::new(config), Some(context), findings).await;
        }
        Ok(_) => findings.push(skipped(
            "slurm",
            "[slurm] names no slurmrestd (source = \"rest\"), and Slurm's commands are on its hosts",
        )),
        Err(error) => findings.push(Finding::new(
            "configuration",
            CheckResult::Bad,
            mesh_runtime::error_chain(&error),
            "correct [slurm]",
        )),
    }
}

async fn service(name: &'static str, client: &UnguardedClient) -> Vec<Finding> {
    let address = client.address();
    let down = |found: String| {
        let fix = "start it, or correct its address; its log says why it ended";
        vec![Finding::new(name, CheckResult::Bad, found, fix)]
    };
    let readiness = match tokio::time::timeout(TIMEOUT, client.readiness()).await {
        Ok(Ok(readiness)) => readiness,
        Ok(Err(Error::Unreachable { address, reason })) => {
            return down(format!("does not answer at {address}: {reason}"));
        }
        Ok(Err(error)) => {
            return down(format!(
                "at {address}: {}",
                mesh_runtime::error_chain(&error)
            ));
        }
        Err(_) => {
            return down(format!(
                "does not answer at {address} within {} s",
                TIMEOUT.as_secs()
            ));
        }
    };
    let mut findings = Vec::new();
    if let Some(certificate) = &readiness.certificate {
        let server = format!("that of {name} at {address}");
        findings.push(certificates::shown(&server, certificate));
    }
    // Who may see details sees the version.
    let is_administrator = readiness.version.is_some();
    findings.extend(checks::ready(name, address, readiness));
    if !is_administrator {
        findings.push(Finding::new(
            name,
            CheckResult::Warning,
            "does not take the token as an administrator's: reasons and version are not shown",
            "pass the token that [mesh.api] token_file of the service names",
        ));
    } else if name == ledger::LedgerService::NAME {
        findings.push(checks::ledger(client).await);
    }
    findings
}
