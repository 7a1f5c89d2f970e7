//! An in-memory block range index, similar to PostgreSQL's BRIN. It holds the clusters of each
//! block of entries, with the earliest and latest time of each cluster.
//!
//! It maps a cluster and a time range to sequence ranges, and an identity to the Unix users that
//! have it, so that none of them needs an index. Blocks are summarized on first use and extended as
//! entries are appended. Nothing is persisted, because entries never change. Erased entries only
//! make the ranges wider than necessary.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use mesh_db::sql::{Row, Sql};

use super::sequence_range::SequenceRange;
use crate::domain::filter::Selection;

pub(super) const BLOCK_ENTRIES: u64 = 10_000;

/// Summary of consecutive entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub first: i64,
    pub last: i64,
    /// Time range of each cluster.
    pub clusters: BTreeMap<String, TimeRange>,
    /// OIDC subjects and e-mail addresses, each with a Unix user that has it.
    pub identities: BTreeSet<(String, Option<String>)>,
}

/// Earliest and latest time of occurrence, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeRange {
    pub earliest: i64,
    pub latest: i64,
}

impl TimeRange {
    fn overlaps(self, selection: &Selection) -> bool {
        selection.since.is_none_or(|since| self.latest >= since)
            && selection.until.is_none_or(|until| self.earliest < until)
    }

    fn and(self, other: Self) -> Self {
        Self {
            earliest: self.earliest.min(other.earliest),
            latest: self.latest.max(other.latest),
        }
    }
}

impl BlockRange {
    /// True if the block may contain entries of the selection's cluster and time.
    fn overlaps(&self, selection: &Selection) -> bool {
        match &selection.cluster {
            Some(cluster) => {
                let times = self.clusters.get(cluster);
                times.is_some_and(|times| times.overlaps(selection))
            }
            None => self
                .clusters
                .values()
                .any(|times| times.overlaps(selection)),
        }
    }

    fn add(&mut self, other: Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        for (cluster, times) in other.clusters {
            let both = self.clusters.entry(cluster).or_insert(times);
            *both = both.and(times);
        }
        self.identities.extend(other.identities);
    }
}

/// Block ranges in sequence order.
#[derive(Debug, Default)]
pub(super) struct BlockRanges(Mutex<Summary>);

#[derive(Debug, Default)]
struct Summary {
    blocks: Vec<BlockRange>,
    /// Unix users of each identity in all blocks; `None` for entries without a user.
    users: HashMap<String, BTreeSet<Option<String>>>,
}

impl BlockRanges {
    /// Returns the last summarized sequence.
    pub(super) fn covered_to(&self) -> i64 {
        self.with(|summary| summary.blocks.last().map_or(0, |block| block.last))
    }

    /// Adds the summary of entries. A block has at most `size` of them. A concurrent query may have added some of them, or all.
    pub(super) fn add(&self, mut read: BlockRange, size: i64) {
        self.with(|Summary { blocks, users }| {
            for (identity, user) in std::mem::take(&mut read.identities) {
                users.entry(identity).or_default().insert(user);
            }
            let covered = blocks.last().map_or(0, |block| block.last);
            if read.last <= covered {
                return;
            }
            read.first = read.first.max(covered + 1);
            match blocks.last_mut() {
                Some(last) if read.last - last.first < size => last.add(read),
                _ => blocks.push(read),
            }
        });
    }

    /// Returns the Unix users that have an identity in the summarized entries, or `None` if entries
    /// without a user have it, too.
    pub(super) fn users_of(&self, identity: &str) -> Option<BTreeSet<String>> {
        self.with(|summary| match summary.users.get(identity) {
            Some(users) => users.iter().cloned().collect(),
            None => Some(BTreeSet::new()),
        })
    }

    /// Returns the sequence ranges that contain all summarized entries of a selection's cluster and
    /// time, in order. Adjacent blocks are merged into one range.
    pub(super) fn spans(&self, selection: &Selection) -> Vec<SequenceRange> {
        let mut spans: Vec<SequenceRange> = Vec::new();
        self.with(|summary| {
            let mut adjacent = false;
            for block in &summary.blocks {
                let overlaps = block.overlaps(selection);
                match spans.last_mut() {
                    Some(span) if overlaps && adjacent => span.to = Some(block.last),
                    _ if overlaps => spans.push(SequenceRange {
                        from: Some(block.first),
                        to: Some(block.last),
                    }),
                    _ => {}
                }
                adjacent = overlaps;
            }
        });
        spans
    }

    fn with<T>(&self, perform: impl FnOnce(&mut Summary) -> T) -> T {
        perform(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Summarizes the entries of a sequence range, with one row per cluster and owner.
pub(super) fn block_range_sql(after: i64, to: i64) -> Sql {
    Sql::new("SELECT ")
        .bytes("cluster")
        .push(", ")
        .bytes("user_name")
        .push(", ")
        .bytes("subject")
        .push(", ")
        .bytes("email")
        .push(
            ", COUNT(*) AS present, MIN(seq) AS first, MAX(seq) AS last, MIN(occurred_at) AS earliest, MAX(occurred_at) AS latest
             FROM event_index i WHERE seq > ",
        )
        .bind(after)
        .push(" AND seq <= ")
        .bind(to)
        .push(" GROUP BY i.cluster, i.user_name, i.subject, i.email")
}

/// Returns the number of entries, and their block if there are any.
pub(super) fn block(rows: &[Row]) -> Result<(i64, Option<BlockRange>), sqlx::Error> {
    let mut present = 0;
    let mut block: Option<BlockRange> = None;
    for row in rows {
        present += row.get::<i64>("present")?;
        // A tampered text may not be valid UTF-8.
        let text = |column| {
            let bytes: Option<Vec<u8>> = row.get(column)?;
            let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            Ok::<_, sqlx::Error>(text)
        };
        let user = text("user_name")?;
        let identities = [text("subject")?, text("email")?].into_iter().flatten();
        let times = TimeRange {
            earliest: row.get("earliest")?,
            latest: row.get("latest")?,
        };
        let read = BlockRange {
            first: row.get("first")?,
            last: row.get("last")?,
            clusters: [(text("cluster")?.unwrap_or_default(), times)].into(),
            identities: identities.map(|one| (one, user.clone())).collect(),
        };
        match &mut block {
            Some(block) => block.add(read),
            None => block = Some(read),
        }
    }
    Ok((present, block))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(first: i64, last: i64, earliest: i64, latest: i64) -> BlockRange {
        of_cluster("one", first, last, earliest, latest)
    }

    fn of_cluster(cluster: &str, first: i64, last: i64, earliest: i64, latest: i64) -> BlockRange {
        BlockRange {
            first,
            last,
            clusters: [(cluster.to_owned(), TimeRange { earliest, latest })].into(),
            identities: BTreeSet::new(),
        }
    }

    /// Four blocks of ten entries. The second has entries of another cluster, the third a late
    /// entry.
    fn block_ranges() -> BlockRanges {
        let block_ranges = BlockRanges::default();
        let mut second = of(11, 18, 200, 299);
        second.add(of_cluster("two", 19, 20, 280, 290));
        for read in [
            of(1, 10, 100, 199),
            second,
            of(21, 30, 120, 399),
            of(31, 40, 400, 499),
        ] {
            block_ranges.add(read, 10);
        }
        block_ranges
    }

    #[test]
    fn cluster_and_time_map_to_the_blocks_that_overlap_them() {
        let block_ranges = block_ranges();
        for (cluster, since, until, expected) in [
            (None, None, None, &[(1, 40)][..]),
            (None, Some(200), None, &[(11, 40)]),
            (None, Some(199), None, &[(1, 40)]),
            (None, None, Some(200), &[(1, 10), (21, 30)]),
            (None, None, Some(120), &[(1, 10)]),
            (None, Some(150), Some(160), &[(1, 10), (21, 30)]),
            (None, Some(400), Some(401), &[(31, 40)]),
            (None, Some(500), None, &[]),
            (None, None, Some(100), &[]),
            (Some("one"), None, None, &[(1, 40)]),
            (Some("two"), None, None, &[(11, 20)]),
            (Some("two"), Some(290), None, &[(11, 20)]),
            (Some("two"), Some(291), None, &[]),
            (Some("three"), None, None, &[]),
        ] {
            let selection = Selection {
                cluster: cluster.map(str::to_owned),
                since,
                until,
                ..Selection::default()
            };
            let expected: Vec<SequenceRange> = expected
                .iter()
                .map(|(from, to)| SequenceRange {
                    from: Some(*from),
                    to: Some(*to),
                })
                .collect();
            assert_eq!(block_ranges.spans(&selection), expected, "{selection:?}");
        }
    }

    #[test]
    fn small_ranges_join_the_last_block_and_nothing_is_added_twice() {
        let block_ranges = block_ranges();
        for read in [
            of(41, 43, 50, 510),
            of(44, 50, 520, 530),
            of(44, 50, 1, 999),
            of(51, 51, 540, 540),
        ] {
            block_ranges.add(read, 10);
        }
        assert_eq!(block_ranges.covered_to(), 51);
        let blocks = block_ranges.with(|summary| summary.blocks.clone());
        assert_eq!(blocks[4..], [of(41, 50, 50, 530), of(51, 51, 540, 540)]);
    }

    #[test]
    fn of_two_concurrent_reads_the_longer_one_is_not_lost() {
        let block_ranges = block_ranges();
        block_ranges.add(of(41, 45, 500, 509), 10);
        block_ranges.add(of(41, 49, 500, 519), 10);
        block_ranges.add(of(48, 52, 510, 529), 10);
        let blocks = block_ranges.with(|summary| summary.blocks.clone());
        assert_eq!(blocks[4..], [of(41, 49, 500, 519), of(50, 52, 510, 529)]);
    }

    #[test]
    fn an_identity_maps_to_the_users_that_have_it() {
        let block_ranges = BlockRanges::default();
        let have = |first: i64, identities: &[(&str, Option<&str>)]| BlockRange {
            identities: identities
                .iter()
                .map(|(identity, user)| (identity.to_string(), user.map(str::to_owned)))
                .collect(),
            ..of(first, first + 9, 1, 2)
        };
        for read in [
            have(1, &[("a", Some("alice")), ("a@x", Some("alice"))]),
            have(11, &[("a@x", Some("admin")), ("b", Some("bob"))]),
            have(21, &[("b", None)]),
        ] {
            block_ranges.add(read, 10);
        }
        let users = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        assert_eq!(block_ranges.users_of("a"), users(&["alice"]));
        assert_eq!(block_ranges.users_of("a@x"), users(&["admin", "alice"]));
        assert_eq!(block_ranges.users_of("b"), None);
        assert_eq!(block_ranges.users_of("c"), users(&[]));
    }
}
