//! What can go wrong around the parts under test.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

/// Why the set-up, or a step of it, did not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or process could not be used.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A command said no.
    #[error("{command}: {status}: {said}")]
    Command {
        /// The command.
        command: String,
        /// Its exit status.
        status: String,
        /// What it said.
        said: String,
    },
    /// Something did not happen in time.
    #[error("not within {patience:?}: {what}")]
    Deadline {
        /// What did not happen.
        what: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The mesh's API answered something else than expected.
    #[error("GET {path}: {problem}")]
    Api {
        /// The path.
        path: String,
        /// What was wrong.
        problem: String,
    },
    /// The mesh's bus cannot be followed.
    #[error("follow the bus")]
    Bus(#[from] mesh_bus::Error),
    /// Something is missing on this machine; says what to do.
    #[error("{0}")]
    Machine(String),
}

impl Error {
    /// For `map_err`.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }

    /// The error of a command that failed.
    pub(crate) fn command(command: impl Into<String>, output: &Output) -> Self {
        let said = [&output.stderr, &output.stdout]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned())
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_else(|| "it said nothing".to_owned());
        Self::Command {
            command: command.into(),
            status: output.status.to_string(),
            said,
        }
    }

    /// The error and all its causes in one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}
