//! Recovers the lost history of a restored ledger from the bus.
//!
//! A signed checkpoint determines the result: only one order of the messages has its root. The
//! messages on `MESH_ORDER` give that order. All leaves are computed first and compared with this
//! checkpoint and all earlier ones. Only then are entries written. An interrupted recovery
//! continues from the entries that it has written.

mod checkpoints;
mod entries;

use ledger_format::chain::Hash;
use ledger_format::merkle::{Frontier, Node};

use self::checkpoints::{KnownHistory, PublishedCheckpoint, add, to_store};
use self::entries::RecoveryPlan;
use super::subtrees::tree_at;
use super::{Checkpointer, same};
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::history_audit::{self, Resumed};
use crate::domain::keys::{self, StoredKey};
use crate::domain::tile::grow;
use crate::error::Error;

impl Checkpointer {
    /// Recovers the entries up to a checkpoint: the given one, or the newest known.
    ///
    /// # Errors
    /// [`Error::NotResumed`] if entries are missing on the bus, [`Error::Inconsistent`] if the
    /// entries differ. Nothing is written then.
    pub async fn resume(&self, note: Option<&str>, made_by: &str) -> Result<Resumed, Error> {
        let mut state = self.state.lock().await;
        let stored = self.store.checkpoint_keys().await?;
        state.origin = keys::origin(&stored, &self.origin);
        self.load_last_note(&mut state)?;
        let keys = self.known_keys(&stored)?;
        let from = self.store.head().await?.seq;
        let last = self.store.last_checkpoint().await?;
        let known = KnownHistory::of(last.as_ref(), &stored);
        let mut published = self.published_beyond(&state.origin, &keys, &known).await?;
        // A checkpoint signed on this host may not have reached the bus. One of another origin or
        // key is ignored.
        if let (None, Some(last)) = (note, self.file.last_note()?) {
            add(&mut published, last, &state.origin, &keys).ok();
        }
        if let Some(note) = note {
            add(&mut published, note.to_owned(), &state.origin, &keys)?;
            let target_size =
                Checkpoint::unverified(note).map_or(0, |target_size| target_size.size);
            published.retain(|one| one.checkpoint.size <= target_size);
        }
        let Some(target) = published.last() else {
            return Err(Error::NotResumed(format!(
                "no known checkpoint covers more than the {from} entries of the ledger"
            )));
        };
        let (target, note) = (target.checkpoint.clone(), target.note.clone());
        let to = target.size;
        let resumed = Resumed {
            origin: state.origin.clone(),
            from,
            to,
            note,
        };
        // The entries may be there without their checkpoints: the database was copied before these
        // were stored.
        published.retain(|one| known.lacks(one, &keys));
        if published.is_empty() {
            tree_at(&self.store, Some(&target)).await?;
            return Ok(resumed);
        }
        let found = match to > from {
            true => self.find(&state.origin, from, to).await?,
            false => Vec::new(),
        };
        let is_stored = self
            .store_recovered(last, stored, from, &found, &published)
            .await?;
        if !is_stored {
            return Err(Error::NotResumed(
                "another replica stored a checkpoint in the meantime; try again".to_owned(),
            ));
        }
        if to <= from {
            (state.compared, state.ordered) = (false, None);
            return Ok(resumed);
        }
        let signed = state.signed.as_ref().map_or(0, |signed| signed.size);
        if to > signed {
            self.file.write_last_note(&resumed.note)?;
            state.signed = published.pop().map(|last| last.checkpoint);
        }
        (state.compared, state.ordered) = (false, None);
        tracing::warn!(from, to, by = made_by, "ledger resumed from the bus");
        self.publish_audit(&history_audit::resumed(&resumed, &self.cluster, made_by))
            .await;
        Ok(resumed)
    }

    /// Stores the published checkpoints up to a size that the ledger already has. Those of a
    /// database that was copied before they were stored are only on the bus.
    pub(super) async fn store_published(
        &self,
        origin: &str,
        last: Option<StoredCheckpoint>,
        stored: Vec<StoredKey>,
        size: u64,
    ) -> Result<(), Error> {
        let keys = self.known_keys(&stored)?;
        let known = KnownHistory::of(last.as_ref(), &stored);
        let mut published = self.published_beyond(origin, &keys, &known).await?;
        published.retain(|one| known.lacks(one, &keys) && one.checkpoint.size <= size);
        let count = published.len();
        // If another replica was faster, there is nothing left to do.
        if self
            .store_recovered(last, stored, size, &[], &published)
            .await?
        {
            tracing::warn!(count, size, "published checkpoints stored again");
        }
        Ok(())
    }

    /// Stores recovered entries and published checkpoints. Returns false if another replica stored
    /// a checkpoint meanwhile.
    async fn store_recovered(
        &self,
        last: Option<StoredCheckpoint>,
        stored: Vec<StoredKey>,
        from: u64,
        found: &[RecoveryPlan],
        published: &[PublishedCheckpoint],
    ) -> Result<bool, Error> {
        let keys = self.known_keys(&stored)?;
        let number = last.map_or(0, |last| last.number);
        let made = self.keys_made().await?;
        let mut signed = to_store(number, stored, &keys, published, &made)?;
        let subtrees = self.prove(from, found, published).await?;
        self.append_recovered(from, found).await?;
        if let Some(first) = signed.first_mut() {
            first.subtrees = subtrees;
        }
        for signed in &signed {
            if !self.store.store_checkpoint(signed).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares the entries with every checkpoint, and returns the completed subtrees.
    async fn prove(
        &self,
        from: u64,
        found: &[RecoveryPlan],
        published: &[PublishedCheckpoint],
    ) -> Result<Vec<(Node, Hash)>, Error> {
        let mut tree = Frontier::default();
        let mut subtrees = Vec::new();
        let mut leaves = found.iter();
        for one in published {
            let stored = one.checkpoint.size.min(from);
            if stored > tree.size() {
                subtrees.extend(self.store.grow(&mut tree, stored).await?);
            }
            while tree.size() < one.checkpoint.size {
                let Some(next) = leaves.next() else { break };
                grow(&mut tree, next.leaf, &mut subtrees);
            }
            same(Some(tree.root()), &one.checkpoint)?;
        }
        Ok(subtrees)
    }
}
