//! Writes what people have spent in the present month to the bucket `mesh_spending`, by Unix user.
//!
//! A key is written after a final cost or an adjustment of that user's run was committed. Users whose runs end at the same time are
//! computed together, in at most a tenth of the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use mesh_bus::{Backoff, Bucket, Bus, PutError};
use mesh_events::catalogue::BUCKET_SPENDING;
use mesh_events::proto::mesh::cost::v1::{Money, Spending};
use mesh_events::{subject, timestamp};
use prost::Message as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::UserSpending;
use crate::adapters::{People, Store};
use crate::domain::calendar_period::{Period, Periodicity};
use crate::price_book::PriceBook;

/// Shortest pause between two computations.
const MIN_PAUSE: Duration = Duration::from_millis(200);
/// A computation that took a second is followed by a pause of so many seconds.
const PAUSE_FACTOR: u32 = 9;
/// Longest delay after failures.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Attempts to write a key that other processes write too.
const MAX_ATTEMPTS: u32 = 5;

/// A Unix user of a cluster, and the newest end among the runs whose costs were committed.
pub(crate) type NewestEnds = BTreeMap<(String, String), i64>;

/// The users whose sums have changed. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ChangedUsers {
    changed: Arc<Mutex<NewestEnds>>,
    added: Arc<Notify>,
}

impl ChangedUsers {
    /// Adds users whose costs were committed.
    pub fn add(&self, ends: NewestEnds) {
        if ends.is_empty() {
            return;
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        for (user, end) in ends {
            let newest = changed.entry(user).or_insert(end);
            *newest = end.max(*newest);
        }
        drop(changed);
        self.added.notify_one();
    }

    fn take(&self) -> NewestEnds {
        std::mem::take(&mut self.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct SpendingPublisher {
    pub store: Store,
    pub book: watch::Receiver<Arc<PriceBook>>,
    pub bus: Bus,
    pub changed_users: ChangedUsers,
}

impl SpendingPublisher {
    /// Publishes until shutdown.
    pub async fn run(self, shutdown: &CancellationToken) {
        // Delays of the failures since the last success.
        let mut backoff: Option<Backoff> = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.changed_users.added.notified() => {}
            }
            let began = Instant::now();
            let ends = self.changed_users.take();
            if let Err(error) = self.publish(&ends, Utc::now()).await {
                self.changed_users.add(ends);
                let error = mesh_runtime::error_chain(error.as_ref());
                if backoff.is_none() {
                    tracing::warn!(error, "sums of the month not published, retrying");
                } else {
                    tracing::debug!(error, "sums of the month still not published");
                }
                let first = Backoff::doubling(MIN_PAUSE, MAX_RETRY_DELAY);
                if !backoff.get_or_insert(first).wait(shutdown).await {
                    return;
                }
                continue;
            }
            if backoff.take().is_some() {
                tracing::info!("sums of the month published again");
            }
            let pause = (began.elapsed() * PAUSE_FACTOR).max(MIN_PAUSE);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn publish(
        &self,
        ends: &NewestEnds,
        now: DateTime<Utc>,
    ) -> Result<(), mesh_runtime::BoxError> {
        let Some(month) = Periodicity::Month.period(Tz::UTC, now.timestamp()) else {
            return Ok(());
        };
        let people = self.store.people().await?;
        let names = names(&people, ends.keys());
        let book = Arc::clone(&self.book.borrow());
        let found =
            super::spending_of_users(&self.store, Some(&book), names, Some(month.from), now)
                .await?;
        let bucket = self.bus.bucket(BUCKET_SPENDING).await?;
        for ((cluster, user), end) in ends {
            let spending = spending(&people, &found, (cluster, user), *end, &month, now);
            let key = format!("{}.user.{}", subject::token(cluster), subject::token(user));
            put(&bucket, &key, spending).await?;
        }
        Ok(())
    }
}

/// Names of all Unix users of the people behind some Unix users.
fn names<'a>(
    people: &People,
    users: impl Iterator<Item = &'a (String, String)>,
) -> BTreeSet<String> {
    let keys: BTreeSet<String> = users
        .map(|(cluster, user)| people.of(cluster, user).key)
        .collect();
    let users = keys.iter().flat_map(|key| people.users_of(key));
    users.map(|(_, user)| user).collect()
}

/// What the person behind a Unix user has spent.
fn spending(
    people: &People,
    found: &[UserSpending],
    (cluster, user): (&str, &str),
    newest_end: i64,
    month: &Period,
    now: DateTime<Utc>,
) -> Spending {
    let person = people.of(cluster, user);
    let own = found
        .iter()
        .filter(|row| people.of(&row.cluster, &row.user).key == person.key);
    let spent = super::summed(own.map(|row| &row.amount)).into_iter();
    Spending {
        month: month.name.clone(),
        person: person.key,
        spent: spent
            .map(|amount| Money {
                micros: amount.total_micros.0,
                currency: amount.currency,
            })
            .collect(),
        newest_end,
        as_of: Some(timestamp(now)),
    }
}

/// What to write over a known value. Another process may have computed it later, from costs that this one has not seen; its month may be
/// the next one. Then only the newest end is raised.
fn merged(known: Option<Spending>, computed: Spending) -> Spending {
    let Some(known) = known else { return computed };
    let time = |spending: &Spending| {
        let as_of = spending.as_of.as_ref();
        let as_of = as_of.map(|time| (time.seconds, time.nanos));
        (spending.month.clone(), as_of)
    };
    let newest_end = known.newest_end.max(computed.newest_end);
    if time(&known) > time(&computed) {
        Spending {
            newest_end,
            ..known
        }
    } else if known.month == computed.month {
        Spending {
            newest_end,
            ..computed
        }
    } else {
        computed
    }
}

async fn put(bucket: &Bucket, key: &str, computed: Spending) -> Result<(), PutError> {
    let mut attempt = 1;
    loop {
        let known = bucket.get(key).await?;
        let revision = known.as_ref().map(|entry| entry.revision);
        let known = known.and_then(|entry| Spending::decode(entry.value).ok());
        let value = merged(known, computed.clone()).encode_to_vec();
        match bucket.put(key, value.into(), revision).await {
            Err(PutError::Conflict { .. }) if attempt < MAX_ATTEMPTS => attempt += 1,
            written => return written.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_commits_the_newest_end_counts() {
        let changed_users = ChangedUsers::default();
        let one = |user: &str, end| NewestEnds::from([(("c".into(), user.into()), end)]);
        changed_users.add(one("alice", 20));
        changed_users.add(one("alice", 10));
        changed_users.add(one("bob", 5));
        let taken: Vec<_> = changed_users.take().into_values().collect();
        assert_eq!(taken, [20, 5]);
        assert!(changed_users.take().is_empty());
    }

    #[test]
    fn an_older_computation_does_not_replace_a_newer_one() {
        let of = |month: &str, seconds, micros, newest_end| Spending {
            month: month.into(),
            person: "p".into(),
            spent: vec![Money {
                micros,
                currency: "EUR".into(),
            }],
            newest_end,
            as_of: Some(pbjson_types::Timestamp { seconds, nanos: 0 }),
        };
        let october = of("2026-10", 10, 1, 9);
        for (known, computed, expected) in [
            (None, october.clone(), october.clone()),
            // Computed earlier, written later: its run is in the sum already.
            (
                Some(of("2026-10", 20, 2, 8)),
                october.clone(),
                of("2026-10", 20, 2, 9),
            ),
            (
                Some(october.clone()),
                of("2026-10", 20, 2, 8),
                of("2026-10", 20, 2, 9),
            ),
            (
                Some(of("2026-11", 5, 3, 4)),
                october.clone(),
                of("2026-11", 5, 3, 9),
            ),
            (
                Some(october.clone()),
                of("2026-11", 5, 3, 4),
                of("2026-11", 5, 3, 4),
            ),
        ] {
            assert_eq!(merged(known, computed), expected);
        }
    }
}
