//! The statement for a page of entries: one that an index answers in the order of the ledger, so that a page of a large ledger costs what
//! one of a small ledger does.
//!
//! - There is a way by each condition that has an index (`super::ways`). If there are several, what is near the beginning of the page is
//!   looked at first. If that does not fill it, some entries of each way are counted, in the indexes alone. If one of them has only a
//!   few they are found by it and sorted. If all have many, one is gone along until the page is full.
//! - No index has both time and sequence in order. Between which sequences the entries of a time are is known without (`super::times`).
//! - Of a node is what is of one of the blocks that cover it (`domain::nodes`): each is a branch, which goes through the entries of its
//!   block in order.
//! - Bodies are fetched for what is on the page only.
//!
//! What is told once more is read by the same pages (`super::replay`).

use mesh_db::sql::Sql;
use mesh_runtime::api::Sight;

use super::select::Select as _;
use super::ways::{Branch, Lead, Way};
use crate::domain::query::Query;

/// How far it is looked for what is on a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// So many entries are looked at before any are counted.
    pub near: i64,
    /// Fewer are sorted.
    pub sorted: i64,
    /// Of so many it is known when they occurred.
    pub block: i64,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            near: 20_000,
            sorted: 20_000,
            block: super::complete::RANGE.cast_signed(),
        }
    }
}

/// In which order entries are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// In that of the page, until it is full.
    Sequence,
    /// All that an index finds, to be sorted: they are few.
    Few,
}

/// Sequences from one to another, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    /// The lowest.
    pub from: Option<i64>,
    /// The highest.
    pub to: Option<i64>,
}

impl Span {
    /// What a cursor leaves.
    pub(super) fn beyond(query: &Query) -> Self {
        match query.after {
            Some(after) if query.descending => Self {
                to: Some(after.saturating_sub(1)),
                from: None,
            },
            after => Self {
                from: after.map(|after| after.saturating_add(1)),
                to: None,
            },
        }
    }

    /// True if all of another one is in it.
    pub(super) fn contains(self, other: Self) -> bool {
        let begins = self.from.is_none_or(|from| other.from >= Some(from));
        begins
            && self
                .to
                .is_none_or(|to| other.to.is_some_and(|other| other <= to))
    }

    /// What of it is in a ledger that ends there.
    pub(super) fn up_to(self, head: i64) -> Self {
        self.and(Self {
            from: Some(1),
            to: Some(head),
        })
    }

    /// What is in both.
    pub(super) fn and(self, other: Self) -> Self {
        let lower = [self.to, other.to].into_iter().flatten().min();
        Self {
            from: self.from.max(other.from),
            to: lower,
        }
    }

    /// So many of it, from where the page begins.
    pub(super) fn near(self, count: i64, descending: bool) -> Self {
        let (from, to) = if descending {
            (self.to.map(|to| to.saturating_sub(count)), None)
        } else {
            (None, self.from.map(|from| from.saturating_add(count)))
        };
        self.and(Self { from, to })
    }
}

/// A page that is asked for.
pub(super) struct Page<'a> {
    query: &'a Query,
    ways: Vec<Way>,
}

impl<'a> Page<'a> {
    pub(super) fn new(query: &'a Query, sight: &Sight) -> Self {
        Self {
            query,
            ways: Way::all(&query.selection, sight),
        }
    }

    /// The sequences that are asked for.
    pub(super) fn span(&self) -> Span {
        let selection = &self.query.selection;
        Span::beyond(self.query).and(Span {
            from: selection.from_seq,
            to: selection.to_seq,
        })
    }

    /// True if an index finds only a few entries. PostgreSQL would go through the whole ledger for a job that it takes for a large one.
    pub(super) const fn is_of_few(&self) -> bool {
        self.query.selection.is_narrow()
    }

    /// True if it is of a time.
    pub(super) const fn is_of_a_time(&self) -> bool {
        let selection = &self.query.selection;
        selection.since.is_some() || selection.until.is_some()
    }

    /// The way to go if there is no choice.
    pub(super) fn only_way(&self) -> Option<&Way> {
        match self.ways.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// A way that has its entries in order.
    pub(super) fn way_in_order(&self) -> &Way {
        &self.ways[0]
    }

    /// The way to go if none has only a few entries.
    pub(super) fn way_of_many(&self) -> &Way {
        let names = self.ways.iter().find(|way| way.is_of_names());
        names.unwrap_or(&self.ways[0])
    }

    /// The ways of which it makes sense to count the entries.
    pub(super) fn ways_of_some(&self) -> Vec<&Way> {
        self.ways.iter().filter(|way| !way.is_of_all()).collect()
    }

    /// The entries of the page, and one more if there is a next page.
    pub(super) fn entries(&self, way: &Way, span: Span, by: By) -> Sql {
        let order = if self.query.descending { " DESC" } else { "" };
        let limit = i64::from(self.query.limit) + 1;
        let mut sql = Sql::new("SELECT i.seq, i.category, p.subject, p.body FROM (");
        for (n, branch) in way.branches.iter().enumerate() {
            sql = sql
                .push(if n == 0 { "" } else { " UNION " })
                .push("SELECT seq FROM (SELECT i.seq")
                .going_by(&branch.lead, span, by)
                .visible(&branch.sight)
                .chosen(&branch.selection)
                .push(" ORDER BY ")
                .push(seq(&branch.lead, by))
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

    /// How many entries these ways have, of each as many as a number at most.
    pub(super) fn counts(ways: &[&Way], span: Span, most: i64) -> Sql {
        let mut sql = Sql::default();
        for (n, way) in ways.iter().enumerate() {
            sql = sql.push(if n == 0 { "" } else { " UNION ALL " });
            sql = sql.push(format!("SELECT {n} AS way, COUNT(*) AS entries FROM ("));
            for (n, branch) in way.branches.iter().enumerate() {
                sql = sql
                    .push(if n == 0 { "" } else { " UNION ALL " })
                    .push("SELECT one FROM (SELECT 1 AS one")
                    .counting(branch, span)
                    .push(" LIMIT ")
                    .bind(most)
                    .push(format!(") b{n}"));
            }
            sql = sql.push(format!(") w{n}"));
        }
        sql.push(" ORDER BY way")
    }
}

/// What a branch goes by, as a part of its statement.
trait GoingBy {
    /// To look at its entries.
    fn going_by(self, lead: &Lead, span: Span, by: By) -> Self;
    /// To count them: in the index alone, in its order, so that it ends with the limit.
    fn counting(self, branch: &Branch, span: Span) -> Self;
    /// By an index. SQLite, which has no statistics, is told which; PostgreSQL finds it.
    fn indexed(self, lead: &Lead) -> Self;
    /// Only sequences of a span; the column as it is to be looked at.
    fn within(self, seq: &'static str, span: Span) -> Self;
}

impl GoingBy for Sql {
    fn going_by(self, lead: &Lead, span: Span, by: By) -> Self {
        match lead {
            // The sum makes sure that the entries of the block are looked up, and not the block in every entry.
            Lead::Block(block) => self
                .push(" FROM event_nodes n CROSS JOIN event_index i WHERE i.seq = n.seq + 0 AND n.block = ")
                .bind(block)
                .within("n.seq", span),
            // A few are found by another index: what is computed has none.
            Lead::All if by == By::Few => self
                .push(" FROM event_index i WHERE 1 = 1")
                .within("i.seq + 0", span),
            _ => self.indexed(lead).within("i.seq", span),
        }
    }

    fn counting(self, branch: &Branch, span: Span) -> Self {
        let selection = &branch.selection;
        match &branch.lead {
            Lead::Block(block) => self
                .push(" FROM event_nodes n WHERE n.block = ")
                .bind(block)
                .within("n.seq", span)
                .push(" ORDER BY n.seq"),
            Lead::All | Lead::Is(..) => self
                .indexed(&branch.lead)
                .within("i.seq", span)
                .push(" ORDER BY i.seq"),
            // All of them: what is not in the span would only be left out, not skipped.
            Lead::Names => self
                .indexed(&branch.lead)
                .named(selection)
                .push(" ORDER BY i.name"),
            Lead::Time => self
                .indexed(&branch.lead)
                .of_time(selection)
                .push(" ORDER BY i.occurred_at"),
        }
    }

    fn indexed(self, lead: &Lead) -> Self {
        let index = match lead {
            Lead::Is(column, _) => Some(column.index),
            Lead::Names => Some("event_index_name"),
            Lead::Time => Some("event_index_time"),
            Lead::All | Lead::Block(_) => None,
        };
        let mut sql = self.push(" FROM event_index i");
        if let Some(index) = index {
            sql = sql.either(" INDEXED BY ", "").either(index, "");
        }
        let sql = sql.push(" WHERE 1 = 1");
        match lead {
            Lead::Is(column, value) => sql
                .push(column.only)
                .push(" AND i.")
                .push(column.name)
                .push(" = ")
                .bind(value),
            _ => sql,
        }
    }

    fn within(mut self, seq: &'static str, span: Span) -> Self {
        for (comparison, bound) in [(" >= ", span.from), (" <= ", span.to)] {
            if let Some(bound) = bound {
                self = self.push(" AND ").push(seq).push(comparison).bind(bound);
            }
        }
        self
    }
}

/// The sequence by which the entries of a branch are put in order. What is computed has no index: then all are found, and sorted.
const fn seq(lead: &Lead, by: By) -> &'static str {
    match (lead, by) {
        (Lead::Block(_), _) => "n.seq",
        (Lead::Names | Lead::Time, _) | (_, By::Few) => "i.seq + 0",
        _ => "i.seq",
    }
}

#[cfg(test)]
mod tests;
