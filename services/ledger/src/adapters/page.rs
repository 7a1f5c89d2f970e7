//! The statement for a page of entries: one that an index answers in the order of the ledger, so that a page of a large ledger costs what
//! one of a small ledger does.
//!
//! - Alternatives (`subject = x OR email = x`) are branches of a UNION, each with an index and a limit of its own. As one condition they
//!   would all be found, sorted and cut off, for every page.
//! - No index has both time and sequence in order. So what is near the beginning of the page is looked at first. If that does not fill it,
//!   the index of times says between which sequences the entries of that time are, and how many: few are found by it and sorted,
//!   many are met by going from one of these sequences to the other.
//! - Of a node is what is of one of the blocks that cover it (`domain::nodes`): each is a branch, too, which goes through the entries of its
//!   block in order.
//! - Bodies are fetched for what is on the page only.
//!
//! What is told once more is read by the same pages (`super::replay`).

use std::collections::BTreeSet;

use mesh_db::sql::Sql;
use mesh_runtime::api::{Accounts, Sight};

use super::select::Select as _;
use crate::domain::filter::{NamePattern, Selection};
use crate::domain::nodes::covering;
use crate::domain::query::Query;

/// More alternatives than this are one condition.
const MOST_BRANCHES: usize = 64;

/// How far it is looked for the entries of a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    /// So many entries are looked at before it is found out where that time is.
    pub near: i64,
    /// So many are sorted.
    pub sorted: i64,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            near: 20_000,
            sorted: 20_000,
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
    /// All of a time, to be sorted.
    Time,
    /// All with a name that begins so, to be sorted.
    Name,
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

    /// So many of it, from where the page begins, in a ledger that ends there.
    pub(super) fn near(self, count: i64, descending: bool, head: i64) -> Self {
        if descending {
            let to = self.to.unwrap_or(head);
            let from = Some(to.saturating_sub(count));
            Self { from, ..self }
        } else {
            let to = self.from.unwrap_or(1).saturating_add(count);
            Self {
                to: Some(to),
                ..self
            }
        }
    }
}

/// A page that is asked for.
pub(super) struct Page<'a> {
    query: &'a Query,
    branches: Vec<Branch>,
}

/// One of the alternatives.
struct Branch {
    sight: Sight,
    selection: Selection,
    /// A further condition: a column, and what is in it.
    column: Option<(&'static str, String)>,
    /// The block of nodes whose entries it goes through.
    block: Option<String>,
}

impl<'a> Page<'a> {
    pub(super) fn new(query: &'a Query, sight: &Sight) -> Self {
        let selection = &query.selection;
        let whole = || Branch {
            sight: sight.clone(),
            selection: selection.clone(),
            column: None,
            block: None,
        };
        let mut branches = if selection.is_narrow() {
            Vec::new()
        } else if let Some(node) = &selection.node {
            let of = |block| Branch {
                selection: Selection {
                    node: None,
                    ..selection.clone()
                },
                block: Some(block),
                ..whole()
            };
            covering(node).into_iter().map(of).collect()
        } else if let Some(identity) = &selection.identity {
            let of = |column| Branch {
                selection: Selection {
                    identity: None,
                    ..selection.clone()
                },
                column: Some((column, identity.clone())),
                ..whole()
            };
            vec![of(" AND i.subject = "), of(" AND i.email = ")]
        } else if selection.has_a_column() {
            // One index does, and the rest is compared.
            Vec::new()
        } else if let Sight::Of { .. } = sight {
            let sights = alternatives(sight).into_iter();
            sights.map(|sight| Branch { sight, ..whole() }).collect()
        } else if let (Some(cluster), true) = (&selection.cluster, selection.types.is_empty()) {
            // The condition that its index is for.
            let column = Some((" AND i.seq > 0 AND i.cluster = ", cluster.clone()));
            vec![Branch { column, ..whole() }]
        } else {
            let types = selection.types.iter().map(|pattern| Selection {
                types: vec![pattern.clone()],
                ..selection.clone()
            });
            types
                .map(|selection| Branch {
                    selection,
                    ..whole()
                })
                .collect()
        };
        if branches.is_empty() || branches.len() > MOST_BRANCHES {
            branches = vec![whole()];
        }
        Self { query, branches }
    }

    /// True if its index gives another order than that of the page: it is of a time, or of names that begin so.
    pub(super) fn is_of_a_range(&self) -> bool {
        let selection = &self.query.selection;
        selection.since.is_some() || selection.until.is_some() || self.is_of_names()
    }

    /// True if an index finds only a few entries. PostgreSQL would go through the whole ledger for a job that it takes for a large one.
    pub(super) const fn is_of_few(&self) -> bool {
        self.query.selection.is_narrow()
    }

    /// True if it is of names that begin so.
    pub(super) fn is_of_names(&self) -> bool {
        let selection = &self.query.selection;
        selection.node.is_none() && matches!(selection.name, Some(NamePattern::Prefix(_)))
    }

    /// True if there is an index for each of the alternatives that is better than that of times, however few are of that time.
    pub(super) fn is_of_people(&self) -> bool {
        let people = |branch: &Branch| {
            matches!(branch.sight, Sight::Of { .. })
                || self.query.selection.identity.is_some()
                || branch.block.is_some()
                || branch.selection.user.is_some()
        };
        self.branches.iter().all(people)
    }

    /// How many entries are of that time, and between which sequences.
    pub(super) fn of_that_time(&self, span: Span) -> Sql {
        let time = Selection {
            since: self.query.selection.since,
            until: self.query.selection.until,
            ..Selection::default()
        };
        Sql::new("SELECT COUNT(*) AS entries, MIN(i.seq) AS lowest, MAX(i.seq) AS highest FROM event_index i WHERE 1 = 1")
            .within("i.seq + 0", span)
            .of_time(&time)
    }

    /// The entries of the page, and one more if there is a next page.
    pub(super) fn entries(&self, span: Span, by: By) -> Sql {
        let order = if self.query.descending { " DESC" } else { "" };
        let limit = i64::from(self.query.limit) + 1;
        // What is computed has no index. PostgreSQL has statistics to choose another by.
        let (seq, index) = match by {
            By::Sequence => ("i.seq", ""),
            By::Few => ("i.seq + 0", ""),
            By::Time => ("i.seq + 0", " INDEXED BY event_index_time"),
            By::Name => ("i.seq + 0", " INDEXED BY event_index_name"),
        };
        let mut sql = Sql::new("SELECT i.seq, i.category, p.subject, p.body FROM (");
        for (n, branch) in self.branches.iter().enumerate() {
            sql = sql
                .push(if n == 0 { "" } else { " UNION " })
                .push("SELECT seq FROM (SELECT i.seq FROM ");
            let seq = match &branch.block {
                // The sum makes sure that the entries of the block are looked up, and not the block in every entry.
                Some(block) => {
                    sql = sql
                        .push("event_nodes n CROSS JOIN event_index i WHERE i.seq = n.seq + 0 AND n.block = ")
                        .bind(block);
                    "n.seq"
                }
                None => {
                    sql = sql
                        .push("event_index i")
                        .either(index, "")
                        .push(" WHERE 1 = 1");
                    seq
                }
            };
            let asked = Span {
                from: branch.selection.from_seq,
                to: branch.selection.to_seq,
            };
            sql = sql
                .within(seq, span)
                .within(seq, asked)
                .visible(&branch.sight)
                .chosen(&branch.selection);
            if let Some((column, value)) = &branch.column {
                sql = sql.push(*column).bind(value);
            }
            sql = sql
                .push(" ORDER BY ")
                .push(seq)
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
}

/// Only sequences of a span; `seq` is the column, as it is to be looked at.
trait Within {
    fn within(self, seq: &'static str, span: Span) -> Self;
}

impl Within for Sql {
    fn within(mut self, seq: &'static str, span: Span) -> Self {
        for (comparison, bound) in [(" >= ", span.from), (" <= ", span.to)] {
            if let Some(bound) = bound {
                self = self.push(" AND ").push(seq).push(comparison).bind(bound);
            }
        }
        self
    }
}

/// Everybody whose entries somebody may see, one by one.
fn alternatives(sight: &Sight) -> Vec<Sight> {
    let Sight::Of { users, accounts } = sight else {
        return Vec::new();
    };
    let of_user = |user: &String| Sight::Of {
        users: [user.clone()].into(),
        accounts: Accounts::new(),
    };
    let of_account = |cluster: &Option<String>, account: &String| Sight::Of {
        users: BTreeSet::new(),
        accounts: [(cluster.clone(), [account.clone()].into())].into(),
    };
    let accounts = accounts
        .iter()
        .flat_map(|(cluster, names)| names.iter().map(|name| of_account(cluster, name)));
    users.iter().map(of_user).chain(accounts).collect()
}

#[cfg(test)]
mod tests;
