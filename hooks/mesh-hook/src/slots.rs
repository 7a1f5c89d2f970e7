//! Limits the number of concurrent senders.
//!
//! Every call of a hook starts a sender. A sender on a hung disk waits in the kernel, where not even kill -9 ends it. So each sender
//! holds a slot, a locked file on a tmpfs, before it touches the spool.
//! The kernel releases the lock when the process ends, for whatever reason.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::spool::{Lock, lock_file};

/// More than run at once without a hung disk: a call takes milliseconds, or 250 ms if NATS does not answer.
pub const MAX_CONCURRENT_CALLS: u32 = 256;
/// How long a sender waits for a slot, since many calls at once are no fault. The hook's caller does not wait for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Folders of a user's slots. Other users can create nothing in the first one's parent, so they cannot take its name. `smesh up` and
/// the package make the parent of users other than root.
pub fn defaults(user: u32) -> [PathBuf; 2] {
    let run = match user {
        0 => "/run",
        _ => "/run/slurm-mesh",
    };
    [run, "/dev/shm"].map(|parent| Path::new(parent).join(format!("slurm-mesh-hook-{user}")))
}

/// Takes a slot in the first folder that can be used, to be held until the process ends. `None` if no slot becomes free there.
///
/// # Errors
/// If no folder can be used. The number of senders is then not limited, so they must not touch a disk.
pub fn take(folders: &[PathBuf]) -> io::Result<Option<Lock>> {
    let mut problems = Vec::new();
    for folder in folders {
        match take_in(folder) {
            Ok(slot) => return Ok(slot),
            Err(error) => problems.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(io::Error::other(problems.join("; ")))
}

fn take_in(folder: &Path) -> io::Result<Option<Lock>> {
    make_own(folder)?;
    let until = Instant::now() + PATIENCE;
    loop {
        for n in 0..MAX_CONCURRENT_CALLS {
            let name = (std::process::id().wrapping_add(n) % MAX_CONCURRENT_CALLS).to_string();
            if let Some(slot) = lock_file(folder, &name)? {
                return Ok(Some(slot));
            }
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

/// Any user may create folders in /dev/shm, so a folder owned by another user is not used.
fn make_own(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = fs::symlink_metadata(folder)?;
    let own = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = "not a folder that only this user may write to";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn there_are_so_many_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let folder = [folder.path().join("slots")];
        let mut held: Vec<_> = (0..MAX_CONCURRENT_CALLS)
            .map(|_| take(&folder).unwrap().unwrap())
            .collect();
        assert!(take(&folder).unwrap().is_none());
        held.pop();
        assert!(take(&folder).unwrap().is_some());
    }

    #[test]
    fn a_folder_that_others_may_change_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        for path in [open, link, folder.path().join("absent/slots")] {
            assert!(take_in(&path).is_err(), "{}", path.display());
            let usable = folder.path().join("usable");
            assert!(take(&[path, usable]).unwrap().is_some());
        }
    }

    #[test]
    fn the_first_folder_is_not_where_anybody_may_create_one() {
        for user in [0, 64_030] {
            let [first, _] = defaults(user);
            let parent = first.ancestors().skip(1).find(|path| path.exists());
            let mode = fs::metadata(parent.unwrap()).unwrap().mode();
            assert_eq!(mode & 0o002, 0, "{}", first.display());
        }
    }
}
