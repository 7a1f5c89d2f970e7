//! Aggregates over the history: numbers of events, wait times of jobs, and costs.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::filter::InvalidFilter;

/// Maximum number of groups in a response.
pub const MAX_GROUPS: usize = 10_000;

/// A dimension to group by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Day (UTC) of occurrence.
    Day,
    /// Cluster.
    Cluster,
    /// Unix user.
    User,
    /// Slurm account.
    Account,
    /// Partition.
    Partition,
    /// Job name.
    Name,
}

impl Group {
    /// All dimensions.
    pub const ALL: [Self; 6] = [
        Self::Day,
        Self::Cluster,
        Self::User,
        Self::Account,
        Self::Partition,
        Self::Name,
    ];

    /// Returns the keyword in requests and responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Cluster => "cluster",
            Self::User => "user",
            Self::Account => "account",
            Self::Partition => "partition",
            Self::Name => "name",
        }
    }

    /// Parses `user` or `account,day`.
    ///
    /// # Errors
    /// If a keyword is unknown or repeated.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InvalidFilter> {
        parse_groups(text, &Self::ALL, Self::as_str)
    }
}

/// Parses a list of dimensions, separated by commas.
///
/// # Errors
/// If a keyword is unknown or repeated.
pub(super) fn parse_groups<T: Copy + PartialEq>(
    text: &str,
    all: &[T],
    keyword: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, InvalidFilter> {
    let mut groups = Vec::new();
    for name in text.split(',').map(str::trim) {
        let group = all.iter().find(|group| keyword(**group) == name);
        let group = group.filter(|group| !groups.contains(*group));
        groups.push(*group.ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|group| keyword(*group)).collect();
            let names = names.join(", ");
            InvalidFilter::new(
                "by",
                format!("{name:?} is not a group key or is given twice; allowed: {names}, separated by commas"),
            )
        })?);
    }
    Ok(groups)
}

/// Reports that a response would have more than [`MAX_GROUPS`].
pub(super) fn too_many_groups() -> InvalidFilter {
    InvalidFilter::new(
        "by",
        format!("more than {MAX_GROUPS} groups; allowed: a narrower filter, or fewer groups"),
    )
}

/// Values of a row's dimensions, in the requested order. `None` stands for entries without such a
/// value.
pub type GroupKey = Vec<Option<String>>;

/// Aggregates of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatsRow {
    /// Values of the group.
    pub key: GroupKey,
    /// Number of job events, by their type without `job.`.
    pub counts: BTreeMap<String, u64>,
    /// Wait times of jobs that started, `None` if none started.
    pub wait: Option<WaitStats>,
    /// Final costs of ended runs by currency, in millionths of its unit.
    pub costs: BTreeMap<String, i64>,
}

/// Wait times in seconds.
// From the eligible time to the start. Counted from submission if Slurm does not report an eligible
// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct WaitStats {
    /// Number of starts.
    pub starts: u64,
    /// Median.
    #[serde(rename = "p50_seconds")]
    pub p50: u64,
    /// 90th percentile.
    #[serde(rename = "p90_seconds")]
    pub p90: u64,
    /// Maximum.
    #[serde(rename = "max_seconds")]
    pub max: u64,
}

/// Aggregates as computed by the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregates {
    /// Group, event, number of occurrences.
    pub counts: Vec<(GroupKey, String, u64)>,
    /// Group, wait times.
    pub waits: Vec<(GroupKey, WaitStats)>,
    /// Group, currency, amount in millionths of its unit.
    pub costs: Vec<(GroupKey, String, i64)>,
}

/// Returns one row per group, ordered by the values of the group.
///
/// # Errors
/// If there are too many groups.
pub fn rows(sums: Aggregates) -> Result<Vec<StatsRow>, InvalidFilter> {
    let mut rows: BTreeMap<GroupKey, StatsRow> = BTreeMap::new();
    for (key, name, count) in sums.counts {
        row(&mut rows, key).counts.insert(name, count);
    }
    for (key, wait) in sums.waits {
        row(&mut rows, key).wait = Some(wait);
    }
    for (key, currency, micros) in sums.costs {
        row(&mut rows, key).costs.insert(currency, micros);
    }
    if rows.len() > MAX_GROUPS {
        return Err(too_many_groups());
    }
    Ok(rows.into_values().collect())
}

fn row(rows: &mut BTreeMap<GroupKey, StatsRow>, key: GroupKey) -> &mut StatsRow {
    rows.entry(key.clone()).or_insert_with(|| StatsRow {
        key,
        ..StatsRow::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str) -> GroupKey {
        vec![Some(user.to_owned())]
    }

    #[test]
    fn related_components_are_one_row() {
        let wait = WaitStats {
            starts: 2,
            p50: 1,
            p90: 5,
            max: 5,
        };
        let rows = rows(Aggregates {
            counts: vec![
                (key("bob"), "started".into(), 2),
                (key("alice"), "failed".into(), 1),
                (key("bob"), "completed".into(), 1),
            ],
            waits: vec![(key("bob"), wait)],
            costs: vec![(key("carol"), "EUR".into(), 7)],
        })
        .unwrap();
        let users: Vec<_> = rows.iter().map(|row| row.key[0].as_deref()).collect();
        assert_eq!(users, [Some("alice"), Some("bob"), Some("carol")]);
        assert_eq!((rows[1].counts.len(), rows[1].wait), (2, Some(wait)));
        assert_eq!(rows[2].costs["EUR"], 7);
    }

    #[test]
    fn groups_have_names() {
        assert_eq!(
            Group::parse_list("account, day").unwrap(),
            [Group::Account, Group::Day]
        );
        for text in ["colour", "", "day,day"] {
            let invalid = Group::parse_list(text).unwrap_err();
            assert!(invalid.problem.contains("allowed: day, "), "{invalid}");
        }
    }
}
