//! Disks as they are: one that hangs, one whose machine loses power.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mesh_testkit::wait_until;

use crate::site::{SOON, Site, call, hook, spooled};

/// A real disk, in a file, that can be frozen: then who writes waits in the kernel, and cannot even be killed.
struct Disk {
    path: PathBuf,
    watchdog: Option<Child>,
}

/// Thaws disk `$2` when process `$1` is gone, or after a minute: nobody else would, and `sync` of the whole machine waits for it.
const WATCHDOG: &str = "timeout --foreground 60 tail --pid=\"$1\" -f /dev/null; fsfreeze --unfreeze \"$2\"; [ -d \"/proc/$1\" ] || umount -l \"$2\"";
/// Where programs of the system are.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

impl Disk {
    fn mount(image: &Path, path: &Path) -> Self {
        fs::create_dir_all(path).unwrap();
        fs::write(image, []).unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(image)
            .unwrap()
            .set_len(16 << 20)
            .unwrap();
        must(Command::new("mkfs.ext4").arg("-q").arg(image));
        let disk = Self {
            path: path.to_owned(),
            watchdog: None,
        };
        disk.mount_again(image);
        disk
    }

    fn mount_again(&self, image: &Path) {
        must(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(image)
                .arg(&self.path),
        );
    }

    /// What was not synced is gone. EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (Linux, include/uapi/linux/ext4.h): the file
    /// system stops at once, its journal is not written out.
    fn lose_power(&self) {
        let shutdown = "open(my $d, '<', $ARGV[0]) or die $!; my $how = pack('L', 2); ioctl($d, 0x8004587d, $how) or die $!";
        must(Command::new("perl").args(["-e", shutdown]).arg(&self.path));
        must(Command::new("umount").arg(&self.path));
    }

    fn freeze(&mut self) {
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "sh", &std::process::id().to_string()])
            .arg(&self.path)
            .env("PATH", PATH)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.watchdog = Some(watchdog);
        must(Command::new("fsfreeze").arg("--freeze").arg(&self.path));
    }

    fn thaw(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            must(Command::new("fsfreeze").arg("--unfreeze").arg(&self.path));
            // The group: the shell, and what it waits with.
            must(Command::new("kill").args(["-KILL", "--", &format!("-{}", watchdog.id())]));
            watchdog.wait().unwrap();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.thaw();
        Command::new("umount")
            .arg("-l")
            .arg(&self.path)
            .status()
            .ok();
    }
}

/// Runs a program of the system; as root only.
fn must(command: &mut Command) {
    let status = command.env("PATH", PATH).status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "this test mounts a file system: run it as root, in a container with --privileged: {command:?}: {status:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_holds_up_nobody() {
    let mut site = Site::start().await;
    let mut disk = Disk::mount(&site.folder.path().join("image"), &site.spool());
    site.nats.kill();
    disk.freeze();
    let calls: Vec<_> = (1..=5).map(|_| call(&mut hook(&site.config()))).collect();
    disk.thaw();
    for call in &calls {
        assert!(call.output.status.success(), "{call:?}");
    }
    // That they came back while the disk was frozen is the proof: who waits for it cannot even be killed.
    wait_until("they are spooled once the disk answers", SOON, async || {
        site.spooled().len() == 5
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_loses_power_keeps_every_doorbell_that_was_called_safe() {
    let mut site = Site::start().await;
    let image = site.folder.path().join("image");
    let disk = Disk::mount(&image, &site.spool());
    // A folder that is not there yet: its name has to survive, too.
    let folder = site.spool().join("bells");
    site.configure_spool(&folder, "");
    site.nats.kill();
    let mut safe = 0;
    for job in 1..=12 {
        let said = site.call(job).output.stderr;
        safe += usize::from(said.contains(&0));
    }
    assert_eq!(safe, 12);
    disk.lose_power();
    disk.mount_again(&image);
    assert_eq!(spooled(&folder).len(), 12);
    site.nats.restart().await;
    site.flush().await;
    site.wait_for(12).await;
    let jobs: Vec<_> = site.rung().iter().map(|bell| bell.job_id).collect();
    assert_eq!(jobs, (1..=12).collect::<Vec<_>>());
}
