//! A service as its process sees it.

use std::future::Future;
use std::path::{Path, PathBuf};

use axum::Router;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{BoxError, Context, RenamedKeys, ServiceSection};

/// A service: a library that any process can run.
pub trait Service: 'static {
    /// Its name: crate, section, durable consumer, NATS user, `service.name`.
    const NAME: &'static str;
    /// Its section of `mesh.toml`. Secrets are of types that are shown masked.
    type Config: DeserializeOwned + Serialize;
    /// Its sections of `mesh.toml` with every default and a comment for each key.
    const DEFAULTS: &'static str;
    /// Old and new names of renamed keys of its section. Old keys are refused with an error that names the new one.
    const RENAMED_KEYS: RenamedKeys = &[];
    /// Keys of its section whose changes it takes without a restart.
    const LIVE_KEYS: &'static [&'static str] = &[];
    /// One sentence for `--help`.
    const ABOUT: &'static str;

    /// Checks the configuration and the files it names, and changes nothing: `--check-config`.
    ///
    /// # Errors
    /// Every fault, naming its key.
    fn check(context: &Context) -> Result<(), BoxError>;

    /// Path of its SQLite file, if it has one.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    fn database_file(_context: &Context) -> Result<Option<PathBuf>, BoxError> {
        Ok(None)
    }

    /// What is lost with damaged pages of that file, and the command that restores it.
    const REMEDY: &'static str = "";

    /// Reads the whole file and describes its damage; `None` if it is intact.
    ///
    /// # Errors
    /// If it cannot be read for another reason.
    fn damage(_file: &Path) -> impl Future<Output = Result<Option<String>, BoxError>> + Send {
        std::future::ready(Ok(None))
    }

    /// Checks the configuration, opens databases, and returns at once: never waits for NATS or Slurm.
    fn start(context: Context) -> impl Future<Output = Result<RunningService, BoxError>> + Send;
}

/// A service that has started.
pub struct RunningService {
    /// Routes of its API.
    pub router: Router,
    /// Its work. Ends when the context's `shutdown` is cancelled and work in progress is finished.
    pub run: BoxFuture<'static, Result<(), BoxError>>,
}

impl ServiceSection {
    /// The section of a service type.
    pub const fn of<S: Service>() -> Self {
        Self {
            name: S::NAME,
            defaults: S::DEFAULTS,
            renamed_keys: S::RENAMED_KEYS,
            live_keys: S::LIVE_KEYS,
            shown: |config| config.shown::<S::Config>(S::NAME),
        }
    }
}
