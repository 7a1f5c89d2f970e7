//! Users: who they are, and becoming one.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::fs::Mode;
use rustix::process::{Gid, Uid, getegid, geteuid, getgid, getgroups, getuid, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use uzers::os::unix::UserExt as _;

/// What the umask of new files of a job is, as after a login on most systems.
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);

/// A user as the system knows it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups, the primary one included, sorted.
    pub(crate) groups: Vec<u32>,
    home: PathBuf,
    shell: PathBuf,
}

impl Owner {
    /// Looks a user up; `None` if there is none.
    pub(crate) fn resolve(name: &str) -> Option<Self> {
        let user = uzers::get_user_by_name(name)?;
        let gid = user.primary_group_id();
        let groups = uzers::get_user_groups(name, gid)?;
        let mut groups: Vec<u32> = groups.iter().map(uzers::Group::gid).collect();
        groups.push(gid);
        groups.sort_unstable();
        groups.dedup();
        Some(Self {
            name: name.to_owned(),
            uid: user.uid(),
            gid,
            groups,
            home: user.home_dir().to_owned(),
            shell: user.shell().to_owned(),
        })
    }

    /// The variables of the owner's commands: nothing of this process's own environment, in which `SBATCH_PARTITION` would change the job.
    /// Jobs get them, too. So there is no `PATH`, in whose place they would not have that of the owner's login.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let own = [
            ("HOME", self.home.clone().into()),
            ("SHELL", self.shell.clone().into()),
            ("USER", self.name.clone().into()),
            ("LOGNAME", self.name.clone().into()),
        ];
        own.map(|(name, value): (_, OsString)| (name.into(), value))
            .into()
    }

    /// Where a job runs that names no working directory.
    pub(crate) fn home(&self) -> String {
        self.home.to_string_lossy().into_owned()
    }

    /// True if this process is this user already.
    pub(crate) fn is_this_process(&self) -> bool {
        self.uid == getuid().as_raw() && self.uid == geteuid().as_raw()
    }

    /// Makes this process this user for good: groups, then gid, then uid, then no capabilities. Checks that it is so.
    ///
    /// # Errors
    /// If the process may not, has more than one thread, or is not that user afterwards: it must end then.
    pub(crate) fn become_this(&self) -> io::Result<()> {
        // The system calls change one thread.
        if std::fs::read_dir("/proc/self/task")?.count() > 1 {
            return Err(io::Error::other("the process has several threads"));
        }
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        if !self.is_this_process() {
            let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
            set_thread_groups(&groups)?;
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
        }
        // Going from one ordinary user to another keeps them, and ambient ones would even reach the commands.
        clear_ambient_capability_set()?;
        let none = CapabilitySet::empty();
        set_capabilities(
            None,
            CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            },
        )?;
        let is_owner = getuid() == uid && geteuid() == uid;
        let in_group = getgid() == gid && getegid() == gid;
        let mut groups: Vec<u32> = getgroups()?.into_iter().map(Gid::as_raw).collect();
        groups.push(self.gid);
        groups.sort_unstable();
        groups.dedup();
        let may_return = set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok();
        if !is_owner || !in_group || groups != self.groups || may_return {
            return Err(io::Error::other("the process is not that user afterwards"));
        }
        umask(UMASK);
        // A folder that this user cannot enter would make the commands fail.
        std::env::set_current_dir(&self.home).or_else(|_| std::env::set_current_dir("/"))
    }
}

/// True if this process may become another user: it runs as root or has the capabilities.
pub(crate) fn may_become_others() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let has = capabilities(None).is_ok_and(|sets| sets.permitted.contains(needed));
    has || geteuid().is_root()
}

/// True if the user who started this process is root.
pub(crate) fn started_by_root() -> bool {
    getuid().is_root()
}
