//! A disk that can hang, and whose machine can lose power.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A real file system in a file that can be frozen: writers then block in the kernel and cannot even be killed.
pub struct LoopDisk {
    path: PathBuf,
    watchdog: Option<Child>,
}

/// Thaws disk `$2` when process `$1` is gone, or after ten minutes. No other process would, and `sync` of the whole machine waits for it.
const WATCHDOG: &str = "timeout --foreground 600 tail --pid=\"$1\" -f /dev/null; fsfreeze --unfreeze \"$2\"; [ -d \"/proc/$1\" ] || umount -l \"$2\"";
/// Search path of system programs.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

impl LoopDisk {
    /// Creates and mounts a file system in a file.
    ///
    /// # Panics
    /// Without root's rights.
    pub fn mount(image: &Path, path: &Path) -> Self {
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
        disk.remount(image);
        disk
    }

    /// Mounts the file again.
    ///
    /// # Panics
    /// Without root's rights.
    pub fn remount(&self, image: &Path) {
        must(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(image)
                .arg(&self.path),
        );
    }

    /// Loses everything that was not synced. EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH (Linux, include/uapi/linux/ext4.h): the
    /// file system stops at once, its journal is not written out.
    ///
    /// # Panics
    /// Without root's rights.
    pub fn lose_power(&self) {
        let shutdown = "open(my $d, '<', $ARGV[0]) or die $!; my $how = pack('L', 2); ioctl($d, 0x8004587d, $how) or die $!";
        must(Command::new("perl").args(["-e", shutdown]).arg(&self.path));
        must(Command::new("umount").arg(&self.path));
    }

    /// Blocks every writer from now on.
    ///
    /// # Panics
    /// Without root's rights.
    pub fn freeze(&mut self) {
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

    /// Lets writers continue.
    ///
    /// # Panics
    /// Without root's rights.
    pub fn thaw(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            must(Command::new("fsfreeze").arg("--unfreeze").arg(&self.path));
            // The process group: the shell and its children.
            must(Command::new("kill").args(["-KILL", "--", &format!("-{}", watchdog.id())]));
            watchdog.wait().unwrap();
        }
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        self.thaw();
        Command::new("umount")
            .arg("-l")
            .arg(&self.path)
            .status()
            .ok();
    }
}

/// Runs a system program that requires root.
fn must(command: &mut Command) {
    let status = command.env("PATH", PATH).status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "this test mounts a file system: run it as root, in a container with --privileged: {command:?}: {status:?}"
    );
}
