//! The signed statement that the content of a range of entries was archived or erased: the range,
//! the archive file, the time and the user.
//!
//! It is a signed note like a checkpoint, but cannot be mistaken for one: its second line is not a
//! number, and its first line is not a key name.
//!
//! ```text
//! slurm-mesh.org/archive/1
//! <origin>
//! entries <first> <last>
//! root <root of the tree of the first `last` entries, base64>
//! ids <SHA-256 over the ids of the entries, hexadecimal>
//! file <path as JSON>          or   erased
//! sha256 <of the file, hexadecimal>
//! bytes <length of the file>
//! at <microseconds since 1970>
//! by <user as JSON, empty for the configured policy>
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use sha2::{Digest as _, Sha256};

use crate::chain::Hash;
use crate::note::{self, NoteError, PrivateKey, PublicKey};

/// First line of the signed text: the format and its version.
pub const FORMAT: &str = "slurm-mesh.org/archive/1";

/// A range of entries whose content was removed from the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedRange<'a> {
    /// Sequence of the first entry.
    pub first: i64,
    /// Sequence of the last entry.
    pub last: i64,
    /// Root of the Merkle tree after the last entry.
    pub root: Hash,
    /// Hash computed by [`IdHasher`]: without the content, no leaf proves an entry's id.
    pub ids: &'a [u8],
    /// The archive file, `None` if the content was erased.
    pub file: Option<ArchivedFile<'a>>,
    /// Time of archiving or erasing, in microseconds since 1970.
    pub made_at: i64,
    /// User who did it, empty for the retention policy.
    pub made_by: &'a str,
}

/// The archive file of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivedFile<'a> {
    /// Path of the file.
    pub path: &'a str,
    /// SHA-256 of the file.
    pub sha256: &'a [u8],
    /// Length of the file in bytes.
    pub bytes: i64,
}

impl ArchivedRange<'_> {
    /// Returns the text to be signed.
    pub fn text(&self, origin: &str) -> String {
        let Self { first, last, .. } = self;
        let (root, ids) = (STANDARD.encode(self.root), hex::encode(self.ids));
        let content = match &self.file {
            Some(file) => format!(
                "file {}\nsha256 {}\nbytes {}",
                quoted(file.path),
                hex::encode(file.sha256),
                file.bytes
            ),
            None => "erased".to_owned(),
        };
        let (at, by) = (self.made_at, quoted(self.made_by));
        format!(
            "{FORMAT}\n{origin}\nentries {first} {last}\nroot {root}\nids {ids}\n{content}\nat {at}\nby {by}\n"
        )
    }

    /// Signs the statement. The origin is the name of the key.
    ///
    /// # Errors
    /// If the name of the key is not a single line.
    pub fn sign(&self, key: &PrivateKey) -> Result<String, NoteError> {
        note::sign(&self.text(key.public().name()), &[key])
    }

    /// True if the note has exactly this text and a valid signature of the key.
    pub fn is_signed(&self, note: &str, key: &PublicKey) -> bool {
        note::open(note, std::slice::from_ref(key))
            .is_ok_and(|(text, _)| text == self.text(key.name()))
    }
}

/// Hashes the ids of a range in the order of the entries. Each id is preceded by its length as four
/// bytes, big endian.
#[derive(Clone, Debug, Default)]
pub struct IdHasher(Sha256);

impl IdHasher {
    /// Adds the next id.
    pub fn push(&mut self, id: &[u8]) {
        let length = u32::try_from(id.len()).unwrap_or(u32::MAX);
        self.0.update(length.to_be_bytes());
        self.0.update(id);
    }

    /// Returns the hash of all ids.
    pub fn finish(self) -> Hash {
        self.0.finalize().into()
    }
}

/// Returns the text as a JSON string, which is always a single line.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::new("slurm-mesh.org/ledger/c", &[seed; 32]).unwrap()
    }

    fn range() -> ArchivedRange<'static> {
        ArchivedRange {
            first: 1,
            last: 700,
            root: [7; 32],
            ids: &[5; 32],
            file: Some(ArchivedFile {
                path: "/var/lib/mesh/\n\"archive\"",
                sha256: &[9; 32],
                bytes: 4711,
            }),
            made_at: 1_763_760_000_000_000,
            made_by: "root",
        }
    }

    #[test]
    fn the_text_has_everything_one_thing_a_line() {
        let text = range().text("slurm-mesh.org/ledger/c");
        let expected = [
            FORMAT,
            "slurm-mesh.org/ledger/c",
            "entries 1 700",
            "root BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=",
            "ids 0505050505050505050505050505050505050505050505050505050505050505",
            r#"file "/var/lib/mesh/\n\"archive\"""#,
            "sha256 0909090909090909090909090909090909090909090909090909090909090909",
            "bytes 4711",
            "at 1763760000000000",
            r#"by "root""#,
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let erased = ArchivedRange {
            file: None,
            ..range()
        };
        assert_eq!(erased.text("o").lines().nth(5), Some("erased"));
    }

    #[test]
    fn it_holds_only_for_the_signed_text_and_this_key() {
        let note = range().sign(&key(1)).unwrap();
        assert!(range().is_signed(&note, &key(1).public()));
        assert!(!range().is_signed(&note, &key(2).public()));
        let file = range().file.unwrap();
        for other in [
            ArchivedRange {
                first: 2,
                ..range()
            },
            ArchivedRange {
                last: 699,
                ..range()
            },
            ArchivedRange {
                root: [8; 32],
                ..range()
            },
            ArchivedRange {
                ids: &[6; 32],
                ..range()
            },
            ArchivedRange {
                file: None,
                ..range()
            },
            ArchivedRange {
                made_at: 1,
                ..range()
            },
            ArchivedRange {
                made_by: "",
                ..range()
            },
            ArchivedRange {
                file: Some(ArchivedFile {
                    path: "elsewhere",
                    ..file.clone()
                }),
                ..range()
            },
            ArchivedRange {
                file: Some(ArchivedFile {
                    sha256: &[8; 32],
                    ..file.clone()
                }),
                ..range()
            },
            ArchivedRange {
                file: Some(ArchivedFile { bytes: 1, ..file }),
                ..range()
            },
        ] {
            assert!(!other.is_signed(&note, &key(1).public()), "{other:?}");
        }
    }

    #[test]
    fn it_is_no_checkpoint_and_a_checkpoint_is_none() {
        let keys = [key(1).public()];
        let note = range().sign(&key(1)).unwrap();
        assert!(Checkpoint::open(&note, &keys).is_err());
        let checkpoint = Checkpoint {
            origin: keys[0].name().to_owned(),
            size: 700,
            root: [7; 32],
        };
        let note = checkpoint.sign(&[&key(1)]).unwrap();
        assert!(!range().is_signed(&note, &keys[0]));
    }
}
