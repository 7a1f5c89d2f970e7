//! What can go wrong, and the exit status of each. Statuses above 63 are those of sysexits.h.

use std::io;
use std::path::{Path, PathBuf};

use mesh_runtime::{BoxError, ConfigError};

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line cannot be meant.
    #[error("{0}")]
    Usage(String),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API does not answer.
    #[error(
        "reach slurm-mesh at {address}: {reason}; is `smesh up` running? --socket and --url name another one"
    )]
    Unreachable {
        /// Socket or address.
        address: String,
        /// Why.
        reason: String,
    },
    /// The API refused.
    #[error("{detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What the API says.
        detail: String,
    },
    /// The API gave an answer of another form.
    #[error(
        "understand the answer of slurm-mesh: {0}; are smesh and the services of the same version?"
    )]
    Answer(String),
    /// A file or stream.
    #[error("{action} {path}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Something is not as it has to be.
    #[error("{0}")]
    Failed(String),
    /// There is no usable hook.toml.
    #[error("{0}{hint}", hint = hint(.0))]
    Hooks(mesh_hook::config::Error),
    /// A service could not start or ended.
    #[error("{service}")]
    Service {
        /// Its name.
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

/// What to do about a hook.toml that cannot be used.
fn hint(error: &mesh_hook::config::Error) -> &'static str {
    match error {
        mesh_hook::config::Error::Read { source, .. }
            if source.kind() == io::ErrorKind::NotFound =>
        {
            "; on the host of `smesh up` start that once, which writes it into its data directory, and name its mesh.toml by --config; \
             on another host write one (hooks/README.md) and name it by --hook-config"
        }
        error if is_denied(error) => "; it is for SlurmUser and root only",
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

    /// The exit status, as `smesh --help` documents it.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => Self::USAGE,
            Self::Unreachable { .. } => 69,
            Self::Refused {
                status: 401 | 403, ..
            } => 77,
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

    /// True if nobody reads our output any more, as in `smesh events | head`.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
