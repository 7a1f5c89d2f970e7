//! Files that SlurmUser may have put into the spool while root writes there give SlurmUser no additional rights.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use mesh_hook::slots;
use mesh_testkit::wait_until;

use crate::site::{Call, Site, TIMEOUT, call, hook, needs_root, spooled};

/// Any account that is not root.
const SLURM_USER: u32 = 1;
const SECRET: &str = "root:secret\n";

/// A site whose spool and parent folder belong to SlurmUser, while NATS is unavailable.
async fn site() -> Site {
    needs_root();
    let mut site = Site::start().await;
    site.nats.kill();
    let folder = site.folder.path().join("state");
    let spool = folder.join("spool");
    fs::create_dir_all(&spool).unwrap();
    for path in [site.folder.path(), &folder, &spool] {
        chown(path, Some(SLURM_USER), Some(SLURM_USER)).unwrap();
    }
    site.configure_spool(&spool, "");
    site
}

fn ring(site: &Site, job: u32) {
    let mut command = hook(&site.config());
    let received = call(command.arg("--send").env("SLURM_JOB_ID", job.to_string()));
    assert!(received.output.status.success(), "{received:?}");
}

fn is_untouched(path: &Path) {
    let found = fs::metadata(path).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600));
    assert_eq!(fs::read_to_string(path).unwrap(), SECRET);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_the_spool_changes_no_owner_of_root_files() {
    let site = site().await;
    let spool = site.folder.path().join("state/spool");
    let secret = site.folder.path().join("shadow");
    fs::write(&secret, SECRET).unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    for name in [".used", ".lock", ".away"] {
        fs::remove_file(spool.join(name)).ok();
        fs::hard_link(&secret, spool.join(name)).unwrap();
        ring(&site, 1);
        is_untouched(&secret);
        fs::remove_file(spool.join(name)).ok();
        symlink(&secret, spool.join(name)).unwrap();
        ring(&site, 1);
        is_untouched(&secret);
        fs::remove_file(spool.join(name)).ok();
    }
    assert!(!spooled(&spool).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_place_of_the_spool_leads_root_nowhere() {
    let site = site().await;
    let spool = site.folder.path().join("state/spool");
    // Like /etc/cron.d: owned by root, and writable only by root.
    let roots = tempfile::tempdir().unwrap();
    fs::remove_dir(&spool).unwrap();
    symlink(roots.path(), &spool).unwrap();
    std::os::unix::fs::lchown(&spool, Some(SLURM_USER), Some(SLURM_USER)).unwrap();
    ring(&site, 1);
    assert_eq!(fs::read_dir(roots.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_in_the_spool_blocks_no_sender() {
    let mut site = site().await;
    let spool = site.folder.path().join("state/spool");
    ring(&site, 1);
    let pipe = |name: &str| {
        fs::remove_file(spool.join(name)).ok();
        let made = Command::new("mkfifo").arg(spool.join(name)).status();
        assert!(made.unwrap().success());
        chown(spool.join(name), Some(SLURM_USER), Some(SLURM_USER)).unwrap();
    };
    pipe(".used");
    pipe("00000000000000000001-pipe-9.bell");
    ring(&site, 2);
    ring(&site, 3);
    assert!(fs::symlink_metadata(spool.join(".used")).unwrap().is_file());
    site.nats.restart().await;
    wait_until("all go, past the pipe", TIMEOUT, async || {
        let flushed = call(hook(&site.config()).arg("--flush"));
        flushed.output.status.success() && site.received().len() == 3
    })
    .await;
    assert!(spool.join("00000000000000000001-pipe-9.bad").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_folder_of_slots_doorbells_are_delivered_and_the_spool_is_not_touched() {
    /// An account of no one, so that no hook of this machine uses its folder.
    const CALLER: u32 = 54_321;
    needs_root();
    let mut site = Site::start().await;
    for path in [site.folder.path(), &site.config()] {
        chown(path, Some(CALLER), Some(CALLER)).unwrap();
    }
    let program = site.folder.path().join("mesh-hook");
    fs::copy(env!("CARGO_BIN_EXE_mesh-hook"), &program).unwrap();
    let ring = |site: &Site, job: u32| -> Call {
        let mut command = Command::new(&program);
        command.env_clear().uid(CALLER).gid(CALLER);
        command.env("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld");
        command.env("SLURM_JOB_ID", job.to_string());
        call(command.arg("--config").arg(site.config()).arg("--send"))
    };
    // Another user was first. Nobody has made the folder in /run for this account.
    let [_, shared] = slots::defaults(CALLER);
    let squatted = [site.folder.path().join("slots"), shared];
    for folder in &squatted {
        fs::remove_dir_all(folder).ok();
        fs::create_dir(folder).unwrap();
    }
    wait_until("it is delivered", TIMEOUT, async || {
        ring(&site, 1);
        !site.received().is_empty()
    })
    .await;
    site.nats.kill();
    let lost = ring(&site, 2);
    let without = site.spool().exists();
    fs::remove_dir(&squatted[1]).unwrap();
    lost.assert_stderr("not spooled because calls cannot be counted");
    assert!(!without, "the spool is not touched");
    ring(&site, 3);
    fs::remove_dir_all(&squatted[1]).unwrap();
    assert_eq!(site.spooled().len(), 1, "with slots it is");
}
