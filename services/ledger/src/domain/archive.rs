//! Ranges of entries whose content was removed from the database, and their audit entries.
//!
//! The ranges follow each other from the first entry on, so a single sequence marks where content
//! is still present. Each range ends at a signed checkpoint. The archive file of a range is an
//! export (see [`super::export`]), which can be verified on its own.

use std::ops::RangeInclusive;
use std::path::Path;

use chrono::{DateTime, Days, Utc};
use ledger_format::archive::{ArchivedFile, ArchivedRange};
use ledger_format::chain::Hash;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, PayloadsDropped};
use mesh_events::timestamp;
use sha2::{Digest as _, Sha256};

use super::audited::Audited;
use super::checkpoint::Checkpoint;
use super::keys::{StoredKey, in_charge};
use super::note::PublicKey;

/// How far a clock may be ahead whose times count.
const MAX_CLOCK_LEAD: Days = Days::new(1);

/// Kind of audit entries about archives.
pub const KIND: &str = "retention";

/// A stored range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArchive {
    /// Number of the range, from 1.
    pub number: i64,
    /// Sequence of the first entry.
    pub first_seq: i64,
    /// Sequence of the last entry, and size of the checkpoint at the end of the range.
    pub last_seq: i64,
    /// The archive file, `None` if the content was erased.
    pub file: Option<StoredFile>,
    /// The public key that signed the checkpoint.
    pub signed_by: String,
    /// Time of archiving or erasing, in microseconds since 1970.
    pub made_at: i64,
    /// User who requested it, empty for the retention policy.
    pub made_by: String,
    /// SHA-256 over the ids of the entries, empty while there is no note.
    pub ids: Vec<u8>,
    /// The signed archive record, `None` for ranges of a version that did not sign them.
    pub note: Option<String>,
}

/// The archive file of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredFile {
    /// Path at the time of writing. The file may have been moved since.
    pub path: String,
    /// SHA-256 of the file.
    pub sha256: Vec<u8>,
    /// Length in bytes.
    pub bytes: i64,
}

/// Evidence about a range besides its row.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Keys of the ledger, in order.
    pub keys: Vec<StoredKey>,
    /// Notes of the checkpoints at the end of the range.
    pub checkpoints: Vec<String>,
    /// Size of the largest checkpoint.
    pub signed: i64,
    /// Audit entry of the range, `None` if the ledger does not have it yet.
    pub audited: Option<Audited>,
}

impl StoredArchive {
    /// Returns the statement to sign.
    pub fn range(&self, root: Hash) -> ArchivedRange<'_> {
        ArchivedRange {
            first: self.first_seq,
            last: self.last_seq,
            root,
            ids: &self.ids,
            file: self.file.as_ref().map(|file| ArchivedFile {
                path: &file.path,
                sha256: &file.sha256,
                bytes: file.bytes,
            }),
            made_at: self.made_at,
            made_by: &self.made_by,
        }
    }

    /// Returns the root after its last entry from a checkpoint signed by its key, or `None` if
    /// there is none.
    pub fn root(&self, evidence: &Evidence) -> Option<Hash> {
        let known = |key: &&StoredKey| key.vkey == self.signed_by;
        let key: PublicKey = evidence.keys.iter().find(known)?.vkey.parse().ok()?;
        let opened = evidence.checkpoints.iter().find_map(|note| {
            let (checkpoint, _) = Checkpoint::open(note, std::slice::from_ref(&key)).ok()?;
            Some(checkpoint)
        })?;
        (opened.size.cast_signed() == self.last_seq).then_some(opened.root)
    }

    /// True if the ledger created the range. Its note must be signed by the key that was active
    /// when the audit entry was appended. Without an audit entry it must be the newest key, because
    /// a replaced key proves nothing new. A range without a note was created by an earlier version,
    /// which published the audit entry immediately and stored no ids.
    pub fn is_authentic(&self, evidence: &Evidence) -> bool {
        let Some(root) = self.root(evidence) else {
            return false;
        };
        let audited = evidence.audited.as_ref();
        let Some(note) = &self.note else {
            return self.ids.is_empty()
                && audited.is_some_and(|audited| {
                    audited.seq <= evidence.signed
                        && audited.is(|cluster| self.audit_entry(cluster))
                });
        };
        let key = match audited {
            Some(audited) => in_charge(&evidence.keys, audited.seq),
            None => evidence.keys.last(),
        };
        key.and_then(|key| key.vkey.parse().ok())
            .is_some_and(|key| self.range(root).is_signed(note, &key))
    }

    /// Returns the number of entries.
    pub const fn entries(&self) -> u64 {
        (self.last_seq - self.first_seq + 1).unsigned_abs()
    }

    /// Returns the deterministic id of its audit entry.
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

    /// Returns its audit entry.
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

/// Returns the first range that does not follow the previous one, or includes entries that do not
/// exist.
pub fn misplaced(archives: &[StoredArchive], count: i64) -> Option<&StoredArchive> {
    let mut end = 0;
    let mut numbered = archives.iter().zip(1..);
    let misplaced = numbered.find(|(archive, number)| {
        let fits = archive.number == *number
            && archive.first_seq == end + 1
            && archive.last_seq >= archive.first_seq
            && archive.last_seq <= count;
        end = archive.last_seq;
        !fits
    });
    misplaced.map(|(archive, _)| archive)
}

/// Returns the file name of a range. Files sort in the order of their entries.
pub fn name(first_seq: i64, last_seq: i64) -> String {
    format!("ledger-{first_seq:012}-{last_seq:012}.ndjson.gz")
}

/// Returns the times of observation and recording of entries that stay. A time more than a day
/// after `now` is a faulty clock's, and would keep the content, and all behind it, for as long as it
/// claims: it does not count.
pub fn young(before: DateTime<Utc>, now: DateTime<Utc>) -> RangeInclusive<DateTime<Utc>> {
    before..=now.checked_add_days(MAX_CLOCK_LEAD).unwrap_or(now)
}

/// Returns the name of a file without its folders.
pub fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use mesh_events::subject;
    use prost::Message as _;

    use super::*;
    use crate::domain::note::PrivateKey;
    use crate::domain::record::Record;

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
            ids: Vec::new(),
            note: None,
        }
    }

    /// Two keys, of which the second signs from 20 entries on, and a range of 10 entries with a
    /// checkpoint signed by the first.
    fn signed() -> (StoredArchive, Evidence) {
        let root = [3; 32];
        let vkey = |seed| key(seed).public().to_string();
        let stored = |number, from_size| StoredKey {
            number,
            vkey: vkey(number as u8),
            from_size,
            made_at: 0,
            made_by: String::new(),
        };
        let checkpoint = Checkpoint {
            origin: "o".into(),
            size: 10,
            root,
        };
        let mut archive = archive(1, 1, 10);
        archive.signed_by = vkey(1);
        let evidence = Evidence {
            keys: vec![stored(1, 0), stored(2, 20)],
            checkpoints: vec![checkpoint.sign(&[&key(1)]).unwrap()],
            signed: 30,
            audited: None,
        };
        (archive, evidence)
    }

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::new("o", &[seed; 32]).unwrap()
    }

    fn noted(archive: &StoredArchive, seed: u8) -> StoredArchive {
        let note = archive.range([3; 32]).sign(&key(seed)).unwrap();
        StoredArchive {
            note: Some(note),
            ..archive.clone()
        }
    }

    fn audited(archive: &StoredArchive, seq: i64) -> Option<Audited> {
        let entry = archive.audit_entry("c");
        let body = entry.encode_to_vec();
        let subject = subject::audit("c", &entry.kind);
        let record = Record::audit(&subject, Bytes::from(body.clone())).unwrap();
        Some(Audited {
            seq,
            leaf: record.leaf(seq.unsigned_abs()).to_vec(),
            body: Some(body),
            clusters: Vec::new(),
        })
    }

    #[test]
    fn a_range_counts_if_the_key_in_charge_signed_it() {
        let (archive, evidence) = signed();
        let at = |seq| Evidence {
            audited: audited(&archive, seq),
            ..evidence.clone()
        };
        let (by_first, by_second) = (noted(&archive, 1), noted(&archive, 2));
        // A replaced key cannot authenticate a range without an audit entry.
        assert!(!by_first.is_authentic(&evidence) && by_second.is_authentic(&evidence));
        assert!(by_first.is_authentic(&at(20)) && !by_second.is_authentic(&at(20)));
        assert!(!by_first.is_authentic(&at(21)) && by_second.is_authentic(&at(21)));
        assert!(!noted(&archive, 3).is_authentic(&evidence));
        let changed = StoredArchive {
            made_by: "mallory".into(),
            ..by_second.clone()
        };
        assert!(!changed.is_authentic(&evidence));
        // A checkpoint of another size, or none.
        let none = Evidence {
            checkpoints: Vec::new(),
            ..evidence.clone()
        };
        assert!(!by_second.is_authentic(&none));
        let other = StoredArchive {
            signed_by: key(2).public().to_string(),
            ..archive
        };
        assert!(!noted(&other, 2).is_authentic(&evidence));
    }

    #[test]
    fn one_without_a_note_counts_if_the_audit_had_it_before_a_checkpoint() {
        let (archive, evidence) = signed();
        assert!(!archive.is_authentic(&evidence));
        let with = |audited| Evidence {
            audited,
            ..evidence.clone()
        };
        assert!(archive.is_authentic(&with(audited(&archive, 30))));
        assert!(!archive.is_authentic(&with(audited(&archive, 31))));
        // Without its body, only the leaf proves what the entry says.
        let removed = |archive: &StoredArchive, clusters: &[&str]| {
            let clusters = clusters.iter().map(ToString::to_string).collect();
            let audited = audited(archive, 5).unwrap();
            with(Some(Audited {
                body: None,
                clusters,
                ..audited
            }))
        };
        assert!(archive.is_authentic(&removed(&archive, &["d", "c"])));
        assert!(!archive.is_authentic(&removed(&archive, &[])));
        assert!(!archive.is_authentic(&removed(&archive, &["d"])));
        let stripped = StoredArchive {
            ids: vec![7; 32],
            ..archive.clone()
        };
        assert!(!stripped.is_authentic(&with(audited(&archive, 5))));
        let changed = StoredArchive {
            made_by: "mallory".into(),
            ..archive.clone()
        };
        assert!(!changed.is_authentic(&with(audited(&archive, 5))));
        assert!(!changed.is_authentic(&removed(&archive, &["c"])));
    }

    #[test]
    fn the_audit_entry_of_a_range_is_reproducible() {
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
