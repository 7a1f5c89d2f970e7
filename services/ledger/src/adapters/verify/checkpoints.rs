//! Verifies the stored checkpoints in step with the entries.

use std::collections::HashSet;

use super::outcome::TrustAnchors;
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::key_rotation::KeyRotation;
use crate::domain::keys::StoredKey;
use crate::domain::note::PublicKey;
use crate::domain::verify::{ExpectedCheckpoint, Fault, FirstFault};

/// The state of verifying the stored checkpoints.
pub(super) struct CheckpointVerifier {
    /// All keys that may have signed: those stored in the ledger, and the trusted ones.
    keys: Vec<PublicKey>,
    /// The keys whose signatures count.
    trusted: HashSet<String>,
    key_rotation: Result<KeyRotation, FirstFault>,
    newest: Option<u64>,
    largest: u64,
}

impl CheckpointVerifier {
    pub fn new(stored: Vec<StoredKey>, known: i64, trust: &TrustAnchors) -> Self {
        let mut keys: Vec<PublicKey> = stored
            .iter()
            .filter_map(|key| key.vkey.parse().ok())
            .collect();
        let trusted = match trust.keys.as_slice() {
            [] => &keys,
            given => given,
        };
        let trusted: HashSet<String> = trusted.iter().map(ToString::to_string).collect();
        for key in &trust.keys {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        Self {
            keys,
            trusted,
            key_rotation: Ok(KeyRotation::new(stored, known)),
            newest: trust.newest.as_ref().map(|newest| newest.size),
            largest: 0,
        }
    }

    /// Checks the next checkpoint. Nothing in it is trusted.
    pub fn take(&mut self, row: &StoredCheckpoint) -> ExpectedCheckpoint {
        let size = u64::try_from(row.size).unwrap_or_default();
        let opened = Checkpoint::open(&row.note, &self.keys).ok();
        let opened = opened.filter(|(checkpoint, _)| {
            checkpoint.size == size && checkpoint.root == row.root.as_slice()
        });
        let signed_by = opened
            .as_ref()
            .map_or(&[][..], |(_, signed_by)| signed_by.as_slice());
        if let Ok(key_rotation) = &mut self.key_rotation
            && let Err(bad) = key_rotation.next(row, signed_by)
        {
            self.key_rotation = Err(bad);
        }
        let trusted = signed_by
            .iter()
            .any(|key| self.trusted.contains(&key.to_string()));
        let claim = match opened {
            Some((checkpoint, _)) if trusted => {
                self.largest = self.largest.max(size);
                Ok(checkpoint.root)
            }
            _ => Err(Fault::CheckpointForged),
        };
        ExpectedCheckpoint::with_root(size, claim)
    }

    /// Checks that the newest checkpoint exists and every key has a hand-over.
    pub fn finish(self) -> Result<(), FirstFault> {
        if let Some(size) = self.newest.filter(|newest| *newest > self.largest) {
            return Err(FirstFault {
                seq: size.cast_signed(),
                what: Fault::CheckpointMissing(size),
            });
        }
        self.key_rotation?.finish()
    }
}
