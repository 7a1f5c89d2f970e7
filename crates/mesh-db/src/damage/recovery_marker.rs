//! A file beside a recovered database, until its service has restored what the database lost.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// First word of the file when the rest is restored.
const RESTORED: &str = "restored";

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

    pub(super) fn set(&self) -> io::Result<()> {
        fs::write(&self.0, "")
    }

    /// The noted sequences if the rest is restored, but is not certain yet.
    pub fn restored(&self) -> Option<Vec<u64>> {
        let content = fs::read_to_string(&self.0).ok()?;
        let mut words = content.split_whitespace();
        let numbers = (words.next()? == RESTORED).then_some(words)?;
        numbers.map(|number| number.parse().ok()).collect()
    }

    /// Notes that the rest is restored, and the sequences up to which messages are uncertain. The marker stays until those were handled.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn note_restored(&self, sequences: &[u64]) -> io::Result<()> {
        let numbers = sequences.iter().map(|sequence| format!(" {sequence}"));
        let content = format!("{RESTORED}{}\n", numbers.collect::<String>());
        // Renamed: a file that was written in part would be read as not restored.
        let new = PathBuf::from(format!("{}.new", self.0.display()));
        let mut file = File::create(&new)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.0)
    }

    /// Removes the marker, once the rest is restored.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn clear(&self) -> io::Result<()> {
        fs::remove_file(&self.0)
    }
}
