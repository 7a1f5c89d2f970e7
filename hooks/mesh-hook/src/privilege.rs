//! Root gives its rights away before it touches what a less privileged account may arrange.
//!
//! On a controller root rings from Prolog or PAM into SlurmUser's spool. Whoever owns a folder can put links in it, or in place of it, at any
//! moment: checks alone would be a race. As SlurmUser a sender can do nothing that SlurmUser could not do anyway.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Who can decide what a path leads to, beside root: the owner of the first part of it that is not root's.
fn owner(path: &Path) -> Option<(u32, u32)> {
    let mut parts: Vec<&Path> = path.ancestors().collect();
    parts.reverse();
    parts
        .into_iter()
        // Of a link its own owner, not its target's.
        .map_while(|part| fs::symlink_metadata(part).ok())
        .find(|found| found.uid() != 0)
        .map(|found| (found.uid(), found.gid()))
}

/// If this is root and somebody else can decide what the path leads to, becomes that account, for good. Of a process with one thread only:
/// Linux keeps these ids per thread.
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
