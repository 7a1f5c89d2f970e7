//! The stored subtrees: out of them the tree goes on at a start, and proofs are made. They follow from the entries, so wrong ones are made anew.

use ledger_format::chain::Hash;
use ledger_format::merkle::{Frontier, Node, Range};

use super::{genuine, same};
use crate::adapters::{SignedCheckpoint, Store};
use crate::domain::checkpoint::Checkpoint;
use crate::domain::note::PublicKey;
use crate::domain::tile::tiles;
use crate::error::Error;
use crate::metrics;

/// Subtrees to be stored.
#[derive(Default)]
pub(super) struct Subtrees {
    pub made: Vec<(Node, Hash)>,
    /// They take the place of all that are stored, which do not give what was signed.
    pub anew: bool,
}

impl Subtrees {
    pub async fn store(self, store: &Store) -> Result<(), Error> {
        let signed = SignedCheckpoint {
            subtrees: self.made,
            subtrees_anew: self.anew,
            ..SignedCheckpoint::default()
        };
        store.store_checkpoint(&signed).await?;
        if self.anew {
            metrics::subtrees_repaired();
        }
        Ok(())
    }
}

/// The tree of a checkpoint: out of the stored subtrees, or, if those are missing or wrong, out of all leaves, with the subtrees to store.
pub(super) async fn tree_at(
    store: &Store,
    checkpoint: Option<&Checkpoint>,
) -> Result<(Frontier, Subtrees), Error> {
    let Some(checkpoint) = checkpoint else {
        return Ok(Default::default());
    };
    let whole = Range {
        start: 0,
        end: checkpoint.size,
    };
    let stored = store.tiles(tiles(&[whole])).await?;
    if let Some(tree) = stored.frontier(checkpoint.size)
        && tree.root() == checkpoint.root
    {
        return Ok((tree, Subtrees::default()));
    }
    tracing::warn!(
        size = checkpoint.size,
        "stored subtrees do not match the newest checkpoint, rebuilding from all leaves"
    );
    tree_of_leaves(store, checkpoint).await
}

/// Computes every stored subtree again from the entries, up to the newest checkpoint.
///
/// # Errors
/// [`Error::Inconsistent`] if it is the entries that are wrong.
pub async fn repair_subtrees(store: &Store) -> Result<(), Error> {
    let keys = store.checkpoint_keys().await?;
    let keys: Vec<PublicKey> = keys
        .iter()
        .filter_map(|key| key.vkey.parse().ok())
        .collect();
    let Some(last) = store.last_checkpoint().await? else {
        return Ok(());
    };
    let (tree, subtrees) = tree_of_leaves(store, &genuine(&last, &keys)?).await?;
    subtrees.store(store).await?;
    tracing::warn!(
        size = tree.size(),
        "stored subtrees did not match the entries, rebuilt"
    );
    Ok(())
}

async fn tree_of_leaves(
    store: &Store,
    checkpoint: &Checkpoint,
) -> Result<(Frontier, Subtrees), Error> {
    let mut tree = Frontier::default();
    let made = store.grow(&mut tree, checkpoint.size).await?;
    same(Some(tree.root()), checkpoint)?;
    Ok((tree, Subtrees { made, anew: true }))
}
