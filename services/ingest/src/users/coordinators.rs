//! Accounts of each coordinator, in bucket `mesh_coordinators`, for services that decide what a caller may see. Beside them the parent
//! of each account, for budgets.
//!
//! One key per coordinator and one per account; only changes are written.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mesh_bus::{Bus, ClusterState, PutError};
use mesh_events::catalogue::BUCKET_COORDINATORS;
use mesh_events::subject;
use mesh_runtime::api::{AccountParent, Coordinator};
use mesh_runtime::error_chain;
use tokio_util::sync::CancellationToken;

use super::access::Entity;
use super::access_store::StoredAccess;
use crate::Error;
use crate::adapters::fenced::{BACKOFF, pause};

/// Returns coordinators with their accounts, without Slurm administrators, who have more rights everywhere.
pub fn coordinators_by_user(
    known: &BTreeMap<Entity, StoredAccess>,
) -> BTreeMap<String, BTreeSet<String>> {
    let coordinators = known.iter().filter_map(|(entity, known)| {
        let Entity::User(user) = entity else {
            return None;
        };
        let level = known.access.settings.get("AdminLevel");
        let is_admin = level.is_some_and(|level| !level.eq_ignore_ascii_case("none"));
        let accounts = &known.access.coordinates;
        (!is_admin && !accounts.is_empty()).then(|| (user.clone(), accounts.clone()))
    });
    coordinators.collect()
}

/// The bucket's keys of the cluster, fenced against other ingests.
pub struct Coordinators {
    state: ClusterState,
    cluster: String,
    /// Values by key.
    written: BTreeMap<String, Bytes>,
}

impl Coordinators {
    /// Takes over the existing keys. Retries until success.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn take_over(
        bus: &Bus,
        cluster: &str,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let mut backoff = BACKOFF;
        loop {
            match bus
                .take_over(BUCKET_COORDINATORS, &subject::token(cluster))
                .await
            {
                Ok((state, entries)) => {
                    let written = entries.into_iter().map(|entry| (entry.key, entry.value));
                    return Ok(Self {
                        state,
                        cluster: cluster.to_owned(),
                        written: written.collect(),
                    });
                }
                Err(error) => {
                    tracing::debug!(error = error_chain(&error), "coordinators takeover failed");
                    pause(shutdown, &mut backoff).await?;
                }
            }
        }
    }

    /// Writes the changes. A failed write is repeated at the next call.
    ///
    /// # Errors
    /// [`Error::Fenced`] if another ingest has taken over.
    pub async fn publish(&mut self, known: &BTreeMap<Entity, StoredAccess>) -> Result<(), Error> {
        match self.write(known).await {
            Ok(()) => Ok(()),
            Err(PutError::Conflict { key }) => Err(Error::Fenced {
                bucket: BUCKET_COORDINATORS,
                key,
            }),
            Err(PutError::Bus(error)) => {
                tracing::debug!(error = error_chain(&error), "coordinators not written");
                Ok(())
            }
        }
    }

    async fn write(&mut self, known: &BTreeMap<Entity, StoredAccess>) -> Result<(), PutError> {
        self.state.check().await?;
        let wanted = values(&self.cluster, known);
        let mut stale: BTreeSet<String> = self.written.keys().cloned().collect();
        for (key, value) in wanted {
            stale.remove(&key);
            if self.written.get(&key) != Some(&value) {
                self.state.put(&key, value.clone()).await?;
                self.written.insert(key, value);
            }
        }
        for key in stale {
            self.state.delete(&key).await?;
            self.written.remove(&key);
        }
        Ok(())
    }
}

/// What the bucket should have of the cluster, by key.
fn values(cluster: &str, known: &BTreeMap<Entity, StoredAccess>) -> BTreeMap<String, Bytes> {
    let of_entity = |(entity, known): (&Entity, &StoredAccess)| {
        let access = &known.access;
        let (name, value) = match entity {
            Entity::User(user) if !access.coordinates.is_empty() => {
                let value = Coordinator {
                    cluster: cluster.to_owned(),
                    user: user.clone(),
                    accounts: access.coordinates.clone(),
                };
                (user, serde_json::to_vec(&value))
            }
            Entity::Account(account) => {
                let settings = &access.associations.first()?.settings;
                let value = AccountParent {
                    cluster: cluster.to_owned(),
                    account: account.clone(),
                    parent: settings.get("Parent").cloned().unwrap_or_default(),
                };
                (account, serde_json::to_vec(&value))
            }
            Entity::User(_) => return None,
        };
        let key = [
            &*subject::token(cluster),
            entity.kind(),
            &*subject::token(name),
        ]
        .join(".");
        let value = value.inspect_err(
            |error| tracing::warn!(%error, key, "key of mesh_coordinators not written"),
        );
        Some((key, value.ok()?.into()))
    };
    known.iter().filter_map(of_entity).collect()
}
