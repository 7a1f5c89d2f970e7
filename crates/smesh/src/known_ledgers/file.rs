//! The file of known ledgers, and what it stores.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use ledger::domain::checkpoint::Checkpoint;
use serde::{Deserialize, Serialize};

use super::{FILE_VARIABLE, KnownLedger, size_of};
use crate::error::Error;

/// The file of known ledgers.
#[derive(Clone, Debug)]
pub struct KnownLedgers(PathBuf);

impl KnownLedgers {
    /// The user's file. `None` without a home directory.
    pub fn of_user() -> Option<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(path) = variable(FILE_VARIABLE) {
            return Some(Self(path.into()));
        }
        let state = variable("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.filter(|path| path.is_absolute());
        let home = || Some(PathBuf::from(variable("HOME")?).join(".local/state"));
        let folder = state.or_else(home)?;
        Some(Self(folder.join("slurm-mesh/known_ledgers.json")))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Stores the state of the ledger at an address. Unless `instead` is set, a longer history stored by another process is kept.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn store(&self, address: &str, seen: &KnownLedger, instead: bool) -> Result<(), Error> {
        self.update(|all| all.note(address, seen, instead))
    }

    /// Changes the content of the file. Nothing is written if the change returns false.
    pub(super) fn update(
        &self,
        change: impl FnOnce(&mut KnownLedgersFile) -> bool,
    ) -> Result<(), Error> {
        let failed = |source| Error::io("write", &self.0, source);
        if let Some(folder) = self.0.parent() {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o700).create(folder);
            made.map_err(failed)?;
        }
        let lock = self.0.with_extension("lock");
        let lock = private().open(lock).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut all = self.read()?;
        if !change(&mut all) {
            return Ok(());
        }
        let text = serde_json::to_string_pretty(&all);
        let text = text.map_err(|error| Error::Failed(error.to_string()))? + "\n";
        let new = self.0.with_extension("new");
        let write = |file: &mut File| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        private()
            .truncate(true)
            .open(&new)
            .and_then(|mut file| write(&mut file))
            .and_then(|()| fs::rename(&new, &self.0))
            .map_err(failed)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self) -> Result<KnownLedgersFile, Error> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(KnownLedgersFile::default());
            }
            Err(source) => return Err(Error::io("read", &self.0, source)),
        };
        let read: Result<StoredFile, _> = serde_json::from_str(&text);
        read.map(KnownLedgersFile::from).map_err(|error| {
            let path = self.0.display();
            Error::Failed(format!(
                "{path} is not a file of known ledgers ({error}): repair it, or delete it to trust the next checkpoint"
            ))
        })
    }
}

/// The file, or that of a former version, with a state for each address.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredFile {
    Known(KnownLedgersFile),
    Former(BTreeMap<String, KnownLedger>),
}

impl From<StoredFile> for KnownLedgersFile {
    fn from(stored: StoredFile) -> Self {
        match stored {
            StoredFile::Known(known) => known,
            StoredFile::Former(addresses) => {
                let mut known = Self::default();
                for (address, seen) in &addresses {
                    known.note(address, seen, false);
                }
                known
            }
        }
    }
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KnownLedgersFile {
    /// Ledgers by their oldest key.
    ledgers: BTreeMap<String, KnownLedger>,
    /// The oldest key of the ledger at each address.
    addresses: BTreeMap<String, String>,
    /// How far the published checkpoints of each ledger were compared, by its oldest key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) published: BTreeMap<String, Position>,
}

/// How far a stream was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub(super) enum Position {
    /// A sequence, of the stream that was created at this time: a recreated one counts from 1 again.
    Read {
        /// When the stream was created.
        created: DateTime<Utc>,
        /// Sequence of the last message read.
        sequence: u64,
    },
    /// Earlier messages do not count.
    Accepted {
        /// When the state of the ledger was accepted.
        accepted: DateTime<Utc>,
    },
}

impl Position {
    /// Sequence of the last message read of the stream that was created at a time.
    pub(super) fn sequence(&self, of: DateTime<Utc>) -> u64 {
        match self {
            Self::Read { created, sequence } if *created == of => *sequence,
            Self::Read { .. } | Self::Accepted { .. } => 0,
        }
    }
}

impl KnownLedgersFile {
    /// Stored state of the ledger at an address.
    pub fn at(&self, address: &str) -> Option<&KnownLedger> {
        self.ledgers.get(self.addresses.get(address)?)
    }

    /// Stored states of ledgers of an origin.
    pub(super) fn of_origin(&self, origin: &str) -> impl Iterator<Item = &KnownLedger> {
        let known = self.ledgers.values();
        known.filter(move |known| {
            Checkpoint::unverified(&known.checkpoint).is_ok_and(|stored| stored.origin == origin)
        })
    }

    /// Adds a state. False if nothing changes.
    fn note(&mut self, address: &str, seen: &KnownLedger, instead: bool) -> bool {
        let oldest = seen.keys.first().cloned().unwrap_or_default();
        let size = |known: &KnownLedger| size_of(&known.checkpoint);
        let stored = self.ledgers.get(&oldest);
        let is_longer = stored.is_none_or(|known| size(known) < size(seen)) || instead;
        if is_longer {
            self.ledgers.insert(oldest.clone(), seen.clone());
        }
        let former = self.addresses.insert(address.to_owned(), oldest.clone());
        is_longer || former != Some(oldest)
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).mode(0o600);
    options
}
