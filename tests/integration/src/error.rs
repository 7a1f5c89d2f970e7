//! Errors of the test environment.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

/// Why a step of the set-up failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or process operation failed.
    #[error("{doing} {path}", path = path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its file or program.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A command failed.
    #[error("{command}: {status}: {printed}")]
    Command {
        /// The command.
        command: String,
        /// Its exit status.
        status: String,
        /// Its output.
        printed: String,
    },
    /// An expected event did not happen in time.
    #[error("not within {patience:?}: {description}")]
    Deadline {
        /// The expected event.
        description: String,
        /// The time limit.
        patience: Duration,
    },
    /// The mesh's API gave an unexpected answer.
    #[error("{request}: {problem}")]
    Api {
        /// Method and path of the request.
        request: String,
        /// The fault.
        problem: String,
    },
    /// The mesh's bus cannot be followed.
    #[error("follow the bus")]
    Bus(#[from] mesh_bus::Error),
    /// This machine lacks a requirement. The text says what to do.
    #[error("{0}")]
    Machine(String),
}

impl Error {
    /// Builds an [`Error::Io`] for `map_err`.
    pub fn io(
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

    /// The error for a failed command.
    pub fn command(command: impl Into<String>, output: &Output) -> Self {
        let printed = [&output.stderr, &output.stdout]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned())
            .into_iter()
            .find(|text| !text.is_empty())
            .unwrap_or_else(|| "no output".to_owned());
        Self::Command {
            command: command.into(),
            status: output.status.to_string(),
            printed,
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
