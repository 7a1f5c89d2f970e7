//! The tree of accounts of each cluster, for budgets of an account and those below it.
//!
//! ingest writes the parents to bucket `mesh_coordinators`; they are stored in the database, so that an evaluation counts the same while
//! NATS does not answer, and an account that is deleted in Slurm keeps its place.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use mesh_bus::{BucketEntry, Bus};
use mesh_events::catalogue::BUCKET_COORDINATORS;
use mesh_runtime::api::AccountParent;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::adapters::Store;
use crate::error::Error;

/// Pause before the bucket is watched again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Prefix of the keys of accounts, of every cluster.
const ACCOUNTS: &str = "*.account";
/// Most accounts of a transaction.
const MAX_BATCH: usize = 500;

/// The parents of accounts, by cluster and account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountTree(HashMap<String, HashMap<String, String>>);

impl AccountTree {
    /// Adds an account, or changes its parent.
    pub fn insert(&mut self, one: AccountParent) {
        let parents = self.0.entry(one.cluster).or_default();
        parents.insert(one.account, one.parent);
    }

    /// True if no account is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, one: &AccountParent) -> bool {
        let parents = self.0.get(&one.cluster);
        parents.and_then(|parents| parents.get(&one.account)) == Some(&one.parent)
    }

    /// True if a cluster has or had the account.
    pub fn knows(&self, account: &str) -> bool {
        self.0.values().any(|parents| parents.contains_key(account))
    }

    /// An account of a cluster and all accounts above it.
    pub fn with_ancestors(&self, cluster: &str, account: &str) -> Vec<String> {
        let mut found = vec![account.to_owned()];
        let Some(parents) = self.0.get(cluster) else {
            return found;
        };
        let mut next = parents.get(account);
        // Deleted accounts keep their parents, so accounts that were moved can be a loop.
        while let Some(parent) = next.filter(|parent| !parent.is_empty() && !found.contains(parent))
        {
            found.push(parent.clone());
            next = parents.get(parent);
        }
        found
    }
}

/// Stores new and changed parents until shutdown, and notifies after each change.
pub(crate) async fn follow(
    store: &Store,
    bus: &Bus,
    changed: &Notify,
    shutdown: &CancellationToken,
) {
    while bus.ready(shutdown).await.is_ok() {
        let followed = tokio::select! {
            () = shutdown.cancelled() => return,
            followed = try_follow(store, bus, changed) => followed,
        };
        if let Err(error) = followed {
            tracing::debug!(
                error = mesh_runtime::error_chain(&error),
                "tree of accounts not followed, retrying"
            );
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
    }
}

async fn try_follow(store: &Store, bus: &Bus, changed: &Notify) -> Result<(), Error> {
    let mut stored = store.account_tree().await?;
    let bucket = bus.bucket(BUCKET_COORDINATORS).await?;
    let entries = bucket.watch(ACCOUNTS).await?;
    let mut batches = pin!(entries.ready_chunks(MAX_BATCH));
    while let Some(batch) = batches.next().await {
        let batch: Vec<BucketEntry> = batch.into_iter().collect::<Result<_, _>>()?;
        let mut newest = newest(&batch);
        newest.retain(|_, one| !stored.has(one));
        if newest.is_empty() {
            continue;
        }
        let mut transaction = store.begin().await?;
        for one in newest.values() {
            transaction.store_account_parent(one).await?;
        }
        transaction.commit().await?;
        for one in newest.into_values() {
            stored.insert(one);
        }
        changed.notify_one();
    }
    Ok(())
}

/// The last value of each key.
fn newest(batch: &[BucketEntry]) -> BTreeMap<&str, AccountParent> {
    let read = |entry: &'_ BucketEntry| -> Option<AccountParent> {
        // Empty after a delete.
        if entry.value.is_empty() {
            return None;
        }
        serde_json::from_slice(&entry.value)
            .inspect_err(
                |error| tracing::warn!(%error, key = entry.key, "parent of an account not read"),
            )
            .ok()
    };
    let entries = batch.iter();
    entries
        .filter_map(|entry| Some((entry.key.as_str(), read(entry)?)))
        .collect()
}

#[cfg(test)]
impl AccountTree {
    /// Of cluster, account and parent.
    pub fn of_test(parents: &[(&str, &str, &str)]) -> Self {
        let mut tree = Self::default();
        for (cluster, account, parent) in parents {
            tree.insert(AccountParent {
                cluster: (*cluster).to_owned(),
                account: (*account).to_owned(),
                parent: (*parent).to_owned(),
            });
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_above_are_those_of_the_cluster_and_a_loop_ends() {
        let tree = AccountTree::of_test(&[
            ("c", "root", ""),
            ("c", "nlp", "root"),
            ("c", "nlp-a", "nlp"),
            ("d", "nlp-a", "vision"),
            ("d", "one", "two"),
            ("d", "two", "three"),
            ("d", "three", "two"),
            ("d", "own", "own"),
        ]);
        for (cluster, account, expected) in [
            ("c", "nlp-a", &["nlp-a", "nlp", "root"][..]),
            ("c", "root", &["root"]),
            ("c", "one", &["one"]),
            ("d", "nlp-a", &["nlp-a", "vision"]),
            ("d", "one", &["one", "two", "three"]),
            ("d", "own", &["own"]),
            ("e", "nlp-a", &["nlp-a"]),
        ] {
            assert_eq!(tree.with_ancestors(cluster, account), expected, "{account}");
        }
        assert!(tree.knows("nlp-a") && !tree.knows("vision"));
    }
}
