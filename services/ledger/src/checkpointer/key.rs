//! Loads, registers or creates the signing key.

use chrono::Utc;

use super::{Checkpointer, SignerState};
use crate::adapters::SignedCheckpoint;
use crate::domain::checkpoint::Checkpoint;
use crate::domain::keys::{self, StoredKey, Use};
use crate::domain::note::PrivateKey;
use crate::error::Error;

impl Checkpointer {
    /// Loads the signing key, or creates the first. Returns true if it created one.
    pub(super) async fn load_key(
        &self,
        state: &mut SignerState,
        stored: &[StoredKey],
    ) -> Result<bool, Error> {
        if let Some(key) = &state.key
            && stored
                .last()
                .is_some_and(|last| last.vkey == key.public().to_string())
        {
            return Ok(false);
        }
        state.key = None;
        // A rotation or a first start was killed between the database write and the rename.
        let current = |key: &PrivateKey| {
            stored
                .last()
                .is_some_and(|last| last.vkey == key.public().to_string())
        };
        match self.file.read_next()? {
            Some(next) if current(&next) => self.file.use_next()?,
            Some(_) => self.file.drop_next()?,
            None => {}
        }
        let file = self.file.read()?;
        match keys::choose(file.as_ref().map(PrivateKey::public), stored, &state.origin) {
            Use::This => {
                state.key = file;
                Ok(false)
            }
            Use::Register => {
                let Some(key) = file else { return Ok(false) };
                self.register(state, key).await
            }
            Use::Make => {
                let key = new_key(&state.origin)?;
                self.file.write_next(&key)?;
                if self.register(state, key).await? {
                    self.file.use_next()?;
                    tracing::info!(path = %self.file.path().display(), "signing key created");
                    return Ok(true);
                }
                self.file.drop_next()?;
                Ok(false)
            }
            Use::None(reason) => Err(Error::NoKey(format!(
                "{reason}; the key file is {}",
                self.file.path().display()
            ))),
        }
    }

    /// Loads the newest note signed on this host.
    pub(super) fn load_last_note(&self, state: &mut SignerState) -> Result<(), Error> {
        if state.signed.is_none()
            && let Some(note) = self.file.last_note()?
        {
            let unfit = |fault: String| Error::KeyUnfit {
                path: self.file.path().to_owned(),
                fault: format!("the newest note beside it: {fault}"),
            };
            let checkpoint =
                Checkpoint::unverified(&note).map_err(|error| unfit(error.to_string()))?;
            state.signed = Some(checkpoint);
        }
        Ok(())
    }

    async fn register(&self, state: &mut SignerState, key: PrivateKey) -> Result<bool, Error> {
        let row = StoredKey {
            number: 1,
            vkey: key.public().to_string(),
            from_size: 0,
            made_at: Utc::now().timestamp_micros(),
            made_by: String::new(),
        };
        let first = self
            .store
            .store_checkpoint(&SignedCheckpoint {
                key: Some(row),
                ..SignedCheckpoint::default()
            })
            .await?;
        if first {
            state.key = Some(key);
        }
        Ok(first)
    }
}

/// Creates a random key for an origin.
pub(super) fn new_key(origin: &str) -> Result<PrivateKey, Error> {
    let seed: [u8; 32] = rand::random();
    PrivateKey::new(origin, &seed).map_err(|error| Error::NoKey(error.to_string()))
}
