//! Checks of the hooks: which are installed, and whether a doorbell arrives.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use mesh_hook::doorbell::{Call, doorbell};
use mesh_hook::evidence::Environment;
use mesh_hook::ring::{Outcome, ring};
use mesh_hook::spool::Spool;
use mesh_runtime::Context;

use super::{CheckResult, Finding, spank};
use crate::cli::{Global, HookFiles};
use crate::commands::hooks::plan_here;
use crate::settings::HOOK_CONFIG;

/// Users notice a hook that takes longer.
const SLOW_RING: Duration = Duration::from_millis(20);

/// `version`: of Slurm on this host.
pub(super) async fn installed(
    global: &Global,
    controller: bool,
    version: Option<&str>,
    findings: &mut Vec<Finding>,
) {
    let (conf, plan) = match plan_here(
        global,
        &HookFiles {
            dir: PathBuf::from("/etc/slurm-mesh/hooks"),
            ..HookFiles::default()
        },
    )
    .await
    {
        Ok(planned) => planned,
        Err(error) => {
            return findings.push(Finding::new(
                "hooks",
                CheckResult::Unknown,
                mesh_runtime::error_chain(&error),
                "hooks not checked: run doctor on a host with slurm.conf, or set [slurm] conf",
            ));
        }
    };
    let source = if controller {
        "slurmctld"
    } else {
        "slurm.conf"
    };
    for hook in plan.hooks.iter().filter(|hook| hook.recommended) {
        if hook.installed.is_some() {
            findings.push(Finding::new(
                "hooks",
                CheckResult::Good,
                format!("{} is of slurm-mesh, according to {source}", hook.name),
                "",
            ));
        } else {
            let found = format!(
                "{} is not of slurm-mesh, according to {source}: its events come with the next poll, seconds later",
                hook.name
            );
            findings.push(Finding::new(
                "hooks",
                CheckResult::Warning,
                found,
                "see `smesh hooks print`",
            ));
        }
    }
    findings.push(spank::plugin(&conf, version));
}

/// Sends a doorbell as a hook does, with the hooks' own configuration, and checks the backlog in the spool.
pub(super) async fn doorbell_end_to_end(context: Option<&Context>, findings: &mut Vec<Finding>) {
    let Some(context) = context else { return };
    let beside = context.mesh.data_dir.join(HOOK_CONFIG);
    let path = if beside.exists() {
        beside
    } else {
        PathBuf::from(mesh_hook::config::DEFAULT_PATH)
    };
    let config = match mesh_hook::Config::load(&path) {
        Ok(config) => config,
        Err(mesh_hook::config::Error::Read { source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            return findings.push(Finding::new(
                "doorbell",
                CheckResult::Unknown,
                format!("only SlurmUser may read {}", path.display()),
                "run doctor as SlurmUser or root",
            ));
        }
        Err(error) => {
            return findings.push(Finding::new(
                "doorbell",
                CheckResult::Bad,
                error.to_string(),
                "start `smesh up` once, which writes this file; on other hosts create it (hooks/README.md)",
            ));
        }
    };
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let (sent, took) = tokio::task::spawn_blocking(move || {
        let doorbell = doorbell(&Call {
            cluster: &config.cluster,
            hook: mesh_events::hooks::DOCTOR_HOOK,
            host: &mesh_hook::sender::host(),
            called_at: SystemTime::now(),
            environment: &Environment::new(),
            arguments: &[],
        });
        let started = Instant::now();
        (
            ring(&config, &doorbell, SystemTime::now(), started),
            started.elapsed(),
        )
    })
    .await
    .map_or_else(
        |error| (Err(error.to_string()), Duration::ZERO),
        |(outcome, took)| (Ok(outcome), took),
    );
    let millis = format!("{:.1} ms", took.as_secs_f64() * 1000.0);
    findings.push(match sent {
        Ok(Outcome::Delivered { .. }) => {
            let (grade, fix) = if took > SLOW_RING {
                (
                    CheckResult::Warning,
                    "every job start waits for this; check the disk of nats-server",
                )
            } else {
                (CheckResult::Good, "")
            };
            Finding::new(
                "doorbell",
                grade,
                format!("doorbell stored in {millis}"),
                fix,
            )
        }
        Ok(Outcome::Spooled(error)) => Finding::new(
            "doorbell",
            CheckResult::Bad,
            format!("spooled after {millis}: {error}"),
            "start nats-server (`smesh up` does)",
        ),
        Ok(Outcome::Lost(error, lost)) => Finding::new(
            "doorbell",
            CheckResult::Bad,
            format!("{error}; {lost}"),
            "make the spool folder writable for SlurmUser",
        ),
        Err(error) => Finding::new("doorbell", CheckResult::Unknown, error, ""),
    });
    if let Ok(refused @ 1..) = spool.refused() {
        findings.push(Finding::new(
            "spool",
            CheckResult::Warning,
            format!("NATS refused {refused} doorbells"),
            "`smesh hooks flush` retries them and prints the reason; delete *.refused if they are not needed",
        ));
    }
    match spool.len() {
        Ok(0) => findings.push(Finding::new("spool", CheckResult::Good, "empty", "")),
        Ok(waiting) => findings.push(Finding::new(
            "spool",
            CheckResult::Warning,
            format!("{waiting} doorbells are spooled"),
            "the next hook calls deliver them; to deliver them now: smesh hooks flush",
        )),
        Err(error) => findings.push(Finding::new(
            "spool",
            CheckResult::Unknown,
            error.to_string(),
            "",
        )),
    }
}
