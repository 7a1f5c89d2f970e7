//! Errors and their exit statuses. Statuses above 63 are those of sysexits.h.

use std::io;
use std::path::{Path, PathBuf};

use ledger::VerifyError;
use mesh_runtime::{BoxError, ConfigError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API is unreachable.
    #[error(
        "reach slurm-mesh at {address}: {reason}; check that `smesh up` runs, or select another address with --socket or --url"
    )]
    Unreachable {
        /// Path of the socket, or URL.
        address: String,
        /// Cause, as text.
        reason: String,
    },
    /// The API refused.
    #[error("{detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Text of the API's error.
        detail: String,
        /// After how many seconds it may be asked again.
        retry_after: Option<u64>,
    },
    /// The API's answer has an unexpected form.
    #[error(
        "decode the answer of slurm-mesh: {0}; check that smesh and the services have the same version"
    )]
    Answer(String),
    /// A file or stream operation failed.
    #[error("{action} {path}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Its file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// This user must not read the file of an archive.
    #[error(
        "read archive {path}: this user may not read it, so whether it is there and unchanged is not known; run the command as a user who may read it and search the folders above it: the one of the ledger, or root"
    )]
    ArchiveDenied {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Any other failure, with its full text.
    #[error("{0}")]
    Failed(String),
    /// hook.toml is missing or invalid.
    #[error("{0}{hint}", hint = hint(.0))]
    Hooks(mesh_hook::config::Error),
    /// A service could not start, or ended.
    #[error("{service}")]
    Service {
        /// Name of the service.
        service: &'static str,
        /// Cause.
        #[source]
        source: BoxError,
    },
    /// Slurm did not answer.
    #[error(transparent)]
    Slurm(#[from] slurm_client::Error),
    /// NATS.
    #[error(transparent)]
    Bus(#[from] mesh_bus::Error),
}

/// What to do about an invalid hook.toml.
fn hint(error: &mesh_hook::config::Error) -> &'static str {
    match error {
        mesh_hook::config::Error::Read { source, .. }
            if source.kind() == io::ErrorKind::NotFound =>
        {
            "; on the host of `smesh up`, start it once, which writes the file, and pass its mesh.toml with --config; on other hosts create one (hooks/README.md) and pass it with --hook-config"
        }
        error if is_denied(error) => "; only SlurmUser and root may read it",
        _ => "",
    }
}

fn is_denied(error: &mesh_hook::config::Error) -> bool {
    matches!(error, mesh_hook::config::Error::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

impl Error {
    /// Exit status of a wrong command line (EX_USAGE).
    pub const USAGE: u8 = 64;

    /// Wraps an IO error.
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.as_ref().to_owned(),
            source,
        }
    }

    /// Wraps why a ledger could not be verified.
    pub fn unverified(what: &str, error: VerifyError) -> Self {
        match error {
            VerifyError::Archive { path, source }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Self::ArchiveDenied { path, source }
            }
            error => Self::Failed(format!("{what}: {}", mesh_runtime::error_chain(&error))),
        }
    }

    /// Path of the archive file that this user must not read, if that is the failure.
    pub fn denied_archive(&self) -> Option<&Path> {
        match self {
            Self::ArchiveDenied { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Exit status, as documented in `smesh --help`.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => Self::USAGE,
            Self::Unreachable { .. } => 69,
            Self::Refused {
                status: 401 | 403, ..
            }
            | Self::ArchiveDenied { .. } => 77,
            Self::Hooks(error) if is_denied(error) => 77,
            Self::Config(_) | Self::Hooks(_) => 78,
            Self::Refused { .. }
            | Self::Answer(_)
            | Self::Io { .. }
            | Self::Failed(_)
            | Self::Service { .. }
            | Self::Slurm(_)
            | Self::Bus(_) => 1,
        }
    }

    /// True if the reader of standard output is gone, as in `smesh events | head`.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
