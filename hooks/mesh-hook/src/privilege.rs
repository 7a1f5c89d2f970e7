//! Root drops its privileges before it touches paths that a less privileged account controls.
//!
//! On a controller, root writes into SlurmUser's spool, called by Prolog or PAM. The owner of a folder can replace it, or its content,
//! with links at any moment, so checks alone would be a race.
//! A sender that runs as SlurmUser can do nothing that SlurmUser could not do anyway.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The account beside root that controls where a path leads: the owner of the first path component that root does not own.
pub(crate) fn owner(path: &Path) -> Option<(u32, u32)> {
    let mut parts: Vec<&Path> = path.ancestors().collect();
    parts.reverse();
    parts
        .into_iter()
        // The owner of the link itself, not of its target.
        .map_while(|part| fs::symlink_metadata(part).ok())
        .find(|found| found.uid() != 0)
        .map(|found| (found.uid(), found.gid()))
}

/// If this process is root and another account controls the path, becomes that account permanently. Requires a single-threaded
/// process, because Linux keeps these ids per thread.
///
/// # Errors
/// If the system refuses.
pub fn become_owner_of(path: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let Some((uid, gid)) = owner(path) else {
        return Ok(());
    };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[gid])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}
