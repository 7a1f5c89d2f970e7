//! Access paths for a page of entries: one for each condition that has an index.
//!
//! Alternatives (several users or accounts) become one index scan each, with its own limit. As a single condition the database would
//! find and sort all matching entries for every page.

use std::collections::BTreeSet;

use mesh_events::EventType;
use mesh_runtime::api::{AccountsByCluster, Visibility};

use crate::domain::filter::{NamePattern, Selection, TypeSelector};
use crate::domain::nodes::covering;
use crate::domain::record::AUDIT;

/// Category of most events. An index on it is not selective.
const JOB: &str = "job";

/// Maximum number of alternatives. With more, the condition is not split.
const MAX_SCANS: usize = 64;

/// The union of its scans contains every selected entry, possibly twice.
pub(super) struct AccessPath {
    pub scans: Vec<IndexScan>,
}

/// A scan of one index.
pub(super) struct IndexScan {
    pub visibility: Visibility,
    pub selection: Selection,
    pub condition: IndexCondition,
}

/// The condition that the index answers.
pub(super) enum IndexCondition {
    /// By primary key.
    Sequence,
    /// By the value of an indexed column.
    Equals(&'static IndexedColumn, String),
    /// By a block of nodes.
    NodeBlock(String),
    /// By the selection's name prefix.
    NamePrefix,
}

/// A column whose index returns entries in sequence order.
pub(super) struct IndexedColumn {
    pub name: &'static str,
    pub index: &'static str,
    /// Predicate of a partial index.
    pub only: &'static str,
}

impl IndexedColumn {
    const fn of(name: &'static str, index: &'static str) -> Self {
        Self {
            name,
            index,
            only: "",
        }
    }
}

/// Partial index of audit entries. Events are found by their type instead.
const CATEGORY: IndexedColumn = IndexedColumn {
    only: " AND i.category = 'audit'",
    ..IndexedColumn::of("category", "event_index_category")
};
const TYPE: IndexedColumn = IndexedColumn::of("type", "event_index_type");
const USER: IndexedColumn = IndexedColumn::of("user_name", "event_index_user");
const ACCOUNT: IndexedColumn = IndexedColumn::of("account", "event_index_account");
const PARTITION: IndexedColumn = IndexedColumn::of("partition", "event_index_partition");

impl AccessPath {
    /// Returns all candidates, the presumably most selective first. The first returns entries in
    /// order.
    pub(super) fn candidates(selection: &Selection, visibility: &Visibility) -> Vec<Self> {
        let whole = |condition| IndexScan {
            visibility: visibility.clone(),
            selection: selection.clone(),
            condition,
        };
        // A narrow selection has few entries, so the database chooses the index.
        if selection.is_narrow() {
            return vec![Self::of([whole(IndexCondition::Sequence)])];
        }
        let mut paths = Vec::new();
        if let Some(node) = &selection.node {
            let of = |block| IndexScan {
                selection: Selection {
                    node: None,
                    ..selection.clone()
                },
                ..whole(IndexCondition::NodeBlock(block))
            };
            paths.push(Self::of(covering(node).into_iter().map(of)));
        }
        if let Some(users) = &selection.identity_users {
            let of = |user: &String| IndexScan {
                selection: Selection {
                    identity_users: None,
                    ..selection.clone()
                },
                ..whole(IndexCondition::Equals(&USER, user.clone()))
            };
            paths.push(Self::of(users.iter().map(of)));
        }
        let is = |column, value: &Option<String>| {
            let value = value.clone()?;
            Some(Self::of([whole(IndexCondition::Equals(column, value))]))
        };
        paths.extend(is(&USER, &selection.user));
        paths.push(Self::of(alternatives(visibility).into_iter().map(
            |(visibility, condition)| IndexScan {
                visibility,
                ..whole(condition)
            },
        )));
        paths.extend(is(&ACCOUNT, &selection.account));
        paths.extend(is(&PARTITION, &selection.partition));
        // If one of the types has no index, the union would scan everything.
        let scans: Option<Vec<_>> = selection.types.iter().map(of_type).collect();
        let scans = scans.unwrap_or_default().into_iter().flatten();
        paths.push(Self::of(scans.map(|(pattern, condition)| IndexScan {
            selection: Selection {
                types: vec![pattern],
                ..selection.clone()
            },
            ..whole(condition)
        })));
        paths.retain(|path| (1..=MAX_SCANS).contains(&path.scans.len()));
        if paths.is_empty() {
            paths.push(Self::of([whole(IndexCondition::Sequence)]));
        }
        if matches!(selection.name, Some(NamePattern::Prefix(_))) {
            paths.push(Self::of([whole(IndexCondition::NamePrefix)]));
        }
        paths
    }

    fn of(scans: impl IntoIterator<Item = IndexScan>) -> Self {
        Self {
            scans: scans.into_iter().collect(),
        }
    }

    /// True if it scans the names with the prefix.
    pub(super) fn scans_names(&self) -> bool {
        matches!(self.scans.as_slice(), [only] if matches!(only.condition, IndexCondition::NamePrefix))
    }

    /// True if it scans the primary key.
    pub(super) fn scans_sequence(&self) -> bool {
        matches!(self.scans.as_slice(), [only] if matches!(only.condition, IndexCondition::Sequence))
    }
}

/// Returns the scans for a type, each with the types that it finds, or `None` if there is no index
/// for it.
fn of_type(pattern: &TypeSelector) -> Option<Vec<(TypeSelector, IndexCondition)>> {
    let exactly = |kind: String| {
        let condition = IndexCondition::Equals(&TYPE, kind.clone());
        (TypeSelector::Exactly(kind), condition)
    };
    Some(match pattern {
        TypeSelector::Category(category) if category == JOB => return None,
        TypeSelector::Category(category) if category == AUDIT => {
            let condition = IndexCondition::Equals(&CATEGORY, category.clone());
            vec![(pattern.clone(), condition)]
        }
        // The ledger has no events of other types.
        TypeSelector::Category(category) => EventType::ALL
            .iter()
            .filter(|kind| kind.category().as_str() == category)
            .map(|kind| exactly(kind.to_string()))
            .collect(),
        TypeSelector::Exactly(kind) => vec![exactly(kind.clone())],
    })
}

/// Returns one visibility per user and account that the caller may see.
fn alternatives(visibility: &Visibility) -> Vec<(Visibility, IndexCondition)> {
    let Visibility::Restricted { users, accounts } = visibility else {
        return Vec::new();
    };
    let of_user = |user: &String| {
        let visibility = Visibility::Restricted {
            users: [user.clone()].into(),
            accounts: AccountsByCluster::new(),
        };
        (visibility, IndexCondition::Equals(&USER, user.clone()))
    };
    let of_account = |cluster: &Option<String>, account: &String| {
        let visibility = Visibility::Restricted {
            users: BTreeSet::new(),
            accounts: [(cluster.clone(), [account.clone()].into())].into(),
        };
        (
            visibility,
            IndexCondition::Equals(&ACCOUNT, account.clone()),
        )
    };
    let accounts = accounts
        .iter()
        .flat_map(|(cluster, names)| names.iter().map(|name| of_account(cluster, name)));
    users.iter().map(of_user).chain(accounts).collect()
}

/// Returns increasing limits for counting the entries of each path, up to `max`.
pub(super) fn count_limits(max: i64) -> impl Iterator<Item = i64> {
    let count_limits = std::iter::successors(Some(500_i64), |count| count.checked_mul(4));
    count_limits
        .take_while(move |count| *count < max)
        .chain([max])
}

/// Returns the index of the path with the fewest entries, or `None` if all reached the limit.
pub(super) fn least_index(counts: &[i64], counted: i64) -> Option<usize> {
    let ended = counts
        .iter()
        .enumerate()
        .filter(|(_, count)| **count < counted);
    ended.min_by_key(|(_, count)| **count).map(|(path, _)| path)
}

#[cfg(test)]
mod tests;
