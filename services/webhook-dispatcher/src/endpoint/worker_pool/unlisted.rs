//! Removes the endpoints that no `mesh.toml` lists any more.

use std::collections::BTreeMap;

use chrono::TimeDelta;

use super::WorkerPool;
use crate::clock;
use crate::error::Error;
use crate::store::endpoints::{Activity, EndpointSummary, Source};
use crate::store::ownership::Replica;

/// Grace period before an endpoint listed in no `mesh.toml` is removed: its dispatchers may only be restarting.
const UNLISTED_AFTER: TimeDelta = TimeDelta::minutes(10);

impl WorkerPool {
    /// Records endpoints that are listed in no `mesh.toml`, and removes them after the grace period.
    pub(super) async fn remove_from_config(
        &self,
        replicas: &[Replica],
        summaries: &BTreeMap<String, EndpointSummary>,
    ) -> Result<(), Error> {
        let store = &self.shared.store;
        let now = clock::now();
        let grace = if store.is_shared() {
            UNLISTED_AFTER
        } else {
            TimeDelta::zero()
        };
        for (name, summary) in summaries {
            if summary.source != Source::File || summary.activity == Activity::Removed {
                continue;
            }
            let listed = replicas.iter().any(|replica| replica.files.contains(name));
            match summary.unlisted_at {
                Some(_) if listed => store.remove_from_config(name, None).await?,
                None if !listed => {
                    store.remove_from_config(name, Some(now)).await?;
                    self.wake();
                }
                // Written while a clock was ahead.
                Some(since) if since > now + UNLISTED_AFTER => {
                    store.remove_from_config(name, Some(now)).await?;
                }
                Some(since) if now - since >= grace => {
                    tracing::info!(
                        endpoint = name,
                        "endpoint is no longer in any mesh.toml, removing it"
                    );
                    let (state, reason) = (Activity::Removed, "removed from the configuration");
                    let removed = store.set_activity(name, state, reason, now, None, &[]);
                    removed.await?;
                    self.wake();
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}
