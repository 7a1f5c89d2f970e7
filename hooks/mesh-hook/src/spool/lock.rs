//! Whose turn it is, and whose the files are.
//!
//! Root rings, too (Prolog on a node that is the controller, PAM), in a folder that may be SlurmUser's: what lies there is opened so that a
//! link leads nowhere, a pipe keeps nobody waiting, and no file is given away that was not made here.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

/// A file that no other process has locked.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "holds the lock until dropped")] File);

/// Held while flushing, so that order is kept and no two processes send the same.
#[derive(Debug)]
pub struct FlushLock(#[allow(dead_code, reason = "holds the lock until dropped")] Lock);

/// Takes the lock of a folder; `None` if another process has it.
///
/// # Errors
/// If the folder cannot be used.
pub fn lock(folder: &Path) -> io::Result<Option<FlushLock>> {
    Ok(lock_file(folder, ".lock")?.map(FlushLock))
}

/// Locks a file of a folder, and makes it if it is not there; `None` if another process has it.
///
/// # Errors
/// If the folder cannot be used.
pub fn lock_file(folder: &Path, name: &str) -> io::Result<Option<Lock>> {
    let file = open_own(folder, name)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file of the spool's own to read and write, and makes it if it is not there.
///
/// # Errors
/// If the system refuses, or what has that name may be somebody else's file.
pub fn open_own(folder: &Path, name: &str) -> io::Result<File> {
    let path = folder.join(name);
    let create = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
    };
    match create() {
        Ok(file) => {
            like_folder(&file, folder)?;
            return Ok(file);
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    let file = open_regular(OpenOptions::new().read(true).write(true), &path)?;
    let (found, owner) = (file.metadata()?, fs::metadata(folder)?.uid());
    // A second name may be that of a file that only root may change.
    if found.nlink() > 1 || found.uid() != owner {
        let message = format!(
            "{} has a second name or another owner; look who made it, and remove it",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(file)
}

/// Opens a file that is there, without following a link or waiting for the other end of a pipe.
///
/// # Errors
/// If the system refuses, or it is no regular file.
pub fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        let message = format!("{} is no regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(file)
}

/// Gives a file that was just made to the owner of its folder. Root rings, too, and what it leaves must be SlurmUser's to deliver.
///
/// # Errors
/// If the system refuses.
pub fn like_folder(file: &File, folder: &Path) -> io::Result<()> {
    let (folder, own) = (fs::metadata(folder)?, file.metadata()?);
    if own.uid() != folder.uid() && rustix::process::geteuid().is_root() {
        fchown(file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(())
}
