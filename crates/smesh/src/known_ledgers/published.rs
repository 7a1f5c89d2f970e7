//! Compares a ledger with its checkpoints on the stream `MESH_CHECKPOINTS`. The API alone can show each client another history, and
//! at first contact there is nothing to compare its answer with.
//!
//! The position in the stream is stored, so what was published meanwhile is compared later.

use chrono::{TimeDelta, Utc};
use ledger::domain::checkpoint::{Checkpoint, CheckpointError};
use ledger::domain::note::NoteError;
use mesh_bus::{Bus, Message, StoredMessages, StreamState};
use mesh_events::catalogue::MESH_CHECKPOINTS;
use mesh_events::subject;

use super::file::Position;
use super::{
    KnownLedger, KnownLedgers, LAG_INTERVAL, LAG_RETRIES, continues, open, parsed, refusal_of,
    size_of,
};
use crate::client::UnguardedClient;
use crate::error::Error;

/// What was published within this time is compared at first contact. `smesh verify` compares all of it.
const FIRST_CONTACT_AGE: TimeDelta = TimeDelta::days(1);

/// Published checkpoints, compared with the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The ledger continues all of them.
    Consistent {
        /// Size of the largest one, if there is one.
        size: Option<u64>,
        /// Messages that are no checkpoint of the ledger, as texts.
        ignored: Vec<String>,
    },
    /// The ledger contradicts one.
    Contradiction {
        /// The contradiction, as text.
        reason: String,
        /// Stored state of the ledger.
        known: KnownLedger,
        /// The published note.
        published: String,
    },
}

/// Why published checkpoints were not compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The stream cannot be read.
    #[error("read {MESH_CHECKPOINTS}")]
    Bus(#[source] mesh_bus::Error),
    /// The ledger or the file of known ledgers cannot be read.
    #[error(transparent)]
    Ledger(#[from] Error),
}

/// Compares what was published since the last time with the ledger. The ledger at this address must be known.
///
/// # Errors
/// If the stream, the ledger or the file cannot be read. The position remains.
pub async fn compare(
    client: &UnguardedClient,
    file: &KnownLedgers,
    bus: &Bus,
) -> Result<Compared, CompareError> {
    let address = client.address().to_string();
    let all = file.read()?;
    let Some(known) = all.at(&address) else {
        let unknown = format!("the ledger at {address} is not known");
        return Err(Error::Failed(unknown).into());
    };
    let oldest = known.keys.first().cloned().unwrap_or_default();
    let origin = Checkpoint::unverified(&known.checkpoint).map(|one| one.origin);
    let subject = subject::checkpoint(&origin.unwrap_or_default());
    let state = bus.stream_state(MESH_CHECKPOINTS).await;
    let state = state.map_err(CompareError::Bus)?;
    let position = all.published.get(&oldest);
    let read = position.map_or(0, |position| position.sequence(state.created));
    let mut stored = unread(bus, subject, position, state);
    let (mut size, mut ignored) = (None, Vec::new());
    loop {
        let messages = stored.next().await.map_err(CompareError::Bus)?;
        for message in &messages {
            let note = String::from_utf8_lossy(&message.body);
            match compare_note(client, file, &address, &note).await? {
                Note::Consistent(_) => size = size.max(Some(size_of(&note))),
                Note::Ignored(_) if message.stream_sequence <= read => {}
                Note::Ignored(why) => ignored.push(ignored_text(message, &why)),
                Note::Contradiction { reason, known } => {
                    let sequence = message.stream_sequence;
                    return Ok(Compared::Contradiction {
                        reason: format!(
                            "{MESH_CHECKPOINTS} has a checkpoint of {} entries (sequence {sequence}): {reason}",
                            size_of(&note)
                        ),
                        known,
                        published: note.into_owned(),
                    });
                }
            }
        }
        let Some(last) = messages.last() else {
            return Ok(Compared::Consistent { size, ignored });
        };
        let position = Position::Read {
            created: state.created,
            sequence: last.stream_sequence,
        };
        file.store_position(&oldest, position)?;
    }
}

/// The messages from a position on. The last one read is read again, so that the size of the newest is known.
fn unread(
    bus: &Bus,
    subject: String,
    position: Option<&Position>,
    state: StreamState,
) -> StoredMessages {
    match position {
        None => {
            let since = Utc::now() - FIRST_CONTACT_AGE;
            bus.stored_messages_since(MESH_CHECKPOINTS, subject, since)
        }
        Some(Position::Accepted { accepted }) => {
            bus.stored_messages_since(MESH_CHECKPOINTS, subject, *accepted)
        }
        Some(position @ Position::Read { .. }) => {
            let sequence = position.sequence(state.created);
            // A restored stream may be shorter than it was.
            let first = if sequence <= state.last_sequence {
                sequence
            } else {
                1
            };
            bus.stored_messages_from(MESH_CHECKPOINTS, subject, first)
        }
    }
}

fn ignored_text(message: &Message, why: &str) -> String {
    let sequence = message.stream_sequence;
    format!("message {sequence} of {MESH_CHECKPOINTS} is no checkpoint of this ledger: {why}")
}

/// A published note, compared with the ledger.
enum Note {
    Consistent(KnownLedger),
    Ignored(String),
    Contradiction { reason: String, known: KnownLedger },
}

/// Compares one published note, and stores it if it is the longest. The ledger is asked again if the API may be a replica that is behind.
async fn compare_note(
    client: &UnguardedClient,
    file: &KnownLedgers,
    address: &str,
    note: &str,
) -> Result<Note, Error> {
    let mut retries = LAG_RETRIES;
    loop {
        // Read each time, because other processes store newer states meanwhile.
        let all = file.read()?;
        let Some(known) = all.at(address) else {
            return Ok(Note::Ignored("the ledger is not known".to_owned()));
        };
        let is_ahead = size_of(note) > size_of(&known.checkpoint);
        match look(client, known.clone(), note).await? {
            Note::Contradiction { .. } if is_ahead && retries > 0 => retries -= 1,
            Note::Consistent(seen) => {
                file.store(address, &seen, false)?;
                return Ok(Note::Consistent(seen));
            }
            compared => return Ok(compared),
        }
        tokio::time::sleep(LAG_INTERVAL).await;
    }
}

async fn look(client: &UnguardedClient, mut known: KnownLedger, note: &str) -> Result<Note, Error> {
    let stored = Checkpoint::unverified(&known.checkpoint)
        .map_err(|error| Error::Failed(format!("stored checkpoint of the ledger: {error}")))?;
    let ignored = |error: CheckpointError| Ok(Note::Ignored(mesh_runtime::error_chain(&error)));
    match Checkpoint::unverified(note) {
        Ok(unverified) if unverified.origin == stored.origin => {}
        Ok(other) => return Ok(Note::Ignored(format!("it is one of {}", other.origin))),
        Err(error) => return ignored(error),
    }
    let published = match Checkpoint::open(note, &parsed(&known.keys)) {
        Ok((published, _)) => published,
        Err(CheckpointError::Note(NoteError::Untrusted(_))) => {
            match open(client, &mut known, &stored, note).await? {
                Ok(published) => published,
                Err(reason) => return Ok(Note::Contradiction { reason, known }),
            }
        }
        // Anyone who may publish can send a changed note.
        Err(error) => return ignored(error),
    };
    let (earlier, later) = match published.size < stored.size {
        true => (&published, &stored),
        false => (&stored, &published),
    };
    if let Err(reason) = continues(client, earlier, later).await? {
        return Ok(Note::Contradiction { reason, known });
    }
    if published.size > stored.size {
        note.clone_into(&mut known.checkpoint);
    }
    Ok(Note::Consistent(known))
}

impl KnownLedgers {
    /// Stores how far the published checkpoints of a ledger were compared, by its oldest key.
    fn store_position(&self, oldest: &str, position: Position) -> Result<(), Error> {
        self.update(|all| {
            let former = all.published.insert(oldest.to_owned(), position);
            former != Some(position)
        })
    }

    /// Stores that what was published until now does not count for this ledger.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn accept_published(&self, ledger: &KnownLedger) -> Result<(), Error> {
        let oldest = ledger.keys.first().cloned().unwrap_or_default();
        let accepted = Utc::now();
        self.store_position(&oldest, Position::Accepted { accepted })
    }
}

/// The error text for a published checkpoint that the ledger contradicts.
pub fn refusal(
    client: &UnguardedClient,
    file: &KnownLedgers,
    reason: &str,
    known: &KnownLedger,
) -> Error {
    refusal_of("a published checkpoint", client, file, reason, known)
}
