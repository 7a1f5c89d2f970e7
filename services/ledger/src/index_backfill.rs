//! Fills missing index rows at the start. For millions of entries this takes a while. Until then
//! `/readyz` shows the progress and the API answers 503, because a query would omit entries without
//! index rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use mesh_bus::Backoff;
use mesh_runtime::Condition;
use mesh_runtime::api::Problem;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::{BackfillProgress, Store};
use crate::error::Error;
const LOG_INTERVAL: Duration = Duration::from_secs(10);
#[derive(Clone)]
pub(crate) struct IndexBackfill {
    store: Store,
    done: Arc<AtomicBool>,
}

impl IndexBackfill {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            done: Arc::default(),
        }
    }

    /// Answers 503 until the backfill is complete.
    pub(crate) fn guard(&self, router: Router) -> Router {
        router.route_layer(from_fn_with_state(Arc::clone(&self.done), refuse))
    }

    /// Runs the backfill and retries while the database is unavailable. False if shut down before.
    ///
    /// # Errors
    /// If the failure is permanent.
    pub(crate) async fn run(
        &self,
        database: &Condition,
        shutdown: &CancellationToken,
    ) -> Result<bool, Error> {
        let mut progress: Option<BackfillProgress> = None;
        let mut logged = Instant::now();
        let mut backoff = Backoff::fixed(Duration::from_secs(1));
        while progress.is_none_or(|progress| !progress.is_done()) {
            let step = async {
                match progress {
                    None => self.store.start_backfill().await,
                    Some(progress) => self.store.backfill_step(progress).await,
                }
            };
            let step = tokio::select! {
                step = step => step,
                () = shutdown.cancelled() => return Ok(false),
            };
            match step {
                Ok(next) => {
                    database.fail(describe(&next));
                    if logged.elapsed() >= LOG_INTERVAL {
                        logged = Instant::now();
                        tracing::info!("{}", describe(&next));
                    }
                    progress = Some(next);
                }
                Err(error) if error.is_unavailable() => {
                    database.fail(mesh_runtime::error_chain(&error));
                    tracing::debug!(
                        error = mesh_runtime::error_chain(&error),
                        "ledger database unavailable, retrying"
                    );
                    if !backoff.wait(shutdown).await {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let filled = progress.map_or(0, |progress| progress.filled);
        if filled > 0 {
            tracing::info!(entries = filled, "index backfill completed");
        }
        self.done.store(true, Ordering::Release);
        database.ok();
        Ok(true)
    }
}

fn describe(progress: &BackfillProgress) -> String {
    let BackfillProgress { at, to, filled } = progress;
    format!("index backfill: entry {at} of {to} checked, {filled} indexed")
}

async fn refuse(State(done): State<Arc<AtomicBool>>, request: Request, next: Next) -> Response {
    if done.load(Ordering::Acquire) {
        return next.run(request).await;
    }
    let detail = "the ledger is not open yet: see /readyz";
    Problem::unavailable(detail).into_response()
}
