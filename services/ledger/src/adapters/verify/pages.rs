//! Reads the rows to verify, page by page. Each page is read, hashed and compared by a task of its
//! own with a connection of its own; a few pages are in work at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::resume_unwind;

use ledger_format::file::available_threads;
use mesh_db::cells::CellColumn::{Bytes, Int};
use mesh_db::cells::{CellRow, Cells};
use mesh_db::pool::{Access, Pool};
use mesh_db::sql::{Row, Sql};
use tokio_util::task::AbortOnDropHandle;

use super::rows::checkpoint;
use crate::adapters::archives;
use crate::adapters::event_index::{self, COLUMNS};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::verify::{HashedEntry, StoredEntry, StoredEntryRef, StoredHead};

/// Entries per page.
const PAGE_ENTRIES: i64 = 1000;

/// Maximum number of pages in work. Each takes some ten megabytes, and chain and tree are computed in
/// order, which more cores do not speed up.
const MAX_PAGES_AHEAD: usize = 5;

/// Returns the number of pages in work: one for each core, and one because another one waits for
/// the database.
pub(super) fn pages_ahead() -> usize {
    (available_threads() + 1).min(MAX_PAGES_AHEAD)
}

/// A compared page, with the head from the same snapshot: entries may be appended meanwhile.
pub(super) struct VerifyPage {
    pub head: Option<StoredHead>,
    /// Last entry whose payload may be missing.
    pub archived_to: i64,
    pub entries: Vec<VerifiedRow>,
    /// Checkpoints that end with one of these entries. The last page has all remaining ones.
    pub checkpoints: Vec<StoredCheckpoint>,
}

impl VerifyPage {
    /// True unless it is the last page.
    pub const fn is_full(&self) -> bool {
        self.entries.len() == PAGE_ENTRIES as usize
    }

    fn last(&self) -> Option<i64> {
        self.entries.last().map(|entry| entry.hashed.seq)
    }
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
pub(super) struct PageReader {
    pool: Pool,
    /// The last entry of the last page.
    last: Option<i64>,
    /// The following pages, if no sequence is missing.
    ahead: VecDeque<AbortOnDropHandle<Result<VerifyPage, sqlx::Error>>>,
}

impl PageReader {
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            last: None,
            ahead: VecDeque::new(),
        }
    }

    /// Returns the next page. The last page is not full.
    pub async fn next(&mut self) -> Result<VerifyPage, sqlx::Error> {
        let ahead = match self.ahead.pop_front() {
            Some(page) => joined(page.await).ok().filter(VerifyPage::is_full),
            None => None,
        };
        let page = match ahead {
            Some(page) => page,
            None => {
                // The first page, the last one, a missing sequence or an error: what follows the last page is
                // read, wherever it is. No other page is read before the first one, so that all
                // others know the archives that it knows.
                self.ahead.clear();
                read(self.pool.clone(), self.last, None).await?
            }
        };
        self.last = page.last().or(self.last);
        if let (Some(last), Some(head)) = (self.last, &page.head) {
            self.read_ahead(last, head.seq);
        }
        Ok(page)
    }

    /// Starts to read full pages up to `head`.
    fn read_ahead(&mut self, last: i64, head: i64) {
        while self.ahead.len() < pages_ahead() {
            let pages = self.ahead.len() as i64;
            let after = last.saturating_add(pages * PAGE_ENTRIES);
            let to = after.saturating_add(PAGE_ENTRIES);
            if to > head {
                break;
            }
            let page = tokio::spawn(read(self.pool.clone(), Some(after), Some(to)));
            self.ahead.push_back(AbortOnDropHandle::new(page));
        }
    }
}

/// Reads and compares the page of entries after `after`, at most up to `to`.
async fn read(pool: Pool, after: Option<i64>, to: Option<i64>) -> Result<VerifyPage, sqlx::Error> {
    let fetched = fetch(&pool, after, to).await?;
    joined(tokio::task::spawn_blocking(move || fetched.compare()).await)
}

fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    result.unwrap_or_else(|error| resume_unwind(error.into_panic()))
}

/// The rows of a page before any computation.
struct FetchedPage {
    head: Option<StoredHead>,
    archived_to: i64,
    entries: CellsBySequence,
    payloads: CellsBySequence,
    index: CellsBySequence,
    nodes: CellsBySequence,
    checkpoints: Vec<Row>,
}

async fn fetch(
    pool: &Pool,
    after: Option<i64>,
    to: Option<i64>,
) -> Result<FetchedPage, sqlx::Error> {
    let mut connection = pool.acquire().await?;
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
    // first entry.
    let mut entries = Sql::new(" FROM entries WHERE TRUE");
    if let Some(after) = after {
        entries = entries.push(" AND seq > ").bind(after);
    }
    if let Some(to) = to {
        entries = entries.push(" AND seq <= ").bind(to);
    }
    let entries = entries.push(" ORDER BY seq LIMIT ").bind(PAGE_ENTRIES);
    let columns = [Int("seq"), Bytes("id"), Bytes("leaf"), Bytes("chain")];
    let entries = snapshot.conn().cells(&columns, entries).await?;
    let entries = CellsBySequence::of(entries)?;
    let (first, last) = (entries.seqs.first().copied(), entries.seqs.last().copied());
    // By range instead of a join, so that each partition is read once and not once per entry.
    let of_page = |table: &'static str| {
        Sql::new(" FROM ")
            .push(table)
            .push(" WHERE seq >= ")
            .bind(first.unwrap_or_default())
            .push(" AND seq <= ")
            .bind(last.unwrap_or_default())
            .push(" ORDER BY seq")
    };
    let columns = [
        Int("seq"),
        Int("recorded_at"),
        Bytes("cluster"),
        Bytes("subject"),
        Bytes("body"),
    ];
    let payloads = snapshot.conn().cells(&columns, of_page("payloads")).await?;
    let index = snapshot
        .conn()
        .cells(&COLUMNS, of_page("event_index"))
        .await?;
    let columns = [Int("seq"), Bytes("block")];
    let nodes = snapshot
        .conn()
        .cells(&columns, of_page("event_nodes"))
        .await?;
    // Text is read as bytes, because it may not be valid UTF-8.
    let mut checkpoints = Sql::new("SELECT number, size, root, made_at, ")
        .bytes("note")
        .push(" FROM checkpoints WHERE TRUE");
    if let Some(after) = after {
        checkpoints = checkpoints.push(" AND size > ").bind(after);
    }
    if entries.seqs.len() == PAGE_ENTRIES as usize {
        let last = last.unwrap_or_default();
        checkpoints = checkpoints.push(" AND size <= ").bind(last);
    }
    let checkpoints = checkpoints.push(" ORDER BY size, number");
    let checkpoints = snapshot.conn().rows(&checkpoints).await?;
    snapshot.commit().await?;
    Ok(FetchedPage {
        head,
        archived_to,
        entries,
        payloads: CellsBySequence::of(payloads)?,
        index: CellsBySequence::of(index)?,
        nodes: CellsBySequence::of(nodes)?,
        checkpoints,
    })
}

impl FetchedPage {
    fn compare(self) -> Result<VerifyPage, sqlx::Error> {
        let entries = self.entries.seqs.iter().enumerate();
        let entries = entries.map(|(place, seq)| self.compare_row(*seq, self.entries.row(place)));
        let entries = entries.collect::<Result<_, _>>()?;
        let checkpoints = self.checkpoints.iter().map(checkpoint);
        Ok(VerifyPage {
            entries,
            checkpoints: checkpoints.collect::<Result<_, _>>()?,
            head: self.head,
            archived_to: self.archived_to,
        })
    }

    fn compare_row(&self, seq: i64, row: CellRow<'_>) -> Result<VerifiedRow, sqlx::Error> {
        let payloads = self.payloads.of_seq(seq);
        let stored = payloads
            .clone()
            .next()
            .map(|place| self.payloads.row(place));
        let payload: Option<[&[u8]; 3]> = match stored {
            Some(row) => Some([required(row, 2)?, required(row, 3)?, required(row, 4)?]),
            None => None,
        };
        let entry = StoredEntryRef {
            seq,
            id: required(row, 1)?,
            leaf: required(row, 2)?,
            chain: required(row, 3)?,
            payload,
        };
        let (index, nodes) = (self.index.of_seq(seq), self.nodes.of_seq(seq));
        let index_matches = match (payload, stored) {
            (Some([_, subject, body]), Some(stored)) => {
                let row = index.clone().next().map(|place| self.index.row(place));
                let nodes = nodes.map(|place| self.nodes.row(place));
                index.len() < 2
                    && event_index::matches(row, nodes, subject, body)
                    && row.is_none_or(|row| same_time(row, stored))
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

fn required(row: CellRow<'_>, column: usize) -> Result<&[u8], sqlx::Error> {
    let null = || sqlx::Error::Decode("NULL instead of bytes".into());
    row.bytes(column)?.ok_or_else(null)
}

/// True if both rows have the same time. Queries join on it, so a difference would hide the entry.
fn same_time(index: CellRow<'_>, payload: CellRow<'_>) -> bool {
    let time = |row: CellRow<'_>| row.int(1).ok().flatten();
    time(index).is_some() && time(index) == time(payload)
}

/// Rows in sequence order. The first column is the sequence.
struct CellsBySequence {
    seqs: Vec<i64>,
    rows: Cells,
}

impl CellsBySequence {
    fn of(rows: Cells) -> Result<Self, sqlx::Error> {
        let null = || sqlx::Error::Decode("NULL instead of a sequence".into());
        let seqs = (0..rows.len()).map(|place| rows.row(place).int(0)?.ok_or_else(null));
        Ok(Self {
            seqs: seqs.collect::<Result<_, _>>()?,
            rows,
        })
    }

    fn row(&self, place: usize) -> CellRow<'_> {
        self.rows.row(place)
    }

    /// Returns the places of the rows of a sequence.
    fn of_seq(&self, seq: i64) -> Range<usize> {
        let begin = self.seqs.partition_point(|other| *other < seq);
        let same = self.seqs[begin..].iter().take_while(|other| **other == seq);
        begin..begin + same.count()
    }
}
