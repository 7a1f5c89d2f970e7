//! An export that can be verified with nothing but a public key: JSON lines. The first describes the export and carries a signed
//! checkpoint; each further line is an entry, in order, up to the one the checkpoint ends with. docs/reference/events.md §6 specifies it.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::chain::{self, Hash};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::merkle::Frontier;
use crate::note::PublicKey;
use crate::verify::{
    ExpectedCheckpoint, Fault, FirstFault, HashedEntry, LeafContent, StoredEntry, StoredPayload,
    VerifiedLedger, Verifier,
};

/// The format and its version.
pub const FORMAT: &str = "slurm-mesh-ledger/1";

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`FORMAT`].
    pub export: String,
    /// Sequence of the first entry.
    pub from: u64,
    /// Chain value before it.
    pub chain: HexHash,
    /// Hashes of the complete subtrees at the edge of the tree of the entries before it, the largest first.
    pub edge: Vec<HexHash>,
    /// The signed checkpoint that the last entry completes.
    pub checkpoint: String,
}

/// A line of an entry. Cluster, subject and body are there or missing together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportLine<'a> {
    /// Sequence.
    pub seq: u64,
    /// Id.
    #[serde(borrow)]
    pub id: ExportText<'a>,
    /// Cluster.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ExportText<'a>>,
    /// Subject it was received on.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub subject: Option<ExportText<'a>>,
    /// Body in base64.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub body: Option<ExportText<'a>>,
    /// Leaf hash.
    pub leaf: HexHash,
    /// Chain value.
    pub chain: HexHash,
}

/// A text of a line, which is where it was read unless it has escapes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ExportText<'a>(pub Cow<'a, str>);

impl From<String> for ExportText<'_> {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ExportText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // What serde derives for a Cow within an Option would copy every text.
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = ExportText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(ExportText(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(ExportText(text.to_owned().into()))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A hash as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct HexHash(pub Hash);

impl From<HexHash> for String {
    fn from(hash: HexHash) -> Self {
        hex::encode(hash.0)
    }
}

impl<'de> Deserialize<'de> for HexHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HexHashVisitor;
        impl Visitor<'_> for HexHashVisitor {
            type Value = HexHash;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 hexadecimal digits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HexHash, E> {
                let mut hash = [0; 32];
                hex::decode_to_slice(text, &mut hash).map_err(E::custom)?;
                Ok(HexHash(hash))
            }
        }
        deserializer.deserialize_str(HexHashVisitor)
    }
}

/// Why an export cannot be verified at all.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Another file.
    #[error("the first line is not that of an export of the form {FORMAT}")]
    Header(#[source] serde_json::Error),
    /// Another version of the format.
    #[error("an export of the form {0:?}; this program reads {FORMAT}")]
    Format(String),
    /// It contradicts itself.
    #[error("the first line is not that of an export: {0}")]
    Malformed(&'static str),
    /// Its checkpoint proves nothing.
    #[error("the checkpoint in the first line")]
    Checkpoint(#[from] CheckpointError),
}

impl ExportLine<'static> {
    /// The line of an entry that is read from a database.
    ///
    /// # Errors
    /// If something of it is not what was stored.
    pub fn of(entry: StoredEntry) -> Result<Self, FirstFault> {
        let bad = FirstFault {
            seq: entry.seq,
            what: Fault::ContentChanged,
        };
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).map(ExportText::from);
            text.map_err(|_| bad.clone())
        };
        let hash = |bytes: Vec<u8>| bytes.try_into().map(HexHash).map_err(|_| bad.clone());
        let (cluster, subject, body) = match entry.payload {
            Some(payload) => (
                Some(text(payload.cluster)?),
                Some(text(payload.subject)?),
                Some(STANDARD.encode(payload.body).into()),
            ),
            None => (None, None, None),
        };
        Ok(Self {
            seq: entry.seq.try_into().map_err(|_| bad.clone())?,
            id: text(entry.id)?,
            cluster,
            subject,
            body,
            leaf: hash(entry.leaf)?,
            chain: hash(entry.chain)?,
        })
    }
}

impl<'a> ExportLine<'a> {
    /// Reads a line; `None` if it is none of an entry.
    pub fn read(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Hashes its content; `None` if it is no entry. The scratch space is for the body.
    pub fn hashed(&self, scratch: &mut Vec<u8>) -> Option<HashedEntry> {
        let content = match (&self.cluster, &self.subject, &self.body) {
            (Some(cluster), Some(subject), Some(body)) => {
                scratch.clear();
                STANDARD.decode_vec(body.0.as_bytes(), scratch).ok()?;
                let entry = chain::Entry {
                    cluster: &cluster.0,
                    seq: self.seq,
                    id: &self.id.0,
                    subject: &subject.0,
                    body: scratch,
                };
                LeafContent::Leaf(entry.leaf())
            }
            (None, None, None) => LeafContent::Missing,
            _ => return None,
        };
        Some(HashedEntry {
            seq: self.seq.try_into().ok()?,
            leaf: Some(self.leaf.0),
            chain: Some(self.chain.0),
            content,
        })
    }

    /// The entry; `None` if it is none.
    pub fn stored(self) -> Option<StoredEntry> {
        let bytes = |text: ExportText<'_>| text.0.into_owned().into_bytes();
        let payload = match (self.cluster, self.subject, self.body) {
            (Some(cluster), Some(subject), Some(body)) => Some(StoredPayload {
                cluster: bytes(cluster),
                subject: bytes(subject),
                body: STANDARD.decode(body.0.as_bytes()).ok()?,
            }),
            (None, None, None) => None,
            _ => return None,
        };
        Some(StoredEntry {
            seq: self.seq.try_into().ok()?,
            id: bytes(self.id),
            leaf: self.leaf.0.to_vec(),
            chain: self.chain.0.to_vec(),
            payload,
        })
    }
}

/// Verifies an export line by line.
#[derive(Clone, Debug)]
pub struct ExportVerifier {
    verifier: Verifier,
    checkpoint: Checkpoint,
    start: StartState,
}

/// What an export says of the entries before its first: what the export before it ended with, if it follows that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartState {
    /// Chain value of the last of them.
    pub chain: Hash,
    /// Their tree.
    pub tree: Frontier,
}

impl ExportVerifier {
    /// Takes the first line. The checkpoint in it must be signed by one of the keys. Trusted checkpoints are compared if the export has their last
    /// entry; those before it or after it are not.
    ///
    /// # Errors
    /// If it is no export, or its checkpoint proves nothing.
    pub fn new(
        first_line: &[u8],
        keys: &[PublicKey],
        trusted: &[Checkpoint],
    ) -> Result<Self, ExportError> {
        #[derive(Deserialize)]
        struct Version {
            export: String,
        }
        let version: Version = serde_json::from_slice(first_line).map_err(ExportError::Header)?;
        if version.export != FORMAT {
            return Err(ExportError::Format(version.export));
        }
        let header: Header = serde_json::from_slice(first_line).map_err(ExportError::Header)?;
        let (checkpoint, _) = Checkpoint::open(&header.checkpoint, keys)?;
        let before = header
            .from
            .checked_sub(1)
            .filter(|before| *before < checkpoint.size && checkpoint.size <= i64::MAX as u64)
            .ok_or(ExportError::Malformed("its checkpoint has no such entry"))?;
        let edge = header.edge.into_iter().map(|hash| hash.0).collect();
        let tree = Frontier::new(before, edge)
            .map_err(|_| ExportError::Malformed("its edge is not one of so many entries"))?;
        let mut verifier = Verifier::after(tree.clone(), header.chain.0);
        for older in trusted {
            if older.size > before && older.size <= checkpoint.size {
                verifier.expect(ExpectedCheckpoint::trusted(older));
            }
        }
        verifier.expect(ExpectedCheckpoint::verified(&checkpoint));
        Ok(Self {
            verifier,
            checkpoint,
            start: StartState {
                chain: header.chain.0,
                tree,
            },
        })
    }

    /// The checkpoint the export ends with.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What it says of the entries before its first.
    pub const fn start(&self) -> &StartState {
        &self.start
    }

    /// Sequence of the last entry that was verified.
    pub const fn last(&self) -> i64 {
        self.verifier.last()
    }

    /// Takes the line of an entry.
    ///
    /// # Errors
    /// The first fault.
    pub fn next(&mut self, line: &[u8]) -> Result<(), FirstFault> {
        let hashed = ExportLine::read(line).and_then(|line| line.hashed(&mut Vec::new()));
        self.next_hashed(hashed.as_ref())
    }

    /// As [`Self::next`], of a line that was read and hashed on some thread; `None` if it is no entry.
    ///
    /// # Errors
    /// The first fault.
    pub fn next_hashed(&mut self, entry: Option<&HashedEntry>) -> Result<(), FirstFault> {
        let bad = |what| FirstFault {
            seq: self.verifier.last() + 1,
            what,
        };
        let entry = entry.ok_or_else(|| bad(Fault::Unreadable))?;
        if self.verifier.last().unsigned_abs() >= self.checkpoint.size {
            return Err(bad(Fault::Extra));
        }
        match entry.content {
            LeafContent::Missing => self.verifier.next_archived_hashed(entry),
            LeafContent::NotUtf8 | LeafContent::Leaf(_) => self.verifier.next_hashed(entry),
        }
    }

    /// Ends.
    ///
    /// # Errors
    /// If entries are missing at the end.
    pub fn finish(self) -> Result<VerifiedLedger, FirstFault> {
        self.verifier.finish_at(self.checkpoint.size.cast_signed())
    }
}
