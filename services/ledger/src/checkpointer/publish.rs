//! Telling others: checkpoints go to NATS, new keys to the audit.

use mesh_events::subject;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{Checkpointer, State};
use crate::domain::keys;

impl Checkpointer {
    /// Gives NATS the newest checkpoint, and the audit its entries. What fails is tried again with the next checkpoint or tick.
    pub(super) async fn publish(&self, state: &mut State) {
        if let Some((size, note)) = &state.unpublished {
            let id = hex::encode(Sha256::digest(note));
            let subject = subject::checkpoint(&self.origin);
            match self
                .bus
                .publish_raw(subject, &id, note.clone().into_bytes())
                .await
            {
                Ok(_) => state.unpublished = None,
                Err(error) => tracing::warn!(
                    error = mesh_runtime::chain(&error),
                    size,
                    "publish checkpoint, trying again"
                ),
            }
        }
        if !state.announced {
            match self.announce_keys().await {
                Ok(()) => state.announced = true,
                Err(error) => {
                    tracing::warn!(error, "publish the audit entry of a key, trying again")
                }
            }
        }
    }

    /// Every key that replaced another has an entry in the audit. Its id follows from the key, so that saying it again does no harm.
    async fn announce_keys(&self) -> Result<(), String> {
        let keys = self.store.checkpoint_keys().await;
        let keys = keys.map_err(|error| mesh_runtime::chain(&error))?;
        for entry in keys::audit_entries(&keys, &self.cluster) {
            let known = self.store.seq_of(&entry.id).await;
            if known
                .map_err(|error| mesh_runtime::chain(&error))?
                .is_none()
            {
                let subject = subject::audit(&entry.cluster, &entry.kind);
                let sent = self
                    .bus
                    .publish_raw(subject, &entry.id, entry.encode_to_vec())
                    .await;
                sent.map_err(|error| mesh_runtime::chain(&error))?;
            }
        }
        Ok(())
    }
}
