//! Reads the newest checkpoint from the bus. Restoring database and key file to an earlier state
//! does not revert it.

use mesh_bus::{Bus, StoredMessage};
use mesh_events::catalogue::MESH_CHECKPOINTS;
use mesh_events::subject;

use super::{Checkpointer, SignerState};
use crate::domain::checkpoint::{Checkpoint, CheckpointError};
use crate::domain::keys::{self, StoredKey};
use crate::domain::note::{NoteError, PublicKey};
use crate::error::Error;

/// Maximum number of messages read, newest first, to find a checkpoint.
const MAX_MESSAGES: usize = 100;

impl Checkpointer {
    /// Checks before the first append whether more entries were signed than the ledger has. If NATS
    /// is unavailable, the first signature waits for it.
    pub async fn check_published_checkpoints(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        let keys = self.store.checkpoint_keys().await?;
        state.origin = keys::origin(&keys, &self.origin);
        self.load_last_note(&mut state)?;
        let published = self.published(&mut state, &keys).await;
        self.note_signed(&state);
        published?;
        let entries = self.store.head().await?.seq;
        match self.store.signed() {
            signed if signed > entries => Err(Error::SetBack { entries, signed }),
            _ => Ok(()),
        }
    }

    /// Sets the signed size in the store, which refuses appends to a smaller ledger.
    pub(super) fn note_signed(&self, state: &SignerState) {
        for checkpoint in state.signed.iter().chain(&state.published) {
            self.store.set_signed_size(checkpoint.size);
        }
    }

    /// Reads the newest checkpoint of this ledger from the bus.
    pub(super) async fn published(
        &self,
        state: &mut SignerState,
        stored: &[StoredKey],
    ) -> Result<(), Error> {
        let keys = self.known_keys(stored)?;
        let subject = subject::checkpoint(&state.origin);
        let mut walk = NewestFirst::new(&self.bus, MESH_CHECKPOINTS, &subject).await?;
        let mut newest = None;
        for read in 0..MAX_MESSAGES {
            let Some(message) = walk.next().await? else {
                match read {
                    0 => break,
                    _ => return Err(none_is_valid(&subject)),
                }
            };
            newest = read_published(&state.origin, &message, &keys)?;
            if newest.is_some() {
                break;
            }
            if read + 1 == MAX_MESSAGES {
                return Err(none_is_valid(&subject));
            }
        }
        if let Some(checkpoint) = newest {
            // Signed elsewhere: by another replica, or on another history.
            let known = [&state.published, &state.signed];
            state.compared &= known.into_iter().flatten().any(|one| *one == checkpoint);
            state.published = Some(checkpoint);
        }
        state.published_compared = true;
        Ok(())
    }

    /// Returns the keys in the database and the one in the file, which may be newer than a restored
    /// database.
    pub(super) fn known_keys(&self, stored: &[StoredKey]) -> Result<Vec<PublicKey>, Error> {
        let stored = stored.iter().filter_map(|key| key.vkey.parse().ok());
        let file = self.file.read()?.map(|key| key.public());
        Ok(stored.chain(file).collect())
    }
}

/// Messages of others may hide the newest checkpoint, so nothing is signed until they are removed.
fn none_is_valid(subject: &str) -> Error {
    Error::Inconsistent(format!(
        "MESH_CHECKPOINTS has messages on {subject}, but none of those read is a checkpoint of this ledger: find out who wrote them, and remove them (`nats stream rmm`); the ledger reads the stream again at every interval"
    ))
}

/// Parses the checkpoint in a message, or returns `None` if it is not one of this ledger.
pub(super) fn read_published(
    origin: &str,
    message: &StoredMessage,
    keys: &[PublicKey],
) -> Result<Option<Checkpoint>, Error> {
    let note = String::from_utf8_lossy(&message.body);
    let ignored = |why: &CheckpointError| {
        // A warning would be repeated at every interval.
        tracing::debug!(
            error = mesh_runtime::error_chain(why),
            sequence = message.sequence,
            "message on MESH_CHECKPOINTS is not a checkpoint of this ledger, ignored"
        );
        Ok(None)
    };
    let of_this_ledger = Checkpoint::unverified(&note).map(|one| one.origin == origin);
    match (of_this_ledger, Checkpoint::open(&note, keys)) {
        (Ok(true), Ok((checkpoint, _))) => Ok(Some(checkpoint)),
        (Ok(true), Err(CheckpointError::Note(NoteError::Untrusted(by)))) => {
            Err(Error::Inconsistent(format!(
                "MESH_CHECKPOINTS has a checkpoint of {} by {}, which is not a key of this ledger: restore its database and key file, or continue under another origin (`smesh ledger resume --new-origin`)",
                origin,
                by.join(" and "),
            )))
        }
        (Err(error), _) | (_, Err(error)) => ignored(&error),
        (Ok(false), Ok(_)) => ignored(&CheckpointError::Malformed("it has another origin")),
    }
}

/// Iterates over the messages of a stream on a subject, newest first.
pub(super) struct NewestFirst<'a> {
    bus: &'a Bus,
    stream: &'static str,
    subject: &'a str,
    newest: Option<StoredMessage>,
    /// Sequences not read yet.
    left: std::ops::Range<u64>,
}

impl<'a> NewestFirst<'a> {
    pub(super) async fn new(
        bus: &'a Bus,
        stream: &'static str,
        subject: &'a str,
    ) -> Result<Self, Error> {
        let newest = bus.last_stored(stream, subject).await.map_err(Error::Bus)?;
        let end = newest.as_ref().map_or(0, |newest| newest.sequence);
        Ok(Self {
            bus,
            stream,
            subject,
            newest,
            left: 0..end,
        })
    }

    /// Returns the previous message, or `None` if there is none.
    pub(super) async fn next(&mut self) -> Result<Option<StoredMessage>, Error> {
        if let Some(newest) = self.newest.take() {
            return Ok(Some(newest));
        }
        if self.left.start == 0 && !self.left.is_empty() {
            let first = self.bus.next_stored(self.stream, self.subject, 1).await;
            let first = first.map_err(Error::Bus)?;
            self.left.start = first.map_or(self.left.end, |first| first.sequence);
        }
        while let Some(sequence) = self.left.next_back() {
            let message = self.bus.stored_at(self.stream, sequence).await;
            let message = message.map_err(Error::Bus)?;
            if let Some(message) = message.filter(|one| one.subject == self.subject) {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}
