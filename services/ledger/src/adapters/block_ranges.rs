//! An in-memory block range index (as PostgreSQL's BRIN): earliest and latest time of each block of entries.
//!
//! It maps a time range to a sequence range. Blocks are summarized on first use and extended as entries are appended. Entries never
//! change, so nothing is stored; erased ones leave ranges that are only wider than necessary.

use std::sync::{Mutex, PoisonError};

use mesh_db::sql::{Row, Sql};

use super::sequence_range::SequenceRange;

/// Entries per block.
pub(super) const BLOCK_ENTRIES: u64 = 10_000;

/// Consecutive entries and when they occurred, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub first: i64,
    pub last: i64,
    pub earliest: i64,
    pub latest: i64,
}

/// Block ranges in sequence order.
#[derive(Debug, Default)]
pub(super) struct BlockRanges(Mutex<Vec<BlockRange>>);

impl BlockRanges {
    /// Last summarized sequence.
    pub(super) fn covered_to(&self) -> i64 {
        self.with(|blocks| blocks.last().map_or(0, |block| block.last))
    }

    /// Adds the entries after `after`; a block has at most `size` entries.
    pub(super) fn add(&self, after: i64, read: BlockRange, size: i64) {
        self.with(|blocks| match blocks.last_mut() {
            // Another query was faster.
            Some(last) if after < last.last => {}
            Some(last) if read.last - last.first < size => {
                last.last = read.last;
                last.earliest = last.earliest.min(read.earliest);
                last.latest = last.latest.max(read.latest);
            }
            _ => blocks.push(read),
        });
    }

    /// Sequences that contain every summarized entry of a time range; `None` if there are none.
    pub(super) fn span(&self, since: Option<i64>, until: Option<i64>) -> Option<SequenceRange> {
        let meant = |block: &&BlockRange| {
            since.is_none_or(|since| block.latest >= since)
                && until.is_none_or(|until| block.earliest < until)
        };
        self.with(|blocks| {
            let mut found = blocks.iter().filter(meant);
            let first = found.next()?;
            let last = found.next_back().unwrap_or(first);
            Some(SequenceRange {
                from: Some(first.first),
                to: Some(last.last),
            })
        })
    }

    fn with<T>(&self, perform: impl FnOnce(&mut Vec<BlockRange>) -> T) -> T {
        perform(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Summarizes the entries of a sequence range.
pub(super) fn block_range_sql(after: i64, to: i64) -> Sql {
    Sql::new(
        "SELECT COUNT(*) AS present, MIN(seq) AS first, MAX(seq) AS last, MIN(occurred_at) AS earliest, MAX(occurred_at) AS latest
         FROM event_index WHERE seq > ",
    )
    .bind(after)
    .push(" AND seq <= ")
    .bind(to)
}

/// Number of entries, and their range if there are any.
pub(super) fn block(row: Option<Row>) -> Result<(i64, Option<BlockRange>), sqlx::Error> {
    let Some(row) = row else { return Ok((0, None)) };
    let present = row.get("present")?;
    if present == 0 {
        return Ok((0, None));
    }
    let block = BlockRange {
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

    fn of(first: i64, last: i64, earliest: i64, latest: i64) -> BlockRange {
        BlockRange {
            first,
            last,
            earliest,
            latest,
        }
    }

    /// Four blocks of ten; the third has an entry that is late.
    fn block_ranges() -> BlockRanges {
        let block_ranges = BlockRanges::default();
        for read in [
            of(1, 10, 100, 199),
            of(11, 20, 200, 299),
            of(21, 30, 120, 399),
            of(31, 40, 400, 499),
        ] {
            block_ranges.add(read.first - 1, read, 10);
        }
        block_ranges
    }

    #[test]
    fn a_time_range_maps_to_the_blocks_that_overlap_it() {
        let block_ranges = block_ranges();
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
            let span = block_ranges.span(since, until);
            let expected = expected.map(|(from, to)| SequenceRange {
                from: Some(from),
                to: Some(to),
            });
            assert_eq!(span, expected, "{since:?} {until:?}");
        }
    }

    #[test]
    fn small_ranges_join_the_last_block_and_nothing_is_added_twice() {
        let block_ranges = block_ranges();
        for (after, read) in [
            (40, of(41, 43, 50, 510)),
            (43, of(44, 50, 520, 530)),
            (43, of(44, 60, 1, 999)),
            (50, of(51, 51, 540, 540)),
        ] {
            block_ranges.add(after, read, 10);
        }
        assert_eq!(block_ranges.covered_to(), 51);
        let blocks = block_ranges.with(|blocks| blocks.clone());
        assert_eq!(blocks[4..], [of(41, 50, 50, 530), of(51, 51, 540, 540)]);
    }
}
