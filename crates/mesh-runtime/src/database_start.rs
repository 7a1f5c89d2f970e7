//! The start of a service that has a database.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use mesh_bus::Backoff;
use tokio_util::sync::CancellationToken;

use crate::{Condition, Context, error_chain};

/// Delay before an unavailable database is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A database until it is prepared: its tables are migrated. The service is not ready before.
pub struct DatabaseStart<E> {
    /// `<service>.database`. The service says when it holds.
    pub condition: Condition,
    is_shared: bool,
    is_unavailable: fn(&E) -> bool,
    is_prepared: bool,
}

impl<E: Error + 'static> DatabaseStart<E> {
    /// `is_shared`: the database is a server, which may be unavailable for a while.
    pub fn new(
        context: &Context,
        service: &str,
        is_shared: bool,
        is_unavailable: fn(&E) -> bool,
    ) -> Self {
        Self {
            condition: context.health.condition(&format!("{service}.database")),
            is_shared,
            is_unavailable,
            is_prepared: false,
        }
    }

    /// Tries once, so that the other services of the process need not wait for a server. [`Self::finish`] waits for it.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn try_prepare(
        &mut self,
        prepare: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        if let Some(problem) = self.problem(prepare.await)? {
            tracing::warn!(error = problem, "database unavailable, waiting");
        }
        Ok(())
    }

    /// Waits until the database is prepared. False if shut down before.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub async fn finish<F>(
        &mut self,
        prepare: impl Fn() -> F,
        shutdown: &CancellationToken,
    ) -> Result<bool, E>
    where
        F: Future<Output = Result<(), E>>,
    {
        let mut backoff = Backoff::fixed(RETRY_INTERVAL);
        while !self.is_prepared {
            if !backoff.wait(shutdown).await {
                return Ok(false);
            }
            let Some(prepared) = shutdown.run_until_cancelled(prepare()).await else {
                return Ok(false);
            };
            self.problem(prepared)?;
        }
        Ok(true)
    }

    fn problem(&mut self, prepared: Result<(), E>) -> Result<Option<String>, E> {
        match prepared {
            Ok(()) => {
                self.is_prepared = true;
                Ok(None)
            }
            Err(error) if self.is_shared && (self.is_unavailable)(&error) => {
                let problem = error_chain(&error);
                self.condition.fail(&problem);
                Ok(Some(problem))
            }
            Err(error) => Err(error),
        }
    }
}
