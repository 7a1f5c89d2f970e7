//! Audit of reads: every access to other people's data is recorded before the data is sent.
//!
//! A route puts an [`AuditedRead`] into the extensions of its response. The layer of `middleware` publishes an entry on MESH_AUDIT and waits
//! until JetStream has stored it. If that takes too long, the response is refused. Callers that see only their own data never wait. A
//! response without an [`AuditedRead`] counts as one with data of others.
//!
//! A query repeated by the same caller within a minute, or page by page, has one entry at the end of the minute, with the counts of all
//! its responses. Each response waits until its counts are in the bucket `mesh_reads`, from where the entry is published, also by the next
//! process if this one is killed.
//!
//! An event stream has an entry when it begins, and one with the counts when it ends. There are none in between: an auditor who follows the
//! audit would receive entries about their own reading without end.
//!
//! `publisher` publishes the entries, `windows` joins the responses of a minute.

mod entry;
mod middleware;
mod publisher;
mod windows;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Extension;
use mesh_events::proto::mesh::audit::v1::Read;

pub(crate) use self::middleware::audited;
use super::Caller;

/// Users in one entry.
const MAX_LISTED_USERS: usize = 100;
/// Limit of distinct users that are counted.
const MAX_COUNTED_USERS: usize = 10_000;

/// The data of others in a response. A route returns it beside its body: `(shown.extension(), Json(…))`.
#[derive(Clone, Debug)]
pub struct AuditedRead {
    own: BTreeSet<String>,
    filter: String,
    others: DataOfOthers,
    stream: Option<AuditedStream>,
}

/// Counts the rows of a stream while it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditedStream {
    own: Arc<BTreeSet<String>>,
    others: Arc<Mutex<DataOfOthers>>,
}

#[derive(Clone, Debug, Default)]
struct DataOfOthers {
    users: BTreeSet<String>,
    rows: u64,
}

impl DataOfOthers {
    /// Adds the counts of another response.
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        for user in &other.users {
            if self.users.len() == MAX_COUNTED_USERS {
                break;
            }
            self.users.insert(user.clone());
        }
    }

    fn put(self, read: &mut Read) {
        read.rows = self.rows;
        read.whose_count = u64::try_from(self.users.len()).unwrap_or(u64::MAX);
        read.whose = self.users.into_iter().take(MAX_LISTED_USERS).collect();
    }

    fn row(&mut self, own: &BTreeSet<String>, owner: &str) {
        if owner.is_empty() || own.contains(owner) {
            return;
        }
        self.rows += 1;
        if self.users.len() < MAX_COUNTED_USERS && !self.users.contains(owner) {
            self.users.insert(owner.to_owned());
        }
    }
}

impl AuditedRead {
    /// An empty record for a caller.
    pub fn to(caller: &Caller) -> Self {
        Self {
            own: caller.users.clone(),
            filter: String::new(),
            others: DataOfOthers::default(),
            stream: None,
        }
    }

    /// For a response without personal data.
    pub fn nothing() -> Self {
        Self {
            own: BTreeSet::new(),
            filter: String::new(),
            others: DataOfOthers::default(),
            stream: None,
        }
    }

    /// Counts a row (event, job, sum) by its owner's Unix user. A row without an owner is not counted.
    pub fn row(&mut self, owner: &str) {
        self.others.row(&self.own, owner);
    }

    /// Counts a row about people that has no single owner: an audit entry, a sum over all users.
    pub fn row_about_people(&mut self) {
        self.others.rows += 1;
    }

    /// Adds the filter of the query, where the path does not contain it.
    #[must_use]
    pub fn asked(mut self, filter: impl Into<String>) -> Self {
        self.filter = filter.into();
        self
    }

    /// Marks the response as a stream, whose rows are counted while it runs.
    #[must_use]
    pub fn stream(mut self) -> (Self, AuditedStream) {
        let showing = AuditedStream {
            own: Arc::new(std::mem::take(&mut self.own)),
            others: Arc::default(),
        };
        self.stream = Some(showing.clone());
        (self, showing)
    }

    /// Wraps it for the extensions of a response.
    pub fn extension(self) -> Extension<Self> {
        Extension(self)
    }
}

impl AuditedStream {
    /// Counts a row, as [`AuditedRead::row`].
    pub fn row(&self, owner: &str) {
        self.lock().row(&self.own, owner);
    }

    /// Counts a row, as [`AuditedRead::row_about_people`].
    pub fn row_about_people(&self) {
        self.lock().rows += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DataOfOthers> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Role;

    #[test]
    fn own_and_ownerless_rows_are_not_counted() {
        let carol = Caller::peer("carol", 1, Role::User).coordinating("c", "physics");
        let mut read = AuditedRead::to(&carol);
        for owner in ["carol", "", "carol"] {
            read.row(owner);
        }
        assert_eq!(read.others.rows, 0);
        for owner in ["bob", "alice", "bob"] {
            read.row(owner);
        }
        read.row_about_people();
        assert_eq!(read.others.rows, 4);
        assert_eq!(
            read.others.users,
            ["alice", "bob"].map(str::to_owned).into()
        );
        let (_, showing) = AuditedRead::to(&carol).stream();
        showing.row("carol");
        showing.clone().row("bob");
        assert_eq!(showing.lock().rows, 1);
    }
}
