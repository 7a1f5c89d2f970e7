//! Account coordinators, as ingest reads them from Slurm and stores them in a bucket. Beside them are the parents of the accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use mesh_bus::{Bucket, Bus};
use mesh_events::catalogue::BUCKET_COORDINATORS;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::AccountsByCluster;

/// Pause before the bucket is watched again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which coordinators that are no longer in the bucket are removed: a purge, or a new bucket, is no change of a key.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Prefix of the keys of users, of every cluster.
const USERS: &str = "*.user";

/// Value of a key of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coordinator {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Unix user.
    pub user: String,
    /// Accounts they coordinate, including subaccounts.
    pub accounts: BTreeSet<String>,
}

/// Value of a key `<cluster>.account.<account>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountParent {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Account.
    pub account: String,
    /// Account above it. Empty for the root account.
    pub parent: String,
}

/// The coordinators of every cluster. Cheap to clone; clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coordinators(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    watched: AtomicBool,
    /// By the key of the bucket.
    known: RwLock<BTreeMap<String, Coordinator>>,
}

impl Coordinators {
    /// The accounts that any of these users coordinates. Missing data never grants an account.
    pub(super) fn of(&self, users: &BTreeSet<String>) -> AccountsByCluster {
        let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut accounts = AccountsByCluster::new();
        for one in known.values().filter(|one| users.contains(&one.user)) {
            accounts
                .entry(Some(one.cluster.clone()))
                .or_default()
                .extend(one.accounts.iter().cloned());
        }
        accounts.retain(|_, accounts| !accounts.is_empty());
        accounts
    }

    /// Follows the bucket until shutdown, unless another service of this process already does.
    pub(crate) fn watch(&self, bus: &Bus, shutdown: &CancellationToken) {
        if self.0.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, bus, shutdown) = (self.clone(), bus.clone(), shutdown.clone());
        tokio::spawn(async move {
            while bus.ready(&shutdown).await.is_ok() {
                let followed = tokio::select! {
                    () = shutdown.cancelled() => return,
                    followed = this.follow(&bus) => followed,
                };
                if let Err(error) = followed {
                    tracing::debug!(
                        error = crate::error_chain(&error),
                        "coordinators not watched, retrying"
                    );
                }
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(RETRY_INTERVAL) => {}
                }
            }
        });
    }

    async fn follow(&self, bus: &Bus) -> Result<(), mesh_bus::Error> {
        let bucket = bus.bucket(BUCKET_COORDINATORS).await?;
        let mut entries = pin!(bucket.watch(USERS).await?);
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                entry = entries.try_next() => match entry? {
                    Some(entry) => self.take(entry.key, &entry.value),
                    None => return Ok(()),
                },
                _ = checks.tick() => self.remove_missing(&bucket).await?,
            }
        }
    }

    async fn remove_missing(&self, bucket: &Bucket) -> Result<(), mesh_bus::Error> {
        let keys = {
            let known = self.0.known.read().unwrap_or_else(PoisonError::into_inner);
            known.keys().cloned().collect()
        };
        let missing = bucket.missing(USERS, keys).await?;
        let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        for key in missing {
            known.remove(&key);
        }
        Ok(())
    }

    fn take(&self, key: String, value: &Bytes) {
        let mut known = self.0.known.write().unwrap_or_else(PoisonError::into_inner);
        // Empty after a delete. An unreadable value grants nothing.
        match serde_json::from_slice(value) {
            Ok(coordinator) => {
                known.insert(key, coordinator);
            }
            Err(error) => {
                if !value.is_empty() {
                    tracing::warn!(%error, key, "coordinators not read");
                }
                known.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_testkit::{NatsServer, wait_until};

    use super::*;

    fn accounts(of: &Coordinators, user: &str) -> AccountsByCluster {
        of.of(&BTreeSet::from([user.to_owned()]))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_not_in_the_bucket_when_it_is_watched_anew_loses_the_accounts() {
        const DEADLINE: Duration = Duration::from_secs(30);
        let nats = NatsServer::start().await;
        let config = mesh_bus::Config {
            url: nats.url(),
            ..mesh_bus::Config::default()
        };
        let (bus, stop) = (
            Bus::connect(&config, "ingest").await.unwrap(),
            CancellationToken::new(),
        );
        bus.ready(&stop).await.unwrap();
        let value = |user: &str| {
            let one = Coordinator {
                cluster: "c1".into(),
                user: user.into(),
                accounts: BTreeSet::from(["physics".to_owned()]),
            };
            Bytes::from(serde_json::to_vec(&one).unwrap())
        };
        let bucket = bus.bucket(BUCKET_COORDINATORS).await.unwrap();
        let written = bucket.put("c1.user.carol", value("carol"), None).await;
        written.unwrap();
        let coordinators = Coordinators::default();
        // Read before the watch broke; purged since.
        coordinators.take("c1.user.mallory".into(), &value("mallory"));
        coordinators.watch(&bus, &stop);
        wait_until("carol is known", DEADLINE, async || {
            !accounts(&coordinators, "carol").is_empty()
        })
        .await;
        wait_until("mallory is removed", DEADLINE, async || {
            accounts(&coordinators, "mallory").is_empty()
        })
        .await;
        assert!(!accounts(&coordinators, "carol").is_empty());
        stop.cancel();
    }

    #[test]
    fn accounts_are_those_of_the_last_update() {
        let coordinators = Coordinators::default();
        let one = |cluster: &str, accounts: &[&str]| {
            let one = Coordinator {
                cluster: cluster.into(),
                user: "carol".into(),
                accounts: accounts.iter().map(ToString::to_string).collect(),
            };
            Bytes::from(serde_json::to_vec(&one).unwrap())
        };
        let of = |user: &str| coordinators.of(&BTreeSet::from([user.to_owned()]));
        coordinators.take(
            "c1.user.carol".into(),
            &one("c1", &["physics", "physics-x"]),
        );
        coordinators.take("c2.user.carol".into(), &one("c2", &["art"]));
        assert_eq!(of("carol").len(), 2);
        assert!(of("carol")[&Some("c1".to_owned())].contains("physics-x"));
        assert!(of("alice").is_empty());
        coordinators.take("c1.user.carol".into(), &one("c1", &[]));
        coordinators.take("c2.user.carol".into(), &Bytes::new());
        assert!(of("carol").is_empty());
        coordinators.take("c1.user.carol".into(), &one("c1", &["physics"]));
        coordinators.take("c1.user.carol".into(), &Bytes::from_static(b"{"));
        assert!(of("carol").is_empty());
    }
}
