//! Queries over the history.

use chrono::{DateTime, Utc};
use mesh_db::sql::{Row as DbRow, Sql};
use mesh_runtime::api::Sight;
use slurm_types::JobRef;

use super::page::{By, Page, Reach, Span};
use super::select::Select as _;
use super::store::Store;
use super::ways::{Way, rarest, rounds};
use crate::domain::filter::Selection;
use crate::domain::query::Query;
use crate::domain::story::Stay;
use crate::error::Error;

/// A stored entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Sequence.
    pub seq: i64,
    /// Category word; tells events from audit entries.
    pub category: String,
    /// Body as received.
    pub body: Vec<u8>,
}

impl Store {
    /// A page of entries, and one more if there is a next page.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn list(&self, query: &Query, sight: &Sight) -> Result<Vec<Row>, Error> {
        self.list_by(query, sight, Reach::default()).await
    }

    pub(super) async fn list_by(
        &self,
        query: &Query,
        sight: &Sight,
        reach: Reach,
    ) -> Result<Vec<Row>, Error> {
        let rows = self.page_by(query, sight, reach).await?;
        let entry = |found: &DbRow| {
            let body: Option<Vec<u8>> = found.get("body")?;
            let (seq, category) = (found.get("seq")?, found.get("category")?);
            Ok((seq, category, body))
        };
        rows.iter()
            .map(|found| {
                let (seq, category, body) = entry(found).map_err(Error::Read)?;
                // Columns without a body: a page without the entry would be a wrong answer.
                let body = body.ok_or(Error::Corrupt { seq })?;
                Ok(Row {
                    seq,
                    category,
                    body,
                })
            })
            .collect()
    }

    /// The rows of a page, and one more if there is a next page.
    pub(super) async fn page_by(
        &self,
        query: &Query,
        sight: &Sight,
        reach: Reach,
    ) -> Result<Vec<DbRow>, Error> {
        let page = Page::new(query, sight);
        if let Some(way) = page.only_way() {
            let by = if page.is_of_few() {
                By::Few
            } else {
                By::Sequence
            };
            return self.page(&page, way, page.span(), by).await;
        }
        let head = self.head().await?.seq.cast_signed();
        let mut span = page.span().up_to(head);
        if page.is_of_a_time() {
            self.learn_times(head, reach.block).await?;
            let Selection { since, until, .. } = query.selection;
            let Some(of_that_time) = self.times.span(since, until) else {
                return Ok(Vec::new());
            };
            span = span.and(of_that_time);
        }
        let near = span.near(reach.near, query.descending);
        let first = page.way_in_order();
        let rows = self.page(&page, first, near, By::Sequence).await?;
        if rows.len() > query.limit as usize || near.contains(span) {
            return Ok(rows);
        }
        let few = self.way_of_few(&page, span, reach.sorted).await?;
        let (way, by) = match few {
            Some(way) => (way, By::Few),
            None => (page.way_of_many(), By::Sequence),
        };
        self.page(&page, way, span, by).await
    }

    /// The way with the fewest entries, if these are fewer than a number.
    async fn way_of_few<'p>(
        &self,
        page: &'p Page<'_>,
        span: Span,
        most: i64,
    ) -> Result<Option<&'p Way>, Error> {
        let ways = page.ways_of_some();
        for counted in rounds(most) {
            let rows = self.readers.rows(&Page::counts(&ways, span, counted)).await;
            let rows = rows.map_err(Error::Read)?;
            let counts: Result<Vec<i64>, _> = rows.iter().map(|row| row.get("entries")).collect();
            if let Some(way) = rarest(&counts.map_err(Error::Read)?, counted) {
                return Ok(ways.get(way).copied());
            }
        }
        Ok(None)
    }

    async fn page(
        &self,
        page: &Page<'_>,
        way: &Way,
        span: Span,
        by: By,
    ) -> Result<Vec<DbRow>, Error> {
        let rows = self.readers.rows(&page.entries(way, span, by)).await;
        rows.map_err(Error::Read)
    }

    /// Everything about a job, oldest entry first, up to a limit.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn story(
        &self,
        cluster: &str,
        job: &JobRef,
        sight: &Sight,
        at: Option<DateTime<Utc>>,
        limit: u32,
    ) -> Result<Vec<Row>, Error> {
        let sql = select()
            .visible(sight)
            .push(" AND i.cluster = ")
            .bind(cluster)
            .of_job(job)
            .up_to(at)
            .push(" ORDER BY i.seq LIMIT ")
            .bind(limit);
        self.fetch(&sql).await
    }

    /// What happened to some nodes of a cluster within a time, oldest entry first, up to a limit. Whoever may see that a job ran there may see it.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn of_nodes(
        &self,
        cluster: &str,
        stay: &Stay,
        at: Option<DateTime<Utc>>,
        limit: u32,
    ) -> Result<Vec<Row>, Error> {
        let nodes: Vec<String> = stay.nodes.iter().cloned().collect();
        let sql = select()
            .push(" AND i.node")
            .any_of(nodes)
            .push(" AND i.cluster = ")
            .bind(cluster)
            .push(" AND i.occurred_at >= ")
            .bind(stay.from.timestamp_micros())
            .up_to(stay.to)
            .up_to(at)
            .push(" ORDER BY i.seq LIMIT ")
            .bind(limit);
        self.fetch(&sql).await
    }

    /// Everything about a node up to a limit: the newest, newest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn node(
        &self,
        cluster: &str,
        node: &str,
        sight: &Sight,
        at: Option<DateTime<Utc>>,
        limit: u32,
    ) -> Result<Vec<Row>, Error> {
        let sql = select()
            .visible(sight)
            .push(" AND i.cluster = ")
            .bind(cluster)
            .push(" AND i.node = ")
            .bind(node)
            .up_to(at)
            .push(" ORDER BY i.occurred_at DESC, i.seq DESC LIMIT ")
            .bind(limit);
        self.fetch(&sql).await
    }

    /// The sequence of an id, if who asks may see the entry.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn visible_seq_of(&self, id: &str, sight: &Sight) -> Result<Option<u64>, Error> {
        // Also what is archived, which has no columns for queries any more.
        if *sight == Sight::Everything {
            return self.seq_of(id).await;
        }
        let sql = Sql::new(
            "SELECT e.seq FROM entries e JOIN event_index i ON i.seq = e.seq WHERE e.id = ",
        )
        .bind(id);
        let row = self.readers.first(&sql.visible(sight)).await;
        let seq = row.map_err(Error::Read)?.map(|row| row.get::<i64>("seq"));
        Ok(seq.transpose().map_err(Error::Read)?.map(i64::unsigned_abs))
    }

    async fn fetch(&self, sql: &Sql) -> Result<Vec<Row>, Error> {
        let rows = self.readers.rows(sql).await.map_err(Error::Read)?;
        rows.iter()
            .map(row)
            .collect::<Result<_, _>>()
            .map_err(Error::Read)
    }
}

fn row(row: &DbRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        seq: row.get("seq")?,
        category: row.get("category")?,
        body: row.get("body")?,
    })
}

/// Joined on the time of recording as well: PostgreSQL then looks into the one partition that has the payload.
fn select() -> Sql {
    Sql::new(
        "SELECT i.seq, i.category, p.body FROM event_index i
         JOIN payloads p ON p.seq = i.seq AND p.recorded_at = i.recorded_at WHERE 1 = 1",
    )
}
