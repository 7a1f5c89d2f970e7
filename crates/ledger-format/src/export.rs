//! An export that can be verified with only a public key, as JSON lines. The first line is a header
//! with a signed checkpoint. Each further line is an entry, in order, up to the last entry of the
//! checkpoint. Specified in docs/reference/events.md §6.

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

/// The header: the first line of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The format, [`FORMAT`].
    pub export: String,
    /// Sequence of the first entry.
    pub from: u64,
    /// Chain value before the first entry.
    pub chain: HexHash,
    /// Hashes of the complete subtrees at the right edge of the tree before the first entry, the
    /// largest first.
    pub edge: Vec<HexHash>,
    /// The signed checkpoint whose last entry is that of the export.
    pub checkpoint: String,
}

/// The line of an entry. Cluster, subject and body are either all present or all missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportLine<'a> {
    /// Sequence of the entry.
    pub seq: u64,
    /// Id of the event.
    #[serde(borrow)]
    pub id: ExportText<'a>,
    /// Slurm's ClusterName.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ExportText<'a>>,
    /// NATS subject on which the event was received.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub subject: Option<ExportText<'a>>,
    /// Body in base64.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub body: Option<ExportText<'a>>,
    /// Leaf hash of the entry.
    pub leaf: HexHash,
    /// Chain value after the entry.
    pub chain: HexHash,
}

/// A text field of a line. It borrows from the line unless it has escapes.
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
        // The Deserialize implementation that serde derives for an optional Cow copies every text.
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

/// A hash, serialized as 64 hexadecimal digits.
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

/// Why the verification of an export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The first line is not the header of an export.
    #[error("the first line is not the header of an export in format {FORMAT}")]
    Header(#[source] serde_json::Error),
    /// The version of the format is unknown.
    #[error("export format {0:?}; this program reads {FORMAT}")]
    Format(String),
    /// The header contradicts itself.
    #[error("the first line is not the header of an export: {0}")]
    Malformed(&'static str),
    /// The checkpoint in the header is invalid or not signed by a trusted key.
    #[error("the checkpoint in the first line")]
    Checkpoint(#[from] CheckpointError),
}

impl ExportLine<'static> {
    /// Converts an entry read from a database.
    ///
    /// # Errors
    /// If a stored hash or text is malformed.
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
    /// Parses a line. Returns `None` if it is not the line of an entry.
    pub fn read(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// Hashes the entry's content. Returns `None` if it is not a valid entry. `scratch` is a
    /// reusable buffer for the decoded body.
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

    /// Converts the line into an entry. Returns `None` if it is not a valid one.
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

/// State before the first entry, as the header states it. If the export continues another one, it
/// must equal the end of that one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartState {
    /// Chain value of the entry before the first.
    pub chain: Hash,
    /// Tree of all entries before the first.
    pub tree: Frontier,
}

impl ExportVerifier {
    /// Parses the header. One of the keys must have signed its checkpoint. A trusted checkpoint is
    /// compared only if the export contains the last entry of that checkpoint.
    ///
    /// # Errors
    /// If it is not an export, or its checkpoint is invalid or not signed by one of the keys.
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
            .map_err(|_| ExportError::Malformed("its edge does not match the number of entries"))?;
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

    /// Returns the checkpoint at the end of the export.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns the state before the first entry.
    pub const fn start(&self) -> &StartState {
        &self.start
    }

    /// Returns the sequence of the last verified entry.
    pub const fn last(&self) -> i64 {
        self.verifier.last()
    }

    /// Verifies the line of the next entry.
    ///
    /// # Errors
    /// The first fault.
    pub fn next(&mut self, line: &[u8]) -> Result<(), FirstFault> {
        let hashed = ExportLine::read(line).and_then(|line| line.hashed(&mut Vec::new()));
        self.next_hashed(hashed.as_ref())
    }

    /// Same as [`Self::next`], for a line parsed and hashed on another thread. `None` stands for a
    /// line that is not an entry.
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

    /// Ends the verification.
    ///
    /// # Errors
    /// If entries are missing at the end.
    pub fn finish(self) -> Result<VerifiedLedger, FirstFault> {
        self.verifier.finish_at(self.checkpoint.size.cast_signed())
    }
}
