//! A file beside a recovered database, until its service has restored what the database lost.

use std::path::{Path, PathBuf};

/// Content of the file when the rest is restored.
const RESTORED: &[u8] = b"restored\n";

/// The file `<database>.recovered`.
#[derive(Clone, Debug)]
pub struct RecoveryMarker(PathBuf);

impl RecoveryMarker {
    /// The marker of a SQLite file.
    pub fn of(database: &Path) -> Self {
        Self(PathBuf::from(format!("{}.recovered", database.display())))
    }

    /// True if the database was recovered and its service has not restored the rest yet.
    pub fn is_set(&self) -> bool {
        self.0.exists()
    }

    pub(super) fn set(&self) -> std::io::Result<()> {
        std::fs::write(&self.0, "")
    }

    /// True if the rest is restored, but is not certain yet.
    pub fn is_restored(&self) -> bool {
        std::fs::read(&self.0).is_ok_and(|content| content == RESTORED)
    }

    /// Notes that the rest is restored. The marker stays until what is uncertain was handled.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn note_restored(&self) -> std::io::Result<()> {
        std::fs::write(&self.0, RESTORED)
    }

    /// Removes the marker, once the rest is restored.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn clear(&self) -> std::io::Result<()> {
        std::fs::remove_file(&self.0)
    }
}
