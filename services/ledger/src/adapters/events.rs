//! Queries over the event history.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use mesh_db::sql::{Row, Sql};
use mesh_runtime::api::Visibility;
use slurm_types::JobRef;

use super::access_path::{AccessPath, count_limits, least_index};
use super::block_ranges::{block, block_range_sql};
use super::conditions::Conditions as _;
use super::page::{PageQuery, ScanLimits, ScanOrder};
use super::sequence_range::SequenceRange;
use super::store::Store;
use crate::domain::filter::Selection;
use crate::domain::job_history::NodeWindow;
use crate::domain::query::Query;
use crate::error::Error;

/// A stored entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Sequence.
    pub seq: i64,
    /// Category; distinguishes events from audit entries.
    pub category: String,
    /// Body as received.
    pub body: Vec<u8>,
}

impl Store {
    /// Returns a page of entries, plus one entry if there is a next page.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn list(
        &self,
        query: &Query,
        visibility: &Visibility,
    ) -> Result<Vec<EntryRow>, Error> {
        self.list_by(query, visibility, ScanLimits::default()).await
    }

    pub(super) async fn list_by(
        &self,
        query: &Query,
        visibility: &Visibility,
        limits: ScanLimits,
    ) -> Result<Vec<EntryRow>, Error> {
        let rows = self.page_by(query, visibility, limits).await?;
        let entry = |found: &Row| {
            let body: Option<Vec<u8>> = found.get("body")?;
            let (seq, category) = (found.get("seq")?, found.get("category")?);
            Ok((seq, category, body))
        };
        rows.iter()
            .map(|found| {
                let (seq, category, body) = entry(found).map_err(Error::Read)?;
                // An indexed entry without a body. Omitting it would make the response incomplete.
                let body = body.ok_or(Error::Corrupt { seq })?;
                Ok(EntryRow {
                    seq,
                    category,
                    body,
                })
            })
            .collect()
    }

    /// Returns the rows of a page, plus one if there is a next page.
    pub(super) async fn page_by(
        &self,
        query: &Query,
        visibility: &Visibility,
        limits: ScanLimits,
    ) -> Result<Vec<Row>, Error> {
        // Sorted: PostgreSQL may overestimate a job and scan the whole ledger for it.
        if query.selection.is_narrow() {
            let page = PageQuery::new(query, visibility);
            let path = page.ordered_path();
            return self.page(&page, path, page.span(), ScanOrder::Sorted).await;
        }
        let head = self.head().await?.seq.cast_signed();
        let block_entries = limits.block_entries;
        let mut query = query.clone();
        query.selection = self
            .with_identity_users(&query.selection, head, block_entries)
            .await?;
        let users = query.selection.identity_users.as_ref();
        if users.is_some_and(BTreeSet::is_empty) {
            return Ok(Vec::new());
        }
        let query = &query;
        let page = PageQuery::new(query, visibility);
        let first = page.ordered_path();
        let in_blocks = if query.selection.is_in_blocks() {
            self.spans(&query.selection, head, block_entries).await?
        } else {
            vec![SequenceRange::default()]
        };
        let spans = page.spans(in_blocks, head);
        let path = match page.only_path() {
            Some(path) => path,
            None => {
                let Some(whole) = SequenceRange::around(&spans) else {
                    return Ok(Vec::new());
                };
                let near = whole.near(limits.leading_entries, query.descending);
                let rows = self.page(&page, first, near, ScanOrder::Sequence).await?;
                if rows.len() > query.limit as usize || near.contains(whole) {
                    return Ok(rows);
                }
                let few = self
                    .cheapest_path(&page, whole, limits.max_sorted_entries)
                    .await?;
                let path = few.unwrap_or_else(|| page.fallback_path());
                // As one scan, because neither returns entries in order.
                if few.is_some() || path.scans_names() {
                    return self.page(&page, path, whole, ScanOrder::Sorted).await;
                }
                path
            }
        };
        let mut rows = Vec::new();
        for span in spans {
            rows.extend(self.page(&page, path, span, ScanOrder::Sequence).await?);
            if rows.len() > query.limit as usize {
                rows.truncate(query.limit as usize + 1);
                break;
            }
        }
        Ok(rows)
    }

    /// Returns the path with the fewest entries, if it has fewer than `max`.
    async fn cheapest_path<'p>(
        &self,
        page: &'p PageQuery<'_>,
        span: SequenceRange,
        max: i64,
    ) -> Result<Option<&'p AccessPath>, Error> {
        let paths = page.countable_paths();
        for counted in count_limits(max) {
            let rows = self
                .database
                .readers
                .rows(&PageQuery::counts(&paths, span, counted))
                .await;
            let rows = rows.map_err(Error::Read)?;
            let counts: Result<Vec<i64>, _> = rows.iter().map(|row| row.get("entries")).collect();
            if let Some(path) = least_index(&counts.map_err(Error::Read)?, counted) {
                return Ok(paths.get(path).copied());
            }
        }
        Ok(None)
    }

    async fn page(
        &self,
        page: &PageQuery<'_>,
        path: &AccessPath,
        span: SequenceRange,
        by: ScanOrder,
    ) -> Result<Vec<Row>, Error> {
        let rows = self
            .database
            .readers
            .rows(&page.entries(path, span, by))
            .await;
        rows.map_err(Error::Read)
    }

    /// Returns all entries about a job up to a limit, oldest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn job_history(
        &self,
        cluster: &str,
        job: &JobRef,
        visibility: &Visibility,
        at: Option<DateTime<Utc>>,
        limit: u32,
    ) -> Result<Vec<EntryRow>, Error> {
        let sql = select()
            .visible(visibility)
            .push(" AND i.cluster = ")
            .bind(cluster)
            .of_job(job)
            .up_to(at)
            .push(" ORDER BY i.seq LIMIT ")
            .bind(limit);
        self.fetch(&sql).await
    }

    /// Returns events of nodes in a time window up to a limit, oldest first. They are visible to
    /// everyone who may see the job that ran there.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn node_events(
        &self,
        cluster: &str,
        window: &NodeWindow,
        at: Option<DateTime<Utc>>,
        limit: u32,
    ) -> Result<Vec<EntryRow>, Error> {
        let nodes: Vec<String> = window.nodes.iter().cloned().collect();
        let sql = select()
            .push(" AND i.node")
            .any_of(nodes)
            .push(" AND i.cluster = ")
            .bind(cluster)
            .push(" AND i.occurred_at >= ")
            .bind(window.from.timestamp_micros())
            .up_to(window.to)
            .up_to(at)
            .push(" ORDER BY i.seq LIMIT ")
            .bind(limit);
        self.fetch(&sql).await
    }

    /// Returns the newest entries about a node up to a limit, newest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn node(
        &self,
        cluster: &str,
        node: &str,
        visibility: &Visibility,
        at: Option<DateTime<Utc>>,
        limit: u32,
    ) -> Result<Vec<EntryRow>, Error> {
        let sql = select()
            .visible(visibility)
            .push(" AND i.cluster = ")
            .bind(cluster)
            .push(" AND i.node = ")
            .bind(node)
            .up_to(at)
            .push(" ORDER BY i.occurred_at DESC, i.seq DESC LIMIT ")
            .bind(limit);
        self.fetch(&sql).await
    }

    /// Returns the sequence of an id, if the caller may see the entry.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn visible_seq_of(
        &self,
        id: &str,
        visibility: &Visibility,
    ) -> Result<Option<u64>, Error> {
        // Archived entries have no index rows.
        if *visibility == Visibility::All {
            return self.seq_of(id).await;
        }
        let sql = Sql::new(
            "SELECT e.seq FROM entries e JOIN event_index i ON i.seq = e.seq WHERE e.id = ",
        )
        .bind(id);
        let row = self.database.readers.first(&sql.visible(visibility)).await;
        let seq = row.map_err(Error::Read)?.map(|row| row.get::<i64>("seq"));
        Ok(seq.transpose().map_err(Error::Read)?.map(i64::unsigned_abs))
    }

    async fn fetch(&self, sql: &Sql) -> Result<Vec<EntryRow>, Error> {
        let rows = self.rows(sql).await?;
        rows.iter()
            .map(row)
            .collect::<Result<_, _>>()
            .map_err(Error::Read)
    }
}

impl Store {
    /// Returns the sequence ranges up to `head` that contain all entries of a selection's cluster
    /// and time.
    pub(super) async fn spans(
        &self,
        selection: &Selection,
        head: i64,
        block_entries: i64,
    ) -> Result<Vec<SequenceRange>, Error> {
        self.summarize(head, block_entries).await?;
        Ok(self.block_ranges.spans(selection))
    }

    /// Adds the Unix users that have a selection's identity in the entries up to `head`, because the
    /// identity has no index.
    pub(super) async fn with_identity_users(
        &self,
        selection: &Selection,
        head: i64,
        block_entries: i64,
    ) -> Result<Selection, Error> {
        let mut known = selection.clone();
        if let Some(identity) = &selection.identity {
            self.summarize(head, block_entries).await?;
            known.identity_users = self.block_ranges.users_of(identity);
        }
        Ok(known)
    }

    /// Adds the entries up to `head` to the block ranges.
    async fn summarize(&self, head: i64, block_entries: i64) -> Result<(), Error> {
        let mut after = self.block_ranges.covered_to();
        while after < head {
            let to = after.saturating_add(block_entries).min(head);
            let rows = self
                .database
                .readers
                .rows(&block_range_sql(after, to))
                .await;
            let (_, block) = rows.and_then(|rows| block(&rows)).map_err(Error::Read)?;
            // Erased entries have no time, and a lagging replica may lack some entries.
            if let Some(block) = block {
                self.block_ranges.add(block, block_entries);
            }
            after = to.max(self.block_ranges.covered_to());
        }
        Ok(())
    }
}

fn row(row: &Row) -> Result<EntryRow, sqlx::Error> {
    Ok(EntryRow {
        seq: row.get("seq")?,
        category: row.get("category")?,
        body: row.get("body")?,
    })
}

/// The join includes recorded_at, so that PostgreSQL reads only the partition of the payload.
fn select() -> Sql {
    Sql::new(
        "SELECT i.seq, i.category, p.body FROM event_index i
         JOIN payloads p ON p.seq = i.seq AND p.recorded_at = i.recorded_at WHERE 1 = 1",
    )
}
