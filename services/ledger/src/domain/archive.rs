//! Ranges of entries whose content was taken out of the database, and what the audit says about them.
//!
//! They follow each other from the first entry on, so that one number tells what is still there. Each ends where a signed checkpoint does: the
//! file of a range is an export (see [`super::export`]), which anybody can verify by itself.

use std::path::Path;

use chrono::DateTime;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, PayloadsDropped};
use mesh_events::timestamp;
use sha2::{Digest as _, Sha256};

/// Kind of the audit entries about archives.
pub const KIND: &str = "retention";

/// A range as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArchive {
    /// Which one, from 1.
    pub number: i64,
    /// Sequence of its first entry.
    pub first_seq: i64,
    /// Sequence of its last entry, and the size of the checkpoint it ends with.
    pub last_seq: i64,
    /// Where its content is; `None` if it was erased.
    pub file: Option<StoredFile>,
    /// The public key that signed the checkpoint.
    pub signed_by: String,
    /// When it was made, in microseconds since 1970.
    pub made_at: i64,
    /// Who had it made; empty for the policy.
    pub made_by: String,
}

/// The file of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Where it was written. It may have been moved since.
    pub path: String,
    /// SHA-256 of the file.
    pub sha256: Vec<u8>,
    /// Its length.
    pub bytes: i64,
}

impl StoredArchive {
    /// How many entries it has.
    pub const fn entries(&self) -> u64 {
        (self.last_seq - self.first_seq + 1).unsigned_abs()
    }

    /// Id of its entry in the audit: the same however often it is told.
    pub fn audit_id(&self) -> String {
        let mut hash = Sha256::new();
        let sha256 = self.file.as_ref().map_or(&[][..], |file| &file.sha256);
        for field in [
            b"slurm-mesh/retention/1".as_slice(),
            &self.first_seq.to_be_bytes(),
            &self.last_seq.to_be_bytes(),
            sha256,
        ] {
            hash.update(u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(field);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        uuid::Builder::from_custom_bytes(bytes)
            .into_uuid()
            .to_string()
    }

    /// Its entry in the audit.
    pub fn audit_entry(&self, cluster: &str) -> AuditEntry {
        let (file, sha256) = match &self.file {
            Some(file) => (file_name(&file.path), hex::encode(&file.sha256)),
            None => Default::default(),
        };
        AuditEntry {
            id: self.audit_id(),
            cluster: cluster.to_owned(),
            kind: KIND.to_owned(),
            at: DateTime::from_timestamp_micros(self.made_at).map(timestamp),
            service: "ledger".to_owned(),
            act: Some(Act::Retention(PayloadsDropped {
                first_seq: self.first_seq.unsigned_abs(),
                last_seq: self.last_seq.unsigned_abs(),
                file,
                sha256,
                made_by: self.made_by.clone(),
            })),
        }
    }
}

/// The first of some ranges that is not one that follows the one before it, or claims entries that are not there.
pub fn misplaced(archives: &[StoredArchive], count: i64) -> Option<&StoredArchive> {
    let mut end = 0;
    archives.iter().find(|archive| {
        let fits = archive.first_seq == end + 1
            && archive.last_seq >= archive.first_seq
            && archive.last_seq <= count;
        end = archive.last_seq;
        !fits
    })
}

/// Name of the file of a range; files sort as their entries do.
pub fn name(first_seq: i64, last_seq: i64) -> String {
    format!("ledger-{first_seq:012}-{last_seq:012}.ndjson.gz")
}

/// The name of a file without its folders.
pub fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(number: i64, first_seq: i64, last_seq: i64) -> StoredArchive {
        StoredArchive {
            number,
            first_seq,
            last_seq,
            file: Some(StoredFile {
                path: format!("/var/lib/mesh/archive/{}", name(first_seq, last_seq)),
                sha256: vec![7; 32],
                bytes: 1,
            }),
            signed_by: String::new(),
            made_at: 1_763_760_000_000_000,
            made_by: String::new(),
        }
    }

    #[test]
    fn the_audit_says_the_same_of_a_range_every_time() {
        let one = archive(1, 1, 10);
        let entry = one.audit_entry("c");
        assert_eq!(entry, one.audit_entry("c"));
        let Some(Act::Retention(act)) = entry.act else {
            panic!("a range")
        };
        assert_eq!(act.file, "ledger-000000000001-000000000010.ndjson.gz");
        let erased = StoredArchive { file: None, ..one };
        assert_ne!(entry.id, erased.audit_id());
        assert_ne!(entry.id, archive(2, 11, 20).audit_id());
    }

    #[test]
    fn ranges_follow_each_other_from_the_first_entry_on() {
        let three = [archive(1, 1, 10), archive(2, 11, 11), archive(3, 12, 20)];
        assert_eq!(misplaced(&three, 20), None);
        assert_eq!(misplaced(&three, 19), Some(&three[2]));
        assert_eq!(misplaced(&three[1..], 20), Some(&three[1]));
        for wrong in [archive(2, 12, 20), archive(2, 10, 20), archive(2, 11, 10)] {
            let two = [archive(1, 1, 10), wrong];
            assert_eq!(misplaced(&two, 30), Some(&two[1]));
        }
    }
}
