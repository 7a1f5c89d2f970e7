//! The life of a service process, from `main` to the last flush.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use clap::Parser;
use futures_util::future::BoxFuture;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::api::{AuthState, Endpoints, serve};
use crate::probe::Probe;
use crate::telemetry::Telemetry;
use crate::{
    BoxError, ConfigFile, Context, RunningService, Service, ServiceSection, error_chain,
    install_crypto_provider, reload::follow_configuration, sqlite_integrity, systemd, telemetry,
};

#[derive(Parser)]
struct Arguments {
    /// Configuration file.
    #[arg(long, env = "MESH_CONFIG", default_value = "/etc/slurm-mesh/mesh.toml")]
    config: PathBuf,
    /// Check the configuration and the files it names, then exit.
    #[arg(long)]
    check_config: bool,
    /// Query the health of the running service over its Unix socket; exit status 0 if healthy.
    #[arg(long, value_name = "WHAT", conflicts_with = "check_config")]
    probe: Option<Probe>,
    /// Print the merged configuration with secrets masked, then exit.
    #[arg(long)]
    print_config: bool,
}

/// How long threads blocked on a disk may delay the end of the process.
pub const LAST_THREADS: Duration = Duration::from_millis(500);

/// The command line of a service as a process of its own.
pub fn command<S: Service>() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
        .name(S::NAME)
        .about(S::ABOUT)
        .version(env!("CARGO_PKG_VERSION"))
}

/// Runs a service as a process of its own.
pub fn main<S: Service>() -> ExitCode {
    let matches = command::<S>().get_matches();
    let arguments = match <Arguments as clap::FromArgMatches>::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    install_crypto_provider();
    apply_process_limits();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return fail(S::NAME, &error),
    };
    let ended = runtime.block_on(run::<S>(&arguments));
    // Without a timeout, a thread blocked on a disk would delay the exit without end.
    runtime.shutdown_timeout(LAST_THREADS);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(S::NAME, error.as_ref()),
    }
}

#[allow(
    clippy::print_stderr,
    reason = "last message of the process, also if telemetry failed to start"
)]
fn fail(name: &str, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    eprintln!("{name}: {}", error_chain(error));
    ExitCode::FAILURE
}

#[allow(clippy::print_stdout, reason = "--print-config is asked for")]
async fn run<S: Service>(arguments: &Arguments) -> Result<(), BoxError> {
    let config = ConfigFile::load(&[ServiceSection::of::<S>()], Some(&arguments.config))?;
    if arguments.print_config {
        println!("{}", config.print()?);
        return Ok(());
    }
    let shutdown = CancellationToken::new();
    let context = Context::new(config, shutdown.clone())?;
    if arguments.check_config {
        return check_config::<S>(&context);
    }
    let socket = socket(&context, S::NAME);
    if let Some(probe) = arguments.probe {
        return probe.ask(&socket).await;
    }
    shutdown_on_signals(shutdown, || {})?;
    let telemetry = telemetry::init(S::NAME, &context.mesh.telemetry)?;
    // A database that hangs must not delay a stop.
    let started = context
        .shutdown
        .run_until_cancelled(start_service::<S>(&context));
    let result = match started.await {
        Some(Ok(RunningService { router, run })) => {
            tracing::info!(version = env!("CARGO_PKG_VERSION"), "{} started", S::NAME);
            run_api(&context, &socket, router, &telemetry, run).await
        }
        Some(Err(error)) => Err(error),
        None => Ok(()),
    };
    if let Err(error) = &result {
        // Also where only the exported logs are read.
        tracing::error!(error = error_chain(error.as_ref()), "{} ended", S::NAME);
    }
    telemetry.flush(&context.mesh).await;
    result
}

/// Checks the configuration of a service and of its API, with the files they name. Changes nothing.
///
/// # Errors
/// Every fault of the service's section, else the first of the API's.
pub fn check_config<S: Service>(context: &Context) -> Result<(), BoxError> {
    S::check(context)?;
    AuthState::new(&context.mesh, context.coordinators.clone())?;
    Ok(())
}

/// Starts a service and the checks of its SQLite file. If a damaged file prevents the start, the error says how to repair it.
///
/// # Errors
/// If it cannot start.
pub async fn start_service<S: Service>(context: &Context) -> Result<RunningService, BoxError> {
    let started = S::start(context.clone()).await;
    let Some(file) = S::database_file(context)?.filter(|file| file.exists()) else {
        return started;
    };
    let condition = sqlite_integrity::keep_checking::<S>(context, file.clone());
    match started {
        Ok(started) => Ok(started),
        Err(error) => match sqlite_integrity::check::<S>(&file, &condition).await {
            sqlite_integrity::IntegrityCheck::Damaged(problem) => {
                Err(format!("{}: {problem}", error_chain(error.as_ref())).into())
            }
            _ => Err(error),
        },
    }
}

fn socket(context: &Context, name: &str) -> PathBuf {
    let configured = &context.mesh.api.socket;
    if configured.as_os_str().is_empty() {
        context.mesh.data_dir.join(format!("{name}.sock"))
    } else {
        configured.clone()
    }
}

/// Runs a service's work and the API beside it. Ends when the work ends; after the shutdown signal the work has
/// [`crate::MeshConfig::work_deadline`].
///
/// # Errors
/// If an address cannot be bound, the token file cannot be read, or the work fails.
pub async fn run_api(
    context: &Context,
    socket: &Path,
    routes: Router,
    telemetry: &Telemetry,
    work: BoxFuture<'static, Result<(), BoxError>>,
) -> Result<(), BoxError> {
    let auth = AuthState::new(&context.mesh, context.coordinators.clone())?;
    let endpoints = Endpoints::bind(&context.mesh.api, socket).await?;
    let closing = CancellationToken::new();
    let api = tokio::spawn(serve(
        endpoints,
        auth,
        routes,
        context.health.clone(),
        telemetry.metrics.clone(),
        telemetry.log_filter.clone(),
        closing.clone(),
    ));
    tokio::spawn(follow_configuration(
        context.clone(),
        telemetry.log_filter.clone(),
    ));
    tokio::spawn(systemd::notify(context.clone()));
    tokio::spawn(telemetry::aggregate(telemetry.metrics.clone()));
    let deadline = async {
        context.shutdown.cancelled().await;
        tokio::time::sleep(context.mesh.work_deadline()).await;
    };
    let result = tokio::select! {
        result = work => result,
        () = deadline => {
            // Not a failure: unfinished work is either durable or will be repeated. A database or peer that hangs must not look like a
            // crash.
            tracing::warn!(
                after = ?context.mesh.work_deadline(),
                "shutdown timed out; pending work is repeated after the next start"
            );
            Ok(())
        }
    };
    // Closes open event streams; their clients resume where they were.
    context.shutdown.cancel();
    closing.cancel();
    if tokio::time::timeout(context.mesh.connections_deadline(), api)
        .await
        .is_err()
    {
        tracing::debug!("API connections were still open");
    }
    result
}

/// Cancels a token at SIGTERM or SIGINT. The second signal ends the process at once, after `at_once` has ended what must not outlive it.
///
/// # Errors
/// If signal handlers cannot be installed.
pub fn shutdown_on_signals(
    shutdown: CancellationToken,
    at_once: impl FnOnce() + Send + 'static,
) -> Result<(), BoxError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let mut wait = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        wait().await;
        tracing::info!("shutting down: finishing pending work; a second signal stops at once");
        shutdown.cancel();
        wait().await;
        at_once();
        std::process::exit(130);
    });
    Ok(())
}

/// Sets the process's umask and file limit; call it first. New files are private unless created otherwise. The file limit is raised to the
/// system's maximum, since each caller, receiver and database takes descriptors.
pub fn apply_process_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        tracing::debug!(%error, "limit of open files not raised");
    }
}
