//! Before anything else: columns for queries that are missing are filled. A ledger of many millions of entries takes a while for that, which
//! `/readyz` tells, and the API answers nothing meanwhile: a query would leave out what has no columns yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use mesh_runtime::Condition;
use mesh_runtime::api::Problem;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::{Completion, Store};
use crate::error::Error;

/// Before another attempt when the database is away.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the log says how far it is.
const TELL: Duration = Duration::from_secs(10);
/// When a caller may ask again, in seconds.
const RETRY_AFTER: u64 = 5;

/// Fills what is missing, once.
#[derive(Clone)]
pub(crate) struct Completer {
    store: Store,
    done: Arc<AtomicBool>,
}

impl Completer {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            done: Arc::default(),
        }
    }

    /// Refuses every question until nothing is missing.
    pub(crate) fn guard(&self, router: Router) -> Router {
        router.route_layer(from_fn_with_state(Arc::clone(&self.done), refuse))
    }

    /// Fills what is missing, however often the database goes away. False if told to stop before.
    ///
    /// # Errors
    /// If it cannot be filled for a reason that waiting does not mend.
    pub(crate) async fn run(
        &self,
        database: &Condition,
        shutdown: &CancellationToken,
    ) -> Result<bool, Error> {
        let mut completion: Option<Completion> = None;
        let mut told = Instant::now();
        while completion.is_none_or(|completion| !completion.is_done()) {
            let step = async {
                match completion {
                    None => self.store.completion().await,
                    Some(completion) => self.store.complete_some(completion).await,
                }
            };
            let step = tokio::select! {
                step = step => step,
                () = shutdown.cancelled() => return Ok(false),
            };
            match step {
                Ok(next) => {
                    database.fail(progress(&next));
                    if told.elapsed() >= TELL {
                        told = Instant::now();
                        tracing::info!("{}", progress(&next));
                    }
                    completion = Some(next);
                }
                Err(error) if error.is_unavailable() => {
                    database.fail(mesh_runtime::chain(&error));
                    tracing::debug!(error = mesh_runtime::chain(&error), "not there");
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = shutdown.cancelled() => return Ok(false),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        let filled = completion.map_or(0, |completion| completion.filled);
        if filled > 0 {
            tracing::info!(entries = filled, "filled missing columns for queries");
        }
        self.done.store(true, Ordering::Release);
        database.ok();
        Ok(true)
    }
}

fn progress(completion: &Completion) -> String {
    let Completion { at, to, filled } = completion;
    format!(
        "looking for entries without columns for queries: at {at} of {to}, filled {filled} so far"
    )
}

async fn refuse(State(done): State<Arc<AtomicBool>>, request: Request, next: Next) -> Response {
    if done.load(Ordering::Acquire) {
        return next.run(request).await;
    }
    let detail = "the ledger is not open yet: /readyz says why and how far it is";
    Problem::unavailable(detail, RETRY_AFTER).into_response()
}
