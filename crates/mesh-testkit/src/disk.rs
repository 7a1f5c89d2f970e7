//! A disk that can be full.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A separate file system, small enough to be filled. Unmounted on drop.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts one with a size as in mount(8), e.g. `160m`.
    ///
    /// # Panics
    /// Without root's rights.
    pub fn mount(size: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .status()
            .expect("mount, of the package of that name");
        assert!(status.success(), "mounting needs root");
        Self { folder }
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills it to the last byte.
    ///
    /// # Panics
    /// If there is no room even for an empty file.
    pub fn fill(&self) {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("a file to fill it");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    /// Frees the space again.
    ///
    /// # Panics
    /// If it was not filled.
    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("remove what fills it");
    }

    fn filler(&self) -> std::path::PathBuf {
        self.path().join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process may still have files open.
        drop(Command::new("umount").arg("-l").arg(self.path()).status());
    }
}
