//! The rows that are verified, a page at a time; nothing in them is trusted.

use std::collections::HashMap;

use mesh_db::pool::{Access, Connection};
use mesh_db::sql::{Row, Sql};

use crate::adapters::archives::{self, archive};
use crate::adapters::index::{self, COLUMNS};
use crate::domain::archive::StoredArchive;
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::StoredKey;
use crate::domain::verify::{Payload, Stored, StoredHead};
use crate::error::Error;

/// Entries of one page.
pub(super) const PAGE: i64 = 1000;

/// A page and the head at the same moment: entries may be appended meanwhile.
pub(super) struct Page {
    pub head: Option<StoredHead>,
    /// Up to which entry payloads may be gone.
    pub archived_to: i64,
    pub entries: Vec<Read>,
    /// Those that end with one of these entries; on the last page all that are left.
    pub checkpoints: Vec<StoredCheckpoint>,
}

pub(super) struct Read {
    pub entry: Stored,
    /// Where payloads are partitioned, their sequence alone is not unique.
    pub payload_twice: bool,
    pub index_fits: bool,
}

pub(super) async fn read(
    connection: &mut Connection,
    after: Option<i64>,
) -> Result<Page, sqlx::Error> {
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let head = Sql::new("SELECT seq, chain FROM head");
    let head = match snapshot.link().rows(&head).await?.as_slice() {
        [row] => Some(StoredHead {
            seq: row.get("seq")?,
            chain: row.get("chain")?,
        }),
        _ => None,
    };
    let archived_to = snapshot.link().first(&archives::archived_to()).await?;
    let archived_to = archived_to.map_or(Ok(0), |row| row.get("archived_to"))?;
    // The first page has no lower bound: somebody may have put a row before the first. Text is read as bytes, as it may be none any more.
    let mut entries = Sql::new("SELECT seq, ")
        .bytes("id")
        .push(", leaf, chain FROM entries");
    if let Some(after) = after {
        entries = entries.push(" WHERE seq > ").bind(after);
    }
    let entries = entries.push(" ORDER BY seq LIMIT ").bind(PAGE);
    let rows = snapshot.link().rows(&entries).await?;
    let seqs = rows
        .iter()
        .map(|row| row.get("seq"))
        .collect::<Result<Vec<i64>, _>>()?;
    // By range and not by a join: each partition is looked into once, and not once for every entry.
    let of_page = |sql: Sql| {
        sql.push(" WHERE seq >= ")
            .bind(seqs.first().copied().unwrap_or_default())
            .push(" AND seq <= ")
            .bind(seqs.last().copied().unwrap_or_default())
    };
    let payloads = of_page(
        Sql::new("SELECT seq, recorded_at, ")
            .bytes("cluster")
            .push(", ")
            .bytes("subject")
            .push(", body FROM payloads"),
    );
    let mut payloads = by_seq(snapshot.link().rows(&payloads).await?)?;
    let index = of_page(
        Sql::new("SELECT recorded_at, ")
            .push(COLUMNS)
            .push(" FROM event_index"),
    );
    let mut index = by_seq(snapshot.link().rows(&index).await?)?;
    let nodes = of_page(
        Sql::new("SELECT seq, ")
            .bytes("block")
            .push(" FROM event_nodes"),
    );
    let mut nodes = by_seq(snapshot.link().rows(&nodes).await?)?;
    let mut checkpoints = Sql::new("SELECT number, size, root, made_at, ")
        .bytes("note")
        .push(" FROM checkpoints WHERE TRUE");
    if let Some(after) = after {
        checkpoints = checkpoints.push(" AND size > ").bind(after);
    }
    if seqs.len() == PAGE as usize {
        let last = seqs.last().copied().unwrap_or_default();
        checkpoints = checkpoints.push(" AND size <= ").bind(last);
    }
    let checkpoints = checkpoints.push(" ORDER BY size, number");
    let checkpoints = snapshot.link().rows(&checkpoints).await?;
    snapshot.commit().await?;

    let entries = rows.iter().zip(seqs).map(|(row, seq)| {
        let stored = payloads.remove(&seq).unwrap_or_default();
        let index = index.remove(&seq).unwrap_or_default();
        let nodes = nodes.remove(&seq).unwrap_or_default();
        let payload = stored.first().map(payload).transpose()?;
        let index_fits = match (&payload, stored.first()) {
            (Some(payload), Some(stored)) => {
                index.len() < 2
                    && index::fits(index.first(), &nodes, &payload.subject, &payload.body)
                    && index.first().is_none_or(|index| same_time(index, stored))
            }
            // Nothing is left of what is archived.
            _ => index.is_empty() && nodes.is_empty(),
        };
        Ok(Read {
            entry: Stored {
                seq,
                id: row.get("id")?,
                leaf: row.get("leaf")?,
                chain: row.get("chain")?,
                payload,
            },
            payload_twice: stored.len() > 1,
            index_fits,
        })
    });
    Ok(Page {
        entries: entries.collect::<Result<_, sqlx::Error>>()?,
        head,
        archived_to,
        checkpoints: checkpoints
            .iter()
            .map(checkpoint)
            .collect::<Result<_, _>>()?,
    })
}

/// Nothing about it is trusted: its note may be no text any more.
fn checkpoint(row: &Row) -> Result<StoredCheckpoint, sqlx::Error> {
    let note: Vec<u8> = row.get("note")?;
    Ok(StoredCheckpoint {
        number: row.get("number")?,
        size: row.get("size")?,
        root: row.get("root")?,
        note: String::from_utf8_lossy(&note).into_owned(),
        made_at: row.get("made_at")?,
    })
}

/// The keys that the ledger names as its own, and the number of its newest checkpoint at the same moment.
pub(super) async fn stored_keys(
    connection: &mut Connection,
) -> Result<(Vec<StoredKey>, i64), sqlx::Error> {
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let keys = Sql::new("SELECT number, from_size, ")
        .bytes("vkey")
        .push(" FROM checkpoint_keys ORDER BY number");
    let rows = snapshot.link().rows(&keys).await?;
    let newest = Sql::new("SELECT COALESCE(MAX(number), 0) AS number FROM checkpoints");
    let newest = snapshot.link().first(&newest).await?;
    snapshot.commit().await?;
    let key = |row: &Row| {
        let vkey: Vec<u8> = row.get("vkey")?;
        Ok(StoredKey {
            number: row.get("number")?,
            // One that is none is nobody's: what it signed counts as forged.
            vkey: String::from_utf8_lossy(&vkey).into_owned(),
            from_size: row.get("from_size")?,
            made_at: 0,
            made_by: String::new(),
        })
    };
    let keys: Result<Vec<_>, sqlx::Error> = rows.iter().map(key).collect();
    Ok((keys?, newest.map_or(Ok(0), |row| row.get("number"))?))
}

pub(in crate::adapters) fn payload(row: &Row) -> Result<Payload, sqlx::Error> {
    Ok(Payload {
        cluster: row.get("cluster")?,
        subject: row.get("subject")?,
        body: row.get("body")?,
    })
}

pub(super) fn archived_to(archives: &[StoredArchive]) -> i64 {
    archives.last().map_or(0, |archive| archive.last_seq)
}

pub(super) async fn stored_archives(
    connection: &mut Connection,
) -> Result<Vec<StoredArchive>, Error> {
    let rows = connection.link().rows(&archives::archives(0)).await;
    let rows = rows.map_err(Error::Read)?;
    let rows: Result<Vec<_>, _> = rows.iter().map(archive).collect();
    rows.map_err(Error::Read)
}

/// How many of them have no entry in the audit.
pub(super) async fn unaudited(
    connection: &mut Connection,
    archives: &[StoredArchive],
) -> Result<u64, Error> {
    let ids: Vec<String> = archives.iter().map(StoredArchive::audit_id).collect();
    let count = ids.len() as u64;
    let known = Sql::new("SELECT COUNT(*) AS known FROM entries WHERE id").any_of(ids);
    let row = connection.link().first(&known).await.map_err(Error::Read)?;
    let known = row.map_or(Ok(0), |row| row.get::<i64>("known"));
    Ok(count.saturating_sub(known.map_err(Error::Read)?.unsigned_abs()))
}

/// Queries join on it: another time would hide the entry.
fn same_time(index: &Row, payload: &Row) -> bool {
    let time = |row: &Row| row.get::<i64>("recorded_at").ok();
    time(index).is_some() && time(index) == time(payload)
}

fn by_seq(rows: Vec<Row>) -> Result<HashMap<i64, Vec<Row>>, sqlx::Error> {
    let mut map: HashMap<i64, Vec<Row>> = HashMap::with_capacity(rows.len());
    for row in rows {
        map.entry(row.get("seq")?).or_default().push(row);
    }
    Ok(map)
}

/// A row that no entry has would be shown by nothing else.
pub(super) async fn stray(
    connection: &mut Connection,
    table: &'static str,
    end: i64,
) -> Result<Option<i64>, Error> {
    let sql = Sql::new("SELECT t.seq FROM ")
        .push(table)
        .push(" t WHERE (t.seq > ")
        .bind(end)
        .push(
            " OR t.seq < 1) AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.seq = t.seq)
             ORDER BY t.seq LIMIT 1",
        );
    let row = connection.link().first(&sql).await.map_err(Error::Read)?;
    row.map(|row| row.get("seq"))
        .transpose()
        .map_err(Error::Read)
}
