//! A disk that can be full.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A file system of its own, small enough to be filled. It is gone on drop.
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Makes one of a size as mount(8) has it, e.g. `160m`.
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Leaves no byte free.
    ///
    /// # Panics
    /// If there is no room even for a file of nothing.
    pub fn fill(&self) {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("a file to fill it");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    /// Has room again.
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
        // Lazily: somebody may still be leaving.
        drop(Command::new("umount").arg("-l").arg(self.path()).status());
    }
}
