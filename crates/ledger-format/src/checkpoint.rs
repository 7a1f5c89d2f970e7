//! Checkpoints: the signed size and root of the ledger's tree, in the format of C2SP's
//! `tlog-checkpoint` (<https://c2sp.org/tlog-checkpoint>).
//!
//! The text has three lines: the origin (the ledger's name), the number of entries, and the root in
//! base64. It is signed as a note. It contains no time, so two replicas that see the same entries
//! sign the same bytes. It does not contain the chain value either, which follows from the same
//! leaves.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::chain::Hash;
use crate::note::{self, NoteError, PrivateKey, PublicKey};

/// Size and root of a ledger's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Name of the ledger, and of the keys that sign its checkpoints.
    pub origin: String,
    /// Number of entries.
    pub size: u64,
    /// Root of the Merkle tree over the leaves.
    pub root: Hash,
}

/// A checkpoint as stored. Only its note is proof; the other columns may have been changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Number of the checkpoint, from 1.
    pub number: i64,
    /// Number of entries.
    pub size: i64,
    /// Root of the tree.
    pub root: Vec<u8>,
    /// The signed note.
    pub note: String,
    /// Time of signing, in microseconds since 1970.
    pub made_at: i64,
}

/// Why a note is not a trustworthy checkpoint.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CheckpointError {
    /// Not a note, or not signed by a trusted key.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text is not that of a checkpoint.
    #[error("not a checkpoint: {0}")]
    Malformed(&'static str),
    /// The key of one ledger signed the checkpoint of another.
    #[error("a checkpoint of {origin}, signed by a key of {key}")]
    OtherOrigin {
        /// Origin of the checkpoint.
        origin: String,
        /// Name of the key.
        key: String,
    },
}

impl Checkpoint {
    /// Returns the text to be signed.
    pub fn text(&self) -> String {
        format!(
            "{}\n{}\n{}\n",
            self.origin,
            self.size,
            STANDARD.encode(self.root)
        )
    }

    /// Signs the checkpoint with every key.
    ///
    /// # Errors
    /// If the origin is not a single line.
    pub fn sign(&self, keys: &[&PrivateKey]) -> Result<String, NoteError> {
        note::sign(&self.text(), keys)
    }

    /// Parses a checkpoint and returns the keys that signed it. At least one key of its origin must
    /// have signed. When a ledger continues under a new origin, keys of both origins sign its first
    /// checkpoint.
    ///
    /// # Errors
    /// If it is not a checkpoint, or none of the keys has signed it.
    pub fn open<'k>(
        note: &str,
        keys: &'k [PublicKey],
    ) -> Result<(Self, Vec<&'k PublicKey>), CheckpointError> {
        let (text, signed_by) = note::open(note, keys)?;
        let checkpoint = Self::parse(text)?;
        let of_its_origin = signed_by.iter().any(|key| key.name() == checkpoint.origin);
        match signed_by.first() {
            Some(key) if !of_its_origin => Err(CheckpointError::OtherOrigin {
                key: key.name().to_owned(),
                origin: checkpoint.origin,
            }),
            _ => Ok((checkpoint, signed_by)),
        }
    }

    /// Parses a checkpoint without verifying its signatures.
    ///
    /// # Errors
    /// If it is not a checkpoint.
    pub fn unverified(note: &str) -> Result<Self, CheckpointError> {
        Self::parse(note::unverified_text(note)?)
    }

    fn parse(text: &str) -> Result<Self, CheckpointError> {
        let malformed = CheckpointError::Malformed;
        let mut lines = text.lines();
        let (Some(origin), Some(size), Some(root)) = (lines.next(), lines.next(), lines.next())
        else {
            return Err(malformed("it has fewer than three lines"));
        };
        // Extension lines are ignored, but must not be empty.
        if origin.is_empty() || lines.any(str::is_empty) {
            return Err(malformed("it has an empty line"));
        }
        // Each checkpoint has exactly one text: no sign, no leading zeros.
        let size = match size.parse::<u64>() {
            Ok(number) if number.to_string() == size => number,
            _ => return Err(malformed("its second line is not a number of entries")),
        };
        let root = STANDARD
            .decode(root)
            .ok()
            .and_then(|root| root.try_into().ok())
            .ok_or(malformed("its third line is not a base64 hash"))?;
        Ok(Self {
            origin: origin.to_owned(),
            size,
            root,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "slurm-mesh.org/ledger/c";

    fn key() -> PrivateKey {
        PrivateKey::new(ORIGIN, &[1; 32]).unwrap()
    }

    fn checkpoint(size: u64) -> Checkpoint {
        Checkpoint {
            origin: ORIGIN.into(),
            size,
            root: [9; 32],
        }
    }

    #[test]
    fn a_checkpoint_is_read_as_it_was_signed() {
        for size in [0, 1, 10, u64::MAX] {
            let note = checkpoint(size).sign(&[&key()]).unwrap();
            let keys = [key().public()];
            let (read, signed_by) = Checkpoint::open(&note, &keys).unwrap();
            assert_eq!((read, signed_by), (checkpoint(size), vec![&keys[0]]));
            let theirs = tlog_tiles::Checkpoint::from_bytes(checkpoint(size).text().as_bytes());
            if size <= i64::MAX.unsigned_abs() {
                let theirs = theirs.unwrap();
                assert_eq!((theirs.origin(), theirs.size()), (ORIGIN, size));
                assert_eq!(theirs.hash().0, [9; 32]);
            }
        }
    }

    #[test]
    fn invalid_checkpoints_are_refused() {
        let root = STANDARD.encode([9; 32]);
        for text in [
            "o\n1\n".to_owned(),
            format!("\n1\n{root}\n"),
            format!("o\n\n{root}\n"),
            format!("o\n01\n{root}\n"),
            format!("o\n+1\n{root}\n"),
            format!("o\n-1\n{root}\n"),
            format!("o\n18446744073709551616\n{root}\n"),
            format!("o\n1\n{}\n", &root[..40]),
            format!("o\n1\n{root}\n\nx\n"),
        ] {
            assert!(Checkpoint::parse(&text).is_err(), "{text:?}");
        }
        let extended = format!("o\n1\n{root}\nextension\n");
        assert!(Checkpoint::parse(&extended).is_ok());
    }

    #[test]
    fn a_key_signs_its_own_ledger_only() {
        let other = PrivateKey::new("slurm-mesh.org/ledger/other", &[1; 32]).unwrap();
        let note = checkpoint(1).sign(&[&other]).unwrap();
        let keys = [other.public()];
        let opened = Checkpoint::open(&note, &keys);
        assert!(matches!(opened, Err(CheckpointError::OtherOrigin { .. })));
    }
}
