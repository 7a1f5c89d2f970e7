//! Accounts of each coordinator, in bucket `mesh_coordinators`, for services that decide what a caller may see.
//!
//! One key per coordinator; only changes are written.

use std::collections::{BTreeMap, BTreeSet};

use mesh_bus::{Bus, ClusterState, PutError};
use mesh_events::catalogue::BUCKET_COORDINATORS;
use mesh_events::subject;
use mesh_runtime::api::Coordinator;
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
    /// Written accounts by key; `None` if a value is unreadable and must be rewritten.
    written: BTreeMap<String, Option<BTreeSet<String>>>,
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
                    let written = entries.into_iter().map(|entry| {
                        let coordinator = serde_json::from_slice(&entry.value).ok();
                        (entry.key, coordinator.map(|one: Coordinator| one.accounts))
                    });
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
        let prefix = subject::token(&self.cluster);
        let mut stale: BTreeSet<String> = self.written.keys().cloned().collect();
        for (entity, known) in known {
            let Entity::User(user) = entity else { continue };
            let accounts = &known.access.coordinates;
            if accounts.is_empty() {
                continue;
            }
            let key = format!("{prefix}.user.{}", subject::token(user));
            stale.remove(&key);
            if self.written.get(&key).and_then(Option::as_ref) == Some(accounts) {
                continue;
            }
            let value = Coordinator {
                cluster: self.cluster.clone(),
                user: user.clone(),
                accounts: accounts.clone(),
            };
            match serde_json::to_vec(&value) {
                Ok(value) => self.state.put(&key, value.into()).await?,
                Err(error) => tracing::warn!(%error, user, "coordinators not written"),
            }
            self.written.insert(key, Some(accounts.clone()));
        }
        for key in stale {
            self.state.delete(&key).await?;
            self.written.remove(&key);
        }
        Ok(())
    }
}
