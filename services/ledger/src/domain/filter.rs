//! Filters of entries, shared by listings, streams, exports, statistics and replays.

mod value;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::ledger::v1::EventFilter;
use mesh_events::{Category, EventType};
use mesh_runtime::TimeBound;
use serde::{Deserialize, Serialize};
use slurm_types::JobRef;
use utoipa::{IntoParams, ToSchema};

use self::value::FilterValue;
pub use self::value::{list, number, time, time_bound};
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

/// Declares the filters. Each line: name, key in REST, requested type, validation, validated type.
///
/// REST, its OpenAPI description, gRPC and the CLI use `Filter`; SQL uses `Selection`.
macro_rules! filters {
    ($($(#[$attribute:meta])+ $name:ident $key:literal: $requested:ty, $check:expr => $validated:ty;)+) => {
        /// Filter of events. All filters that are given must match.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
        #[serde(deny_unknown_fields, default)]
        #[schema(as = ReplayFilter)]
        #[into_params(parameter_in = Query)]
        pub struct Filter {
            $($(#[$attribute])+ #[serde(rename = $key, skip_serializing_if = "is_unset")] pub $name: $requested,)+
        }

        /// A validated filter.
        #[derive(Clone, Debug, Default)]
        #[allow(missing_docs, reason = "documented in Filter")]
        pub struct Selection {
            $(pub $name: $validated,)+
            /// All Unix users with the requested identity, once they are known.
            pub identity_users: Option<BTreeSet<String>>,
        }

        impl Filter {
            /// Keys in REST.
            pub const KEYS: &[&str] = &[$($key),+];

            /// Sets a filter from a query string. False if there is no such filter.
            ///
            /// # Errors
            /// If the value is invalid.
            pub fn set(&mut self, key: &str, text: &str) -> Result<bool, InvalidFilter> {
                match key {
                    $($key => self.$name.read($key, text)?,)+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Returns the filters of a query string that are set.
            pub fn query(&self) -> Vec<(&'static str, String)> {
                let texts = [$(($key, self.$name.text())),+];
                texts
                    .into_iter()
                    .filter_map(|(key, text)| Some((key, text?)))
                    .collect()
            }

            /// Validates the filter. Relative times are relative to `now`.
            ///
            /// # Errors
            /// The first invalid field.
            pub fn check(&self, now: DateTime<Utc>) -> Result<Selection, InvalidFilter> {
                let selection = Selection {
                    $($name: $check(&self.$name, now)?,)+
                    identity_users: None,
                };
                selection.check_bounds()?;
                Ok(selection)
            }
        }

        impl TryFrom<EventFilter> for Filter {
            type Error = InvalidFilter;

            fn try_from(message: EventFilter) -> Result<Self, InvalidFilter> {
                Ok(Self {
                    $($name: FilterValue::from_message($key, message.$name)?,)+
                })
            }
        }

        impl From<Filter> for EventFilter {
            fn from(filter: Filter) -> Self {
                Self {
                    $($name: filter.$name.into_message(),)+
                }
            }
        }
    };
}

filters! {
    /// Slurm cluster (`ClusterName`).
    cluster "cluster": Option<String>, unchanged => Option<String>;
    /// Event types: `job.completed`, `job.*`; in a query comma-separated or repeated. Audit entries are included only if
    /// `audit.*` or an audit type is named.
    #[schema(rename = "type")]
    #[param(rename = "type", value_type = Option<String>)]
    types "type": Vec<String>, type_selectors => Vec<TypeSelector>;
    /// Job id as Slurm displays it: `123` (includes its array tasks or components), `123_4`, `123+1`.
    job "job": Option<String>, parsed(job_ref) => Option<JobRef>;
    /// Entity key of a run, as in `subject` of its events.
    run "run": Option<String>, unchanged => Option<String>;
    /// Job id of an array; matches the array and its tasks.
    array "array": Option<u32>, unchanged => Option<u32>;
    /// Unix user to whom the event belongs.
    user "user": Option<String>, unchanged => Option<String>;
    /// OIDC subject or e-mail address of the person to whom the event belongs.
    identity "identity": Option<String>, unchanged => Option<String>;
    /// Slurm account.
    account "account": Option<String>, unchanged => Option<String>;
    /// Slurm partition.
    partition "partition": Option<String>, unchanged => Option<String>;
    /// Node (`NodeName`): events of the node, and of jobs that ran on it.
    node "node": Option<String>, parsed(node_name) => Option<String>;
    /// Job name; a `*` at the end matches any suffix.
    name "name": Option<String>, parsed(name_pattern) => Option<NamePattern>;
    /// Occurred at or after this time: RFC 3339, a date, or a duration before now such as `2h`, `7days`.
    #[schema(value_type = Option<String>)]
    #[param(value_type = Option<String>)]
    since "since": Option<TimeBound>, micros => Option<i64>;
    /// Occurred before this time; same formats as `since`.
    #[schema(value_type = Option<String>)]
    #[param(value_type = Option<String>)]
    until "until": Option<TimeBound>, micros => Option<i64>;
    /// First ledger sequence, inclusive.
    from_seq "from_seq": Option<u64>, bounded => Option<i64>;
    /// Last ledger sequence, inclusive.
    to_seq "to_seq": Option<u64>, bounded => Option<i64>;
}

/// A type, or all types of a category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeSelector {
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

fn is_unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn unchanged<T: Clone>(value: &T, _: DateTime<Utc>) -> Result<T, InvalidFilter> {
    Ok(value.clone())
}

fn parsed<T>(
    parse: impl Fn(&str) -> Result<T, InvalidFilter>,
) -> impl Fn(&Option<String>, DateTime<Utc>) -> Result<Option<T>, InvalidFilter> {
    move |text, _| text.as_deref().map(&parse).transpose()
}

fn type_selectors(types: &[String], _: DateTime<Utc>) -> Result<Vec<TypeSelector>, InvalidFilter> {
    types.iter().map(|text| type_selector(text)).collect()
}

/// Converts a time to microseconds since 1970.
fn micros(time: &Option<TimeBound>, now: DateTime<Utc>) -> Result<Option<i64>, InvalidFilter> {
    Ok(time.map(|time| time.resolve(&now).timestamp_micros()))
}

/// Converts a sequence for the database. Larger values match nothing.
fn bounded(seq: &Option<u64>, _: DateTime<Utc>) -> Result<Option<i64>, InvalidFilter> {
    Ok(seq.map(|seq| i64::try_from(seq).unwrap_or(i64::MAX)))
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

fn type_selector(text: &str) -> Result<TypeSelector, InvalidFilter> {
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
        return Ok(TypeSelector::Category(category.to_owned()));
    }
    if text.parse::<EventType>().is_ok() || (category == AUDIT && !event.is_empty()) {
        return Ok(TypeSelector::Exactly(text.to_owned()));
    }
    let allowed: Vec<String> = Category::ALL
        .iter()
        .filter(|known| known.as_str() == category)
        .flat_map(|known| {
            EventType::ALL
                .iter()
                .filter(|kind| kind.category() == *known)
        })
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
