//! An export that can be verified with nothing but a public key: JSON lines. The first tells what is exported and carries a signed
//! checkpoint; each further line is an entry, in order, up to the one the checkpoint ends with. docs/reference/events.md §6 specifies it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::chain::Hash;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::merkle::Frontier;
use crate::note::PublicKey;
use crate::verify::{Fault, FirstBad, Mark, Payload, Stored, Verified, Verifier};

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
pub struct Line {
    /// Sequence.
    pub seq: u64,
    /// Id.
    pub id: String,
    /// Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Subject it was received on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Body in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Leaf hash.
    pub leaf: HexHash,
    /// Chain value.
    pub chain: HexHash,
}

/// A hash as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HexHash(pub Hash);

impl From<HexHash> for String {
    fn from(hash: HexHash) -> Self {
        hex::encode(hash.0)
    }
}

impl TryFrom<String> for HexHash {
    type Error = hex::FromHexError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash)?;
        Ok(Self(hash))
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
    Form(&'static str),
    /// Its checkpoint proves nothing.
    #[error("the checkpoint in the first line")]
    Checkpoint(#[from] CheckpointError),
}

impl Line {
    /// The line of an entry that is read from a database.
    ///
    /// # Errors
    /// If something of it is not what was stored.
    pub fn of(entry: Stored) -> Result<Self, FirstBad> {
        let bad = FirstBad {
            seq: entry.seq,
            what: Fault::ContentChanged,
        };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).map_err(|_| bad.clone());
        let hash = |bytes: Vec<u8>| bytes.try_into().map(HexHash).map_err(|_| bad.clone());
        let (cluster, subject, body) = match entry.payload {
            Some(payload) => (
                Some(text(payload.cluster)?),
                Some(text(payload.subject)?),
                Some(STANDARD.encode(payload.body)),
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

    /// The entry; `None` if it is none.
    pub fn stored(self) -> Option<Stored> {
        let payload = match (self.cluster, self.subject, self.body) {
            (Some(cluster), Some(subject), Some(body)) => Some(Payload {
                cluster: cluster.into_bytes(),
                subject: subject.into_bytes(),
                body: STANDARD.decode(body).ok()?,
            }),
            (None, None, None) => None,
            _ => return None,
        };
        Some(Stored {
            seq: self.seq.try_into().ok()?,
            id: self.id.into_bytes(),
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
}

impl ExportVerifier {
    /// Takes the first line. The checkpoint in it must be signed by one of the keys. The kept ones are compared if the export has their last
    /// entry; those before it or after it are not.
    ///
    /// # Errors
    /// If it is no export, or its checkpoint proves nothing.
    pub fn new(
        first_line: &str,
        keys: &[PublicKey],
        kept: &[Checkpoint],
    ) -> Result<Self, ExportError> {
        #[derive(Deserialize)]
        struct Version {
            export: String,
        }
        let version: Version = serde_json::from_str(first_line).map_err(ExportError::Header)?;
        if version.export != FORMAT {
            return Err(ExportError::Format(version.export));
        }
        let header: Header = serde_json::from_str(first_line).map_err(ExportError::Header)?;
        let (checkpoint, _) = Checkpoint::open(&header.checkpoint, keys)?;
        let before = header
            .from
            .checked_sub(1)
            .filter(|before| *before < checkpoint.size && checkpoint.size <= i64::MAX as u64)
            .ok_or(ExportError::Form("its checkpoint has no such entry"))?;
        let edge = header.edge.into_iter().map(|hash| hash.0).collect();
        let tree = Frontier::new(before, edge)
            .map_err(|_| ExportError::Form("its edge is not one of so many entries"))?;
        let mut verifier = Verifier::after(tree, header.chain.0);
        for mark in kept {
            if mark.size > before && mark.size <= checkpoint.size {
                verifier.expect(Mark::kept(mark));
            }
        }
        verifier.expect(Mark::signed(&checkpoint));
        Ok(Self {
            verifier,
            checkpoint,
        })
    }

    /// The checkpoint the export ends with.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Sequence of the last entry that was verified.
    pub const fn last(&self) -> i64 {
        self.verifier.last()
    }

    /// Takes the line of an entry.
    ///
    /// # Errors
    /// The first fault.
    pub fn next(&mut self, line: &str) -> Result<(), FirstBad> {
        let seq = self.verifier.last() + 1;
        let line: Option<Line> = serde_json::from_str(line).ok();
        let Some(entry) = line.and_then(Line::stored) else {
            return Err(FirstBad {
                seq,
                what: Fault::Unreadable,
            });
        };
        if self.verifier.last().unsigned_abs() >= self.checkpoint.size {
            return Err(FirstBad {
                seq,
                what: Fault::Extra,
            });
        }
        match entry.payload {
            Some(_) => self.verifier.next(&entry),
            None => self.verifier.next_archived(&entry),
        }
    }

    /// Ends.
    ///
    /// # Errors
    /// If entries are missing at the end.
    pub fn finish(self) -> Result<Verified, FirstBad> {
        self.verifier.finish_at(self.checkpoint.size.cast_signed())
    }
}
