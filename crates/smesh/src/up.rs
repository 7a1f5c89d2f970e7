//! `smesh up`: the services in one process, each with its own NATS user, behind one API.
//!
//! ```text
//! lock the data directory ─► credentials, nats.conf ─► nats-server (a child) ─► streams ─► services ─► API
//!                                                      └ restarted when it dies, stopped last
//! ```
//!
//! All secrets are in `<data_dir>/private` (0700). A killed run leaves its nats-server behind. The next run recognises it and stops it
//! before starting its own.

mod banner;
pub mod data_dir;
mod hook_config;
pub mod nats_child;
pub mod nats_conf;
mod nats_program;
pub mod recover;
mod services;

use std::process::ExitCode;
use std::sync::Arc;

use mesh_runtime::{Context, apply_process_limits, run_api, shutdown_on_signals, telemetry};
use tokio_util::sync::CancellationToken;

use crate::cli;
use crate::cli::Global;
use crate::error::Error;
use crate::settings;
use crate::slurm_conf::SlurmConf;

use data_dir::DataDir;
use nats_child::NatsChild;

/// Runs until the shutdown signal.
///
/// # Errors
/// If something is missing or invalid at the start, or a service fails permanently.
pub async fn run(global: &Global, args: cli::Up) -> Result<ExitCode, Error> {
    // Databases, spools and logs hold the jobs of all users. Files readable by others get their mode explicitly.
    apply_process_limits();
    let shutdown = CancellationToken::new();
    let mut context = settings::load(global, shutdown.clone())?;
    if let Some(folder) = args.data_dir {
        context.mesh.data_dir =
            std::path::absolute(&folder).map_err(|source| Error::io("find", &folder, source))?;
    }
    if args.check_config {
        return check(&context).await;
    }
    let telemetry =
        telemetry::init("smesh", &context.mesh.telemetry).map_err(|source| Error::Service {
            service: "telemetry",
            source,
        })?;
    let mesh = context.mesh.clone();
    let ended = Box::pin(supervise(context, &telemetry, args.nats_port, shutdown)).await;
    if let Err(error) = &ended {
        // Also where only the exported logs are read.
        tracing::error!(error = mesh_runtime::error_chain(error), "smesh up ended");
    }
    telemetry.flush(&mesh).await;
    ended.map(|()| ExitCode::SUCCESS)
}

/// Starts nats-server, unless it has an address, and the services, and stops them.
async fn supervise(
    mut context: Context,
    telemetry: &telemetry::Telemetry,
    nats_port: Option<u16>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let data = Arc::new(DataDir::prepare(&context.mesh.data_dir)?);
    let at_once = {
        let data = Arc::clone(&data);
        move || nats_child::kill(&data)
    };
    shutdown_on_signals(shutdown.clone(), at_once).map_err(|source| Error::Service {
        service: "signals",
        source,
    })?;
    let slurm_user = slurm_user(&context);
    admit(&mut context, &slurm_user);

    let own = context.mesh.nats.url.is_empty();
    let child = if own {
        let (cluster, nats) = (&context.mesh.cluster, &context.mesh.nats);
        let stores = context.health.condition("smesh.nats-server");
        Some(NatsChild::start(&data, cluster, nats, nats_port, stores, &shutdown).await?)
    } else {
        None
    };
    let serving = serve(context, telemetry, child.as_ref(), &data, &slurm_user);
    let mut result = Box::pin(serving).await;
    shutdown.cancel();
    // Stopped last, so that the services can still acknowledge their messages.
    if let Some(child) = child {
        result = result.and(child.stop().await);
    }
    result
}

/// `--check-config`: checks what a start needs, and changes nothing.
async fn check(context: &Context) -> Result<ExitCode, Error> {
    services::check(context)?;
    if context.mesh.nats.url.is_empty() {
        nats_program::find().await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    mut context: Context,
    telemetry: &telemetry::Telemetry,
    child: Option<&NatsChild>,
    data: &DataDir,
    slurm_user: &str,
) -> Result<(), Error> {
    if let Some(child) = child {
        let provisioning = Box::pin(child.provision(&context));
        match context.shutdown.run_until_cancelled(provisioning).await {
            Some(provisioned) => provisioned?,
            None => return Ok(()),
        }
        hook_config::write(&context, child, data, slurm_user)?;
    }
    let running = services::start(&context, child).await?;
    for service in &running.left_out {
        context.does_not_run(service);
    }
    let socket = settings::socket(&context);
    banner::when_ready(&context, &socket, child.map(NatsChild::url));
    run_api(&context, &socket, running.router, telemetry, running.run)
        .await
        .map_err(|source| Error::Service {
            service: "smesh up",
            source,
        })
}

/// SlurmUser, from slurm.conf, because slurmctld may be down. The present user if there is no Slurm.
fn slurm_user(context: &Context) -> String {
    let own = || {
        uzers::get_current_username().map_or_else(
            || "root".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        )
    };
    let slurm: Result<slurm_client::Config, _> = context.section("slurm");
    let conf = SlurmConf::find(slurm.ok().and_then(|slurm| slurm.conf).as_deref())
        .and_then(|path| SlurmConf::read(&path));
    match conf {
        Ok(conf) => conf.slurm_user().to_owned(),
        Err(error) => {
            tracing::warn!(
                error = mesh_runtime::error_chain(&error),
                "SlurmUser unknown, hooks set up for the current user"
            );
            own()
        }
    }
}

/// The operators see everything: root, SlurmUser, and the user of this process.
fn admit(context: &mut Context, slurm_user: &str) {
    let admins = &mut context.mesh.api.admins;
    admins.push(slurm_user.to_owned());
    admins.extend(uzers::get_current_username().map(|name| name.to_string_lossy().into_owned()));
}
