//! Between which sequences the entries of a time are: of each block of some thousand entries it is known from when to when they occurred.
//!
//! That is read once, as the ledger opens or when it is first asked for, and then of what was appended since. Nothing of it is stored: what
//! it says follows from entries that never change. Those that were taken away leave blocks that are wider than they need be, which
//! harms nobody.

use std::sync::{Mutex, PoisonError};

use mesh_db::sql::{Row, Sql};

use super::page::Span;
use super::store::Store;
use crate::error::Error;

/// Entries next to each other, and when they occurred, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub first: i64,
    pub last: i64,
    pub earliest: i64,
    pub latest: i64,
}

/// The blocks of a ledger, in order.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Vec<Block>>);

impl Times {
    /// Up to which sequence they are known.
    pub(super) fn known(&self) -> i64 {
        self.with(|blocks| blocks.last().map_or(0, |block| block.last))
    }

    /// Takes in the entries after a sequence up to which somebody knew them. No block has more than a size.
    pub(super) fn learn(&self, after: i64, read: Block, size: i64) {
        self.with(|blocks| match blocks.last_mut() {
            // Somebody else was faster.
            Some(last) if after < last.last => {}
            Some(last) if read.last - last.first < size => {
                last.last = read.last;
                last.earliest = last.earliest.min(read.earliest);
                last.latest = last.latest.max(read.latest);
            }
            _ => blocks.push(read),
        });
    }

    /// All that is known and occurred at or after a time and before another is in there; `None` if nothing did.
    pub(super) fn span(&self, since: Option<i64>, until: Option<i64>) -> Option<Span> {
        let meant = |block: &&Block| {
            since.is_none_or(|since| block.latest >= since)
                && until.is_none_or(|until| block.earliest < until)
        };
        self.with(|blocks| {
            let mut found = blocks.iter().filter(meant);
            let first = found.next()?;
            let last = found.next_back().unwrap_or(first);
            Some(Span {
                from: Some(first.first),
                to: Some(last.last),
            })
        })
    }

    fn with<T>(&self, perform: impl FnOnce(&mut Vec<Block>) -> T) -> T {
        perform(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store {
    /// Learns the times of all entries up to a sequence.
    pub(super) async fn learn_times(&self, head: i64, size: i64) -> Result<(), Error> {
        let mut after = self.times.known();
        while after < head {
            let to = after.saturating_add(size).min(head);
            let row = self.readers.first(&times_of(after, to)).await;
            let (_, block) = row.and_then(block).map_err(Error::Read)?;
            // What was taken away has no time, nor has what another server, which lags behind, does not know yet.
            if let Some(block) = block {
                self.times.learn(after, block, size);
            }
            after = to.max(self.times.known());
        }
        Ok(())
    }
}

/// Asks for a block: the entries after a sequence and up to another.
pub(super) fn times_of(after: i64, to: i64) -> Sql {
    Sql::new(
        "SELECT COUNT(*) AS present, MIN(seq) AS first, MAX(seq) AS last, MIN(occurred_at) AS earliest, MAX(occurred_at) AS latest
         FROM event_index WHERE seq > ",
    )
    .bind(after)
    .push(" AND seq <= ")
    .bind(to)
}

/// How many of these entries there are, and their block if there are any.
pub(super) fn block(row: Option<Row>) -> Result<(i64, Option<Block>), sqlx::Error> {
    let Some(row) = row else { return Ok((0, None)) };
    let present = row.get("present")?;
    if present == 0 {
        return Ok((0, None));
    }
    let block = Block {
        first: row.get("first")?,
        last: row.get("last")?,
        earliest: row.get("earliest")?,
        latest: row.get("latest")?,
    };
    Ok((present, Some(block)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(first: i64, last: i64, earliest: i64, latest: i64) -> Block {
        Block {
            first,
            last,
            earliest,
            latest,
        }
    }

    /// Four blocks of ten; the third has an entry that is late.
    fn times() -> Times {
        let times = Times::default();
        for read in [
            of(1, 10, 100, 199),
            of(11, 20, 200, 299),
            of(21, 30, 120, 399),
            of(31, 40, 400, 499),
        ] {
            times.learn(read.first - 1, read, 10);
        }
        times
    }

    #[test]
    fn a_time_is_in_the_blocks_from_the_first_to_the_last_that_have_something_of_it() {
        let times = times();
        for (since, until, expected) in [
            (None, None, Some((1, 40))),
            (Some(200), None, Some((11, 40))),
            (Some(199), None, Some((1, 40))),
            (None, Some(200), Some((1, 30))),
            (None, Some(120), Some((1, 10))),
            (Some(150), Some(160), Some((1, 30))),
            (Some(400), Some(401), Some((31, 40))),
            (Some(500), None, None),
            (None, Some(100), None),
        ] {
            let span = times.span(since, until);
            let expected = expected.map(|(from, to)| Span {
                from: Some(from),
                to: Some(to),
            });
            assert_eq!(span, expected, "{since:?} {until:?}");
        }
    }

    #[test]
    fn few_entries_join_the_last_block_and_nothing_is_learnt_twice() {
        let times = times();
        for (after, read) in [
            (40, of(41, 43, 50, 510)),
            (43, of(44, 50, 520, 530)),
            (43, of(44, 60, 1, 999)),
            (50, of(51, 51, 540, 540)),
        ] {
            times.learn(after, read, 10);
        }
        assert_eq!(times.known(), 51);
        let blocks = times.with(|blocks| blocks.clone());
        assert_eq!(blocks[4..], [of(41, 50, 50, 530), of(51, 51, 540, 540)]);
    }
}
