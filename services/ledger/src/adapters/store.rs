//! The ledger's tables on either database.

use std::sync::Arc;
use std::time::Duration;

use mesh_db::pool::Pool;
use mesh_db::sql::{Row, Sql};
use mesh_db::{Database, Location};
use tokio::sync::watch;

use super::block_ranges::BlockRanges;
use super::tables::TABLES;
use super::{postgres, sqlite};
use crate::domain::append::Head;
use crate::error::Error;

/// Default timeout of a query.
pub const DEFAULT_QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// The ledger's tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) database: Database,
    appended: watch::Sender<u64>,
    /// Size of the largest known signed checkpoint. A ledger with fewer entries was restored to an
    /// earlier state.
    signed: watch::Sender<u64>,
    pub(super) block_ranges: Arc<BlockRanges>,
}

impl Store {
    /// Opens the ledger, creates it if it does not exist, and fills missing index rows.
    ///
    /// # Errors
    /// If the ledger cannot be created or opened, or the tables are not those of a ledger.
    pub async fn open(location: &Location, readers: u32) -> Result<Self, Error> {
        let store = Self::connect(location, None, readers)?;
        store.prepare().await?;
        let mut progress = store.start_backfill().await?;
        while !progress.is_done() {
            progress = store.backfill_step(progress).await?;
        }
        Ok(store)
    }

    /// Creates the pools without opening the ledger. `reader` is the same database with another
    /// role.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn connect(
        location: &Location,
        reader: Option<&Location>,
        readers: u32,
    ) -> Result<Self, Error> {
        Self::connect_with(location, reader, readers, DEFAULT_QUERY_TIMEOUT)
    }

    /// Same as [`Self::connect`], with a query timeout.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn connect_with(
        location: &Location,
        reader: Option<&Location>,
        readers: u32,
        longest: Duration,
    ) -> Result<Self, Error> {
        let (writer, readers) = match location {
            Location::Sqlite(path) => mesh_db::sqlite::pools(TABLES.name, path, readers, longest)?,
            Location::Postgres(options) => {
                let reader = match reader {
                    Some(Location::Postgres(options)) => Some(&**options),
                    Some(Location::Sqlite(_)) | None => None,
                };
                postgres::pools(options, reader, readers, longest)
            }
        };
        Ok(Self {
            database: Database::of_pools(&TABLES, location, writer, readers),
            appended: watch::Sender::new(0),
            signed: watch::Sender::new(0),
            block_ranges: Arc::default(),
        })
    }

    /// Creates the tables or migrates them to this version. Index rows may still be missing: see
    /// [`Self::backfill_step`].
    ///
    /// # Errors
    /// If the ledger cannot be created or opened, or the tables are not those of a ledger.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.database.prepare().await?;
        match &self.database.writer {
            Pool::Sqlite(pool) => sqlite::guard_index(pool).await.map_err(Error::Index)?,
            Pool::Postgres(pool) => {
                let added = postgres::add_partitions(pool).await;
                added.map_err(mesh_db::Error::statement("add partitions of payloads"))?;
            }
        }
        self.head().await.map(drop)
    }

    /// Periodic maintenance: creates the partitions of the coming months.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn maintain(&self) -> Result<(), Error> {
        match &self.database.writer {
            Pool::Sqlite(_) => Ok(()),
            Pool::Postgres(pool) => postgres::add_partitions(pool).await.map_err(Error::Append),
        }
    }

    /// Returns the head of the chain.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn head(&self) -> Result<Head, Error> {
        let sql = Sql::new("SELECT seq, chain FROM head");
        let row = self.first(&sql).await?;
        let head = head(row)?;
        self.advance(head.seq);
        Ok(head)
    }

    /// Returns the sequence of a stream up to which all messages were received or recorded as a
    /// gap, or `None` before the first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_sequence(&self, stream: &str) -> Result<Option<u64>, Error> {
        let sql = Sql::new("SELECT last_sequence FROM streams WHERE name = ").bind(stream);
        let row = self.first(&sql).await?;
        let last = row.map(|row| row.get::<i64>("last_sequence")).transpose();
        Ok(last.map_err(Error::Read)?.map(i64::unsigned_abs))
    }

    /// Watches the sequence of the last entry. It is updated when this store appends or reads the
    /// head.
    pub fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// Refuses appends while the ledger has fewer entries than this, because a checkpoint of this
    /// size was signed.
    pub fn set_signed_size(&self, size: u64) {
        self.signed.send_if_modified(|signed| {
            let further = size > *signed;
            *signed = size.max(*signed);
            further
        });
    }

    /// Resets the signed size, because the ledger continues under another origin.
    pub fn clear_signed_size(&self) {
        self.signed.send_replace(0);
    }

    /// Returns the size of the largest known signed checkpoint.
    pub fn signed(&self) -> u64 {
        *self.signed.borrow()
    }

    /// Waits until the ledger has at least as many entries as were signed.
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
        self.database.is_shared()
    }

    /// Returns the database address.
    pub const fn location(&self) -> &Location {
        self.database.location()
    }

    /// Closes all connections. Acknowledged data is already durable.
    pub async fn close(&self) {
        self.database.close().await;
    }

    pub(super) async fn rows(&self, sql: &Sql) -> Result<Vec<Row>, Error> {
        self.database.readers.rows(sql).await.map_err(Error::Read)
    }

    pub(super) async fn first(&self, sql: &Sql) -> Result<Option<Row>, Error> {
        self.database.readers.first(sql).await.map_err(Error::Read)
    }

    pub(super) fn advance(&self, seq: u64) {
        self.appended.send_if_modified(|last| {
            let further = seq > *last;
            *last = seq.max(*last);
            further
        });
    }
}

pub(super) fn head(row: Option<Row>) -> Result<Head, Error> {
    let row = row.ok_or(Error::CorruptHead)?;
    let seq: i64 = row.get("seq").map_err(Error::Read)?;
    let chain: Vec<u8> = row.get("chain").map_err(Error::Read)?;
    Ok(Head {
        seq: seq.try_into().map_err(|_| Error::CorruptHead)?,
        chain: chain.try_into().map_err(|_| Error::CorruptHead)?,
    })
}
