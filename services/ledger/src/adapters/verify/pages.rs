//! Reads the rows to verify, page by page. While all cores hash and compare one page, the next page
//! is read.

use std::panic::resume_unwind;
use std::thread;

use ledger_format::file::available_threads;
use mesh_db::pool::{Access, Connection};
use mesh_db::sql::{Row, Sql};

use super::rows::checkpoint;
use crate::adapters::archives;
use crate::adapters::event_index::{self, COLUMNS};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::verify::{HashedEntry, StoredEntry, StoredEntryRef, StoredHead};

/// Entries per page.
pub(super) const PAGE_ENTRIES: i64 = 1000;

/// A compared page, with the head from the same snapshot: entries may be appended meanwhile.
pub(super) struct VerifyPage {
    pub head: Option<StoredHead>,
    /// Last entry whose payload may be missing.
    pub archived_to: i64,
    pub entries: Vec<VerifiedRow>,
    /// Checkpoints that end with one of these entries. The last page has all remaining ones.
    pub checkpoints: Vec<StoredCheckpoint>,
}

pub(super) struct VerifiedRow {
    pub hashed: HashedEntry,
    /// The id, if payloads may be missing: no leaf proves it then.
    pub archived_id: Option<Vec<u8>>,
    /// The entry, if it has no payload.
    pub without_payload: Option<StoredEntry>,
    /// True if there are several payloads. In a partitioned table the sequence alone is not unique.
    pub has_duplicate_payload: bool,
    pub index_matches: bool,
}

/// Reads all pages in order.
#[derive(Default)]
pub(super) struct PageReader {
    /// The next page, prefetched.
    fetched: Option<Result<FetchedPage, sqlx::Error>>,
}

impl PageReader {
    /// Returns the next page. The last page is not full.
    pub async fn next(&mut self, connection: &mut Connection) -> Result<VerifyPage, sqlx::Error> {
        let fetched = match self.fetched.take() {
            Some(fetched) => fetched?,
            None => fetch(connection, None).await?,
        };
        let after = fetched.is_full().then(|| fetched.last()).flatten();
        let compared = tokio::task::spawn_blocking(move || fetched.compare());
        if after.is_some() {
            // An error in the next page is reported only after this page is verified.
            self.fetched = Some(fetch(connection, after).await);
        }
        match compared.await {
            Ok(page) => page,
            Err(error) => resume_unwind(error.into_panic()),
        }
    }
}

/// The rows of a page before any computation.
struct FetchedPage {
    head: Option<StoredHead>,
    archived_to: i64,
    entries: Vec<Row>,
    seqs: Vec<i64>,
    payloads: Vec<Row>,
    index: Vec<Row>,
    nodes: Vec<Row>,
    checkpoints: Vec<Row>,
}

async fn fetch(
    connection: &mut Connection,
    after: Option<i64>,
) -> Result<FetchedPage, sqlx::Error> {
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let head = Sql::new("SELECT seq, chain FROM head");
    let head = match snapshot.conn().rows(&head).await?.as_slice() {
        [row] => Some(StoredHead {
            seq: row.get("seq")?,
            chain: row.get("chain")?,
        }),
        _ => None,
    };
    let archived_to = snapshot.conn().first(&archives::archived_to()).await?;
    let archived_to = archived_to.map_or(Ok(0), |row| row.get("archived_to"))?;
    // The first page has no lower bound, because an attacker may have inserted a row before the
    // first entry. Text is read as bytes, because it may not be valid UTF-8.
    let mut entries = Sql::new("SELECT seq, ")
        .bytes("id")
        .push(", leaf, chain FROM entries");
    if let Some(after) = after {
        entries = entries.push(" WHERE seq > ").bind(after);
    }
    let entries = entries.push(" ORDER BY seq LIMIT ").bind(PAGE_ENTRIES);
    let entries = snapshot.conn().rows(&entries).await?;
    let seqs = seqs(&entries)?;
    // By range instead of a join, so that each partition is read once and not once per entry.
    let of_page = |sql: Sql| {
        sql.push(" WHERE seq >= ")
            .bind(seqs.first().copied().unwrap_or_default())
            .push(" AND seq <= ")
            .bind(seqs.last().copied().unwrap_or_default())
            .push(" ORDER BY seq")
    };
    let payloads = of_page(
        Sql::new("SELECT seq, recorded_at, ")
            .bytes("cluster")
            .push(", ")
            .bytes("subject")
            .push(", body FROM payloads"),
    );
    let payloads = snapshot.conn().rows(&payloads).await?;
    let index = of_page(
        Sql::new("SELECT recorded_at, ")
            .push(COLUMNS)
            .push(" FROM event_index"),
    );
    let index = snapshot.conn().rows(&index).await?;
    let nodes = of_page(
        Sql::new("SELECT seq, ")
            .bytes("block")
            .push(" FROM event_nodes"),
    );
    let nodes = snapshot.conn().rows(&nodes).await?;
    let mut checkpoints = Sql::new("SELECT number, size, root, made_at, ")
        .bytes("note")
        .push(" FROM checkpoints WHERE TRUE");
    if let Some(after) = after {
        checkpoints = checkpoints.push(" AND size > ").bind(after);
    }
    if seqs.len() == PAGE_ENTRIES as usize {
        let last = seqs.last().copied().unwrap_or_default();
        checkpoints = checkpoints.push(" AND size <= ").bind(last);
    }
    let checkpoints = checkpoints.push(" ORDER BY size, number");
    let checkpoints = snapshot.conn().rows(&checkpoints).await?;
    snapshot.commit().await?;
    Ok(FetchedPage {
        head,
        archived_to,
        entries,
        seqs,
        payloads,
        index,
        nodes,
        checkpoints,
    })
}

fn seqs(rows: &[Row]) -> Result<Vec<i64>, sqlx::Error> {
    rows.iter().map(|row| row.get("seq")).collect()
}

impl FetchedPage {
    const fn is_full(&self) -> bool {
        self.seqs.len() == PAGE_ENTRIES as usize
    }

    fn last(&self) -> Option<i64> {
        self.seqs.last().copied()
    }

    fn compare(self) -> Result<VerifyPage, sqlx::Error> {
        let beside = RelatedRows {
            archived_to: self.archived_to,
            payloads: RowsBySequence::of(self.payloads)?,
            index: RowsBySequence::of(self.index)?,
            nodes: RowsBySequence::of(self.nodes)?,
        };
        let part = self.entries.len().div_ceil(available_threads()).max(1);
        let compared: Vec<Result<Vec<VerifiedRow>, sqlx::Error>> = thread::scope(|scope| {
            let of = |rows: &[Row]| rows.iter().map(|row| beside.compare(row)).collect();
            let parts = self.entries.chunks(part);
            let parts: Vec<_> = parts.map(|rows| scope.spawn(move || of(rows))).collect();
            let joined = parts.into_iter().map(|part| part.join());
            joined
                .map(|part| part.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let mut entries = Vec::with_capacity(self.entries.len());
        for part in compared {
            entries.extend(part?);
        }
        let checkpoints = self.checkpoints.iter().map(checkpoint);
        Ok(VerifyPage {
            head: self.head,
            archived_to: self.archived_to,
            entries,
            checkpoints: checkpoints.collect::<Result<_, _>>()?,
        })
    }
}

/// Rows that belong to the entries of a page.
struct RelatedRows {
    archived_to: i64,
    payloads: RowsBySequence,
    index: RowsBySequence,
    nodes: RowsBySequence,
}

impl RelatedRows {
    fn compare(&self, row: &Row) -> Result<VerifiedRow, sqlx::Error> {
        let seq = row.at(0)?;
        let payloads = self.payloads.rows_of(seq);
        let (index, nodes) = (self.index.rows_of(seq), self.nodes.rows_of(seq));
        let payload: Option<[&[u8]; 3]> = match payloads.first() {
            Some(row) => Some([row.at(2)?, row.at(3)?, row.at(4)?]),
            None => None,
        };
        let entry = StoredEntryRef {
            seq,
            id: row.at(1)?,
            leaf: row.at(2)?,
            chain: row.at(3)?,
            payload,
        };
        let index_matches = match (payload, payloads.first()) {
            (Some([_, subject, body]), Some(stored)) => {
                index.len() < 2
                    && event_index::matches(index.first(), nodes, subject, body)
                    && index.first().is_none_or(|index| same_time(index, stored))
            }
            // An archived entry must have no index rows.
            _ => index.is_empty() && nodes.is_empty(),
        };
        Ok(VerifiedRow {
            hashed: entry.hashed(),
            archived_id: (seq <= self.archived_to).then(|| entry.id.to_vec()),
            without_payload: payload.is_none().then(|| entry.to_stored()),
            has_duplicate_payload: payloads.len() > 1,
            index_matches,
        })
    }
}

/// True if both rows have the same time. Queries join on it, so a difference would hide the entry.
fn same_time(index: &Row, payload: &Row) -> bool {
    let time = |row: &Row, place| row.at::<i64>(place).ok();
    time(index, 0).is_some() && time(index, 0) == time(payload, 1)
}

/// Rows in sequence order.
struct RowsBySequence {
    seqs: Vec<i64>,
    rows: Vec<Row>,
}

impl RowsBySequence {
    fn of(rows: Vec<Row>) -> Result<Self, sqlx::Error> {
        Ok(Self {
            seqs: seqs(&rows)?,
            rows,
        })
    }

    fn of_seq(&self, seq: i64) -> std::ops::Range<usize> {
        let begin = self.seqs.partition_point(|other| *other < seq);
        let same = self.seqs[begin..].iter().take_while(|other| **other == seq);
        begin..begin + same.count()
    }

    fn rows_of(&self, seq: i64) -> &[Row] {
        &self.rows[self.of_seq(seq)]
    }
}
