//! Queries that an audit entry covers for a while, and counts of what they have shown since.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, Uri};

use super::DataOfOthers;
use crate::api::Caller;

/// How long an entry covers repetitions of its query.
pub(super) const LENGTH: Duration = Duration::from_secs(60);
/// Limit of queries that are covered at a time. Beyond it every response has its own entry.
const MAX_WINDOWS: usize = 10_000;

/// A caller and their query, without the position in its pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Query {
    caller: String,
    request: String,
    filter: String,
}

impl Query {
    /// `filter` is the query in the request's body, without its cursor.
    pub fn of(caller: &Caller, request: String, filter: &str) -> Self {
        let Caller {
            name,
            role,
            users,
            accounts,
            auth_method,
            request: _,
        } = caller;
        Self {
            // The caller's permissions are part of the key.
            caller: format!("{name:?} {role:?} {users:?} {accounts:?} {auth_method:?}"),
            request,
            filter: filter.to_owned(),
        }
    }

    pub fn into_filter(self) -> String {
        self.filter
    }
}

/// A request without its cursor.
pub(super) fn without_cursor(method: &Method, uri: &Uri) -> String {
    let pairs = uri.query().unwrap_or_default().split('&');
    let others: Vec<&str> = pairs
        .filter(|pair| pair.split('=').next() != Some("cursor"))
        .collect();
    format!("{method} {}?{}", uri.path(), others.join("&"))
}

/// Counts of a query since the entry that covers it.
#[derive(Clone, Debug, Default)]
pub(super) struct CoveredReads {
    pub answers: u64,
    pub others: DataOfOthers,
}

/// The covered queries. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditWindows(Arc<Mutex<HashMap<Query, CoveredReads>>>);

impl AuditWindows {
    /// Counts a response to a query if an entry covers it; false if none does.
    pub fn covers(&self, query: &Query, others: &DataOfOthers) -> bool {
        match self.lock().get_mut(query) {
            Some(more) => {
                more.answers += 1;
                more.others.add(others);
                true
            }
            None => false,
        }
    }

    /// Begins the window of a query whose entry is stored. False if another entry covers it already, or too many queries are covered.
    pub fn open(&self, query: &Query) -> bool {
        let mut windows = self.lock();
        let full = windows.len() >= MAX_WINDOWS;
        match windows.entry(query.clone()) {
            Entry::Vacant(vacant) if !full => {
                vacant.insert(CoveredReads::default());
                true
            }
            Entry::Vacant(_) | Entry::Occupied(_) => false,
        }
    }

    /// Ends the window of a query. Returns the counts since its entry, if there were further responses.
    pub fn close(&self, query: &Query) -> Option<CoveredReads> {
        self.lock().remove(query).filter(|more| more.answers > 0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Query, CoveredReads>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Role;

    fn query(caller: &Caller, uri: &str) -> Query {
        let asked = without_cursor(&Method::GET, &uri.parse().unwrap());
        Query::of(caller, asked, "")
    }

    fn others(user: &str) -> DataOfOthers {
        DataOfOthers {
            users: [user.to_owned()].into(),
            rows: 100,
        }
    }

    #[test]
    fn pages_of_one_query_are_covered_and_counted() {
        let root = Caller::peer("root", 0, Role::Admin);
        let windows = AuditWindows::default();
        let first = query(&root, "/v1/events?user=bob");
        assert!(!windows.covers(&first, &others("bob")));
        assert!(windows.open(&first));
        for uri in [
            "/v1/events?user=bob&cursor=AQAA",
            "/v1/events?cursor=AQAB&user=bob",
            "/v1/events?user=bob",
        ] {
            assert!(windows.covers(&query(&root, uri), &others("bob")), "{uri}");
        }
        // Other queries, and the same query of other callers.
        let auditor = Caller::peer("root", 0, Role::Auditor);
        for other in [
            query(&root, "/v1/events?user=alice"),
            query(&root, "/v1/events?user=bob&limit=5"),
            query(&root, "/v1/jobs?user=bob"),
            query(&auditor, "/v1/events?user=bob"),
        ] {
            assert!(!windows.covers(&other, &others("bob")), "{other:?}");
        }
        assert!(!windows.open(&first));
        let more = windows.close(&first).unwrap();
        assert_eq!((more.answers, more.others.rows), (3, 300));
        assert!(!windows.covers(&first, &others("bob")));
        // A query that was not repeated needs no second entry.
        assert!(windows.open(&first) && windows.close(&first).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let root = Caller::peer("root", 0, Role::Admin);
        let windows = AuditWindows::default();
        for n in 0..MAX_WINDOWS {
            assert!(windows.open(&query(&root, &format!("/v1/events?user=u{n}"))));
        }
        assert!(!windows.open(&query(&root, "/v1/events?user=one-more")));
    }
}
