//! Files for the hooks: `hook.toml` and the spool, readable only by SlurmUser.
//!
//! SlurmUser owns the spool, so its content is not trusted: a link there must not lead root to another file. Every file is first
//! opened without following links, then changed through the descriptor.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use mesh_hook::lines::Source;
use mesh_runtime::Context;
use rustix::fs::{CWD, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, mkdirat, openat};
use rustix::io::Errno;

use super::data_dir::{DataDir, Owner, write_private};
use super::nats_child::NatsChild;
use crate::error::Error;
use crate::settings::HOOK_CONFIG;

/// A tmpfs on most systems, among them all with systemd.
const RUN: &str = "/run/slurm-mesh";
/// Flags for opening files that may belong to SlurmUser.
const CAREFUL: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);

/// Writes the hooks' configuration and prepares their spool.
///
/// # Errors
/// If SlurmUser does not exist, or a file has an unexpected type or owner.
pub fn write(
    context: &Context,
    child: &NatsChild,
    data: &DataDir,
    slurm_user: &str,
) -> Result<(), Error> {
    let owner = owner(slurm_user)?;
    let spool = data.path().join("hook-spool");
    prepare_spool(&spool, owner)?;
    if let Err(error) = prepare_slots(Path::new(RUN), owner) {
        let error = mesh_runtime::error_chain(&error);
        tracing::info!(error, "folder of the hooks' slots not made");
    }
    // Earlier versions wrote the lines here, where users could fill this disk.
    match std::fs::remove_dir_all(data.path().join("hook-lines")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(error = %error, "old folder of lines not removed");
        }
        _ => {}
    }
    let lines = Path::new(RUN).join(&context.mesh.cluster).join("lines");
    let lines = match prepare_lines(&lines, owner) {
        Ok(()) => Some(lines),
        // Only the two Lua plugins need it.
        Err(error) => {
            let error = mesh_runtime::error_chain(&error);
            tracing::info!(error, "lines of Slurm's Lua plugins not read");
            None
        }
    };
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let text = format!(
        "# Written by `smesh up` at every start. See hooks/README.md.\n\
         cluster = {cluster}\nspool = {spool}\n{lines}server_uid = {uid}\n\n\
         [nats]\nurl = {url}\nuser = \"hook\"\npassword = {password}\n",
        cluster = quoted(&context.mesh.cluster),
        spool = quoted(&spool.to_string_lossy()),
        lines = lines.map_or_else(String::new, |lines| format!(
            "lines = {}\n",
            quoted(&lines.to_string_lossy())
        )),
        uid = rustix::process::geteuid().as_raw(),
        url = quoted(child.url()),
        password = quoted(child.password("hook")?),
    );
    write_private(&data.path().join(HOOK_CONFIG), text.as_bytes(), owner)
}

/// Owner of the files. `None` for the present user, because only root can give files away.
fn owner(slurm_user: &str) -> Result<Option<Owner>, Error> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let user = uzers::get_user_by_name(slurm_user).ok_or_else(|| {
        Error::Failed(format!(
            "SlurmUser {slurm_user} of slurm.conf is not a user of this host"
        ))
    })?;
    Ok(Some((
        Uid::from_raw(user.uid()),
        Gid::from_raw(user.primary_group_id()),
    )))
}

/// Opens a folder that may belong to SlurmUser, and creates it if missing.
fn folder(path: &Path, mode: Mode) -> Result<OwnedFd, Error> {
    match mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("create", path)(error)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | CAREFUL;
    let folder = openat(CWD, path, flags, Mode::empty()).map_err(failed("open", path))?;
    fchmod(&folder, mode).map_err(failed("set the mode of", path))?;
    Ok(folder)
}

/// Creates the folder in which Slurm's Lua plugins write. It is in memory, so that no disk delays a submission. Users' lines have
/// their own file system in it, which the site mounts.
fn prepare_lines(path: &Path, owner: Option<Owner>) -> Result<(), Error> {
    let above = path.parent().unwrap_or(path);
    std::fs::create_dir_all(above).map_err(|source| Error::io("create", above, source))?;
    let lines = folder(path, Mode::RWXU | Mode::XGRP | Mode::XOTH)?;
    give(&lines, owner).map_err(failed("change the owner of", path))?;
    let folder = mesh_hook::lines::Folder::new(path);
    let refused = |error: mesh_hook::lines::Error| Error::Failed(mesh_runtime::error_chain(&error));
    folder.prepare(Source::JobSubmit).map_err(refused)?;
    match folder.prepare(Source::CliFilter) {
        Ok(_) => {}
        Err(error) => {
            let error = mesh_runtime::error_chain(&error);
            tracing::info!(error, "lines of cli_filter.lua not read");
        }
    }
    Ok(())
}

/// Creates the folder in which the hooks of SlurmUser count their calls, where no other user can be first.
fn prepare_slots(run: &Path, owner: Option<Owner>) -> Result<(), Error> {
    let user = owner.map_or_else(rustix::process::geteuid, |(user, _)| user);
    // Root has its own folder.
    if user.is_root() {
        return Ok(());
    }
    if !run.exists() {
        folder(run, Mode::RWXU | Mode::XGRP | Mode::XOTH)?;
    }
    let path = run.join(format!("slurm-mesh-hook-{}", user.as_raw()));
    let slots = folder(&path, Mode::RWXU)?;
    give(&slots, owner).map_err(failed("change the owner of", &path))
}

/// Creates the spool and its lock file. The lock file must belong to the hooks, no matter which process flushes first.
fn prepare_spool(path: &Path, owner: Option<Owner>) -> Result<(), Error> {
    let lock_path = path.join(".lock");
    let spool = folder(path, Mode::RWXU)?;
    // NONBLOCK: a pipe with that name would block forever.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | CAREFUL;
    let lock = openat(&spool, ".lock", flags, Mode::RUSR | Mode::WUSR)
        .map_err(failed("open", &lock_path))?;
    let found = fstat(&lock).map_err(failed("inspect", &lock_path))?;
    // A second hard link may be another file of this user.
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink != 1 {
        return Err(Error::Failed(format!(
            "{} is not the lock file of the hooks (a link, or another file); find out who created it, and delete it",
            lock_path.display()
        )));
    }
    give(&lock, owner).map_err(failed("change the owner of", &lock_path))?;
    give(&spool, owner).map_err(failed("change the owner of", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
    move |source| Error::io(action, path, source.into())
}

fn give(file: impl AsFd, owner: Option<Owner>) -> Result<(), Errno> {
    match owner {
        Some((uid, gid)) => fchown(file, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    /// Another user, so that a change of owner is visible. Only as root.
    fn other() -> Option<Owner> {
        rustix::process::geteuid()
            .is_root()
            .then(|| (Uid::from_raw(1), Gid::from_raw(1)))
    }

    #[test]
    fn the_owner_of_spool_and_lock_is_corrected_repeatedly() {
        let folder = tempfile::tempdir().unwrap();
        let spool = folder.path().join("spool");
        for _ in 0..2 {
            prepare_spool(&spool, other()).unwrap();
            let (dir, lock) = (
                fs::metadata(&spool).unwrap(),
                fs::metadata(spool.join(".lock")).unwrap(),
            );
            assert_eq!((dir.mode() & 0o777, lock.mode() & 0o777), (0o700, 0o600));
            if let Some((uid, _)) = other() {
                assert_eq!((dir.uid(), lock.uid()), (uid.as_raw(), uid.as_raw()));
            }
        }
    }

    #[test]
    fn slurm_users_hooks_have_a_folder_of_slots_that_they_reach() {
        let Some(owner) = other() else { return };
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        for _ in 0..2 {
            prepare_slots(&run, Some(owner)).unwrap();
        }
        let slots = fs::metadata(run.join("slurm-mesh-hook-1")).unwrap();
        assert_eq!((slots.uid(), slots.mode() & 0o777), (1, 0o700));
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o777, 0o711);
        let [first, _] = mesh_hook::slots::defaults(1);
        assert_eq!(first, Path::new(RUN).join("slurm-mesh-hook-1"));
    }

    #[test]
    fn a_planted_link_changes_no_owner_of_another_file() {
        let own = rustix::process::geteuid().as_raw();
        for plant in [
            |target: &Path, lock: &Path| symlink(target, lock),
            |target: &Path, lock: &Path| fs::hard_link(target, lock),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let (target, spool) = (folder.path().join("shadow"), folder.path().join("spool"));
            fs::write(&target, "secret").unwrap();
            fs::create_dir(&spool).unwrap();
            plant(&target, &spool.join(".lock")).unwrap();
            let error = prepare_spool(&spool, other()).unwrap_err();
            assert!(error.to_string().contains(".lock"), "{error}");
            assert_eq!(fs::metadata(&target).unwrap().uid(), own);
        }
        let folder = tempfile::tempdir().unwrap();
        let (target, spool) = (folder.path().join("etc"), folder.path().join("spool"));
        fs::create_dir(&target).unwrap();
        symlink(&target, &spool).unwrap();
        assert!(prepare_spool(&spool, other()).is_err());
        assert_eq!(fs::metadata(&target).unwrap().uid(), own);
    }
}
