//! Checkpoints and proofs, shared by REST and gRPC.
//!
//! Hashes contain no personal data, so every caller may read checkpoints and proofs. A proof by
//! event id requires that the caller may see the event. Exports contain everything, and require
//! that the caller may see everything. Only administrators may rotate the key.

mod grpc;
pub(super) mod recovery;
pub(super) mod rest;

use std::sync::Arc;

use axum::Router;
use ledger_format::chain::Hash;
use ledger_format::merkle::{Range, consistency, inclusion, verify_consistency, verify_inclusion};
use mesh_runtime::api::Caller;

use crate::adapters::Store;
use crate::checkpointer::Checkpointer;
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::export::Header;
use crate::domain::keys::StoredKey;
use crate::domain::query::DEFAULT_PAGE_SIZE;
use crate::domain::tile::tiles;
use crate::error::Error;

const MAX_PAGE: u32 = 1000;

/// Reads checkpoints and proofs from a store, and rotates keys through a checkpointer.
#[derive(Clone)]
pub struct Proofs {
    store: Store,
    checkpointer: Checkpointer,
}

/// The entry to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckpointId {
    Seq(u64),
    Id(String),
}

/// Proof that a ledger of some size includes an entry.
#[derive(Clone, Debug)]
pub(super) struct Inclusion {
    seq: u64,
    leaf: Hash,
    size: u64,
    root: Hash,
    path: Vec<Hash>,
    checkpoint: Option<String>,
}

/// Proof that one ledger is a prefix of another.
#[derive(Clone, Debug)]
pub(super) struct Consistency {
    from: u64,
    from_root: Hash,
    to: u64,
    to_root: Hash,
    path: Vec<Hash>,
    checkpoint: Option<String>,
}

/// A key, and the size of the last checkpoint that it signed.
#[derive(Clone, Debug)]
pub(super) struct KeyInfo {
    key: StoredKey,
    to_size: u64,
}

/// Why there is no proof.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProofError {
    /// The request is invalid.
    #[error("{field}: {fault}")]
    InvalidFilter { field: &'static str, fault: String },
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The entry or checkpoint does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Signing is currently not possible, with the reason.
    #[error("{0}")]
    Conflict(String),
    /// The entries do not match the signed root.
    #[error("the ledger contradicts its checkpoints; run `smesh verify`")]
    Broken,
    #[error(transparent)]
    Store(#[from] Error),
}

fn invalid(field: &'static str, fault: impl Into<String>) -> ProofError {
    ProofError::InvalidFilter {
        field,
        fault: fault.into(),
    }
}

impl Proofs {
    /// Creates the API on a store and a checkpointer.
    pub const fn new(store: Store, checkpointer: Checkpointer) -> Self {
        Self {
            store,
            checkpointer,
        }
    }

    async fn newest(&self) -> Result<StoredCheckpoint, ProofError> {
        let newest = self.store.last_checkpoint().await?;
        newest.ok_or_else(|| {
            ProofError::NotFound(
                "there is no checkpoint yet; the first one is signed a few seconds after the first entry"
                    .into(),
            )
        })
    }

    async fn list(
        &self,
        from: u64,
        limit: Option<u32>,
    ) -> Result<Vec<StoredCheckpoint>, ProofError> {
        let limit = limit.unwrap_or(DEFAULT_PAGE_SIZE);
        if limit == 0 || limit > MAX_PAGE {
            return Err(invalid(
                "limit",
                format!("{limit} is out of range; allowed: 1 to {MAX_PAGE}"),
            ));
        }
        Ok(self.store.checkpoints(from, limit).await?)
    }

    async fn prove_inclusion(
        &self,
        caller: &Caller,
        requested: CheckpointId,
        size: Option<u64>,
    ) -> Result<Inclusion, ProofError> {
        match self.try_inclusion(caller, &requested, size).await {
            Err(ProofError::Broken) if self.repaired().await => {
                self.try_inclusion(caller, &requested, size).await
            }
            result => result,
        }
    }

    async fn prove_consistency(
        &self,
        from: u64,
        to: Option<u64>,
    ) -> Result<Consistency, ProofError> {
        match self.try_consistency(from, to).await {
            Err(ProofError::Broken) if self.repaired().await => {
                self.try_consistency(from, to).await
            }
            result => result,
        }
    }

    /// Rebuilds the stored subtrees after a proof failed. Returns false if that is not possible,
    /// because entries or checkpoints are wrong.
    async fn repaired(&self) -> bool {
        match self.checkpointer.repair().await {
            Ok(()) => true,
            Err(error) => {
                let error = mesh_runtime::error_chain(&error);
                tracing::error!(error, "proof does not verify, run smesh verify");
                false
            }
        }
    }

    async fn try_inclusion(
        &self,
        caller: &Caller,
        requested: &CheckpointId,
        size: Option<u64>,
    ) -> Result<Inclusion, ProofError> {
        let size = self.size("size", size).await?;
        let seq = match requested {
            CheckpointId::Seq(seq) => *seq,
            CheckpointId::Id(id) => {
                let seq = self.store.visible_seq_of(id, &caller.visibility()).await?;
                seq.ok_or_else(|| {
                    ProofError::NotFound(format!("no entry with id {id}, or you may not see it"))
                })?
            }
        };
        let beyond = || {
            invalid(
                "seq",
                format!("{seq} is not in a ledger of {size} entries; allowed: 1 to {size}"),
            )
        };
        let index = seq.checked_sub(1).ok_or_else(beyond)?;
        let path = inclusion(index, size).map_err(|_| beyond())?;
        let leaf = self.store.leaf(seq).await?.ok_or(ProofError::Broken)?;
        let (path, [root]) = self.hashes(path, [size]).await?;
        let checkpoint = self.checked(size, &root).await?;
        if !verify_inclusion(&leaf, index, size, &path, &root) {
            return Err(ProofError::Broken);
        }
        Ok(Inclusion {
            seq,
            leaf,
            size,
            root,
            path,
            checkpoint,
        })
    }

    async fn try_consistency(&self, from: u64, to: Option<u64>) -> Result<Consistency, ProofError> {
        let to = self.size("to", to).await?;
        let beyond = || {
            invalid(
                "from",
                format!("{from} is not a size of a ledger with {to} entries; allowed: 1 to {to}"),
            )
        };
        if from == 0 {
            return Err(beyond());
        }
        let path = consistency(from, to).map_err(|_| beyond())?;
        let (path, [from_root, to_root]) = self.hashes(path, [from, to]).await?;
        self.checked(from, &from_root).await?;
        let checkpoint = self.checked(to, &to_root).await?;
        if !verify_consistency(from, &from_root, to, &to_root, &path) {
            return Err(ProofError::Broken);
        }
        Ok(Consistency {
            from,
            from_root,
            to,
            to_root,
            path,
            checkpoint,
        })
    }

    /// Returns a signed size: beyond the newest checkpoint the tree is not stored yet.
    async fn size(&self, field: &'static str, size: Option<u64>) -> Result<u64, ProofError> {
        let newest = self.newest().await?.size.unsigned_abs();
        match size {
            None => Ok(newest),
            Some(size) if (1..=newest).contains(&size) => Ok(size),
            Some(size) => Err(invalid(
                field,
                format!(
                    "no checkpoint covers size {size}; allowed: 1 to {newest}, the newest checkpoint"
                ),
            )),
        }
    }

    /// Returns the hashes of ranges, and the roots of sizes.
    async fn hashes<const N: usize>(
        &self,
        mut ranges: Vec<Range>,
        sizes: [u64; N],
    ) -> Result<(Vec<Hash>, [Hash; N]), ProofError> {
        let count = ranges.len();
        ranges.extend(sizes.map(|end| Range { start: 0, end }));
        let read = self.store.tiles(tiles(&ranges)).await?;
        let mut hashes = read.hashes(&ranges).ok_or(ProofError::Broken)?;
        let roots = hashes.split_off(count);
        Ok((hashes, roots.try_into().map_err(|_| ProofError::Broken)?))
    }

    /// Returns the note of the checkpoint of a size, if it exists. Its root must equal `root`.
    async fn checked(&self, size: u64, root: &Hash) -> Result<Option<String>, ProofError> {
        match self.store.checkpoint_of(size).await? {
            None => Ok(None),
            Some(stored) if stored.root == root => Ok(Some(stored.note)),
            Some(_) => Err(ProofError::Broken),
        }
    }

    async fn keys(&self) -> Result<Vec<KeyInfo>, ProofError> {
        let keys = self.store.checkpoint_keys().await?;
        let newest = self.store.last_checkpoint().await?;
        let newest = newest.map_or(0, |newest| newest.size.unsigned_abs());
        let next = keys.iter().skip(1).map(|key| key.from_size.unsigned_abs());
        let known = keys.iter().cloned().zip(next.chain([newest]));
        Ok(known
            .map(|(key, to_size)| KeyInfo { key, to_size })
            .collect())
    }

    async fn rotate(
        &self,
        caller: &Caller,
    ) -> Result<(KeyInfo, Option<StoredCheckpoint>), ProofError> {
        if !caller.may_write() {
            return Err(ProofError::Forbidden(
                "only administrators may rotate the key",
            ));
        }
        match self.checkpointer.rotate(&caller.name).await {
            Ok((key, checkpoint)) => {
                let to_size = key.from_size.unsigned_abs();
                Ok((KeyInfo { key, to_size }, checkpoint))
            }
            Err(error @ (Error::NoKey(_) | Error::Inconsistent(_) | Error::KeyUnfit { .. })) => {
                Err(ProofError::Conflict(mesh_runtime::error_chain(&error)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the header of an export from an entry to the newest checkpoint, and the size of that
    /// checkpoint.
    async fn header(&self, caller: &Caller, from: u64) -> Result<(Header, u64), ProofError> {
        if !caller.sees_everything() {
            return Err(ProofError::Forbidden(
                "an export contains all entries; only administrators and auditors may create it",
            ));
        }
        let newest = self.newest().await?;
        let size = newest.size.unsigned_abs();
        if from == 0 || from > size {
            return Err(invalid(
                "from",
                format!("no checkpoint covers entry {from}; allowed: 1 to {size}"),
            ));
        }
        let header = self.store.export_header(from, newest.note).await?;
        Ok((header, size))
    }
}

/// Returns the root in the note, for readers who do not verify it.
fn root_of(stored: &StoredCheckpoint) -> Option<Hash> {
    Checkpoint::unverified(&stored.note)
        .ok()
        .map(|checkpoint| checkpoint.root)
}

/// Returns the route of exports, which contain data of all users.
pub fn export_router(proofs: Arc<Proofs>) -> Router {
    rest::export_router(proofs)
}

/// Returns the REST and gRPC routes of checkpoints and proofs, which contain no personal data.
pub fn router(proofs: Arc<Proofs>) -> Router {
    rest::router(Arc::clone(&proofs))
        .merge(recovery::router(Arc::clone(&proofs)))
        .merge(grpc::router(proofs))
}
