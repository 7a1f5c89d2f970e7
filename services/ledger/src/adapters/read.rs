//! Queries over the history.

use chrono::{DateTime, Utc};
use mesh_db::sql::{Row as DbRow, Sql};
use mesh_runtime::api::Sight;
use slurm_types::JobRef;

use super::page::{By, Page, Reach, Span};
use super::select::Select as _;
use super::store::Store;
use crate::domain::query::Query;
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
        let beyond = Span::beyond(query);
        if page.is_of_few() {
            return self.page(&page, beyond, By::Few).await;
        }
        if !page.is_of_a_range() {
            return self.page(&page, beyond, By::Sequence).await;
        }
        let head = self.head().await?.seq.cast_signed();
        let near = beyond.near(reach.near, query.descending, head);
        let rows = self.page(&page, near, By::Sequence).await?;
        if rows.len() > query.limit as usize {
            return Ok(rows);
        }
        if page.is_of_names() {
            return self.page(&page, beyond, By::Name).await;
        }
        let found = self.readers.first(&page.of_that_time(beyond)).await;
        let Some((entries, span)) = found.and_then(of_that_time).map_err(Error::Read)? else {
            return Ok(Vec::new());
        };
        let few = entries <= reach.sorted && !page.is_of_people();
        let by = if few { By::Time } else { By::Sequence };
        self.page(&page, span, by).await
    }

    async fn page(&self, page: &Page<'_>, span: Span, by: By) -> Result<Vec<DbRow>, Error> {
        let rows = self.readers.rows(&page.entries(span, by)).await;
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

/// How many entries there are, and their sequences; `None` without any.
fn of_that_time(row: Option<DbRow>) -> Result<Option<(i64, Span)>, sqlx::Error> {
    let Some(row) = row else { return Ok(None) };
    let span = Span {
        from: row.get("lowest")?,
        to: row.get("highest")?,
    };
    let entries = row.get("entries")?;
    Ok(span.from.map(|_| (entries, span)))
}

/// Joined on the time of recording as well: PostgreSQL then looks into the one partition that has the payload.
fn select() -> Sql {
    Sql::new(
        "SELECT i.seq, i.category, p.body FROM event_index i
         JOIN payloads p ON p.seq = i.seq AND p.recorded_at = i.recorded_at WHERE 1 = 1",
    )
}
