//! Continues a ledger whose history cannot be recovered under another origin, and records that
//! permanently.
//!
//! Keys of both origins sign the first checkpoint of the new origin. It covers an audit entry that
//! names the former origin and its newest known checkpoint. So the holder of a checkpoint of the
//! former origin sees that it is not continued.

use bytes::Bytes;
use chrono::Utc;
use ledger_format::merkle::Frontier;
use mesh_events::catalogue::{MESH_AUDIT, MESH_CHECKPOINTS};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::subject;
use prost::Message as _;

use super::key::new_key;
use super::published_checkpoints::{NewestFirst, read_published};
use super::subtrees::{Subtrees, tree_at};
use super::{Checkpointer, SignerState};
use crate::adapters::BatchSequences;
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::history_audit;
use crate::domain::keys::{self, StoredKey};
use crate::domain::record::Record;
use crate::error::Error;
use crate::metrics;

impl Checkpointer {
    /// Continues with the existing entries under another origin.
    ///
    /// # Errors
    /// [`Error::NotResumed`] if nothing contradicts the ledger, or the name is not a valid origin.
    pub async fn begin_origin(
        &self,
        origin: &str,
        reason: &str,
        made_by: &str,
    ) -> Result<StoredCheckpoint, Error> {
        let mut state = self.state.lock().await;
        match self.ready(&mut state).await {
            Err(Error::Inconsistent(_)) => {}
            Err(error) => return Err(error),
            Ok(_) => {
                return Err(Error::NotResumed(
                    "nothing contradicts the ledger, so it keeps its origin".to_owned(),
                ));
            }
        }
        let stored = self.store.checkpoint_keys().await?;
        let used = |key: &StoredKey| key.vkey.starts_with(&format!("{origin}+"));
        if origin == state.origin || stored.iter().any(used) {
            return Err(Error::NotResumed(format!(
                "{origin} is or was its origin; choose another one"
            )));
        }
        let new = new_key(origin)?;
        // A key created after the backup is unknown to the database and cannot sign a hand-over.
        self.load_key(&mut state, &stored).await?;
        let Some(former) = state.key.clone() else {
            return Err(Error::NoKey(
                "the key of the former origin, which signs the hand-over, is not on this host"
                    .to_owned(),
            ));
        };
        let former_checkpoint = self.newest_known(&state).await?;
        let before = self.store.head().await?.seq;
        let origins = [origin, &state.origin];
        let entry = history_audit::new_origin(
            origins,
            &former_checkpoint,
            before,
            &self.cluster,
            [made_by, reason],
        );
        self.file.write_next(&new)?;
        let subject = subject::audit(&entry.cluster, &entry.kind);
        let record = Record::audit(&subject, Bytes::from(entry.encode_to_vec()));
        let record =
            record.map_err(|error| Error::NotResumed(mesh_runtime::error_chain(&error)))?;
        let nothing = BatchSequences::Nothing;
        self.store
            .append_recovered(before, MESH_AUDIT, &nothing, &[record])
            .await?;

        (state.tree, state.compared) = (Frontier::default(), false);
        let mut tree = Frontier::default();
        let made = self.store.grow(&mut tree, before + 1).await?;
        state.tree = tree;
        let subtrees = Subtrees {
            made,
            rebuilt: false,
        };
        let last = self.store.last_checkpoint().await?;
        let row = StoredKey {
            number: stored.last().map_or(1, |key| key.number + 1),
            vkey: new.public().to_string(),
            from_size: state.tree.size().cast_signed(),
            made_at: Utc::now().timestamp_micros(),
            made_by: made_by.to_owned(),
        };
        let former_origin = std::mem::replace(&mut state.origin, origin.to_owned());
        let number = last.map_or(1, |last| last.number + 1);
        let signed = self
            .sign(&mut state, number, &[&former, &new], subtrees, Some(row))
            .await?;
        let Some(Some(checkpoint)) = signed else {
            self.file.drop_next()?;
            return Err(Error::NoKey(
                "another replica signed a checkpoint at the same time; try again".to_owned(),
            ));
        };
        self.file.use_next()?;
        state.key = Some(new);
        (state.published, state.ordered, state.keys_published) = (None, None, false);
        self.store.clear_signed_size();
        self.note_signed(&state);
        tracing::warn!(
            origin,
            former_origin,
            by = made_by,
            "ledger continues under a new origin"
        );
        self.publish_entry(&entry).await;
        self.publish(&mut state).await;
        Ok(checkpoint)
    }

    /// Returns the note of the largest known checkpoint of the former origin.
    async fn newest_known(&self, state: &SignerState) -> Result<String, Error> {
        let subject = subject::checkpoint(&state.origin);
        let mut walk = NewestFirst::new(&self.bus, MESH_CHECKPOINTS, &subject).await?;
        let published = walk.next().await?;
        // The checkpoint may be signed by an unknown key; its note is used unverified.
        let published =
            published.map(|message| String::from_utf8_lossy(&message.body).into_owned());
        let last = self.store.last_checkpoint().await?.map(|last| last.note);
        let size = |note: &String| Checkpoint::unverified(note).map_or(0, |one| one.size);
        let known = [published, self.file.last_note()?, last];
        Ok(known
            .into_iter()
            .flatten()
            .max_by_key(size)
            .unwrap_or_default())
    }

    /// Publishes an audit entry, unless the ledger already has it.
    pub(super) async fn publish_audit(&self, entry: &AuditEntry) {
        let known = self.store.seq_of(&entry.id).await;
        if !matches!(known, Ok(Some(_))) {
            self.publish_entry(entry).await;
        }
    }

    async fn publish_entry(&self, entry: &AuditEntry) {
        let subject = subject::audit(&entry.cluster, &entry.kind);
        let sent = self
            .bus
            .publish_raw(subject, &entry.id, entry.encode_to_vec());
        if let Err(error) = sent.await {
            let error = mesh_runtime::error_chain(&error);
            tracing::warn!(error, "audit entry about the history not published");
        }
    }

    /// Publishes that a checkpoint on the bus contradicts the ledger.
    pub(super) async fn publish_contradiction(&self) {
        if let Err(error) = self.try_publish_contradiction().await {
            let error = mesh_runtime::error_chain(&error);
            tracing::debug!(error, "contradiction not published");
        }
    }

    async fn try_publish_contradiction(&self) -> Result<(), Error> {
        let stored = self.store.checkpoint_keys().await?;
        let origin = keys::origin(&stored, &self.origin);
        let keys = self.known_keys(&stored)?;
        let subject = subject::checkpoint(&origin);
        let newest = self
            .bus
            .last_stored(MESH_CHECKPOINTS, &subject)
            .await
            .map_err(Error::Bus)?;
        let Some(message) = newest else { return Ok(()) };
        if let Some(checkpoint) = read_published(&origin, &message, &keys)? {
            let note = String::from_utf8_lossy(&message.body);
            self.report(&origin, &checkpoint, &note).await?;
        }
        Ok(())
    }

    /// Checks a reported checkpoint, and publishes a contradiction.
    ///
    /// # Errors
    /// [`Error::NotResumed`] if no key of the ledger has signed it.
    pub async fn contradicted_by(&self, note: &str) -> Result<Option<String>, Error> {
        let stored = self.store.checkpoint_keys().await?;
        let keys = self.known_keys(&stored)?;
        let (checkpoint, _) = Checkpoint::open(note, &keys)
            .map_err(|error| Error::NotResumed(mesh_runtime::error_chain(&error)))?;
        let origin = checkpoint.origin.clone();
        self.report(&origin, &checkpoint, note).await
    }

    async fn report(
        &self,
        origin: &str,
        checkpoint: &Checkpoint,
        note: &str,
    ) -> Result<Option<String>, Error> {
        let entries = self.store.head().await?.seq;
        let why = if checkpoint.size > entries {
            format!(
                "the ledger has {entries} entries, the checkpoint counts {}",
                checkpoint.size
            )
        } else {
            match tree_at(&self.store, Some(checkpoint)).await {
                Ok(_) => return Ok(None),
                Err(Error::Inconsistent(why)) => why,
                Err(error) => return Err(error),
            }
        };
        metrics::contradicted();
        tracing::error!(
            origin,
            size = checkpoint.size,
            why,
            "signed checkpoint contradicts the ledger"
        );
        self.publish_audit(&history_audit::contradicted(
            origin,
            note,
            &self.cluster,
            &why,
        ))
        .await;
        Ok(Some(why))
    }
}
