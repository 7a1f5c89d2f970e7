//! Starts every service with its own NATS user and joins their APIs.

use axum::Router;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use mesh_runtime::{BoxError, Context, Service, Started};

use super::nats_child::NatsChild;
use crate::error::Error;

/// What runs.
pub struct Running {
    /// Every service's routes.
    pub router: Router,
    /// Every service's work: ends when all have ended; the first failure stops the others.
    pub run: BoxFuture<'static, Result<(), BoxError>>,
}

type Work = BoxFuture<'static, (&'static str, Result<(), BoxError>)>;

/// Starts the services. The order does not matter to them.
///
/// # Errors
/// The first service that cannot start, with the reason.
pub async fn start(context: &Context, child: Option<&NatsChild>) -> Result<Running, Error> {
    let mut starter = Starter {
        context,
        child,
        router: Router::new(),
        work: FuturesUnordered::new(),
    };
    starter.add::<ledger::LedgerService>().await?;
    starter.add::<cost_engine::CostEngineService>().await?;
    starter
        .add::<webhook_dispatcher::WebhookDispatcherService>()
        .await?;
    starter
        .add::<pending_explainer::PendingExplainerService>()
        .await?;
    starter.add::<node_watcher::NodeWatcherService>().await?;
    starter.add::<ingest::IngestService>().await?;
    let Starter { router, work, .. } = starter;
    Ok(Running {
        router,
        run: all(work, context.clone()).boxed(),
    })
}

struct Starter<'a> {
    context: &'a Context,
    child: Option<&'a NatsChild>,
    router: Router,
    work: FuturesUnordered<Work>,
}

impl Starter<'_> {
    async fn add<S: Service>(&mut self) -> Result<(), Error> {
        let context = match self.child {
            Some(child) => self.context.with_nats(child.config(S::NAME)?),
            None => self.context.clone(),
        };
        let Started { router, run } = S::start(context).await.map_err(|source| Error::Service {
            service: S::NAME,
            source,
        })?;
        self.router = std::mem::take(&mut self.router).merge(router);
        // A task of its own: a service that computes does not hold up the others.
        let task = tokio::spawn(run);
        self.work.push(
            async move {
                (
                    S::NAME,
                    task.await.unwrap_or_else(|error| Err(error.into())),
                )
            }
            .boxed(),
        );
        Ok(())
    }
}

async fn all(mut work: FuturesUnordered<Work>, context: Context) -> Result<(), BoxError> {
    let mut first = Ok(());
    while let Some((name, result)) = work.next().await {
        if let Err(error) = result {
            tracing::error!(
                service = name,
                error = mesh_runtime::chain(error.as_ref()),
                "failed, stopping all"
            );
            context.shutdown.cancel();
            if first.is_ok() {
                first = Err(format!("{name}: {}", mesh_runtime::chain(error.as_ref())).into());
            }
        } else if !context.shutdown.is_cancelled() {
            tracing::warn!(service = name, "ended by itself");
        }
    }
    first
}
