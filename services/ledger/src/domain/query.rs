//! What can be asked, and how a question is checked.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_events::{Category, EventType};
use sha2::{Digest as _, Sha256};
use slurm_types::JobRef;

use super::cursor::{Cursor, DIGEST};
use super::fact::{AUDIT, categories};

/// Page size if none is asked for.
pub const DEFAULT_LIMIT: u32 = 100;

/// A question that cannot be answered: which part of it, and what would be allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Name of the filter, as it is written in the address.
    pub field: &'static str,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl Invalid {
    fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }
}

/// A bound of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// This moment.
    At(DateTime<Utc>),
    /// So long ago.
    Ago(Duration),
}

impl Moment {
    /// Reads `2026-11-22T10:00:00Z` or `2h`.
    ///
    /// # Errors
    /// If it is neither; the field is named.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        if let Ok(time) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self::At(time.to_utc()));
        }
        humantime::parse_duration(text).map(Self::Ago).map_err(|_| {
            Invalid::new(
                field,
                format!("{text:?} is no time; allowed: RFC 3339 such as 2026-11-22T10:00:00Z, or how long ago such as 30m, 2h, 7days"),
            )
        })
    }

    fn resolve(self, now: DateTime<Utc>) -> i64 {
        match self {
            Self::At(time) => time.timestamp_micros(),
            Self::Ago(ago) => {
                let ago = i64::try_from(ago.as_micros()).unwrap_or(i64::MAX);
                now.timestamp_micros().saturating_sub(ago)
            }
        }
    }
}

/// A question as it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Only this cluster.
    pub cluster: Option<String>,
    /// Only these types; `job.*` is allowed.
    pub types: Vec<String>,
    /// Only this job, in Slurm's id form.
    pub job: Option<String>,
    /// Only what belongs to this Unix user.
    pub user: Option<String>,
    /// Only what occurred at or after this time.
    pub since: Option<Moment>,
    /// Only what occurred before this time.
    pub until: Option<Moment>,
    /// Cursor of the page before.
    pub cursor: Option<String>,
    /// Page size.
    pub limit: Option<u32>,
    /// Newest first.
    pub descending: bool,
}

/// A question that can be answered.
#[derive(Clone, Debug)]
pub struct Query {
    /// Only this cluster.
    pub cluster: Option<String>,
    /// Only these types; empty for every event (and no audit entry).
    pub types: Vec<TypePattern>,
    /// Only this job.
    pub job: Option<JobRef>,
    /// Only what belongs to this Unix user.
    pub user: Option<String>,
    /// Only what occurred at or after, in microseconds since 1970.
    pub since: Option<i64>,
    /// Only what occurred before, in microseconds since 1970.
    pub until: Option<i64>,
    /// Only what comes after this sequence, in the order asked for.
    pub after: Option<i64>,
    /// Page size.
    pub limit: u32,
    /// Newest first.
    pub descending: bool,
    digest: [u8; DIGEST],
}

/// One type, or all of a category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypePattern {
    /// `job.*`
    Category(String),
    /// `job.completed`
    Exactly(String),
}

impl ListRequest {
    /// Checks the question. `now` is what relative times count from.
    ///
    /// # Errors
    /// The first filter that is wrong.
    pub fn check(&self, now: DateTime<Utc>, max_page: u32) -> Result<Query, Invalid> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT.min(max_page));
        if limit == 0 || limit > max_page {
            return Err(Invalid::new(
                "limit",
                format!("{limit} is not allowed; allowed: 1 to {max_page}"),
            ));
        }
        let types = self
            .types
            .iter()
            .map(|text| type_pattern(text))
            .collect::<Result<_, _>>()?;
        let job = self.job.as_deref().map(job_ref).transpose()?;
        let mut query = Query {
            cluster: self.cluster.clone(),
            types,
            job,
            user: self.user.clone(),
            since: self.since.map(|since| since.resolve(now)),
            until: self.until.map(|until| until.resolve(now)),
            after: None,
            limit,
            descending: self.descending,
            digest: self.digest(),
        };
        if let Some(text) = &self.cursor {
            let cursor = Cursor::decode(text).ok_or_else(|| {
                Invalid::new(
                    "cursor",
                    "not a cursor; allowed: `next_cursor` of the page before, unchanged",
                )
            })?;
            if cursor.digest != query.digest {
                return Err(Invalid::new(
                    "cursor",
                    "it belongs to another question; allowed: the filters and the order of the page before, unchanged",
                ));
            }
            query.after = Some(cursor.seq);
            query.since = cursor.since;
            query.until = cursor.until;
        }
        if let (Some(since), Some(until)) = (query.since, query.until)
            && since >= until
        {
            return Err(Invalid::new(
                "until",
                "it is not after `since`; allowed: a later time",
            ));
        }
        Ok(query)
    }

    /// Digest of all that must stay the same from page to page.
    fn digest(&self) -> [u8; DIGEST] {
        let question = Self {
            cursor: None,
            limit: None,
            ..self.clone()
        };
        let hash = Sha256::digest(format!("{question:?}"));
        let mut digest = [0; DIGEST];
        digest.copy_from_slice(&hash[..DIGEST]);
        digest
    }
}

impl Query {
    /// The cursor after an entry.
    pub fn cursor_after(&self, seq: i64) -> String {
        Cursor {
            seq,
            since: self.since,
            until: self.until,
            digest: self.digest,
        }
        .encode()
    }
}

/// Reads a job in Slurm's id form.
///
/// # Errors
/// If it is none, or a range of array tasks.
pub fn job_ref(text: &str) -> Result<JobRef, Invalid> {
    match text.parse() {
        Ok(JobRef::ArrayTasks { .. }) | Err(_) => Err(Invalid::new(
            "job",
            format!(
                "{text:?} is no job; allowed: 123 (with all its array tasks or components), 123_4 (one array task), 123+1 (one component)"
            ),
        )),
        Ok(job) => Ok(job),
    }
}

fn type_pattern(text: &str) -> Result<TypePattern, Invalid> {
    let (category, event) = text.split_once('.').unwrap_or((text, ""));
    if !categories().any(|known| known == category) {
        let allowed: Vec<String> = categories()
            .map(|category| format!("{category}.*"))
            .collect();
        return Err(Invalid::new(
            "type",
            format!(
                "{text:?} is no event type; allowed: {}, or one event of them such as job.completed",
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
        .flat_map(|known| {
            EventType::ALL
                .iter()
                .filter(|kind| kind.category() == *known)
        })
        .map(ToString::to_string)
        .collect();
    let allowed = match allowed.as_slice() {
        [] => String::new(),
        types => format!(", {}", types.join(", ")),
    };
    Err(Invalid::new(
        "type",
        format!("{text:?} is no event type; allowed: {category}.*{allowed}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000, 0).unwrap()
    }

    fn refused(request: &ListRequest) -> Invalid {
        request.check(now(), 1000).unwrap_err()
    }

    fn request(set: impl FnOnce(&mut ListRequest)) -> ListRequest {
        let mut request = ListRequest::default();
        set(&mut request);
        request
    }

    #[test]
    fn a_bad_filter_is_named_with_what_is_allowed() {
        let check = |set: fn(&mut ListRequest), field: &str, allowed: &str| {
            let invalid = refused(&request(set));
            assert_eq!(invalid.field, field);
            assert!(invalid.problem.contains("allowed: "), "{invalid}");
            assert!(invalid.problem.contains(allowed), "{invalid}");
        };
        check(|r| r.limit = Some(0), "limit", "1 to 1000");
        check(|r| r.limit = Some(1001), "limit", "1 to 1000");
        check(
            |r| r.types = vec!["job".into()],
            "type",
            "job.*, job.baseline",
        );
        check(
            |r| r.types = vec!["job.exploded".into()],
            "type",
            "job.completed",
        );
        check(|r| r.types = vec!["*".into()], "type", "node.*");
        check(|r| r.types = vec!["audit".into()], "type", "audit.*");
        check(|r| r.job = Some("x".into()), "job", "123_4");
        check(|r| r.job = Some("1_[2-3]".into()), "job", "123_4");
        check(|r| r.cursor = Some("x".into()), "cursor", "next_cursor");
        assert_eq!(
            Moment::parse("since", "yesterday").unwrap_err().field,
            "since"
        );
        let reversed = request(|r| {
            r.since = Some(Moment::Ago(Duration::from_secs(1)));
            r.until = Some(Moment::Ago(Duration::from_secs(2)));
        });
        assert_eq!(refused(&reversed).field, "until");
    }

    #[test]
    fn relative_times_count_from_now() {
        let query = request(|r| r.since = Some(Moment::parse("since", "2h").unwrap()))
            .check(now(), 1000)
            .unwrap();
        assert_eq!(query.since, Some((1_763_760_000 - 7200) * 1_000_000));
    }

    #[test]
    fn a_cursor_keeps_the_bounds_of_the_first_page() {
        let first = request(|r| r.since = Some(Moment::parse("since", "2h").unwrap()));
        let query = first.check(now(), 1000).unwrap();
        let mut second = first;
        second.cursor = Some(query.cursor_after(7));
        second.limit = Some(5);
        let later = second.check(now() + Duration::from_secs(60), 1000).unwrap();
        assert_eq!((later.since, later.after), (query.since, Some(7)));
    }

    #[test]
    fn a_cursor_of_another_question_is_refused() {
        let query = ListRequest::default().check(now(), 1000).unwrap();
        for set in [
            (|r| r.user = Some("bob".into())) as fn(&mut ListRequest),
            |r| r.descending = true,
            |r| r.types = vec!["job.*".into()],
            |r| r.since = Some(Moment::Ago(Duration::from_secs(1))),
        ] {
            let mut other = request(set);
            other.cursor = Some(query.cursor_after(7));
            assert_eq!(refused(&other).field, "cursor");
        }
    }
}
