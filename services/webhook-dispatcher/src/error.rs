//! What can go wrong inside the dispatcher. What goes wrong at a receiver is no error but an outcome.

use std::path::PathBuf;

/// Errors of the dispatcher itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database file cannot be opened or brought up to date.
    #[error("open database {path}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database does not read or write; the message comes again.
    #[error("{action}")]
    Database {
        /// What was being done.
        action: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// The database's writer has ended: the service is leaving.
    #[error("write delivery: the writer has stopped")]
    WriterStopped,
    /// A batch of writes failed; each of its callers is told.
    #[error("write delivery: {0}")]
    Write(String),
    /// The last write failed: nothing is sent that could not be noted.
    #[error("send nothing: the database does not write ({0})")]
    NotWriting(String),
    /// A stored body is not an event: the file was changed by somebody else.
    #[error("read stored event {id}")]
    Stored {
        /// Id of the event.
        id: String,
        /// Cause.
        #[source]
        source: mesh_events::DecodeError,
    },
    /// The HTTP client cannot be made, e.g. without any certificate authority on the machine.
    #[error("make HTTP client")]
    Client(#[source] reqwest::Error),
}

impl Error {
    pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { action, source }
    }
}
