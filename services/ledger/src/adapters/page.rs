//! Plans the statement for a page of entries. An index returns them in ledger order, so the cost of
//! a page does not grow with the ledger.
//!
//! - Each indexed condition has an access path (`super::access_path`). With several paths, the
//!   entries next to the start of the page are scanned first. If they do not fill the page,
//!   index-only counts compare the paths. A selective path is scanned and sorted; otherwise one is
//!   scanned in order until the page is full.
//! - Clusters and times have no index: `super::block_ranges` maps them to sequence ranges, which
//!   are scanned one after the other.
//! - A node is covered by a few blocks (`domain::nodes`), each with its own scan.
//! - Bodies are fetched only for the page.
//!
//! Replays read the same pages (`super::replay`).
//!
//! Statistics are no substitute. Slowest of 30 pages by a plain `WHERE … ORDER BY seq LIMIT` after
//! `ANALYZE`, in milliseconds, and with this module; 1 million entries:
//!
//! | filter | SQLite | PostgreSQL with extended statistics | here: SQLite; PostgreSQL |
//! | --- | --- | --- | --- |
//! | identity | 599 | 44 | 6; 7 |
//! | name prefix | 296 | 54 | 15; 15 |
//! | account, type, time | 259 | 9 | 30; 10 |
//! | a coordinator's | 201 | 5 | 9; 13 |
//! | node | 130 | 11 | 6; 9 |
//! | rare category | 120 | 69 | 5; 5 |
//!
//! SQLite's histograms (STAT4) repair half of these, but need an `ANALYZE` of everything, whose lock
//! stops appends for two seconds per million entries; `PRAGMA optimize` makes none.

use mesh_db::sql::Sql;
use mesh_runtime::api::Visibility;

use super::access_path::{AccessPath, IndexCondition, IndexScan};
use super::conditions::Conditions as _;
use super::sequence_range::SequenceRange;
use crate::domain::query::Query;

/// Limits of the scans of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanLimits {
    /// Number of entries scanned before paths are compared.
    pub leading_entries: i64,
    /// A path with fewer entries is scanned completely and sorted.
    pub max_sorted_entries: i64,
    /// Entries per block range.
    pub block_entries: i64,
}

impl Default for ScanLimits {
    fn default() -> Self {
        Self {
            leading_entries: 20_000,
            max_sorted_entries: 20_000,
            block_entries: super::block_ranges::BLOCK_ENTRIES.cast_signed(),
        }
    }
}

/// Order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanOrder {
    /// In sequence order, until the page is full.
    Sequence,
    /// All matching entries, then sorted.
    Sorted,
}

/// A query with its candidate paths.
pub(super) struct PageQuery<'a> {
    query: &'a Query,
    paths: Vec<AccessPath>,
}

impl<'a> PageQuery<'a> {
    pub(super) fn new(query: &'a Query, visibility: &Visibility) -> Self {
        Self {
            query,
            paths: AccessPath::candidates(&query.selection, visibility),
        }
    }

    /// Returns the requested range of sequences.
    pub(super) fn span(&self) -> SequenceRange {
        let selection = &self.query.selection;
        SequenceRange::beyond(self.query).and(SequenceRange {
            from: selection.from_seq,
            to: selection.to_seq,
        })
    }

    /// Returns the sequence ranges to scan, in page order, limited to those that may contain
    /// selected entries.
    pub(super) fn spans(&self, in_blocks: Vec<SequenceRange>, head: i64) -> Vec<SequenceRange> {
        let whole = self.span().up_to(head);
        let mut spans: Vec<SequenceRange> = in_blocks.iter().map(|span| whole.and(*span)).collect();
        spans.retain(|span| !span.is_empty());
        if self.query.descending {
            spans.reverse();
        }
        spans
    }

    /// Returns the path, if there is only one.
    pub(super) fn only_path(&self) -> Option<&AccessPath> {
        match self.paths.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Returns a path that yields entries in order.
    pub(super) fn ordered_path(&self) -> &AccessPath {
        &self.paths[0]
    }

    /// Returns the path to use if none is selective.
    pub(super) fn fallback_path(&self) -> &AccessPath {
        let names = self.paths.iter().find(|path| path.scans_names());
        names.unwrap_or(&self.paths[0])
    }

    /// Returns the paths whose entries can be counted by an index alone.
    pub(super) fn countable_paths(&self) -> Vec<&AccessPath> {
        self.paths
            .iter()
            .filter(|path| !path.scans_sequence())
            .collect()
    }

    /// Selects the entries of the page, plus one if there is a next page.
    pub(super) fn entries(&self, path: &AccessPath, span: SequenceRange, by: ScanOrder) -> Sql {
        let order = if self.query.descending { " DESC" } else { "" };
        let limit = i64::from(self.query.limit) + 1;
        let mut sql = Sql::new("SELECT i.seq, i.category, p.subject, p.body FROM (");
        for (n, scan) in path.scans.iter().enumerate() {
            sql = sql
                .push(if n == 0 { "" } else { " UNION " })
                .push("SELECT seq FROM (SELECT i.seq")
                .scan_clause(&scan.condition, span, by)
                .visible(&scan.visibility)
                .chosen(&scan.selection)
                .push(" ORDER BY ")
                .push(seq(&scan.condition, by))
                .push(order)
                .push(" LIMIT ")
                .bind(limit)
                .push(format!(") b{n}"));
        }
        sql.push(
            ") c JOIN event_index i ON i.seq = c.seq
             LEFT JOIN payloads p ON p.seq = i.seq AND p.recorded_at = i.recorded_at ORDER BY i.seq",
        )
        .push(order)
        .push(" LIMIT ")
        .bind(limit)
    }

    /// Counts the entries of each path, up to `max`.
    pub(super) fn counts(paths: &[&AccessPath], span: SequenceRange, max: i64) -> Sql {
        let mut sql = Sql::default();
        for (n, path) in paths.iter().enumerate() {
            sql = sql.push(if n == 0 { "" } else { " UNION ALL " });
            sql = sql.push(format!("SELECT {n} AS path, COUNT(*) AS entries FROM ("));
            for (n, scan) in path.scans.iter().enumerate() {
                sql = sql
                    .push(if n == 0 { "" } else { " UNION ALL " })
                    .push("SELECT one FROM (SELECT 1 AS one")
                    .count_clause(scan, span)
                    .push(" LIMIT ")
                    .bind(max)
                    .push(format!(") b{n}"));
            }
            sql = sql.push(format!(") w{n}"));
        }
        sql.push(" ORDER BY path")
    }
}

/// Clauses of a scan.
trait ScanClauses {
    /// FROM and WHERE clauses of a scan.
    fn scan_clause(self, condition: &IndexCondition, span: SequenceRange, by: ScanOrder) -> Self;
    /// Clauses for an index-only count, in index order so that it stops at the limit.
    fn count_clause(self, scan: &IndexScan, span: SequenceRange) -> Self;
    /// Selects the index. SQLite has no statistics and needs a hint.
    fn index_clause(self, condition: &IndexCondition) -> Self;
    /// Restricts to a sequence range.
    fn in_range(self, seq: &'static str, span: SequenceRange) -> Self;
}

impl ScanClauses for Sql {
    fn scan_clause(self, condition: &IndexCondition, span: SequenceRange, by: ScanOrder) -> Self {
        match condition {
            // `+ 0` makes the database join from the block to its entries, not the reverse.
            IndexCondition::NodeBlock(block) => self
                .push(" FROM event_nodes n CROSS JOIN event_index i WHERE i.seq = n.seq + 0 AND n.block = ")
                .bind(block)
                .in_range("n.seq", span),
            // `+ 0` prevents the primary key from being chosen over a selective index.
            IndexCondition::Sequence if by == ScanOrder::Sorted => self
                .push(" FROM event_index i WHERE 1 = 1")
                .in_range("i.seq + 0", span),
            _ => self.index_clause(condition).in_range("i.seq", span),
        }
    }

    fn count_clause(self, scan: &IndexScan, span: SequenceRange) -> Self {
        let selection = &scan.selection;
        match &scan.condition {
            IndexCondition::NodeBlock(block) => self
                .push(" FROM event_nodes n WHERE n.block = ")
                .bind(block)
                .in_range("n.seq", span)
                .push(" ORDER BY n.seq"),
            IndexCondition::Sequence | IndexCondition::Equals(..) => self
                .index_clause(&scan.condition)
                .in_range("i.seq", span)
                .push(" ORDER BY i.seq"),
            // Omits the sequence range, because this index cannot skip by it.
            IndexCondition::NamePrefix => self
                .index_clause(&scan.condition)
                .named(selection)
                .push(" ORDER BY i.name"),
        }
    }

    fn index_clause(self, condition: &IndexCondition) -> Self {
        let index = match condition {
            IndexCondition::Equals(column, _) => Some(column.index),
            IndexCondition::NamePrefix => Some("event_index_name"),
            IndexCondition::Sequence | IndexCondition::NodeBlock(_) => None,
        };
        let mut sql = self.push(" FROM event_index i");
        if let Some(index) = index {
            sql = sql.either(" INDEXED BY ", "").either(index, "");
        }
        let sql = sql.push(" WHERE 1 = 1");
        match condition {
            IndexCondition::Equals(column, value) => sql
                .push(column.only)
                .push(" AND i.")
                .push(column.name)
                .push(" = ")
                .bind(value),
            _ => sql,
        }
    }

    fn in_range(mut self, seq: &'static str, span: SequenceRange) -> Self {
        for (comparison, bound) in [(" >= ", span.from), (" <= ", span.to)] {
            if let Some(bound) = bound {
                self = self.push(" AND ").push(seq).push(comparison).bind(bound);
            }
        }
        self
    }
}

/// ORDER BY expression of a scan. `+ 0` disables the index order, so that all entries are found and
/// then sorted.
const fn seq(condition: &IndexCondition, by: ScanOrder) -> &'static str {
    match (condition, by) {
        (IndexCondition::NodeBlock(_), _) => "n.seq",
        (IndexCondition::NamePrefix, _) | (_, ScanOrder::Sorted) => "i.seq + 0",
        _ => "i.seq",
    }
}

#[cfg(test)]
mod tests;
