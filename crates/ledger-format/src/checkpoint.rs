//! Checkpoints: which tree the ledger had, in the format of C2SP's `tlog-checkpoint` (<https://c2sp.org/tlog-checkpoint>).
//!
//! Three lines: the origin (whose ledger), the number of entries, the root in base64; signed as a note. There is no time in it, so two
//! replicas that see the same entries sign the same bytes. The chain value is not in it either: it follows from the same leaves.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::chain::Hash;
use crate::note::{self, NoteError, PrivateKey, PublicKey};

/// The state of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Whose ledger: also the name of the keys that sign it.
    pub origin: String,
    /// Number of entries.
    pub size: u64,
    /// Root of the Merkle tree over their leaves.
    pub root: Hash,
}

/// A checkpoint as it is stored; only its note proves something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Which one, from 1.
    pub number: i64,
    /// Number of entries.
    pub size: i64,
    /// Root of the tree.
    pub root: Vec<u8>,
    /// The signed note.
    pub note: String,
    /// When it was made, in microseconds since 1970.
    pub made_at: i64,
}

/// Why a note is no checkpoint that can be relied on.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CheckpointError {
    /// Not a note, or not signed by a key that is trusted.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text is not one of a checkpoint.
    #[error("not a checkpoint: {0}")]
    Malformed(&'static str),
    /// A key of one ledger signed the checkpoint of another.
    #[error("a checkpoint of {origin}, signed by a key of {key}")]
    OtherOrigin {
        /// Origin of the checkpoint.
        origin: String,
        /// Name of the key.
        key: String,
    },
}

impl Checkpoint {
    /// The text that is signed.
    pub fn text(&self) -> String {
        format!(
            "{}\n{}\n{}\n",
            self.origin,
            self.size,
            STANDARD.encode(self.root)
        )
    }

    /// Signs it.
    ///
    /// # Errors
    /// If the origin is no line.
    pub fn sign(&self, keys: &[&PrivateKey]) -> Result<String, NoteError> {
        note::sign(&self.text(), keys)
    }

    /// Reads a checkpoint that a key of its origin must have signed, and says which keys did. A ledger that goes on under another origin signs
    /// its first checkpoint with a key of each.
    ///
    /// # Errors
    /// If it is no checkpoint, or none of the keys has signed it.
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

    /// Reads a checkpoint without looking at its signatures.
    ///
    /// # Errors
    /// If it is no checkpoint.
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
        // Extension lines are somebody else's business, but none is empty.
        if origin.is_empty() || lines.any(str::is_empty) {
            return Err(malformed("it has an empty line"));
        }
        // One checkpoint has one text: no sign, no leading zeros.
        let size = match size.parse::<u64>() {
            Ok(number) if number.to_string() == size => number,
            _ => return Err(malformed("its second line is no number of entries")),
        };
        let root = STANDARD
            .decode(root)
            .ok()
            .and_then(|root| root.try_into().ok())
            .ok_or(malformed("its third line is no hash in base64"))?;
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
    fn what_is_no_checkpoint_is_refused() {
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
