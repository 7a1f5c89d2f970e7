//! Signs checkpoints every few seconds when there are new entries.
//!
//! A checkpoint must never contradict an earlier one. Before each signature the tree is compared
//! with three checkpoints:
//!
//! - the newest one stored in the database;
//! - the newest one signed on this host, from a file next to the key;
//! - the newest one on the bus, which restoring a backup of this host cannot revert.
//!
//! At the start, and whenever they cosign, witnesses compare it with what they have cosigned. If they differ, entries were tampered with or an old backup was restored. Nothing is signed
//! then; readiness, log and metric report it. Nothing is appended to a ledger that was restored
//! from an old backup either.
//!
//! Several replicas may share a ledger. Those with the key sign; the database accepts only one of
//! several concurrent checkpoints. A replica without the key serves queries and proofs, and reports
//! a problem only if no other replica signs.

mod key;
mod origin;
mod publish;
mod published_checkpoints;
mod resume;
mod subtrees;

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use ledger_format::chain::Hash;
use ledger_format::merkle::Frontier;
use mesh_bus::Bus;
use mesh_runtime::Condition;
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior};

use crate::adapters::{KeyFile, SignedCheckpoint, Store};
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::keys::{self, StoredKey};
use crate::domain::note::{PrivateKey, PublicKey};
use crate::error::Error;
use crate::metrics;
use crate::witness::{Growth, Witnesses};
use key::new_key;

pub use self::subtrees::repair_subtrees;
use self::subtrees::{Subtrees, tree_at};

/// Maximum age of unsigned entries before a replica without the key reports a problem.
const MAX_UNSIGNED_AGE: Duration = Duration::from_secs(60);
/// Minimum interval between repairs of the subtrees.
const REPAIR_INTERVAL: Duration = Duration::from_secs(60);

/// Signs checkpoints. Cheap to clone.
#[derive(Clone)]
pub struct Checkpointer {
    store: Store,
    bus: Bus,
    file: KeyFile,
    origin: Arc<str>,
    cluster: Arc<str>,
    witnesses: Option<Arc<Witnesses>>,
    state: Arc<Mutex<SignerState>>,
}

/// State between checkpoints.
#[derive(Default)]
struct SignerState {
    key: Option<PrivateKey>,
    tree: Frontier,
    /// Newest checkpoint signed on this host.
    signed: Option<Checkpoint>,
    /// Newest checkpoint on the bus.
    published: Option<Checkpoint>,
    /// True once the bus was read since the start.
    published_compared: bool,
    /// True while the tree has been compared with all checkpoints since the start.
    compared: bool,
    /// The configured origin, or the one under which the ledger was continued.
    origin: String,
    /// Size of the newest checkpoint stored at the start.
    signed_before: u64,
    /// Last entry whose order is published; `None` at the start.
    ordered: Option<u64>,
    /// Note that is not yet published to NATS.
    unpublished: Option<(u64, String)>,
    /// True once every new key has its audit entry.
    keys_published: bool,
    /// Time of the last rebuild of the subtrees.
    repaired: Option<Instant>,
}

/// The current tree, consistent with all checkpoints.
struct Signer {
    last: Option<StoredCheckpoint>,
    keys: Vec<StoredKey>,
    key: PrivateKey,
    size: u64,
    subtrees: Subtrees,
}

impl Checkpointer {
    /// Creates a checkpointer for an origin, with the key in a file.
    pub fn new(store: Store, bus: Bus, file: KeyFile, origin: &str, cluster: &str) -> Self {
        Self {
            store,
            bus,
            file,
            origin: origin.into(),
            cluster: cluster.into(),
            witnesses: None,
            state: Arc::default(),
        }
    }

    /// Sets the witnesses that cosign checkpoints.
    #[must_use]
    pub fn with_witnesses(mut self, witnesses: Option<Witnesses>) -> Self {
        self.witnesses = witnesses.map(Arc::new);
        self
    }

    /// Signs at each interval if there are new entries. Never returns.
    pub async fn run(&self, interval: Duration, condition: &Condition) {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut unsigned_since = None;
        let mut reported = None;
        loop {
            ticks.tick().await;
            let result = self.sign_if_new().await;
            let problem = match &result {
                Ok(()) => None,
                Err(Error::NoKey(_)) => {
                    match self.is_unsigned_too_long(&mut unsigned_since).await {
                        Ok(true) => Some(("no_key", result.err())),
                        _ => None,
                    }
                }
                Err(Error::Inconsistent(_)) => Some(("inconsistent", result.err())),
                Err(Error::Witness(_)) => Some(("unwitnessed", result.err())),
                Err(_) => Some(("failed", result.err())),
            };
            let Some((reason, error)) = problem else {
                metrics::checkpoints_refused(None);
                reported = None;
                condition.ok();
                continue;
            };
            let text = error
                .as_ref()
                .map(|error| mesh_runtime::error_chain(error))
                .unwrap_or_default();
            metrics::checkpoints_refused(Some(reason));
            condition.fail(&text);
            if reported.as_ref() != Some(&text) {
                tracing::error!(error = text, "checkpoint not signed");
                if reason == "inconsistent" {
                    self.publish_contradiction().await;
                }
                reported = Some(text);
            }
        }
    }

    /// True if entries have been without a checkpoint for too long.
    async fn is_unsigned_too_long(
        &self,
        since: &mut Option<(u64, Instant)>,
    ) -> Result<bool, Error> {
        let signed = self.store.last_checkpoint().await?;
        let signed = signed.map_or(0, |checkpoint| checkpoint.size.unsigned_abs());
        if self.store.head().await?.seq == signed {
            *since = None;
            return Ok(false);
        }
        let (of, begin) = since.get_or_insert((signed, Instant::now()));
        if *of != signed {
            (*of, *begin) = (signed, Instant::now());
        }
        Ok(begin.elapsed() >= MAX_UNSIGNED_AGE)
    }

    /// Signs the current ledger if that is not done yet, and publishes pending checkpoints to NATS.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] if the signature would contradict a checkpoint, [`Error::NoKey`] if
    /// another replica has the key.
    pub async fn sign_if_new(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        let ready = self.ready(&mut state).await?;
        let last = ready.last.as_ref();
        if ready.size > last.map_or(0, |last| last.size.unsigned_abs()) {
            let number = last.map_or(1, |last| last.number + 1);
            let key = ready.key.clone();
            self.sign(&mut state, number, &[&key], ready.subtrees, None)
                .await?;
        } else if !ready.subtrees.made.is_empty() {
            ready.subtrees.store(&self.store).await?;
        }
        self.publish(&mut state).await;
        Ok(())
    }

    /// Rebuilds the stored subtrees after a proof failed. At most once a minute, because it reads
    /// all leaves.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] if the entries themselves are wrong.
    pub async fn repair(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        if state
            .repaired
            .is_none_or(|at| at.elapsed() >= REPAIR_INTERVAL)
        {
            state.repaired = Some(Instant::now());
            repair_subtrees(&self.store).await?;
        }
        Ok(())
    }

    /// Creates a new key and activates it. Both keys sign the hand-over checkpoint.
    ///
    /// # Errors
    /// As [`Self::sign_if_new`]. The former key stays active then.
    pub async fn rotate(
        &self,
        made_by: &str,
    ) -> Result<(StoredKey, Option<StoredCheckpoint>), Error> {
        let mut state = self.state.lock().await;
        let ready = self.ready(&mut state).await?;
        if ready.size == 0 {
            return Err(Error::NoKey(
                "the ledger has no entries yet, so the current key cannot sign a hand-over"
                    .to_owned(),
            ));
        }
        let new = new_key(&state.origin)?;
        self.file.write_next(&new)?;
        let row = StoredKey {
            number: ready.keys.last().map_or(1, |key| key.number + 1),
            vkey: new.public().to_string(),
            from_size: ready.size.cast_signed(),
            made_at: Utc::now().timestamp_micros(),
            made_by: made_by.to_owned(),
        };
        let number = ready.last.as_ref().map_or(1, |last| last.number + 1);
        let both = [&ready.key, &new];
        let signed = self
            .sign(&mut state, number, &both, ready.subtrees, Some(row.clone()))
            .await;
        if matches!(signed, Err(Error::NoKey(_))) {
            self.file.drop_next()?;
        }
        let Some(checkpoint) = signed? else {
            self.file.drop_next()?;
            return Err(Error::NoKey(
                "another replica signed a checkpoint at the same time; try again".to_owned(),
            ));
        };
        // If this fails, or the process is killed before it, the next start does it.
        self.file.use_next()?;
        tracing::info!(key = row.vkey, by = made_by, "signing key rotated");
        state.key = Some(new);
        state.keys_published = false;
        self.publish(&mut state).await;
        Ok((row, checkpoint))
    }

    /// Advances the tree to the head, and compares it with each checkpoint on the way.
    async fn ready(&self, state: &mut SignerState) -> Result<Signer, Error> {
        let ready = self.try_ready(state).await;
        // The subtrees completed meanwhile are not stored, so the tree is reloaded from the stored
        // ones.
        state.compared &= ready.is_ok();
        ready
    }

    async fn try_ready(&self, state: &mut SignerState) -> Result<Signer, Error> {
        let mut stored_keys = self.store.checkpoint_keys().await?;
        state.origin = keys::origin(&stored_keys, &self.origin);
        self.load_last_note(state)?;
        let public: Vec<PublicKey> = stored_keys
            .iter()
            .filter_map(|key| key.vkey.parse().ok())
            .collect();
        // Read before the database: what another replica stores and publishes meanwhile must not
        // look like a contradiction.
        match self.published(state, &stored_keys).await {
            Err(error @ Error::Bus(_)) if !state.published_compared => return Err(error),
            Err(Error::Bus(error)) => {
                tracing::debug!(
                    error = mesh_runtime::error_chain(&error),
                    "MESH_CHECKPOINTS not read"
                );
            }
            result => result?,
        }
        self.note_signed(state);
        let mut last = self.store.last_checkpoint().await?;
        let mut base = last
            .as_ref()
            .map(|last| genuine(last, &public))
            .transpose()?;
        let mut base_size = base.as_ref().map_or(0, |base| base.size);
        let head = self.store.head().await?.seq;
        for (checkpoint, origin_of_checkpoint) in [
            (&base, "the newest"),
            (&state.signed, "signed by this ledger"),
            (&state.published, "on MESH_CHECKPOINTS"),
        ] {
            if let Some(checkpoint) = checkpoint
                && checkpoint.size > head
            {
                return Err(Error::Inconsistent(format!(
                    "the ledger has {head} entries, but its checkpoints ({origin_of_checkpoint}) count {}: entries were removed, or an old backup was restored; `smesh ledger resume` restores the entries that the bus still has",
                    checkpoint.size
                )));
            }
        }

        let published = state.published.as_ref().map(|published| published.size);
        if let Some(size) = published.filter(|size| *size > base_size) {
            self.store_published(&state.origin, last, stored_keys, size)
                .await?;
            stored_keys = self.store.checkpoint_keys().await?;
            last = self.store.last_checkpoint().await?;
            base = last
                .as_ref()
                .map(|last| genuine(last, &self.known_keys(&stored_keys)?))
                .transpose()?;
            base_size = base.as_ref().map_or(0, |base| base.size);
        }
        if !state.compared {
            state.signed_before = base_size;
        }
        if let (false, Some(witnesses), Some(last)) = (state.compared, &self.witnesses, &last) {
            let growth = Growth {
                store: &self.store,
                size: last.size.unsigned_abs(),
                subtrees: &[],
            };
            match witnesses.cosign(&last.note, growth).await {
                Err(error @ Error::Inconsistent(_)) => return Err(error),
                // The cosignatures that count are those of the next checkpoint.
                Err(Error::Witness(_)) | Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        // Only after the comparison: a restored database may not know the key in the file.
        if self.load_key(state, &stored_keys).await? {
            stored_keys = self.store.checkpoint_keys().await?;
        }
        let key = state.key.clone().ok_or_else(|| {
            Error::NoKey(format!(
                "the key is not in {}: copy it from the replica that created it, or let only that one sign",
                self.file.path().display()
            ))
        })?;

        let mut subtrees = Subtrees::default();
        if !state.compared || state.tree.size() > base_size {
            let (tree, made) = tree_at(&self.store, base.as_ref()).await?;
            (state.tree, subtrees) = (tree, made);
            for other in [state.signed.clone(), state.published.clone()] {
                let earlier = other.filter(|other| other.size < base_size);
                tree_at(&self.store, earlier.as_ref()).await?;
            }
            state.compared = true;
        }
        // In steps that end at the checkpoints.
        let others = [state.signed.clone(), state.published.clone()];
        let mut stops: Vec<&Checkpoint> = base.iter().chain(others.iter().flatten()).collect();
        stops.sort_by_key(|checkpoint| checkpoint.size);
        for stop in stops {
            if stop.size >= state.tree.size() {
                let made = self.store.grow(&mut state.tree, stop.size).await?;
                subtrees.made.extend(made);
                same(Some(state.tree.root()), stop)?;
            }
        }
        let made = self.store.grow(&mut state.tree, head).await?;
        subtrees.made.extend(made);
        Ok(Signer {
            last,
            keys: stored_keys,
            key,
            size: state.tree.size(),
            subtrees,
        })
    }

    /// Signs and stores the current tree. Returns `None` if another replica was faster.
    async fn sign(
        &self,
        state: &mut SignerState,
        number: i64,
        keys: &[&PrivateKey],
        subtrees: Subtrees,
        key: Option<StoredKey>,
    ) -> Result<Option<Option<StoredCheckpoint>>, Error> {
        let checkpoint = Checkpoint {
            origin: state.origin.clone(),
            size: state.tree.size(),
            root: state.tree.root(),
        };
        let stored = if checkpoint.size == 0 {
            None
        } else {
            let note = checkpoint
                .sign(keys)
                .map_err(|error| Error::NoKey(error.to_string()))?;
            // Written before the checkpoint becomes visible.
            self.file.write_last_note(&note)?;
            state.signed = Some(checkpoint.clone());
            let note = match &self.witnesses {
                None => note,
                Some(witnesses) => {
                    state.compared = false;
                    let growth = Growth {
                        store: &self.store,
                        size: checkpoint.size,
                        subtrees: &subtrees.made,
                    };
                    witnesses.cosign(&note, growth).await?
                }
            };
            Some(StoredCheckpoint {
                number,
                size: checkpoint.size.cast_signed(),
                root: checkpoint.root.to_vec(),
                note,
                made_at: Utc::now().timestamp_micros(),
            })
        };
        let rebuilt = subtrees.rebuilt;
        let signed = SignedCheckpoint {
            subtrees: subtrees.made,
            subtrees_rebuilt: rebuilt,
            key,
            checkpoint: stored.clone(),
        };
        // Until everything is stored, a failure reloads the tree from the stored subtrees.
        state.compared = false;
        if !self.store.store_checkpoint(&signed).await? {
            return Ok(None);
        }
        state.compared = true;
        if rebuilt {
            metrics::subtrees_repaired();
        }
        if let Some(stored) = &stored {
            metrics::checkpoint(checkpoint.size);
            tracing::debug!(size = checkpoint.size, "checkpoint signed");
            state.unpublished = Some((checkpoint.size, stored.note.clone()));
        }
        Ok(Some(stored))
    }
}

/// Returns the stored checkpoint, if a key of the ledger has signed it and its columns match the
/// note.
fn genuine(stored: &StoredCheckpoint, keys: &[PublicKey]) -> Result<Checkpoint, Error> {
    let forged = |why: String| {
        Error::Inconsistent(format!(
            "the newest checkpoint, of {} entries, differs from the signed one: {why}",
            stored.size
        ))
    };
    let (checkpoint, _) =
        Checkpoint::open(&stored.note, keys).map_err(|error| forged(error.to_string()))?;
    if checkpoint.size.cast_signed() != stored.size || checkpoint.root != stored.root.as_slice() {
        return Err(forged("its columns differ from its note".to_owned()));
    }
    Ok(checkpoint)
}

fn same(root: Option<Hash>, checkpoint: &Checkpoint) -> Result<(), Error> {
    if root == Some(checkpoint.root) {
        Ok(())
    } else {
        Err(Error::Inconsistent(format!(
            "the entries do not match the root of the checkpoint of {} entries: they were changed",
            checkpoint.size
        )))
    }
}
