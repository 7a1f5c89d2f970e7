//! Received messages of a stream: all up to a sequence, and some after it.
//!
//! Messages usually arrive in order, but not always: failed ones are redelivered later, and
//! replicas of the ledger share a stream. So a jump in the sequence is not a gap by itself. A gap
//! is a message that was neither received nor is in the stream any more.

use std::collections::BTreeMap;

/// Sequences of received messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceSet {
    /// All messages up to this sequence were received.
    pub up_to: u64,
    /// Ranges after it, from first to last sequence. They are not empty, and adjacent neither to
    /// each other nor to `up_to`.
    pub ahead: BTreeMap<u64, u64>,
}

impl SequenceSet {
    /// Adds a range.
    pub fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first.max(self.up_to + 1), last);
        if last < first {
            return;
        }
        // Overlapping and adjacent ranges are merged.
        let touching: Vec<u64> = self
            .ahead
            .range(..=last.saturating_add(1))
            .filter(|(_, end)| end.saturating_add(1) >= first)
            .map(|(begin, _)| *begin)
            .collect();
        for begin in touching {
            let end = self.ahead.remove(&begin).unwrap_or(begin);
            (first, last) = (first.min(begin), last.max(end));
        }
        if first == self.up_to + 1 {
            self.up_to = last;
        } else {
            self.ahead.insert(first, last);
        }
    }

    /// Returns the ranges up to a sequence that were not received.
    pub fn missing(&self, up_to: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut next = self.up_to + 1;
        for (first, last) in &self.ahead {
            if *first > up_to {
                break;
            }
            missing.push((next, first - 1));
            next = last + 1;
        }
        if next <= up_to {
            missing.push((next, up_to));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set_of_sequences(ranges in prop::collection::vec((1u64..60, 0u64..8), 0..20), up_to in 0u64..70) {
            let (mut taken, mut set) = (SequenceSet::default(), BTreeSet::new());
            for (first, more) in ranges {
                taken.insert(first, first + more);
                set.extend(first..=first + more);
            }
            let missing: Vec<u64> = taken.missing(up_to).into_iter().flat_map(|(a, b)| a..=b).collect();
            prop_assert_eq!(missing, (1..=up_to).filter(|n| !set.contains(n)).collect::<Vec<_>>());
            prop_assert_eq!(taken.up_to, (1u64..).take_while(|n| set.contains(n)).last().unwrap_or(0));
            // Ranges are never adjacent, so messages in order take no memory.
            let mut end = taken.up_to;
            for (first, last) in &taken.ahead {
                prop_assert!(*first > end + 1 && last >= first);
                end = *last;
            }
        }
    }
}
