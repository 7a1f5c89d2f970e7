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

use super::{PersonalAmount, UserSpending};
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

/// Runs that are named in a sum.
const MAX_NAMED_RUNS: usize = 100;

/// Runs whose costs were committed, newest first, by cluster and Unix user of the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedRuns(BTreeMap<(String, String), Vec<String>>);

impl ChangedRuns {
    /// Adds runs of an owner, newest first.
    pub fn add(&mut self, owner: (String, String), runs: impl IntoIterator<Item = String>) {
        let known = self.0.entry(owner).or_default();
        let runs = runs.into_iter().collect();
        *known = newest(runs, std::mem::take(known));
    }
}

/// Newer and older runs, newest first, each once.
fn newest(mut newer: Vec<String>, older: Vec<String>) -> Vec<String> {
    for run in older {
        if newer.len() >= MAX_NAMED_RUNS {
            break;
        }
        if !newer.contains(&run) {
            newer.push(run);
        }
    }
    newer.truncate(MAX_NAMED_RUNS);
    newer
}

/// The users whose sums have changed. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ChangedUsers {
    changed: Arc<Mutex<ChangedRuns>>,
    added: Arc<Notify>,
}

impl ChangedUsers {
    /// Adds users whose costs were committed.
    pub fn add(&self, runs: ChangedRuns) {
        if runs.0.is_empty() {
            return;
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        for (owner, runs) in runs.0 {
            changed.add(owner, runs);
        }
        drop(changed);
        self.added.notify_one();
    }

    fn take(&self) -> ChangedRuns {
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
            let changed = self.changed_users.take();
            if let Err(error) = self.publish(&changed, Utc::now()).await {
                self.changed_users.add(changed);
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
        changed: &ChangedRuns,
        now: DateTime<Utc>,
    ) -> Result<(), mesh_runtime::BoxError> {
        let Some(month) = Periodicity::Month.period(Tz::UTC, now.timestamp()) else {
            return Ok(());
        };
        let people = self.store.people().await?;
        let names = names(&people, changed.0.keys());
        let book = Arc::clone(&self.book.borrow());
        let found =
            super::spending_of_users(&self.store, Some(&book), names, Some(month.from), now)
                .await?;
        let bucket = self.bus.bucket(BUCKET_SPENDING).await?;
        for ((cluster, user), runs) in &changed.0 {
            let mut spending = spending(&people, &found, (cluster, user), &month, now);
            spending.newest_runs.clone_from(runs);
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
    month: &Period,
    now: DateTime<Utc>,
) -> Spending {
    let person = people.of(cluster, user);
    let own = found
        .iter()
        .filter(|row| people.of(&row.cluster, &row.user).key == person.key);
    let spent = super::summed(own.map(|row| &row.amount));
    let unpriced_runs = spent.iter().map(|amount| amount.unpriced_runs).sum();
    let money = |amount: PersonalAmount| {
        Some(Money {
            micros: amount.total_micros.amount()?.0,
            currency: amount.currency,
        })
    };
    Spending {
        month: month.name.clone(),
        person: person.key,
        spent: spent.into_iter().filter_map(money).collect(),
        newest_runs: Vec::new(),
        as_of: Some(timestamp(now)),
        unpriced_runs,
    }
}

/// What to write over a known value. Another process may have computed it later, from costs that this one has not seen; its month may be
/// the next one. Then only the runs are added.
fn merged(known: Option<Spending>, computed: Spending) -> Spending {
    let Some(known) = known else { return computed };
    let time = |spending: &Spending| {
        let as_of = spending.as_of.as_ref();
        let as_of = as_of.map(|time| (time.seconds, time.nanos));
        (spending.month.clone(), as_of)
    };
    if time(&known) > time(&computed) {
        let newest_runs = newest(computed.newest_runs, known.newest_runs.clone());
        Spending {
            newest_runs,
            ..known
        }
    } else if known.month == computed.month {
        let newest_runs = newest(computed.newest_runs.clone(), known.newest_runs);
        Spending {
            newest_runs,
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
    fn runs_of_several_commits_are_named_newest_first() {
        let changed_users = ChangedUsers::default();
        let add = |user: &str, run: String| {
            let mut runs = ChangedRuns::default();
            runs.add(("c".into(), user.into()), [run]);
            changed_users.add(runs);
        };
        for run in 0..MAX_NAMED_RUNS + 1 {
            add("alice", run.to_string());
        }
        add("alice", "50".into());
        add("bob", "1".into());
        let taken = changed_users.take();
        let alice = &taken.0[&("c".into(), "alice".into())];
        assert_eq!(alice[..3], ["50", "100", "99"]);
        assert_eq!(alice.len(), MAX_NAMED_RUNS);
        assert!(!alice.contains(&"0".to_owned()), "the oldest is left out");
        assert_eq!(taken.0[&("c".into(), "bob".into())], ["1"]);
        assert_eq!(changed_users.take(), ChangedRuns::default());
    }

    #[test]
    fn an_older_computation_does_not_replace_a_newer_one() {
        let of = |month: &str, seconds, micros, runs: &[&str]| Spending {
            month: month.into(),
            person: "p".into(),
            spent: vec![Money {
                micros,
                currency: "EUR".into(),
            }],
            newest_runs: runs.iter().map(ToString::to_string).collect(),
            as_of: Some(pbjson_types::Timestamp { seconds, nanos: 0 }),
            unpriced_runs: 0,
        };
        let october = of("2026-10", 10, 1, &["x"]);
        for (known, computed, expected) in [
            (None, october.clone(), october.clone()),
            // Computed earlier, written later: its run is in the sum already.
            (
                Some(of("2026-10", 20, 2, &["y"])),
                october.clone(),
                of("2026-10", 20, 2, &["x", "y"]),
            ),
            (
                Some(october.clone()),
                of("2026-10", 20, 2, &["y"]),
                of("2026-10", 20, 2, &["y", "x"]),
            ),
            (
                Some(of("2026-11", 5, 3, &["z"])),
                october.clone(),
                of("2026-11", 5, 3, &["x", "z"]),
            ),
            (
                Some(october.clone()),
                of("2026-11", 5, 3, &["z"]),
                of("2026-11", 5, 3, &["z"]),
            ),
        ] {
            assert_eq!(merged(known, computed), expected);
        }
    }
}
