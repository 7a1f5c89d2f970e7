//! The order in which a ledger appended the messages of two streams.
//!
//! Each stream has its own order. Only the ledger knows how it merged them, which messages were
//! delivered twice, and which replica was faster. The ledger therefore publishes a short prefix of
//! each entry's hashed id, in sequence order. These prefixes prove nothing: only the root of a
//! signed checkpoint shows whether the entries were recovered correctly.

use std::collections::{HashMap, VecDeque};

use sha2::{Digest as _, Sha256};

/// The beginning of SHA-256 of an id. Among a million entries the probability of a collision is
/// below 1 in 500.
pub type IdPrefix = [u8; 6];

/// Maximum number of entries in a message, to stay below NATS' limit of 1 MiB.
pub const MAX_ID_PREFIXES: u64 = 50_000;

/// Computes the prefix of an id.
pub fn id_prefix(id: &str) -> IdPrefix {
    let hash: [u8; 32] = Sha256::digest(id).into();
    let [a, b, c, d, e, f, ..] = hash;
    [a, b, c, d, e, f]
}

/// Prefixes of consecutive entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryOrder {
    /// Sequence of the first entry.
    pub first_seq: u64,
    /// One prefix per entry.
    pub prefixes: Vec<IdPrefix>,
}

impl EntryOrder {
    /// Returns the sequence after the last entry.
    pub const fn end(&self) -> u64 {
        self.first_seq + self.prefixes.len() as u64
    }

    /// Encodes the message body: the first sequence as eight bytes, big endian, and the prefixes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.first_seq.to_be_bytes().to_vec();
        body.extend(self.prefixes.iter().flatten());
        body
    }

    /// Decodes a message body. Returns `None` if it is malformed.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (first, prefixes) = body.split_first_chunk::<8>()?;
        let (prefixes, rest) = prefixes.as_chunks();
        let first_seq = u64::from_be_bytes(*first);
        let fits = rest.is_empty() && first_seq > 0 && !prefixes.is_empty();
        fits.then(|| Self {
            first_seq,
            prefixes: prefixes.to_vec(),
        })
    }
}

/// Finds the sequences of entries by their prefixes.
#[derive(Debug)]
pub struct OrderIndex {
    first_seq: u64,
    missing: Vec<Option<IdPrefix>>,
    by_prefix: HashMap<IdPrefix, VecDeque<u64>>,
}

impl OrderIndex {
    /// Creates an index for the entries after `after` up to `up_to`.
    pub fn new(after: u64, up_to: u64) -> Self {
        let count = up_to.saturating_sub(after);
        Self {
            first_seq: after + 1,
            missing: vec![None; usize::try_from(count).unwrap_or(usize::MAX)],
            by_prefix: HashMap::new(),
        }
    }

    /// Adds the prefixes of a message. Call it with the newest message first, because a later
    /// message corrects an earlier one.
    pub fn add(&mut self, order: &EntryOrder) {
        for (mark, seq) in order.prefixes.iter().zip(order.first_seq..) {
            let at = seq.checked_sub(self.first_seq);
            let slot = at.and_then(|at| self.missing.get_mut(usize::try_from(at).ok()?));
            if let Some(slot @ None) = slot {
                *slot = Some(*mark);
            }
        }
    }

    /// Returns the number of entries without a prefix.
    pub fn unknown(&self) -> usize {
        self.missing.iter().filter(|mark| mark.is_none()).count()
    }

    /// Builds the lookup for [`Self::take`].
    #[must_use]
    pub fn indexed(mut self) -> Self {
        for (mark, seq) in self.missing.drain(..).zip(self.first_seq..) {
            if let Some(mark) = mark {
                self.by_prefix.entry(mark).or_default().push_back(seq);
            }
        }
        self
    }

    /// Takes the sequence of an entry with this id. Returns `None` if there is none, or it was
    /// taken before.
    pub fn take(&mut self, id: &str) -> Option<u64> {
        let mark = id_prefix(id);
        let places = self.by_prefix.get_mut(&mark)?;
        let place = places.pop_front();
        if places.is_empty() {
            self.by_prefix.remove(&mark);
        }
        place
    }

    /// Returns the number of sequences not taken.
    pub fn left(&self) -> usize {
        self.by_prefix.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(first_seq: u64, ids: &[&str]) -> EntryOrder {
        EntryOrder {
            first_seq,
            prefixes: ids.iter().map(|id| id_prefix(id)).collect(),
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let order = order(7, &["a", "b", "c"]);
        assert_eq!(EntryOrder::decode(&order.encode()), Some(order.clone()));
        assert_eq!(order.end(), 10);
        for wrong in [&b""[..], b"1234567", &[0; 8], &[0; 14], &[1; 15]] {
            assert_eq!(EntryOrder::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn entries_find_their_places_whatever_order_they_come_in() {
        let mut places = OrderIndex::new(3, 8);
        // The later message, which is read first, has the correct prefix of 5.
        places.add(&order(5, &["b", "c"]));
        places.add(&order(2, &["old", "older", "a", "other"]));
        assert_eq!(places.unknown(), 2);
        places.add(&order(7, &["d", "e", "beyond"]));
        assert_eq!(places.unknown(), 0);
        let mut places = places.indexed();
        let found = ["e", "beyond", "c", "a", "a", "other", "b"].map(|id| places.take(id));
        assert_eq!(
            found,
            [Some(8), None, Some(6), Some(4), None, None, Some(5)]
        );
        assert_eq!(
            (places.left(), places.take("d"), places.left()),
            (1, Some(7), 0)
        );
    }
}
