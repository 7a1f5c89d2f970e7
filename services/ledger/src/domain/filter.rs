//! Filters of entries, shared by listings, streams, exports, statistics and replays.

use chrono::{DateTime, Utc};
use mesh_events::{Category, EventType};
use mesh_runtime::TimeBound;
use serde::{Deserialize, Serialize};
use slurm_types::JobRef;

use super::nodes::is_single_node;
use super::record::{AUDIT, categories};

/// An invalid filter: the field, and its allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidFilter {
    /// Name of the filter, as in the query string.
    pub field: &'static str,
    /// The fault and the allowed values.
    pub problem: String,
}

impl InvalidFilter {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }
}

/// A filter as requested. `None` and empty fields do not filter. Its JSON has the names of the
/// API's filters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Types; `job.*` is allowed.
    #[serde(rename = "type", skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Job, in Slurm's id form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Run, by its entity key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Tasks, and the record, of this array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<u32>,
    /// Events that belong to this Unix user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Events that belong to the person with this OIDC subject or e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Slurm account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Events of this node, and of jobs that ran on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Job name; a `*` at the end matches any suffix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Events that occurred at or after this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<TimeBound>,
    /// Events that occurred before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<TimeBound>,
    /// First sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_seq: Option<u64>,
    /// Last sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_seq: Option<u64>,
}

/// A validated filter.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Cluster.
    pub cluster: Option<String>,
    /// Types; if empty, all events, but no audit entries.
    pub types: Vec<TypePattern>,
    /// Job.
    pub job: Option<JobRef>,
    /// Run, by its entity key.
    pub run: Option<String>,
    /// Array.
    pub array: Option<u32>,
    /// Events that belong to this Unix user.
    pub user: Option<String>,
    /// Events that belong to the person with this OIDC subject or e-mail address.
    pub identity: Option<String>,
    /// Slurm account.
    pub account: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// Events of this node, and of jobs that ran on it.
    pub node: Option<String>,
    /// Job name.
    pub name: Option<NamePattern>,
    /// Events that occurred at or after this time, in microseconds since 1970.
    pub since: Option<i64>,
    /// Events that occurred before this time, in microseconds since 1970.
    pub until: Option<i64>,
    /// First sequence.
    pub from_seq: Option<i64>,
    /// Last sequence.
    pub to_seq: Option<i64>,
}

/// A type, or all types of a category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypePattern {
    /// `job.*`
    Category(String),
    /// `job.completed`
    Exactly(String),
}

/// A name or a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// `train`
    Exactly(String),
    /// `train*`
    Prefix(String),
}

impl Filter {
    /// Validates the filter. Relative times are relative to `now`.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self, now: DateTime<Utc>) -> Result<Selection, InvalidFilter> {
        let types = self
            .types
            .iter()
            .map(|text| type_pattern(text))
            .collect::<Result<_, _>>()?;
        let selection = Selection {
            cluster: self.cluster.clone(),
            types,
            job: self.job.as_deref().map(job_ref).transpose()?,
            run: self.run.clone(),
            array: self.array,
            user: self.user.clone(),
            identity: self.identity.clone(),
            account: self.account.clone(),
            partition: self.partition.clone(),
            node: self.node.as_deref().map(node_name).transpose()?,
            name: self.name.as_deref().map(name_pattern).transpose()?,
            since: self
                .since
                .map(|since| since.resolve(&now).timestamp_micros()),
            until: self
                .until
                .map(|until| until.resolve(&now).timestamp_micros()),
            from_seq: self.from_seq.map(bounded),
            to_seq: self.to_seq.map(bounded),
        };
        selection.check_bounds()?;
        Ok(selection)
    }
}

impl Selection {
    /// True if only a few entries can match.
    pub const fn is_narrow(&self) -> bool {
        self.job.is_some()
            || self.run.is_some()
            || self.array.is_some()
            || matches!(self.name, Some(NamePattern::Exactly(_)))
    }

    /// True if it has a cluster or a time, by which blocks of entries are summarized.
    pub const fn is_in_blocks(&self) -> bool {
        self.cluster.is_some() || self.since.is_some() || self.until.is_some()
    }

    /// True if it has a condition on another column that audit entries lack.
    pub const fn has_a_column(&self) -> bool {
        self.user.is_some()
            || self.account.is_some()
            || self.partition.is_some()
            || self.node.is_some()
            || self.name.is_some()
    }

    /// Checks that the bounds of time and sequence are not empty ranges.
    ///
    /// # Errors
    /// The bound that makes a range empty.
    pub fn check_bounds(&self) -> Result<(), InvalidFilter> {
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since >= until
        {
            return Err(InvalidFilter::new(
                "until",
                "not after `since`; allowed: a later time",
            ));
        }
        if let (Some(from), Some(to)) = (self.from_seq, self.to_seq)
            && from > to
        {
            return Err(InvalidFilter::new(
                "to_seq",
                "below `from_seq`; allowed: the same or a higher sequence",
            ));
        }
        Ok(())
    }
}

/// Converts a sequence for the database. Larger values match nothing.
fn bounded(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// Parses a job in Slurm's id form.
///
/// # Errors
/// If it is not a job id, or is a range of array tasks.
pub fn job_ref(text: &str) -> Result<JobRef, InvalidFilter> {
    match text.parse() {
        Ok(JobRef::ArrayTasks { .. }) | Err(_) => Err(InvalidFilter::new(
            "job",
            format!(
                "{text:?} is not a job id; allowed: 123 (with all its array tasks or components), 123_4 (one array task), 123+1 (one component)"
            ),
        )),
        Ok(job) => Ok(job),
    }
}

fn node_name(text: &str) -> Result<String, InvalidFilter> {
    if is_single_node(text) {
        return Ok(text.to_owned());
    }
    Err(InvalidFilter::new(
        "node",
        format!("{text:?} is not a node name; allowed: one node such as n16"),
    ))
}

fn name_pattern(text: &str) -> Result<NamePattern, InvalidFilter> {
    match text.strip_suffix('*') {
        Some("") => Err(InvalidFilter::new(
            "name",
            "it matches every name; allowed: a job name, or a prefix such as train*",
        )),
        Some(prefix) => Ok(NamePattern::Prefix(prefix.to_owned())),
        None => Ok(NamePattern::Exactly(text.to_owned())),
    }
}

fn type_pattern(text: &str) -> Result<TypePattern, InvalidFilter> {
    let (category, event) = text.split_once('.').unwrap_or((text, ""));
    if !categories().any(|known| known == category) {
        let allowed: Vec<String> = categories()
            .map(|category| format!("{category}.*"))
            .collect();
        return Err(InvalidFilter::new(
            "type",
            format!(
                "{text:?} is not an event type; allowed: {}, or one event of them such as job.completed",
                allowed.join(", ")
            ),
        ));
    }
    if event == "*" {
        return Ok(TypePattern::Category(category.to_owned()));
    }
    if text.parse::<EventType>().is_ok() || (category == AUDIT && !event.is_empty()) {
        return Ok(TypePattern::Exactly(text.to_owned()));
    }
    let allowed: Vec<String> = Category::ALL
        .iter()
        .filter(|known| known.as_str() == category)
        .flat_map(|known| EventType::produced().filter(|kind| kind.category() == *known))
        .map(|kind| kind.to_string())
        .collect();
    let allowed = match allowed.as_slice() {
        [] => String::new(),
        types => format!(", {}", types.join(", ")),
    };
    Err(InvalidFilter::new(
        "type",
        format!("{text:?} is not an event type; allowed: {category}.*{allowed}"),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000, 0).unwrap()
    }

    #[test]
    fn invalid_values_are_refused_with_the_allowed_ones() {
        let check = |set: fn(&mut Filter), field: &str, allowed: &str| {
            let mut filter = Filter::default();
            set(&mut filter);
            let invalid = filter.check(now()).unwrap_err();
            assert_eq!(invalid.field, field);
            assert!(invalid.problem.contains("allowed: "), "{invalid}");
            assert!(invalid.problem.contains(allowed), "{invalid}");
        };
        check(
            |f| f.types = vec!["job".into()],
            "type",
            "job.*, job.baseline",
        );
        check(
            |f| f.types = vec!["job.exploded".into()],
            "type",
            "job.completed",
        );
        check(|f| f.types = vec!["*".into()], "type", "node.*");
        check(|f| f.types = vec!["audit".into()], "type", "audit.*");
        check(|f| f.job = Some("x".into()), "job", "123_4");
        check(|f| f.job = Some("1_[2-3]".into()), "job", "123_4");
        check(|f| f.name = Some("*".into()), "name", "train*");
        check(|f| f.node = Some("n[1-3]".into()), "node", "n16");
        check(
            |f| {
                f.since = Some(TimeBound::Ago(Duration::from_secs(1)));
                f.until = Some(TimeBound::Ago(Duration::from_secs(2)));
            },
            "until",
            "later",
        );
        check(
            |f| (f.from_seq, f.to_seq) = (Some(2), Some(1)),
            "to_seq",
            "higher",
        );
    }

    #[test]
    fn relative_times_count_from_now() {
        let filter = Filter {
            since: Some(TimeBound::Ago(Duration::from_secs(7200))),
            ..Filter::default()
        };
        let selection = filter.check(now()).unwrap();
        assert_eq!(selection.since, Some((1_763_760_000 - 7200) * 1_000_000));
    }

    #[test]
    fn a_name_may_be_given_by_how_it_begins() {
        let name = |text: &str| name_pattern(text).unwrap();
        assert_eq!(name("train"), NamePattern::Exactly("train".into()));
        assert_eq!(name("train*"), NamePattern::Prefix("train".into()));
        assert_eq!(name("a*b"), NamePattern::Exactly("a*b".into()));
    }
}
