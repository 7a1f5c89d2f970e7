//! Whose turn it is, and whose the files are.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// Held while flushing, so that order is kept and no two processes send the same.
#[derive(Debug)]
pub struct FlushLock(#[allow(dead_code, reason = "holds the lock until dropped")] File);

/// Takes the lock of a folder; `None` if another process has it.
///
/// # Errors
/// If the folder cannot be used.
pub fn lock(folder: &Path) -> io::Result<Option<FlushLock>> {
    let path = folder.join(".lock");
    let open = |options: &mut OpenOptions| {
        options
            .write(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
    };
    let file = match open(OpenOptions::new().create_new(true)) {
        Ok(file) => {
            like_folder(&file, folder)?;
            file
        }
        Err(_) => open(&mut OpenOptions::new())?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(FlushLock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Gives a new file to the owner of its folder. Root rings, too (on the controller, Prolog beside PrologSlurmctld), and what it leaves
/// must be SlurmUser's to deliver.
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
