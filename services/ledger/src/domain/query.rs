//! A page of a listing: its request and validation.

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};
use utoipa::IntoParams;

use super::cursor::{Cursor, DIGEST};
use super::filter::{Filter, InvalidFilter, Selection};

/// Number of entries in a page of a request that names none: of events, proofs and replays.
pub const DEFAULT_PAGE_SIZE: u32 = 100;

/// A request as received.
#[derive(Clone, Debug, Default, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListRequest {
    /// Filter of the entries.
    #[param(ignore)]
    pub filter: Filter,
    /// `next_cursor` of the previous page, with the same filters. Absent for the first page.
    pub cursor: Option<String>,
    /// Page size, from 1 to the ledger's `max_page_size` (1000 by default). Default: 100.
    #[param(minimum = 1)]
    pub limit: Option<u32>,
    /// `asc` (oldest first) or `desc`. Default: `asc`.
    #[param(rename = "order", value_type = Option<String>)]
    pub descending: bool,
}

/// A validated request.
#[derive(Clone, Debug)]
pub struct Query {
    /// Selected entries.
    pub selection: Selection,
    /// Only entries after this sequence, in the requested order.
    pub after: Option<i64>,
    /// Page size.
    pub limit: u32,
    /// True for newest first.
    pub descending: bool,
    digest: [u8; DIGEST],
}

impl ListRequest {
    /// Validates the request. Relative times are relative to `now`.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self, now: DateTime<Utc>, max_page_size: u32) -> Result<Query, InvalidFilter> {
        let limit = self.limit.unwrap_or(DEFAULT_PAGE_SIZE.min(max_page_size));
        if limit == 0 || limit > max_page_size {
            return Err(InvalidFilter::new(
                "limit",
                format!("{limit} is out of range; allowed: 1 to {max_page_size}"),
            ));
        }
        let mut query = Query {
            selection: self.filter.check(now)?,
            after: None,
            limit,
            descending: self.descending,
            digest: self.digest(),
        };
        if let Some(text) = &self.cursor {
            let cursor = Cursor::decode(text).ok_or_else(|| {
                InvalidFilter::new(
                    "cursor",
                    "not a cursor; allowed: the unchanged `next_cursor` of the previous page",
                )
            })?;
            if cursor.digest != query.digest {
                return Err(InvalidFilter::new(
                    "cursor",
                    "cursor of another query; allowed: the filters and order of the previous page",
                ));
            }
            query.after = Some(cursor.seq);
            query.selection.since = cursor.since;
            query.selection.until = cursor.until;
            query.selection.check_bounds()?;
        }
        Ok(query)
    }

    /// Computes a digest of everything that must be equal for all pages.
    fn digest(&self) -> [u8; DIGEST] {
        let question = (&self.filter, self.descending);
        let hash = Sha256::digest(format!("{question:?}"));
        let mut digest = [0; DIGEST];
        digest.copy_from_slice(&hash[..DIGEST]);
        digest
    }
}

impl Query {
    /// Creates a query for the entries after a sequence, oldest first. For callers that hold the
    /// position themselves and need no cursor.
    pub const fn of(selection: Selection, after: i64, limit: u32) -> Self {
        Self {
            selection,
            after: Some(after),
            limit,
            descending: false,
            digest: [0; DIGEST],
        }
    }

    /// Returns the cursor after an entry.
    pub fn cursor_after(&self, seq: i64) -> String {
        Cursor {
            seq,
            since: self.selection.since,
            until: self.selection.until,
            digest: self.digest,
        }
        .encode()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mesh_runtime::TimeBound;

    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_763_760_000, 0).unwrap()
    }

    fn request(set: impl FnOnce(&mut ListRequest)) -> ListRequest {
        let mut request = ListRequest::default();
        set(&mut request);
        request
    }

    fn refused(request: &ListRequest) -> InvalidFilter {
        request.check(now(), 1000).unwrap_err()
    }

    #[test]
    fn an_invalid_page_size_is_refused_with_the_allowed_range() {
        for limit in [0, 1001] {
            let invalid = refused(&request(|r| r.limit = Some(limit)));
            assert_eq!(invalid.field, "limit");
            assert!(invalid.problem.contains("1 to 1000"), "{invalid}");
        }
        let invalid = refused(&request(|r| r.cursor = Some("x".into())));
        assert_eq!(invalid.field, "cursor");
        assert!(invalid.problem.contains("next_cursor"), "{invalid}");
    }

    #[test]
    fn a_cursor_contains_the_bounds_of_the_first_page() {
        let first = request(|r| r.filter.since = Some(TimeBound::Ago(Duration::from_secs(7200))));
        let query = first.check(now(), 1000).unwrap();
        let mut second = first;
        second.cursor = Some(query.cursor_after(7));
        second.limit = Some(5);
        let page = second.check(now() + Duration::from_secs(60), 1000).unwrap();
        assert_eq!(
            (page.selection.since, page.after),
            (query.selection.since, Some(7))
        );
    }

    #[test]
    fn a_cursor_of_another_question_is_refused() {
        let query = ListRequest::default().check(now(), 1000).unwrap();
        for set in [
            (|r| r.filter.user = Some("bob".into())) as fn(&mut ListRequest),
            |r| r.descending = true,
            |r| r.filter.types = vec!["job.*".into()],
            |r| r.filter.since = Some(TimeBound::Ago(Duration::from_secs(1))),
        ] {
            let mut other = request(set);
            other.cursor = Some(query.cursor_after(7));
            assert_eq!(refused(&other).field, "cursor");
        }
    }
}
