//! The ledger's tables, wherever they are.

use std::sync::Arc;
use std::time::Duration;

use mesh_db::Location;
use mesh_db::pool::Pool;
use mesh_db::sql::{Row, Sql};
use tokio::sync::watch;

use super::block_ranges::BlockRanges;
use super::postgres::NAME;
use super::{postgres, sqlite};
use crate::domain::append::Head;
use crate::error::Error;

/// How long a query takes at most, if nothing else is said.
pub const DEFAULT_QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The ledger's tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) writer: Pool,
    pub(super) readers: Pool,
    location: Location,
    appended: watch::Sender<u64>,
    /// Entries of the greatest checkpoint that is known: with fewer the ledger was set back.
    signed: watch::Sender<u64>,
    pub(super) block_ranges: Arc<BlockRanges>,
}

impl Store {
    /// Opens the ledger, makes it if it is not there, and fills columns for queries that are missing.
    ///
    /// # Errors
    /// If it cannot be made or opened, or is no ledger.
    pub async fn open(location: &Location, readers: u32) -> Result<Self, Error> {
        let store = Self::connect(location, None, readers)?;
        store.prepare().await?;
        let mut progress = store.start_backfill().await?;
        while !progress.is_done() {
            progress = store.backfill_step(progress).await?;
        }
        Ok(store)
    }

    /// The ledger, not opened yet; `reader` is the same database with another role.
    ///
    /// # Errors
    /// If its file cannot be made.
    pub fn connect(
        location: &Location,
        reader: Option<&Location>,
        readers: u32,
    ) -> Result<Self, Error> {
        Self::connect_with(location, reader, readers, DEFAULT_QUERY_TIMEOUT)
    }

    /// As [`Self::connect`]; a query takes no longer than that.
    ///
    /// # Errors
    /// If its file cannot be made.
    pub fn connect_with(
        location: &Location,
        reader: Option<&Location>,
        readers: u32,
        longest: Duration,
    ) -> Result<Self, Error> {
        let (writer, readers) = match location {
            Location::Sqlite(path) => mesh_db::sqlite::pools(NAME, path, readers, longest)?,
            Location::Postgres(options) => {
                let reader = match reader {
                    Some(Location::Postgres(options)) => Some(&**options),
                    Some(Location::Sqlite(_)) | None => None,
                };
                postgres::pools(options, reader, readers, longest)
            }
        };
        Ok(Self {
            writer,
            readers,
            location: location.clone(),
            appended: watch::Sender::new(0),
            signed: watch::Sender::new(0),
            block_ranges: Arc::default(),
        })
    }

    /// Makes the tables or brings them to this version. Columns for queries may be missing still: see [`Self::backfill_step`].
    ///
    /// # Errors
    /// If it cannot be made or opened, or is no ledger.
    pub async fn prepare(&self) -> Result<(), Error> {
        match &self.writer {
            Pool::Sqlite(pool) => {
                let migrated = sqlite::migrate(pool).await;
                migrated.map_err(|source| mesh_db::Error::Migrate {
                    name: NAME,
                    location: self.location.clone(),
                    source,
                })?;
            }
            Pool::Postgres(pool) => {
                if let Location::Postgres(options) = &self.location {
                    let tables = postgres::TABLES;
                    tables.migrate(options, &self.location).await?;
                }
                let added = postgres::add_partitions(pool).await;
                added.map_err(|source| mesh_db::Error::Open {
                    name: NAME,
                    location: self.location.clone(),
                    source,
                })?;
            }
        }
        if let Pool::Sqlite(pool) = &self.writer {
            sqlite::guard_index(pool).await.map_err(Error::Index)?;
        }
        self.head().await.map(drop)
    }

    /// What has to be done now and then: the partitions of the months to come.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn maintain(&self) -> Result<(), Error> {
        match &self.writer {
            Pool::Sqlite(_) => Ok(()),
            Pool::Postgres(pool) => postgres::add_partitions(pool).await.map_err(Error::Append),
        }
    }

    /// End of the chain.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn head(&self) -> Result<Head, Error> {
        let sql = Sql::new("SELECT seq, chain FROM head");
        let row = self.readers.first(&sql).await.map_err(Error::Read)?;
        let head = head(row)?;
        self.advance(head.seq);
        Ok(head)
    }

    /// Up to which sequence of a stream everything was taken in, or noted as a gap; `None` before the first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_sequence(&self, stream: &str) -> Result<Option<u64>, Error> {
        let sql = Sql::new("SELECT last_sequence FROM streams WHERE name = ").bind(stream);
        let row = self.readers.first(&sql).await.map_err(Error::Read)?;
        let last = row.map(|row| row.get::<i64>("last_sequence")).transpose();
        Ok(last.map_err(Error::Read)?.map(i64::unsigned_abs))
    }

    /// Sequence of the last entry, changing as this store appends, and as it is seen to look at the head.
    pub fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// From now on nothing is appended to fewer entries than that: a checkpoint of so many was signed.
    pub fn set_signed_size(&self, size: u64) {
        self.signed.send_if_modified(|signed| {
            let further = size > *signed;
            *signed = size.max(*signed);
            further
        });
    }

    /// What was signed counts no more: the ledger goes on under another origin.
    pub fn clear_signed_size(&self) {
        self.signed.send_replace(0);
    }

    /// Entries of the greatest checkpoint that is known here.
    pub fn signed(&self) -> u64 {
        *self.signed.borrow()
    }

    /// Waits until the ledger has at least the entries that were signed.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn wait_until_complete(&self) -> Result<(), Error> {
        let mut appended = self.appended();
        let mut signed = self.signed.subscribe();
        while self.head().await?.seq < *signed.borrow_and_update() {
            tokio::select! {
                _ = appended.changed() => {}
                _ = signed.changed() => {}
            }
        }
        Ok(())
    }

    /// True if other processes may append to the same ledger.
    pub const fn is_shared(&self) -> bool {
        matches!(self.writer, Pool::Postgres(_))
    }

    /// Where it is.
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// Closes every connection; what was acknowledged is on disk already.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    pub(super) fn advance(&self, seq: u64) {
        self.appended.send_if_modified(|last| {
            let further = seq > *last;
            *last = seq.max(*last);
            further
        });
    }
}

/// Reads the head's row.
pub(super) fn head(row: Option<Row>) -> Result<Head, Error> {
    let row = row.ok_or(Error::CorruptHead)?;
    let seq: i64 = row.get("seq").map_err(Error::Read)?;
    let chain: Vec<u8> = row.get("chain").map_err(Error::Read)?;
    Ok(Head {
        seq: seq.try_into().map_err(|_| Error::CorruptHead)?,
        chain: chain.try_into().map_err(|_| Error::CorruptHead)?,
    })
}
