//! What can go wrong inside the dispatcher. What goes wrong at a receiver is no error but an outcome.

use std::path::PathBuf;

/// Errors of the dispatcher itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be opened or brought up to date.
    #[error(transparent)]
    Setup(#[from] mesh_db::Error),
    /// Another dispatcher uses the file.
    #[error("open database {path}: another process uses it; several dispatchers need PostgreSQL (webhook-dispatcher.db.url)", path = .0.display())]
    InUse(PathBuf),
    /// An endpoint of `mesh.toml` has the name of one that was made by the API.
    #[error(
        "endpoint {0:?} was made by the API: give the one in mesh.toml another name, or remove the other with `smesh webhooks remove`"
    )]
    NameTaken(String),
    /// The key that encrypts secrets cannot be used.
    #[error("read the key that encrypts webhook secrets, {path}: {problem}", path = path.display())]
    SecretsKey {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is needed.
        problem: String,
    },
    /// The secrets of an endpoint were encrypted with another key.
    #[error(
        "endpoint {0:?}: its secrets were encrypted with another key; put that key into webhook-dispatcher.secrets_key_file as another line"
    )]
    Sealed(String),
    /// What is stored of an endpoint is refused by now.
    #[error("endpoint {name:?}: {faults}")]
    Refused {
        /// Its name.
        name: String,
        /// What is wrong.
        faults: String,
    },
    /// Nothing is known of the endpoint here.
    #[error("endpoint {0:?} is not known here")]
    Unknown(String),
    /// The bus did not do what a change of an endpoint needs.
    #[error(transparent)]
    Bus(#[from] mesh_bus::Error),
    /// Another dispatcher has the endpoint's lease, or will: it sends what is to be sent.
    #[error("deliver to {0:?}: this dispatcher has the endpoint no more")]
    NotOurs(String),
    /// The endpoint is not sent to any more.
    #[error("deliver to {0:?}: it is paused or disabled")]
    Halted(String),
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
    /// The DNS servers of the configuration cannot be asked.
    #[error("ask webhook-dispatcher.dns_servers")]
    Resolver(#[source] hickory_resolver::net::NetError),
}

impl Error {
    /// True if the database may be there again by itself.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Setup(error) => error.is_unavailable(),
            Self::Database { source, .. } => mesh_db::is_unavailable(source),
            _ => false,
        }
    }

    pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { action, source }
    }
}
