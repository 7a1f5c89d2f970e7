//! The columns for queries: written with each entry, and filled again from the payloads when they are missing.

use bytes::Bytes;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use super::sqlite::Store;
use crate::domain::fact::{Fact, Index};
use crate::error::Error;

/// Rows of one transaction while filling again.
const PAGE: i64 = 1000;

pub(super) struct Row<'a> {
    pub seq: i64,
    pub cluster: &'a str,
    pub index: &'a Index,
}

pub(super) async fn insert(
    connection: &mut SqliteConnection,
    rows: &[Row<'_>],
) -> Result<(), sqlx::Error> {
    let mut insert = QueryBuilder::<Sqlite>::new(
        "INSERT INTO event_index (seq, cluster, category, type, job_id, array_job_id, task_id, het_job_id, het_offset, \
         run, user_name, account, partition, node, occurred_at, observed_at) ",
    );
    insert.push_values(
        rows,
        |mut row,
         Row {
             seq,
             cluster,
             index,
         }| {
            row.push_bind(*seq)
                .push_bind(*cluster)
                .push_bind(&index.category)
                .push_bind(&index.kind)
                .push_bind(index.job_id)
                .push_bind(index.array_job_id)
                .push_bind(index.task_id)
                .push_bind(index.het_job_id)
                .push_bind(index.het_offset)
                .push_bind(&index.run)
                .push_bind(&index.user)
                .push_bind(&index.account)
                .push_bind(&index.partition)
                .push_bind(&index.node)
                .push_bind(index.occurred_at.timestamp_micros())
                .push_bind(index.observed_at.timestamp_micros());
        },
    );
    insert.build().execute(connection).await?;
    Ok(())
}

impl Store {
    /// Fills the columns of payloads that have none: after a migration emptied the table, or an operator did.
    pub(super) async fn complete_index(&self) -> Result<(), Error> {
        let mut after: i64 = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM event_index")
            .fetch_one(&self.writer)
            .await
            .map_err(Error::Index)?;
        loop {
            let page: Vec<(i64, String, Vec<u8>)> = sqlx::query_as(
                "SELECT seq, subject, body FROM payloads WHERE seq > $1 ORDER BY seq LIMIT $2",
            )
            .bind(after)
            .bind(PAGE)
            .fetch_all(&self.writer)
            .await
            .map_err(Error::Index)?;
            let Some((last, ..)) = page.last() else {
                return Ok(());
            };
            after = *last;
            tracing::info!(seq = after, "filling the columns for queries again");
            let facts: Vec<(i64, Fact)> = page
                .into_iter()
                .filter_map(|(seq, subject, body)| {
                    match Fact::stored(&subject, Bytes::from(body)) {
                        Ok(fact) => Some((seq, fact)),
                        // Tampered with: `smesh verify` names it, and the rest stays readable.
                        Err(error) => {
                            tracing::error!(
                                error = &error as &dyn std::error::Error,
                                seq,
                                "ledger body cannot be read, run smesh verify"
                            );
                            None
                        }
                    }
                })
                .collect();
            let rows: Vec<Row<'_>> = facts
                .iter()
                .map(|(seq, fact)| Row {
                    seq: *seq,
                    cluster: &fact.cluster,
                    index: &fact.index,
                })
                .collect();
            if !rows.is_empty() {
                let mut transaction = self.writer.begin().await.map_err(Error::Index)?;
                insert(&mut transaction, &rows)
                    .await
                    .map_err(Error::Index)?;
                transaction.commit().await.map_err(Error::Index)?;
            }
        }
    }
}
