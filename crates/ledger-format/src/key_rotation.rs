//! Checks the sequence of checkpoints and the key that signed each of them.
//!
//! Checkpoints are numbered from 1, and none counts fewer entries than the previous one. One key
//! signs all checkpoints up to the hand-over, which is signed by this key and the next. The size of
//! the hand-over must equal the size stored for the next key. Any other table of keys was tampered
//! with.

use crate::checkpoint::StoredCheckpoint;
use crate::fault::{Fault, FirstFault};
use crate::note::PublicKey;

/// A stored signing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredKey {
    /// Number of the key, from 1.
    pub number: i64,
    /// The public key as text.
    pub vkey: String,
    /// Size of the ledger from which on this key signs.
    pub from_size: i64,
    /// Creation time, in microseconds since 1970.
    pub made_at: i64,
    /// User who requested the key, empty for the first.
    pub made_by: String,
}

/// Checks the checkpoints of a ledger in order.
#[derive(Clone, Debug)]
pub struct KeyRotation {
    keys: Vec<StoredKey>,
    /// Index of the active key.
    index: usize,
    last: i64,
    /// Number of the newest checkpoint when the verification began.
    known: i64,
}

impl KeyRotation {
    /// Begins with the keys in order and the number of the newest checkpoint, both read at the same
    /// time. Checkpoints signed later are ignored.
    pub fn new(keys: Vec<StoredKey>, known: i64) -> Self {
        // Keys that were replaced before the first entry have signed nothing.
        let unused = keys.iter().skip(1).take_while(|key| key.from_size == 0);
        Self {
            index: unused.count(),
            keys,
            last: 0,
            known,
        }
    }

    /// Checks the next checkpoint, in the order of sizes and numbers. `signed_by` are the keys that
    /// have signed it.
    ///
    /// # Errors
    /// If it is not the next checkpoint, or the active key has not signed it.
    pub fn next(
        &mut self,
        checkpoint: &StoredCheckpoint,
        signed_by: &[&PublicKey],
    ) -> Result<(), FirstFault> {
        if checkpoint.number > self.known {
            return Ok(());
        }
        let bad = |what| {
            Err(FirstFault {
                seq: checkpoint.size,
                what,
            })
        };
        if checkpoint.number != self.last + 1 || checkpoint.size < 1 {
            return bad(Fault::CheckpointOrder);
        }
        self.last = checkpoint.number;
        let mut signed_by: Vec<usize> = signed_by
            .iter()
            .map(|key| key.to_string())
            .filter_map(|vkey| self.keys.iter().position(|key| key.vkey == vkey))
            .collect();
        signed_by.sort_unstable();
        let next = self.keys.get(self.index + 1);
        match signed_by.as_slice() {
            [one] if *one == self.index => Ok(()),
            [one, other]
                if *one == self.index
                    && *other == self.index + 1
                    && next.is_some_and(|next| next.from_size == checkpoint.size) =>
            {
                self.index += 1;
                Ok(())
            }
            _ => bad(Fault::KeysChanged),
        }
    }

    /// Ends the check: no checkpoint may be missing, and every key must have been active.
    ///
    /// # Errors
    /// If a checkpoint or a hand-over is missing.
    pub fn finish(&self) -> Result<(), FirstFault> {
        let bad = |seq, what| Err(FirstFault { seq, what });
        let numbered = self.keys.iter().zip(1..);
        let misplaced = numbered
            .filter(|(key, number)| key.number != *number)
            .map(|(key, _)| key);
        let late = self.keys.first().filter(|first| first.from_size != 0);
        if let Some(key) = misplaced.chain(late).next() {
            return bad(key.from_size, Fault::KeysChanged);
        }
        if let Some(key) = self.keys.get(self.index + 1) {
            return bad(key.from_size, Fault::KeysChanged);
        }
        match self.last == self.known {
            true => Ok(()),
            false => bad(self.last, Fault::CheckpointOrder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::PrivateKey;

    fn key(number: i64) -> PublicKey {
        let seed = [number as u8; 32];
        PrivateKey::new("o", &seed).unwrap().public()
    }

    fn stored(number: i64, from_size: i64) -> StoredKey {
        StoredKey {
            number,
            vkey: key(number).to_string(),
            from_size,
            made_at: 0,
            made_by: String::new(),
        }
    }

    /// Checks checkpoints given as number, size and signing keys.
    fn check(keys: &[StoredKey], checkpoints: &[(i64, i64, &[i64])]) -> Result<(), FirstFault> {
        let known = checkpoints.iter().map(|(number, ..)| *number).max();
        let mut key_rotation = KeyRotation::new(keys.to_vec(), known.unwrap_or(0));
        for (number, size, signed_by) in checkpoints {
            let checkpoint = StoredCheckpoint {
                number: *number,
                size: *size,
                root: Vec::new(),
                note: String::new(),
                made_at: 0,
            };
            let signed_by: Vec<PublicKey> = signed_by.iter().map(|number| key(*number)).collect();
            key_rotation.next(&checkpoint, &signed_by.iter().collect::<Vec<_>>())?;
        }
        key_rotation.finish()
    }

    #[test]
    fn each_key_is_handed_over_by_the_one_before() {
        let keys = [stored(1, 0), stored(2, 15)];
        let whole: [(i64, i64, &[i64]); 3] = [(1, 10, &[1]), (2, 15, &[1, 2]), (3, 20, &[2])];
        assert_eq!(check(&keys, &whole), Ok(()));
        assert_eq!(check(&[], &[]), Ok(()));
        assert_eq!(check(&keys[..1], &[]), Ok(()));
        // These keys were replaced before the first entry.
        let unused = [stored(1, 0), stored(2, 0)];
        assert_eq!(check(&unused, &[(1, 10, &[2])]), Ok(()));
        let what = |result: Result<(), FirstFault>| result.unwrap_err().what;
        for from_size in [0, 14, 16, 20] {
            let altered = [stored(1, 0), stored(2, from_size)];
            assert_eq!(what(check(&altered, &whole)), Fault::KeysChanged);
        }
        assert_eq!(what(check(&keys[..1], &whole)), Fault::KeysChanged);
        assert_eq!(what(check(&keys[1..], &whole)), Fault::KeysChanged);
        assert_eq!(
            what(check(&[stored(1, 3)], &[(1, 10, &[1])])),
            Fault::KeysChanged
        );
        assert_eq!(what(check(&keys, &[(1, 10, &[1])])), Fault::KeysChanged);
        let alone: [(i64, i64, &[i64]); 2] = [(1, 10, &[1]), (2, 15, &[2])];
        assert_eq!(what(check(&keys, &alone)), Fault::KeysChanged);
    }

    #[test]
    fn checkpoints_follow_each_other_without_a_gap() {
        let keys = [stored(1, 0)];
        for gap in [
            &[(2, 10, &[1][..])][..],
            &[(1, 10, &[1]), (3, 20, &[1])],
            &[(2, 10, &[1]), (1, 20, &[1])],
        ] {
            assert_eq!(check(&keys, gap).unwrap_err().what, Fault::CheckpointOrder);
        }
    }
}
