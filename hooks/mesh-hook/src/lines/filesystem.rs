//! Checks where lines may be: on a tmpfs, and users' lines on a small file system of their own.
//!
//! slurmctld waits for the file of job_submit.lua, and sbatch for the file of cli_filter.lua. On a tmpfs no disk can delay them. Users
//! may fill any file system they can write to, so theirs must hold nothing else.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::statfs;

/// `f_type` of a tmpfs (Linux, include/uapi/linux/magic.h).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Largest file system that users may write to, in bytes.
pub(super) const MAX_USERS_BYTES: u64 = 16 << 20;

/// Why a folder cannot be used for lines.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder or the system refuses.
    #[error("use lines in {path}: {source}")]
    Io {
        /// Folder.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// On a disk.
    #[error(
        "lines: {path} is not on a tmpfs, and Slurm would wait for its disk; set a folder below /run in hook.toml and run `smesh hooks install` again"
    )]
    NotInMemory {
        /// Folder.
        path: PathBuf,
    },
    /// Users could fill a file system that others need.
    #[error(
        "lines: {path} is not a separate tmpfs of at most {} MiB, so users could fill a shared one; `smesh hooks print` prints the line for /etc/fstab",
        MAX_USERS_BYTES >> 20
    )]
    NotBounded {
        /// Folder.
        path: PathBuf,
    },
}

impl Error {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Refuses a folder that is not on a tmpfs.
pub(super) fn in_memory(path: &Path) -> Result<(), Error> {
    let found = statfs(path).map_err(|error| Error::io(path)(error.into()))?;
    if is_tmpfs(&found) {
        return Ok(());
    }
    Err(Error::NotInMemory {
        path: path.to_owned(),
    })
}

/// Refuses a folder on a file system that users could fill at the expense of others.
pub(super) fn bounded(path: &Path) -> Result<(), Error> {
    let refused = || Error::NotBounded {
        path: path.to_owned(),
    };
    let above = path.parent().ok_or_else(refused)?;
    let device = |path: &Path| Ok(fs::symlink_metadata(path).map_err(Error::io(path))?.dev());
    let found = statfs(path).map_err(|error| Error::io(path)(error.into()))?;
    let size = found
        .f_blocks
        .saturating_mul(u64::try_from(found.f_bsize).unwrap_or(u64::MAX));
    // A tmpfs without a limit reports zero blocks (tmpfs(5): size=0).
    let small = (1..=MAX_USERS_BYTES).contains(&size);
    if is_tmpfs(&found) && small && device(path)? != device(above)? {
        return Ok(());
    }
    Err(refused())
}

fn is_tmpfs(found: &rustix::fs::StatFs) -> bool {
    u64::try_from(found.f_type) == Ok(TMPFS_MAGIC)
}
