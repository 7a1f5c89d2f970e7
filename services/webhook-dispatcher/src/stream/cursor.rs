//! How far an endpoint is in a stream.
//!
//! Messages begin in the order of the stream and are settled in any order. The [`Cursor`] says which are settled; it is
//! stored, and after a restart the endpoint reads on from there. The [`Tracker`] derives it from the messages that are
//! under way.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Maximum ranges of a stored cursor. Beyond it the highest are left out: they are read again and recognised.
const MAX_RANGES: usize = 500;

/// The settled messages of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Every message up to this sequence is settled, or does not concern the endpoint.
    pub settled: u64,
    /// Settled messages above it.
    pub above: BTreeSet<u64>,
}

impl Cursor {
    /// A cursor with nothing settled above this sequence.
    pub fn at(settled: u64) -> Self {
        Self {
            settled,
            above: BTreeSet::new(),
        }
    }

    /// Parses the text of [`Cursor::ranges`]. Unreadable parts are left out.
    pub fn parse(settled: u64, ranges: &str) -> Self {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.parse::<u64>().ok()?..=last.parse::<u64>().ok()?)
        };
        Self {
            settled,
            above: ranges.split(',').filter_map(range).flatten().collect(),
        }
    }

    /// The messages above as text: `7,9-12`.
    pub fn ranges(&self) -> String {
        let mut text = String::new();
        let mut rest = self.above.iter().copied().peekable();
        for _ in 0..MAX_RANGES {
            let Some(first) = rest.next() else { break };
            let mut last = first;
            while rest.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            let comma = if text.is_empty() { "" } else { "," };
            let written = match last == first {
                true => write!(text, "{comma}{first}"),
                false => write!(text, "{comma}{first}-{last}"),
            };
            written.expect("a string takes everything");
        }
        text
    }
}

/// The messages of an endpoint that are under way.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// Every message up to here has begun, or does not concern the endpoint.
    read_to: u64,
    outstanding: BTreeSet<u64>,
    /// Settled messages above the first outstanding one.
    above: BTreeSet<u64>,
}

impl Tracker {
    /// Goes on from a stored cursor.
    pub fn new(cursor: Cursor) -> Self {
        Self {
            read_to: cursor.settled,
            outstanding: BTreeSet::new(),
            above: cursor.above,
        }
    }

    /// Begins a message. False if it has begun or was settled before.
    pub fn begin(&mut self, sequence: u64) -> bool {
        if sequence <= self.read_to {
            return false;
        }
        self.read_to = sequence;
        let new = !self.above.contains(&sequence);
        if new {
            self.outstanding.insert(sequence);
        }
        self.prune();
        new
    }

    /// Everything up to this sequence has begun, or does not concern the endpoint.
    pub fn advance(&mut self, read_to: u64) {
        self.read_to = self.read_to.max(read_to);
        self.prune();
    }

    /// A message is settled.
    pub fn settle(&mut self, sequence: u64) {
        if self.outstanding.remove(&sequence) {
            self.above.insert(sequence);
            self.prune();
        }
    }

    fn prune(&mut self) {
        let floor = self.floor();
        if self.above.first().is_some_and(|first| *first <= floor) {
            self.above = self.above.split_off(&(floor + 1));
        }
    }

    /// The last message that has begun.
    pub const fn read_to(&self) -> u64 {
        self.read_to
    }

    /// True if no message is under way.
    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    fn floor(&self) -> u64 {
        self.outstanding
            .first()
            .map_or(self.read_to, |first| first - 1)
    }

    /// The cursor to store.
    pub fn cursor(&self) -> Cursor {
        self.cursor_with([])
    }

    /// The cursor to store in the transaction that settles these messages.
    pub fn cursor_with(&self, settled: impl IntoIterator<Item = u64>) -> Cursor {
        let mut settled: Vec<u64> = settled.into_iter().collect();
        settled.retain(|sequence| self.outstanding.contains(sequence));
        settled.sort_unstable();
        let is_settled = |sequence: &u64| settled.binary_search(sequence).is_ok();
        let first = self.outstanding.iter().find(|one| !is_settled(one));
        let floor = first.map_or(self.read_to, |first| first - 1);
        let above = self.above.iter().chain(&settled).copied();
        Cursor {
            settled: floor,
            above: above.filter(|sequence| *sequence > floor).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_is_before_the_first_message_that_is_under_way() {
        let mut tracker = Tracker::new(Cursor::at(4));
        assert!(!tracker.begin(4), "settled before");
        for sequence in [6, 7, 9, 10] {
            assert!(tracker.begin(sequence));
        }
        assert!(!tracker.begin(9), "it has begun");
        assert_eq!(tracker.cursor(), Cursor::at(5));
        tracker.settle(7);
        tracker.settle(10);
        assert_eq!(tracker.cursor().ranges(), "7,10");
        // Written with the outcome of 6, before it is settled here.
        let with = tracker.cursor_with([6]);
        assert_eq!((with.settled, with.ranges()), (8, "10".to_owned()));
        assert_eq!(tracker.cursor().settled, 5);
        tracker.settle(6);
        tracker.settle(9);
        assert_eq!(tracker.cursor(), Cursor::at(10));
        tracker.advance(20);
        assert_eq!(tracker.cursor(), Cursor::at(20));
    }

    proptest! {
        #[test]
        fn a_cursor_comes_back_as_it_was_written(settled in 0..100_u64, above in prop::collection::btree_set(101..400_u64, 0..150)) {
            let cursor = Cursor { settled, above };
            prop_assert_eq!(Cursor::parse(settled, &cursor.ranges()), cursor);
        }

        /// Whatever begins and is settled, at any crash: what the next process reads from the stored cursor are all
        /// messages that were not settled, and of the settled ones none.
        #[test]
        fn after_a_crash_exactly_the_unsettled_messages_are_read_again(
            crashes in prop::collection::vec((1..40_u64, prop::collection::btree_set(0..40_u64, 0..30)), 1..6),
            concerned in prop::collection::btree_set(1..200_u64, 0..100),
        ) {
            let mut settled = BTreeSet::new();
            let mut stored = Cursor::default();
            for (length, ends) in crashes {
                let mut tracker = Tracker::new(Cursor::parse(stored.settled, &stored.ranges()));
                let first = tracker.read_to() + 1;
                let last = first + length;
                for sequence in first..=last {
                    if concerned.contains(&sequence) {
                        let begins = tracker.begin(sequence);
                        prop_assert_eq!(begins, !settled.contains(&sequence), "{}", sequence);
                    }
                }
                tracker.advance(last);
                for sequence in ends.iter().map(|offset| first + offset) {
                    if concerned.contains(&sequence) && sequence <= last && settled.insert(sequence) {
                        stored = tracker.cursor_with([sequence]);
                        tracker.settle(sequence);
                        prop_assert_eq!(&stored, &tracker.cursor());
                    }
                }
                prop_assert!(concerned.range(..=stored.settled).all(|sequence| settled.contains(sequence)));
            }
        }
    }
}
