//! Takes the endpoints of `mesh.toml` again when the file, or a file that they name, changes. Other keys take effect at
//! a restart.

use std::cell::RefCell;
use std::sync::Arc;

use mesh_runtime::{
    BoxError, Context, ReloadTimer, Service as _, WatchedFiles, return_freed_memory,
};
use tokio::task::spawn_blocking;

use crate::config::{Config, Endpoint, Fault};
use crate::endpoint::registry::{EndpointChanges, Registry};
use crate::endpoint::worker_pool::WorkerPool;
use crate::error::Error;
use crate::store::Store;
use crate::{WebhookDispatcherService, clock};

/// What is needed to replace the endpoints of `mesh.toml`.
pub(crate) struct EndpointReloader {
    pub context: Context,
    /// `mesh.toml` and the files that its endpoints name.
    pub files: WatchedFiles,
    pub store: Store,
    pub registry: Arc<Registry>,
    pub worker_pool: Arc<WorkerPool>,
}

impl EndpointReloader {
    /// Follows the files until shutdown. A file that cannot be used changes nothing; the log and the notes of
    /// `/readyz` say why.
    pub async fn run(mut self) {
        let note = format!("{}.endpoints", WebhookDispatcherService::NAME);
        let note = self.context.health.note(&note);
        let mut timer = ReloadTimer::new(self.context.shutdown.clone());
        while timer.changed(&mut self.files).await {
            let (context, config) = (self.context.clone(), self.registry.config.clone());
            let Ok((found, read)) = spawn_blocking(move || read(&context, config)).await else {
                continue;
            };
            self.files = found;
            let applied = match read {
                Ok(endpoints) => self.apply(endpoints).await.map_err(|error| {
                    if error.is_unavailable() {
                        self.files.read_again();
                    }
                    error.into()
                }),
                Err(error) => Err(error),
            };
            match applied {
                Ok(changes) => {
                    note.clear();
                    report(&changes);
                }
                Err(error) => {
                    let error = mesh_runtime::error_chain(error.as_ref());
                    tracing::warn!(
                        error,
                        "endpoints of mesh.toml not usable, the former ones stay in use"
                    );
                    note.say(format!("{error}; the former endpoints stay in use"));
                }
            }
            return_freed_memory();
        }
    }

    async fn apply(&self, endpoints: Vec<Endpoint>) -> Result<EndpointChanges, Error> {
        let endpoints: Vec<Arc<Endpoint>> = endpoints.into_iter().map(Arc::new).collect();
        let (former, changes) = self.registry.replace_files(endpoints.clone());
        if changes.is_empty() {
            return Ok(changes);
        }
        // Listed before they are stored: a stored endpoint that no dispatcher lists is removed.
        self.worker_pool.list_again();
        let rows = endpoints.iter();
        let rows = rows.map(|endpoint| (endpoint.name.as_str(), endpoint.public.as_str()));
        if let Err(error) = self.store.note_files(rows, clock::now()).await {
            self.registry.replace_files(former);
            self.worker_pool.list_again();
            return Err(error);
        }
        self.worker_pool.restart(&changes.changed);
        Ok(changes)
    }
}

/// Reads the endpoints of `mesh.toml`, and returns the files that they are read from. All other keys are those in use.
fn read(context: &Context, config: Config) -> (WatchedFiles, Result<Vec<Endpoint>, BoxError>) {
    let mut files = context.watched_config();
    // Only what changes from now on is new.
    files.changed();
    let read = |files: &mut WatchedFiles| -> Result<Vec<Endpoint>, BoxError> {
        let again: Config = context
            .read_again()?
            .section(WebhookDispatcherService::NAME)?;
        let endpoints = again.endpoints;
        let config = Config {
            endpoints,
            ..config
        };
        read_endpoints(context, &config, files).map_err(|faults| {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            context.faults(&faults).into()
        })
    };
    let endpoints = read(&mut files);
    (files, endpoints)
}

/// The endpoints of a configuration. The files that they name are added to `files`.
pub(crate) fn read_endpoints(
    context: &Context,
    config: &Config,
    files: &mut WatchedFiles,
) -> Result<Vec<Endpoint>, Vec<Fault>> {
    let files = RefCell::new(files);
    config.validate(|path| {
        let path = context.relative(path);
        files.borrow_mut().add(path.clone());
        secret_file::read(&path)
    })
}

fn report(changes: &EndpointChanges) {
    if !changes.is_empty() {
        tracing::info!(
            added = changes.added.join(", "),
            changed = changes.changed.join(", "),
            removed = changes.removed.join(", "),
            "endpoints of mesh.toml read again"
        );
    }
}
