//! Errors inside the dispatcher. A failure at a receiver is an outcome, not an error.

use std::path::PathBuf;

/// Errors of the dispatcher itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be used, or refuses a statement.
    #[error(transparent)]
    Database(#[from] mesh_db::Error),
    /// Another dispatcher uses the SQLite file.
    #[error("open database {path}: another process uses it; several dispatchers need PostgreSQL (webhook-dispatcher.db.url)", path = .0.display())]
    InUse(PathBuf),
    /// An endpoint of `mesh.toml` has the name of one created by the API.
    #[error(
        "endpoint {0:?} was created by the API: rename the one in mesh.toml, or remove the other with `smesh webhooks remove`"
    )]
    NameTaken(String),
    /// The key that encrypts secrets cannot be used.
    #[error("read encryption key of webhook secrets {path}: {problem}", path = path.display())]
    SecretsKey {
        /// Path of the key file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// The secrets of an endpoint were encrypted with another key.
    #[error(
        "endpoint {0:?}: its secrets were encrypted with another key; add that key to webhook-dispatcher.secrets_key_file as another line"
    )]
    Sealed(String),
    /// A stored endpoint no longer passes validation.
    #[error("endpoint {name:?}: {faults}")]
    Refused {
        /// Name of the endpoint.
        name: String,
        /// Its faults.
        faults: String,
    },
    /// This dispatcher has no definition of the endpoint.
    #[error("endpoint {0:?} does not exist")]
    Unknown(String),
    /// A bus operation for a change of an endpoint failed.
    #[error(transparent)]
    Bus(#[from] mesh_bus::Error),
    /// Another dispatcher holds, or is about to take, the endpoint's lease.
    #[error("deliver to {0:?}: another dispatcher holds the lease")]
    NotOurs(String),
    /// The endpoint is paused or disabled.
    #[error("deliver to {0:?}: endpoint is paused or disabled")]
    Halted(String),
    /// The circuit of the endpoint is open, its receiver asked for a pause, or its worker stops.
    #[error("deliver to {0:?}: nothing may be sent now")]
    NotAdmitted(String),
    /// The database writer has ended because the service is shutting down.
    #[error("write delivery: the writer has stopped")]
    WriterStopped,
    /// A batch of writes failed. Every caller gets a copy of this error.
    #[error("write delivery: {0}")]
    Write(String),
    /// The last write failed. Nothing is sent, as the outcome could not be stored.
    #[error("nothing is sent: database is not writable ({0})")]
    NotWriting(String),
    /// A stored body is not an event: the database was modified from outside.
    #[error("read stored event {id}")]
    Stored {
        /// Id of the event.
        id: String,
        /// Cause.
        #[source]
        source: mesh_events::DecodeError,
    },
    /// The HTTP client cannot be created, for example because the host has no certificate authorities.
    #[error(transparent)]
    Client(#[from] guarded_http::ClientError),
}

impl Error {
    /// True if the database may recover without intervention.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database(error) => error.is_unavailable(),
            Self::WriterStopped | Self::Write(_) | Self::NotWriting(_) => true,
            _ => false,
        }
    }

    pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| mesh_db::Error::statement(action)(source).into()
    }
}
