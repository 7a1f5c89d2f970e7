//! Takes the endpoints of `mesh.toml` again when the file, or a file that they name, changes. Other keys take effect at
//! a restart.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mesh_runtime::{BoxError, Context, ReloadTimer, Service as _, return_freed_memory};
use secret_file::FileStamp;
use tokio::task::spawn_blocking;

use crate::config::{Config, Endpoint};
use crate::endpoint::registry::{EndpointChanges, Registry};
use crate::endpoint::worker_pool::WorkerPool;
use crate::error::Error;
use crate::repeat::pause;
use crate::store::Store;
use crate::{WebhookDispatcherService, clock};

/// A file must stay the same for this long before it is read: an editor may be writing it.
const SETTLE_TIME: Duration = Duration::from_millis(250);

/// Files, each as it was before it was read.
pub(crate) type FileStamps = Vec<(PathBuf, Option<FileStamp>)>;

/// Reads the files that endpoints name.
#[derive(Default)]
pub(crate) struct NamedFiles(RefCell<FileStamps>);

impl NamedFiles {
    /// Reads a secret, or why it cannot be used.
    pub fn read(&self, context: &Context, path: &Path) -> io::Result<String> {
        let path = context.relative(path);
        let stamp = FileStamp::of(&path);
        let text = secret_file::read(&path);
        self.0.borrow_mut().push((path, stamp));
        text
    }

    /// The files that were read.
    pub fn into_stamps(self) -> FileStamps {
        self.0.into_inner()
    }
}

/// What is needed to replace the endpoints of `mesh.toml`.
pub(crate) struct EndpointReloader {
    pub context: Context,
    /// The files that the endpoints name.
    pub named: FileStamps,
    pub store: Store,
    pub registry: Arc<Registry>,
    pub worker_pool: Arc<WorkerPool>,
}

impl EndpointReloader {
    /// Follows the files until shutdown. A file that cannot be used changes nothing; the log and the notes of
    /// `/readyz` say why.
    pub async fn run(mut self) {
        let Some(path) = self.context.config_path().map(Path::to_owned) else {
            return;
        };
        let shutdown = self.context.shutdown.clone();
        let note = format!("{}.endpoints", WebhookDispatcherService::NAME);
        let note = self.context.health.note(&note);
        let mut files = vec![(path.clone(), self.context.config_stamp())];
        files.append(&mut self.named);
        let mut timer = ReloadTimer::new(shutdown.clone());
        while timer.due().await {
            let mut found = now(&files);
            if found == files {
                continue;
            }
            loop {
                if !pause(SETTLE_TIME, &shutdown).await {
                    return;
                }
                let later = now(&files);
                if later == found {
                    break;
                }
                found = later;
            }
            let (context, config) = (self.context.clone(), self.registry.config().clone());
            let Ok((named, read)) = spawn_blocking(move || read(&context, config)).await else {
                continue;
            };
            files = found;
            files.truncate(1);
            files.extend(named);
            let applied = match read {
                Ok(endpoints) => self.apply(endpoints).await.map_err(|error| {
                    if error.is_unavailable() {
                        // Read again.
                        files[0].1 = None;
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

/// The files as they are now.
fn now(files: &FileStamps) -> FileStamps {
    let files = files.iter();
    files
        .map(|(path, _)| (path.clone(), FileStamp::of(path)))
        .collect()
}

/// Reads the endpoints of the file, and returns the files that they name. All other keys are those in use.
fn read(context: &Context, config: Config) -> (FileStamps, Result<Vec<Endpoint>, BoxError>) {
    let named = NamedFiles::default();
    let endpoints = || -> Result<Vec<Endpoint>, BoxError> {
        let again: Config = context
            .read_again()?
            .section(WebhookDispatcherService::NAME)?;
        let endpoints = again.endpoints;
        let read = Config {
            endpoints,
            ..config
        }
        .validate(|path| named.read(context, path));
        read.map_err(|faults| {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            context.faults(&faults).into()
        })
    };
    let endpoints = endpoints();
    (named.into_stamps(), endpoints)
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
