//! The stored subtrees, from which a start restores the tree and proofs are computed. They follow
//! from the entries, so wrong ones can be rebuilt.

use ledger_format::chain::Hash;
use ledger_format::merkle::{Frontier, Node, Range};

use super::{genuine, same};
use crate::adapters::{SignedCheckpoint, Store};
use crate::domain::checkpoint::Checkpoint;
use crate::domain::note::PublicKey;
use crate::domain::tile::tiles;
use crate::error::Error;
use crate::metrics;

/// Subtrees to store.
#[derive(Default)]
pub(super) struct Subtrees {
    pub made: Vec<(Node, Hash)>,
    /// True if they replace all stored subtrees, which do not match the signed root.
    pub rebuilt: bool,
}

impl Subtrees {
    pub async fn store(self, store: &Store) -> Result<(), Error> {
        let signed = SignedCheckpoint {
            subtrees: self.made,
            subtrees_rebuilt: self.rebuilt,
            ..SignedCheckpoint::default()
        };
        store.store_checkpoint(&signed).await?;
        if self.rebuilt {
            metrics::subtrees_repaired();
        }
        Ok(())
    }
}

/// Restores the tree of a checkpoint from the stored subtrees. If these are missing or wrong, it is
/// rebuilt from all leaves, and the result contains the subtrees to store.
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

/// Recomputes all stored subtrees from the entries up to the newest checkpoint.
///
/// # Errors
/// [`Error::Inconsistent`] if the entries themselves are wrong.
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
    Ok((
        tree,
        Subtrees {
            made,
            rebuilt: true,
        },
    ))
}
