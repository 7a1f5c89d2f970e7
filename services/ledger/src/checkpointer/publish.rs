//! Publishes checkpoints and the order of entries to NATS, and new keys to the audit.

use mesh_events::catalogue::MESH_ORDER;
use mesh_events::subject;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{Checkpointer, SignerState};
use crate::domain::keys;
use crate::domain::order::{EntryOrder, MAX_ID_PREFIXES, id_prefix};
use crate::error::Error;

/// Maximum number of checkpoints of one size. There are several if keys are rotated while no
/// entries arrive.
const MAX_CHECKPOINTS_PER_SIZE: u32 = 100;

impl Checkpointer {
    /// Publishes the newest checkpoint to NATS, and audit entries of keys. Failures are retried
    /// with the next checkpoint or tick.
    pub(super) async fn publish(&self, state: &mut SignerState) {
        if let Some((size, _)) = &state.unpublished {
            // Published before the checkpoint, so that its readers find the order of its entries.
            let size = *size;
            if let Err(error) = self.publish_order(state, size).await {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, size, "entry order not published, retrying");
            }
        }
        if let Some((size, note)) = &state.unpublished {
            let id = hex::encode(Sha256::digest(note));
            let subject = subject::checkpoint(&state.origin);
            match self
                .bus
                .publish_raw(subject, &id, note.clone().into_bytes())
                .await
            {
                Ok(_) => state.unpublished = None,
                Err(error) => tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    size,
                    "checkpoint not published, retrying"
                ),
            }
        }
        if !state.keys_published {
            match self.publish_keys().await {
                Ok(()) => state.keys_published = true,
                Err(error) => {
                    tracing::warn!(error, "audit entry of signing key not published, retrying")
                }
            }
        }
    }

    /// Publishes the order of the entries up to one, starting where the last message ended.
    async fn publish_order(&self, state: &mut SignerState, up_to: u64) -> Result<(), Error> {
        let subject = subject::order(&state.origin);
        let mut done = match state.ordered {
            Some(done) => done,
            None => {
                let last = self.bus.last_stored(MESH_ORDER, &subject).await;
                let last = last.map_err(Error::Bus)?;
                let order = last.and_then(|message| EntryOrder::decode(&message.body));
                // After the last checkpoint signed before this start, entries may since have
                // arrived in another order.
                let known = order.map_or(0, |order| order.end() - 1);
                known.min(state.signed_before)
            }
        };
        while done < up_to {
            let ids = self
                .store
                .ids(done, up_to.min(done + MAX_ID_PREFIXES))
                .await?;
            if ids.is_empty() {
                break;
            }
            let order = EntryOrder {
                first_seq: done + 1,
                prefixes: ids.iter().map(|id| id_prefix(id)).collect(),
            };
            done = order.end() - 1;
            let body = order.encode();
            let id = hex::encode(Sha256::digest(&body));
            let sent = self.bus.publish_raw(subject.clone(), &id, body).await;
            sent.map_err(Error::Bus)?;
            state.ordered = Some(done);
        }
        Ok(())
    }

    /// Publishes an audit entry for every key that replaced another. Its id is derived from the
    /// key, so publishing it twice is harmless. A key not signed by its predecessor was written
    /// into the table by another party. Publishing it would confirm it.
    async fn publish_keys(&self) -> Result<(), String> {
        let failed = |error: Error| mesh_runtime::error_chain(&error);
        let keys = self.store.checkpoint_keys().await.map_err(failed)?;
        let entries = keys::audit_entries(&keys, &self.cluster);
        for (pair, entry) in keys.windows(2).zip(entries) {
            let known = self.store.seq_of(&entry.id).await.map_err(failed)?;
            if known.is_none() {
                let size = pair[1].from_size.unsigned_abs();
                let notes = self.store.checkpoints(size, MAX_CHECKPOINTS_PER_SIZE).await;
                let notes = notes.map_err(failed)?;
                if !notes
                    .iter()
                    .any(|stored| keys::handed_over(&stored.note, pair))
                {
                    let vkey = &pair[1].vkey;
                    tracing::error!(
                        vkey,
                        "signing key has no hand-over by its predecessor, audit entry withheld; run smesh verify"
                    );
                    continue;
                }
                let subject = subject::audit(&entry.cluster, &entry.kind);
                let sent = self
                    .bus
                    .publish_raw(subject, &entry.id, entry.encode_to_vec())
                    .await;
                sent.map_err(|error| mesh_runtime::error_chain(&error))?;
            }
        }
        Ok(())
    }
}
