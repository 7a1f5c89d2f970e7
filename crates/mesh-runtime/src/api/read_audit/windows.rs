//! Queries that were answered within the last minute, and what they have shown. Each has one entry in the audit at the end of its minute.
//!
//! What was shown is in the bucket `mesh_reads` before it is returned, so a service that is killed loses none of it: whoever serves next
//! publishes it. A key of the bucket is a slot, which one query has at a time, so their number is bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{Method, Uri};
use mesh_bus::{Bucket, PutError};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::DataOfOthers;
use super::entry::ReadEntry;
use crate::api::Caller;

/// How long an entry covers repetitions of its query.
pub(super) const LENGTH: Duration = Duration::from_secs(60);
/// Slots of a service.
const SLOTS: u16 = 1_024;
/// Slots that a query may have. If others have all of them, each of its responses has its own entry.
const SLOTS_OF_QUERY: u16 = 4;

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

    fn slots(&self) -> impl Iterator<Item = u16> + use<> {
        let hash = Sha256::digest(format!("{self:?}"));
        let first = u16::from_be_bytes([hash[0], hash[1]]) % SLOTS;
        (0..SLOTS_OF_QUERY).map(move |next| (first + next) % SLOTS)
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

/// What became of the counts of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// They are stored, as the first of the window.
    First,
    /// They are stored.
    Further,
    /// The minute is over: the response belongs to the next window.
    Ended,
    /// Other queries have all slots.
    Full,
}

/// The minute of a query.
pub(super) struct Window {
    entry: ReadEntry,
    counts: Mutex<Counts>,
    stored: tokio::sync::Mutex<Stored>,
}

#[derive(Clone, Default)]
struct Counts {
    pages: u64,
    others: DataOfOthers,
}

/// What the bucket has.
#[derive(Default)]
struct Stored {
    pages: u64,
    place: Option<Place>,
    entry: Option<AuditEntry>,
    ended: bool,
}

#[derive(Clone)]
struct Place {
    key: String,
    revision: u64,
}

impl Window {
    fn new(entry: ReadEntry) -> Self {
        Self {
            entry,
            counts: Mutex::default(),
            stored: tokio::sync::Mutex::default(),
        }
    }

    /// Stores the counts of a response. Responses that come together are stored together.
    ///
    /// # Errors
    /// If the bucket does not store them. They count with those of the next response.
    pub async fn count(
        &self,
        bucket: &Bucket,
        query: &Query,
        others: &DataOfOthers,
    ) -> Result<Counted, mesh_bus::Error> {
        let own = {
            let mut counts = lock(&self.counts);
            counts.pages += 1;
            counts.others.add(others);
            counts.pages
        };
        let mut stored = self.stored.lock().await;
        if stored.ended {
            return Ok(Counted::Ended);
        }
        if stored.pages >= own {
            return Ok(Counted::Further);
        }
        let counts = lock(&self.counts).clone();
        let entry = self.entry.with(counts.pages, &counts.others);
        let is_first = stored.place.is_none();
        let place = match &stored.place {
            None => self.find_place(bucket, query, &entry).await?,
            Some(place) => self.write_again(bucket, place, &entry).await?,
        };
        let Some(place) = place else {
            stored.ended = true;
            return Ok(if is_first {
                Counted::Full
            } else {
                Counted::Ended
            });
        };
        stored.pages = counts.pages;
        stored.place = Some(place);
        stored.entry = Some(entry);
        Ok(if is_first {
            Counted::First
        } else {
            Counted::Further
        })
    }

    async fn find_place(
        &self,
        bucket: &Bucket,
        query: &Query,
        entry: &AuditEntry,
    ) -> Result<Option<Place>, mesh_bus::Error> {
        for slot in query.slots() {
            let key = self.entry.key(slot);
            if let Some(revision) = write(bucket, &key, entry, None).await? {
                return Ok(Some(Place { key, revision }));
            }
        }
        Ok(None)
    }

    /// `None` if another process has published the entry, because this one was paused.
    async fn write_again(
        &self,
        bucket: &Bucket,
        place: &Place,
        entry: &AuditEntry,
    ) -> Result<Option<Place>, mesh_bus::Error> {
        let revision = write(bucket, &place.key, entry, Some(place.revision)).await?;
        Ok(revision.map(|revision| Place {
            key: place.key.clone(),
            revision,
        }))
    }

    /// Ends the window. Returns the entry to publish.
    pub async fn end(&self) -> Option<AuditEntry> {
        let mut stored = self.stored.lock().await;
        stored.ended = true;
        stored.entry.take()
    }

    /// Removes the published entry from the bucket.
    pub async fn forget(&self, bucket: &Bucket) {
        let place = self.stored.lock().await.place.take();
        if let Some(place) = place {
            remove(bucket, &place.key, place.revision).await;
        }
    }
}

/// Writes an entry. `None` if the key has another one. An earlier write of this entry may have been stored although it was not acknowledged.
async fn write(
    bucket: &Bucket,
    key: &str,
    entry: &AuditEntry,
    expected: Option<u64>,
) -> Result<Option<u64>, mesh_bus::Error> {
    let value = entry.encode_to_vec();
    let mut expected = expected;
    for _ in 0..2 {
        match bucket.put(key, value.clone().into(), expected).await {
            Ok(revision) => return Ok(Some(revision)),
            Err(PutError::Bus(error)) => return Err(error),
            Err(PutError::Conflict { .. }) => {}
        }
        let present = bucket.get(key).await?;
        let own = present.filter(|present| {
            AuditEntry::decode(present.value.clone()).is_ok_and(|other| other.id == entry.id)
        });
        match own {
            Some(own) => expected = Some(own.revision),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Removes an entry that was published. What remains is published again, under the same id, and removed then.
pub(super) async fn remove(bucket: &Bucket, key: &str, revision: u64) {
    if let Err(error) = bucket.remove(key, revision).await {
        tracing::debug!(
            error = crate::error_chain(&error),
            key,
            "remove audited read"
        );
    }
}

/// The present windows. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct AuditWindows(Arc<Mutex<HashMap<Query, Arc<Window>>>>);

impl AuditWindows {
    /// The window of a query, begun with this entry if there is none.
    pub fn of(&self, query: &Query, entry: impl FnOnce() -> ReadEntry) -> Arc<Window> {
        let mut windows = lock(&self.0);
        let window = windows
            .entry(query.clone())
            .or_insert_with(|| Arc::new(Window::new(entry())));
        Arc::clone(window)
    }

    /// Removes a window, unless the query has another one by now.
    pub fn remove(&self, query: &Query, window: &Arc<Window>) {
        let mut windows = lock(&self.0);
        if windows
            .get(query)
            .is_some_and(|present| Arc::ptr_eq(present, window))
        {
            windows.remove(query);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::Role;

    fn query(caller: &Caller, uri: &str) -> Query {
        let asked = without_cursor(&Method::GET, &uri.parse().unwrap());
        Query::of(caller, asked, "")
    }

    #[test]
    fn pages_are_of_one_query() {
        let root = Caller::peer("root", 0, Role::Admin);
        let first = query(&root, "/v1/events?user=bob");
        for uri in [
            "/v1/events?user=bob&cursor=AQAA",
            "/v1/events?cursor=AQAB&user=bob",
            "/v1/events?user=bob",
        ] {
            assert_eq!(query(&root, uri), first, "{uri}");
        }
        // Other queries, and the same query of other callers.
        let auditor = Caller::peer("root", 0, Role::Auditor);
        for other in [
            query(&root, "/v1/events?user=alice"),
            query(&root, "/v1/events?user=bob&limit=5"),
            query(&root, "/v1/jobs?user=bob"),
            query(&auditor, "/v1/events?user=bob"),
        ] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn slots_are_few_and_of_all_queries() {
        let root = Caller::peer("root", 0, Role::Admin);
        let mut all = BTreeSet::new();
        for n in 0..10_000 {
            let query = query(&root, &format!("/v1/events?user=u{n}"));
            let slots: BTreeSet<u16> = query.slots().collect();
            assert_eq!(slots.len(), usize::from(SLOTS_OF_QUERY));
            all.extend(slots);
        }
        assert_eq!(all.len(), usize::from(SLOTS));
    }
}
