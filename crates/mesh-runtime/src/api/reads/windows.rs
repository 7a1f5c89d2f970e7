//! Queries that are covered by an entry of the audit for a while, and what was shown by them since.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, Uri};

use super::Others;
use crate::api::Caller;

/// How long an entry covers what is asked again.
pub(super) const LENGTH: Duration = Duration::from_secs(60);
/// Queries that are covered at a time. More have an entry for each answer.
const MAX_WINDOWS: usize = 10_000;

/// Who asks what, wherever in the answer they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Query {
    caller: String,
    request: String,
    filter: String,
}

impl Query {
    /// The filter is what the body of the request asked, without its cursor.
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
            // What somebody may see is a part of the question.
            caller: format!("{name:?} {role:?} {users:?} {accounts:?} {auth_method:?}"),
            request,
            filter: filter.to_owned(),
        }
    }

    pub fn into_filter(self) -> String {
        self.filter
    }
}

/// A request without the place where its page begins.
pub(super) fn without_cursor(method: &Method, uri: &Uri) -> String {
    let pairs = uri.query().unwrap_or_default().split('&');
    let others: Vec<&str> = pairs
        .filter(|pair| pair.split('=').next() != Some("cursor"))
        .collect();
    format!("{method} {}?{}", uri.path(), others.join("&"))
}

/// What was shown by a query since the entry that covers it.
#[derive(Clone, Debug, Default)]
pub(super) struct More {
    pub answers: u64,
    pub others: Others,
}

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows(Arc<Mutex<HashMap<Query, More>>>);

impl Windows {
    /// Counts an answer to a query that an entry covers. False if none does.
    pub fn covers(&self, query: &Query, others: &Others) -> bool {
        match self.lock().get_mut(query) {
            Some(more) => {
                more.answers += 1;
                more.others.add(others);
                true
            }
            None => false,
        }
    }

    /// An entry of the query is durable. False if another one covers it already, or too many are covered.
    pub fn open(&self, query: &Query) -> bool {
        let mut windows = self.lock();
        let full = windows.len() >= MAX_WINDOWS;
        match windows.entry(query.clone()) {
            Entry::Vacant(vacant) if !full => {
                vacant.insert(More::default());
                true
            }
            Entry::Vacant(_) | Entry::Occupied(_) => false,
        }
    }

    /// The query is covered no longer. What was shown meanwhile, if anything.
    pub fn close(&self, query: &Query) -> Option<More> {
        self.lock().remove(query).filter(|more| more.answers > 0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Query, More>> {
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

    fn others(user: &str) -> Others {
        Others {
            users: [user.to_owned()].into(),
            rows: 100,
        }
    }

    #[test]
    fn pages_of_one_query_are_covered_and_counted() {
        let root = Caller::peer("root", 0, Role::Admin);
        let windows = Windows::default();
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
        // Other questions, and other people with the same.
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
        // What was asked once is told by its entry alone.
        assert!(windows.open(&first) && windows.close(&first).is_none());
    }

    #[test]
    fn memory_is_bounded() {
        let root = Caller::peer("root", 0, Role::Admin);
        let windows = Windows::default();
        for n in 0..MAX_WINDOWS {
            assert!(windows.open(&query(&root, &format!("/v1/events?user=u{n}"))));
        }
        assert!(!windows.open(&query(&root, "/v1/events?user=one-more")));
    }
}
