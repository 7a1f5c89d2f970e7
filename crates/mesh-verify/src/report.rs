//! The result of a verification, as text and as JSON.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use ledger_format::checkpoint::Checkpoint;
use ledger_format::file::VerifiedExport;
use ledger_format::verify::FirstFault;
use serde_json::{Value, json};

/// A checkpoint stored by the auditor.
pub struct TrustedCheckpoint {
    pub path: PathBuf,
    pub checkpoint: Checkpoint,
    /// Labels of the keys that have signed it.
    pub signed_by: Vec<String>,
}

/// A successful verification.
pub struct Report {
    /// Exports in order; each continues the previous one.
    pub exports: Vec<(PathBuf, VerifiedExport)>,
    pub trusted: Vec<TrustedCheckpoint>,
}

impl Report {
    /// True if an export contains the last entry of the checkpoint, so that both were compared.
    fn compared(&self, trusted: &TrustedCheckpoint) -> bool {
        let size = trusted.checkpoint.size;
        self.exports
            .iter()
            .any(|(_, export)| export.first() <= size && size <= export.checkpoint.size)
    }

    pub fn json(&self) -> Value {
        let exports = self.exports.iter().map(|(path, export)| {
            json!({
                "file": path.display().to_string(),
                "origin": export.checkpoint.origin,
                "first": export.first(),
                "last": export.checkpoint.size,
                "head": hex::encode(export.verified.head),
                "root": hex::encode(export.checkpoint.root),
                "without_content": export.verified.archived,
            })
        });
        let trusted = self.trusted.iter().map(|trusted| {
            json!({
                "file": trusted.path.display().to_string(),
                "origin": trusted.checkpoint.origin,
                "size": trusted.checkpoint.size,
                "root": hex::encode(trusted.checkpoint.root),
                "signed_by": trusted.signed_by,
                "compared": self.compared(trusted),
            })
        });
        json!({ "verified": true, "exports": exports.collect::<Vec<_>>(), "checkpoints": trusted.collect::<Vec<_>>() })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for (path, export) in &self.exports {
            lines.push(format!(
                "{}: entries {} to {} of {} are unchanged and signed; head {}",
                path.display(),
                export.first(),
                export.checkpoint.size,
                export.checkpoint.origin,
                hex::encode(export.verified.head)
            ));
            if export.verified.archived > 0 {
                lines.push(format!(
                    "  only the hashes of {} of them are present: their content is archived or erased",
                    export.verified.archived
                ));
            }
        }
        for trusted in &self.trusted {
            let Checkpoint { origin, size, .. } = &trusted.checkpoint;
            let compared = match (self.exports.is_empty(), self.compared(trusted)) {
                (true, _) => "",
                (false, true) => ", consistent with these entries",
                (false, false) => ", not compared: no file contains its last entry",
            };
            lines.push(format!(
                "{}: a checkpoint of {size} entries of {origin}, signed by {}{compared}",
                trusted.path.display(),
                trusted.signed_by.join(" and ")
            ));
        }
        f.write_str(&lines.join("\n"))
    }
}

/// The first fault, or the first input that cannot be verified.
pub struct Failure {
    file: String,
    first_bad: Option<i64>,
    reason: String,
}

impl Failure {
    pub fn invalid_entry(path: &Path, fault: &FirstFault) -> Self {
        Self {
            file: path.display().to_string(),
            first_bad: Some(fault.seq),
            reason: fault.what.to_string(),
        }
    }

    /// A file that cannot be verified, for example because no trusted key has signed it.
    pub fn unverifiable(path: &Path, reason: String) -> Self {
        Self {
            file: path.display().to_string(),
            first_bad: None,
            reason,
        }
    }

    pub fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        Self::unverifiable(path, format!("cannot be read: {error}"))
    }

    pub fn json(&self) -> Value {
        let mut value = json!({ "verified": false, "file": self.file, "reason": self.reason });
        if let Some(seq) = self.first_bad {
            value["first_bad_sequence"] = seq.into();
        }
        value
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first_bad {
            Some(seq) => write!(
                f,
                "{}: NOT VERIFIED: the first bad entry is {seq}: {}",
                self.file, self.reason
            ),
            None => write!(f, "{}: NOT VERIFIED: {}", self.file, self.reason),
        }
    }
}

/// Formats an error with its causes.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
