//! The ways to find the entries of a page: for each condition that has an index, that index.
//!
//! Alternatives (`subject = x OR email = x`) are branches of a way, each with an index and a limit of its own. As one condition they would
//! all be found, sorted and cut off, for every page.

use std::collections::BTreeSet;

use mesh_runtime::api::{Accounts, Sight};

use crate::domain::filter::{NamePattern, Selection, TypePattern};
use crate::domain::nodes::covering;

/// The category that most events are of.
const JOB: &str = "job";

/// More alternatives than this are one condition.
const MOST_BRANCHES: usize = 64;

/// A way: its branches find every entry that is meant, some perhaps twice.
pub(super) struct Way {
    pub branches: Vec<Branch>,
}

/// One of the alternatives.
pub(super) struct Branch {
    pub sight: Sight,
    pub selection: Selection,
    pub lead: Lead,
}

/// What a branch goes by.
pub(super) enum Lead {
    /// All entries, in order.
    All,
    /// What has a value in a column, in order.
    Is(&'static Column, String),
    /// The entries of a block of nodes, in order.
    Block(String),
    /// What is of the time that is meant.
    Time,
    /// What has a name that begins as meant.
    Names,
}

/// A column with an index that has its entries in order.
pub(super) struct Column {
    pub name: &'static str,
    pub index: &'static str,
    /// What the index says that it is for.
    pub only: &'static str,
}

impl Column {
    const fn of(name: &'static str, index: &'static str) -> Self {
        Self {
            name,
            index,
            only: "",
        }
    }
}

const CLUSTER: Column = Column {
    only: " AND i.seq > 0",
    ..Column::of("cluster", "event_index_cluster")
};
/// Not of events of jobs: they are most.
const CATEGORY: Column = Column {
    only: " AND i.category <> 'job'",
    ..Column::of("category", "event_index_category")
};
const TYPE: Column = Column::of("type", "event_index_type");
const USER: Column = Column::of("user_name", "event_index_user");
const SUBJECT: Column = Column::of("subject", "event_index_subject");
const EMAIL: Column = Column::of("email", "event_index_email");
const ACCOUNT: Column = Column::of("account", "event_index_account");
const PARTITION: Column = Column::of("partition", "event_index_partition");

impl Way {
    /// Every way, the one that is likely to have the fewest entries first. The first has them in order.
    pub(super) fn all(selection: &Selection, sight: &Sight) -> Vec<Self> {
        let whole = |lead| Branch {
            sight: sight.clone(),
            selection: selection.clone(),
            lead,
        };
        // A few are found by what is narrow, whatever that is; that choice is the database's.
        if selection.is_narrow() {
            return vec![Self::of([whole(Lead::All)])];
        }
        let mut ways = Vec::new();
        if let Some(node) = &selection.node {
            let of = |block| Branch {
                selection: Selection {
                    node: None,
                    ..selection.clone()
                },
                ..whole(Lead::Block(block))
            };
            ways.push(Self::of(covering(node).into_iter().map(of)));
        }
        if let Some(identity) = &selection.identity {
            let of = |column| Branch {
                selection: Selection {
                    identity: None,
                    ..selection.clone()
                },
                ..whole(Lead::Is(column, identity.clone()))
            };
            ways.push(Self::of([&SUBJECT, &EMAIL].map(of)));
        }
        let is = |column, value: &Option<String>| {
            let value = value.clone()?;
            Some(Self::of([whole(Lead::Is(column, value))]))
        };
        ways.extend(is(&USER, &selection.user));
        ways.push(Self::of(alternatives(sight).into_iter().map(
            |(sight, lead)| Branch {
                sight,
                ..whole(lead)
            },
        )));
        ways.extend(is(&ACCOUNT, &selection.account));
        ways.extend(is(&PARTITION, &selection.partition));
        // If one of them has no index all are looked at in any case.
        let leads: Option<Vec<Lead>> = selection.types.iter().map(of_type).collect();
        let leads = leads.unwrap_or_default().into_iter();
        let typed = selection.types.iter().zip(leads);
        ways.push(Self::of(typed.map(|(pattern, lead)| Branch {
            selection: Selection {
                types: vec![pattern.clone()],
                ..selection.clone()
            },
            ..whole(lead)
        })));
        ways.extend(is(&CLUSTER, &selection.cluster));
        ways.retain(|way| (1..=MOST_BRANCHES).contains(&way.branches.len()));
        if ways.is_empty() {
            ways.push(Self::of([whole(Lead::All)]));
        }
        if matches!(selection.name, Some(NamePattern::Prefix(_))) {
            ways.push(Self::of([whole(Lead::Names)]));
        }
        if selection.since.is_some() || selection.until.is_some() {
            ways.push(Self::of([whole(Lead::Time)]));
        }
        ways
    }

    fn of(branches: impl IntoIterator<Item = Branch>) -> Self {
        Self {
            branches: branches.into_iter().collect(),
        }
    }

    /// True if it goes through names that begin as meant.
    pub(super) fn is_of_names(&self) -> bool {
        matches!(self.branches.as_slice(), [only] if matches!(only.lead, Lead::Names))
    }

    /// True if it goes through everything.
    pub(super) fn is_of_all(&self) -> bool {
        matches!(self.branches.as_slice(), [only] if matches!(only.lead, Lead::All))
    }
}

/// `None` if there is no index for it.
fn of_type(pattern: &TypePattern) -> Option<Lead> {
    match pattern {
        TypePattern::Category(category) if category == JOB => None,
        TypePattern::Category(category) => Some(Lead::Is(&CATEGORY, category.clone())),
        TypePattern::Exactly(kind) => Some(Lead::Is(&TYPE, kind.clone())),
    }
}

/// Everybody whose entries somebody may see, one by one.
fn alternatives(sight: &Sight) -> Vec<(Sight, Lead)> {
    let Sight::Of { users, accounts } = sight else {
        return Vec::new();
    };
    let of_user = |user: &String| {
        let sight = Sight::Of {
            users: [user.clone()].into(),
            accounts: Accounts::new(),
        };
        (sight, Lead::Is(&USER, user.clone()))
    };
    let of_account = |cluster: &Option<String>, account: &String| {
        let sight = Sight::Of {
            users: BTreeSet::new(),
            accounts: [(cluster.clone(), [account.clone()].into())].into(),
        };
        (sight, Lead::Is(&ACCOUNT, account.clone()))
    };
    let accounts = accounts
        .iter()
        .flat_map(|(cluster, names)| names.iter().map(|name| of_account(cluster, name)));
    users.iter().map(of_user).chain(accounts).collect()
}

/// How many of each way are counted before the next round, which counts further: it ends when one has fewer, or at a number.
pub(super) fn rounds(most: i64) -> impl Iterator<Item = i64> {
    let rounds = std::iter::successors(Some(500_i64), |count| count.checked_mul(4));
    rounds.take_while(move |count| *count < most).chain([most])
}

/// The way with the fewest entries, of as many as were counted of each; `None` if all have more.
pub(super) fn rarest(counts: &[i64], counted: i64) -> Option<usize> {
    let ended = counts
        .iter()
        .enumerate()
        .filter(|(_, count)| **count < counted);
    ended.min_by_key(|(_, count)| **count).map(|(way, _)| way)
}

#[cfg(test)]
mod tests;
