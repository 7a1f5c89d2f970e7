//! Starts every service with its own NATS user and joins their APIs.

use axum::Router;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use mesh_runtime::{BoxError, Condition, Context, RunningService};

use super::nats_child::NatsChild;
use crate::error::Error;
use crate::services::{SERVICES, ServiceEntry};

/// The running services.
pub struct RunningServices {
    /// Routes of all services.
    pub router: Router,
    /// Services that are off or could not start.
    pub left_out: Vec<&'static str>,
    /// Completes when all services have ended. A failed service does not stop the others; readiness reports it.
    pub run: BoxFuture<'static, Result<(), BoxError>>,
}

type Work = BoxFuture<'static, (&'static str, Condition, Result<(), BoxError>)>;

/// Starts the services. Their order does not matter.
///
/// # Errors
/// The first service with an invalid configuration. A service that cannot start for another reason is left out, and readiness reports
/// it. If none starts, that is an error.
pub async fn start(context: &Context, child: Option<&NatsChild>) -> Result<RunningServices, Error> {
    let mut starter = ServiceStarter {
        context,
        child,
        router: Router::new(),
        work: FuturesUnordered::new(),
        left_out: Vec::new(),
        failed: None,
    };
    for service in &SERVICES {
        starter.add(service).await?;
    }
    let ServiceStarter {
        router,
        work,
        left_out,
        failed,
        ..
    } = starter;
    if let (Some(error), true) = (failed, work.is_empty()) {
        return Err(error);
    }
    Ok(RunningServices {
        router,
        left_out,
        run: all(work, context.clone()).boxed(),
    })
}

/// Checks the configuration of every service. Changes nothing.
///
/// # Errors
/// The faults of the first service with an invalid configuration.
pub fn check(context: &Context) -> Result<(), Error> {
    for service in &SERVICES {
        (service.check_config)(context).map_err(|source| Error::Service {
            service: service.name(),
            source,
        })?;
    }
    Ok(())
}

struct ServiceStarter<'a> {
    context: &'a Context,
    child: Option<&'a NatsChild>,
    router: Router,
    work: FuturesUnordered<Work>,
    left_out: Vec<&'static str>,
    /// Error of the first service that could not start.
    failed: Option<Error>,
}

impl ServiceStarter<'_> {
    async fn add(&mut self, service: &ServiceEntry) -> Result<(), Error> {
        let name = service.name();
        let failed = |source| Error::Service {
            service: name,
            source,
        };
        if !(service.is_enabled)(self.context).map_err(failed)? {
            self.left_out.push(name);
            return Ok(());
        }
        let context = match self.child {
            Some(child) => self.context.with_nats(child.config(name)?),
            None => self.context.clone(),
        };
        (service.check)(&context).map_err(failed)?;
        (service.database_file)(&context).map_err(failed)?;
        let running = context.health.condition(&format!("{name}.running"));
        // A database that hangs must not delay a stop.
        let starting = (service.start)(&context);
        let started = context.shutdown.run_until_cancelled(starting);
        let RunningService { router, run } = match started.await {
            Some(Ok(started)) => started,
            None => return Ok(()),
            Some(Err(error)) => {
                fails_alone(name, &running, error.as_ref());
                self.left_out.push(name);
                self.failed.get_or_insert(failed(error));
                return Ok(());
            }
        };
        running.ok();
        self.router = std::mem::take(&mut self.router).merge(router);
        // A separate task, so that a service that computes does not delay the others.
        let task = tokio::spawn(run);
        let work = async move {
            let ended = task.await.unwrap_or_else(|error| Err(error.into()));
            (name, running, ended)
        };
        self.work.push(work.boxed());
        Ok(())
    }
}

/// Handles the failure of one service. The others continue.
fn fails_alone(
    service: &'static str,
    running: &Condition,
    error: &(dyn std::error::Error + 'static),
) {
    let reason = mesh_runtime::error_chain(error);
    tracing::error!(
        service,
        error = reason,
        "service failed, the others continue"
    );
    running.fail(format!(
        "{reason}; it does not run until `smesh up` is restarted"
    ));
}

/// Completes when every service has ended after the shutdown signal, or when none is left.
async fn all(mut work: FuturesUnordered<Work>, context: Context) -> Result<(), BoxError> {
    let mut failed = Vec::new();
    while let Some((name, running, result)) = work.next().await {
        match result {
            Err(error) => {
                fails_alone(name, &running, error.as_ref());
                failed.push(format!(
                    "{name}: {}",
                    mesh_runtime::error_chain(error.as_ref())
                ));
            }
            Ok(()) if !context.shutdown.is_cancelled() => {
                tracing::warn!(service = name, "service ended unexpectedly");
            }
            Ok(()) => {}
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ").into()),
    }
}
