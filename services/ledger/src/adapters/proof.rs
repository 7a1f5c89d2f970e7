//! The tables of proofs: subtrees of the Merkle tree, checkpoints, and the keys that signed them.

use std::collections::BTreeSet;

use ledger_format::chain::{GENESIS, Hash};
use ledger_format::merkle::{Frontier, Node};
use mesh_db::pool::{Access, Conn, Transaction};
use mesh_db::sql::Sql;

use super::checkpoint_rows::{checkpoint, checkpoints, key, keys};
use super::store::Store;
use super::{archives, payload_eraser};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::StoredKey;
use crate::domain::tile::{TILE_WIDTH, Tile, Tiles, grow};
use crate::error::Error;

/// Why the key cannot be replaced now.
const UNAUDITED: &str = "the audit lacks archives that the current key signed; a running ledger adds them within seconds once NATS is available; try again";
/// Leaves read per query.
const PAGE_ENTRIES: u64 = 10_000;

/// A checkpoint and the rows that are stored atomically with it.
#[derive(Clone, Debug, Default)]
pub struct SignedCheckpoint {
    /// Subtrees completed since the previous checkpoint.
    pub subtrees: Vec<(Node, Hash)>,
    /// The key, if this checkpoint is the first that it signs.
    pub key: Option<StoredKey>,
    /// The checkpoint, `None` while the ledger is empty.
    pub checkpoint: Option<StoredCheckpoint>,
    /// True if the subtrees replace all stored ones.
    pub subtrees_rebuilt: bool,
}

impl Store {
    /// Returns the newest checkpoint.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_checkpoint(&self) -> Result<Option<StoredCheckpoint>, Error> {
        let sql = checkpoints().push(" ORDER BY number DESC LIMIT 1");
        Ok(self.read_checkpoints(&sql).await?.pop())
    }

    /// Returns the newest checkpoint of a size.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn checkpoint_of(&self, size: u64) -> Result<Option<StoredCheckpoint>, Error> {
        let sql = checkpoints()
            .push(" WHERE size = ")
            .bind(size.cast_signed())
            .push(" ORDER BY number DESC LIMIT 1");
        Ok(self.read_checkpoints(&sql).await?.pop())
    }

    /// Returns checkpoints of at least a size, the smallest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn checkpoints(
        &self,
        from_size: u64,
        limit: u32,
    ) -> Result<Vec<StoredCheckpoint>, Error> {
        let sql = checkpoints()
            .push(" WHERE size >= ")
            .bind(i64::try_from(from_size).unwrap_or(i64::MAX))
            .push(" ORDER BY size, number LIMIT ")
            .bind(limit);
        self.read_checkpoints(&sql).await
    }

    pub(super) async fn read_checkpoints(&self, sql: &Sql) -> Result<Vec<StoredCheckpoint>, Error> {
        let rows = self.rows(sql).await?;
        let rows: Result<Vec<_>, _> = rows.iter().map(checkpoint).collect();
        rows.map_err(Error::Read)
    }

    /// Returns all keys in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn checkpoint_keys(&self) -> Result<Vec<StoredKey>, Error> {
        let rows = self.rows(&keys()).await?;
        let rows: Result<Vec<_>, _> = rows.iter().map(key).collect();
        rows.map_err(Error::Read)
    }

    /// Reads stored hashes of the tree. Missing hashes are omitted.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn tiles(&self, positions: BTreeSet<Tile>) -> Result<Tiles, Error> {
        let mut read = Tiles::default();
        for tile in positions {
            let start = tile.start().cast_signed();
            let end = start.saturating_add(TILE_WIDTH.cast_signed());
            let sql = if tile.level == 0 {
                Sql::new("SELECT seq - 1 AS idx, leaf AS hash FROM entries WHERE seq > ")
                    .bind(start)
                    .push(" AND seq <= ")
                    .bind(end)
                    .push(" ORDER BY seq")
            } else {
                Sql::new("SELECT idx, hash FROM subtrees WHERE level = ")
                    .bind(u32::from(tile.level))
                    .push(" AND idx >= ")
                    .bind(start)
                    .push(" AND idx < ")
                    .bind(end)
                    .push(" ORDER BY idx")
            };
            let rows = self.rows(&sql).await?;
            let rows: Result<Vec<(i64, Vec<u8>)>, sqlx::Error> = rows
                .iter()
                .map(|row| Ok((row.get("idx")?, row.get("hash")?)))
                .collect();
            // Hashes after a gap, or after a hash of another length, are not used.
            let hashes = rows
                .map_err(Error::Read)?
                .into_iter()
                .zip(start..)
                .map_while(|((idx, hash), expected)| {
                    Hash::try_from(hash).ok().filter(|_| idx == expected)
                });
            read.insert(tile, hashes.collect());
        }
        Ok(read)
    }

    /// Adds the leaves of the entries up to `size` to a tree, and returns the completed subtrees.
    ///
    /// # Errors
    /// If the database cannot be read, or has a gap.
    pub async fn grow(&self, tree: &mut Frontier, size: u64) -> Result<Vec<(Node, Hash)>, Error> {
        let mut subtrees = Vec::new();
        while tree.size() < size {
            let from = tree.size();
            let to = size.min(from + PAGE_ENTRIES);
            let sql = Sql::new("SELECT seq, leaf FROM entries WHERE seq > ")
                .bind(from.cast_signed())
                .push(" AND seq <= ")
                .bind(to.cast_signed())
                .push(" ORDER BY seq");
            for row in self.rows(&sql).await? {
                let expected = (tree.size() + 1).cast_signed();
                let seq: i64 = row.get("seq").map_err(Error::Read)?;
                let leaf: Vec<u8> = row.get("leaf").map_err(Error::Read)?;
                match Hash::try_from(leaf) {
                    Ok(leaf) if seq == expected => grow(tree, leaf, &mut subtrees),
                    _ => return Err(Error::Corrupt { seq: expected }),
                }
            }
            if tree.size() < to {
                return Err(Error::Corrupt {
                    seq: (tree.size() + 1).cast_signed(),
                });
            }
        }
        Ok(subtrees)
    }

    /// Returns the leaf of an entry, or `None` if there is no such entry.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn leaf(&self, seq: u64) -> Result<Option<Hash>, Error> {
        let Ok(seq) = i64::try_from(seq) else {
            return Ok(None);
        };
        let sql = Sql::new("SELECT leaf FROM entries WHERE seq = ").bind(seq);
        let row = self.first(&sql).await?;
        row.map(|row| {
            let leaf: Vec<u8> = row.get("leaf").map_err(Error::Read)?;
            leaf.try_into().map_err(|_| Error::Corrupt { seq })
        })
        .transpose()
    }

    /// Returns the sequence of an id, or `None` if the ledger does not have it.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn seq_of(&self, id: &str) -> Result<Option<u64>, Error> {
        let sql = Sql::new("SELECT seq FROM entries WHERE id = ").bind(id);
        let row = self.first(&sql).await?;
        let seq = row.map(|row| row.get::<i64>("seq")).transpose();
        Ok(seq.map_err(Error::Read)?.map(i64::unsigned_abs))
    }

    /// Returns the ids of the entries after `after` up to `up_to`, in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn ids(&self, after: u64, up_to: u64) -> Result<Vec<String>, Error> {
        let sql = Sql::new("SELECT id FROM entries WHERE seq > ")
            .bind(after.cast_signed())
            .push(" AND seq <= ")
            .bind(up_to.cast_signed())
            .push(" ORDER BY seq");
        let rows = self.rows(&sql).await?;
        let ids: Result<Vec<String>, _> = rows.iter().map(|row| row.get("id")).collect();
        ids.map_err(Error::Read)
    }

    /// Returns the chain value after an entry, or `None` if there is no such entry. 0 stands for
    /// the state before the first entry.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn chain(&self, seq: u64) -> Result<Option<Hash>, Error> {
        if seq == 0 {
            return Ok(Some(GENESIS));
        }
        let sql = Sql::new("SELECT chain FROM entries WHERE seq = ").bind(seq.cast_signed());
        let row = self.first(&sql).await?;
        let chain = row.map(|row| row.get::<Vec<u8>>("chain")).transpose();
        Ok(chain
            .map_err(Error::Read)?
            .and_then(|chain| chain.try_into().ok()))
    }

    /// Stores a checkpoint and its related rows. Returns false, and stores nothing, if another
    /// replica was faster.
    ///
    /// # Errors
    /// If the database refuses, or the key is replaced while audit entries of archives that it
    /// signed are missing. Nothing is stored then.
    pub async fn store_checkpoint(&self, signed: &SignedCheckpoint) -> Result<bool, Error> {
        let mut writer = self.database.writer.acquire().await.map_err(Error::Sign)?;
        let mut transaction = writer.begin(Access::Write).await.map_err(Error::Sign)?;
        let mut first = true;
        if let Some(key) = &signed.key {
            let untold = unaudited_archives(&mut transaction)
                .await
                .map_err(Error::Sign)?;
            if untold {
                return Err(Error::NoKey(UNAUDITED.to_owned()));
            }
            first &= insert_key(transaction.conn(), key)
                .await
                .map_err(Error::Sign)?;
        }
        if let Some(checkpoint) = &signed.checkpoint {
            first &= insert_checkpoint(transaction.conn(), checkpoint)
                .await
                .map_err(Error::Sign)?;
        }
        if !first {
            return Ok(false);
        }
        if signed.subtrees_rebuilt {
            let delete = Sql::new("DELETE FROM subtrees");
            transaction
                .conn()
                .execute(&delete)
                .await
                .map_err(Error::Sign)?;
        }
        for (node, hash) in &signed.subtrees {
            let sql = Sql::new("INSERT INTO subtrees (level, idx, hash) VALUES (")
                .bind(u32::from(node.level))
                .push(", ")
                .bind(node.index.cast_signed())
                .push(", ")
                .bind(hash.as_slice())
                .push(") ON CONFLICT DO NOTHING");
            transaction
                .conn()
                .execute(&sql)
                .await
                .map_err(Error::Sign)?;
        }
        transaction.commit().await.map_err(Error::Sign)?;
        Ok(true)
    }
}

/// True if an archive signed by the ledger has no audit entry yet.
async fn unaudited_archives(transaction: &mut Transaction<'_>) -> Result<bool, sqlx::Error> {
    payload_eraser::one_at_a_time(transaction).await?;
    let checked = archives::checked(transaction, 0).await?;
    Ok(checked.iter().any(|one| one.authentic && !one.audited))
}

async fn insert_key(conn: Conn<'_>, key: &StoredKey) -> Result<bool, sqlx::Error> {
    let sql = Sql::new(
        "INSERT INTO checkpoint_keys (number, vkey, from_size, made_at, made_by) VALUES (",
    )
    .bind(key.number)
    .push(", ")
    .bind(&key.vkey)
    .push(", ")
    .bind(key.from_size)
    .push(", ")
    .bind(key.made_at)
    .push(", ")
    .bind(&key.made_by)
    .push(") ON CONFLICT DO NOTHING");
    Ok(conn.execute(&sql).await? == 1)
}

async fn insert_checkpoint(
    conn: Conn<'_>,
    checkpoint: &StoredCheckpoint,
) -> Result<bool, sqlx::Error> {
    let sql = Sql::new("INSERT INTO checkpoints (number, size, root, note, made_at) VALUES (")
        .bind(checkpoint.number)
        .push(", ")
        .bind(checkpoint.size)
        .push(", ")
        .bind(checkpoint.root.as_slice())
        .push(", ")
        .bind(&checkpoint.note)
        .push(", ")
        .bind(checkpoint.made_at)
        .push(") ON CONFLICT DO NOTHING");
    Ok(conn.execute(&sql).await? == 1)
}
