//! The columns for queries: written with each entry, filled again from the payloads when they are missing, and compared with them.

use bytes::Bytes;
use chrono::{DateTime, SubsecRound as _, Utc};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection};

use super::sqlite::Store;
use crate::domain::fact::{Fact, Index};
use crate::error::Error;

/// Rows of one transaction while filling again.
const PAGE: i64 = 1000;

/// Nothing is changed or taken away by accident. Set whenever the ledger is opened and not by a migration: who makes the columns anew drops
/// one of them (see the README), and has it back afterwards.
const GUARDS: [&str; 3] = [
    "CREATE TRIGGER IF NOT EXISTS event_index_no_update BEFORE UPDATE ON event_index
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be changed'); END",
    "CREATE TRIGGER IF NOT EXISTS event_index_no_delete BEFORE DELETE ON event_index
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be deleted'); END",
    // As for the other tables: REPLACE fires no DELETE trigger.
    "CREATE TRIGGER IF NOT EXISTS event_index_no_replace BEFORE INSERT ON event_index
     WHEN EXISTS (SELECT 1 FROM event_index WHERE seq = NEW.seq)
     BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: its index cannot be replaced'); END",
];

/// Read by [`fits`]: every column but `seq`, under names that no other table has.
pub(super) const COLUMNS: &str = "i.seq AS i_seq, i.cluster AS i_cluster, i.category AS i_category, i.type AS i_type, i.job_id AS i_job_id, \
     i.array_job_id AS i_array_job_id, i.task_id AS i_task_id, i.het_job_id AS i_het_job_id, i.het_offset AS i_het_offset, i.run AS i_run, \
     i.user_name AS i_user_name, i.account AS i_account, i.partition AS i_partition, i.node AS i_node, i.occurred_at AS i_occurred_at, \
     i.observed_at AS i_observed_at";

/// True if the columns are those that the body gives. What cannot even be read does not fit.
pub(super) fn fits(row: &SqliteRow, subject: &[u8], body: &[u8]) -> bool {
    let subject = String::from_utf8_lossy(subject);
    let Ok(fact) = Fact::stored(&subject, Bytes::copy_from_slice(body)) else {
        // No columns can be read out of it, so there must be none.
        return matches!(row.try_get::<Option<i64>, _>("i_seq"), Ok(None));
    };
    // As precise as the columns.
    let expected = Index {
        occurred_at: fact.index.occurred_at.trunc_subsecs(6),
        observed_at: fact.index.observed_at.trunc_subsecs(6),
        ..fact.index
    };
    stored(row).is_ok_and(|(cluster, index)| cluster == fact.cluster && index == expected)
}

fn stored(row: &SqliteRow) -> Result<(String, Index), sqlx::Error> {
    let moment = |column| {
        let micros = row.try_get::<i64, _>(column)?;
        DateTime::<Utc>::from_timestamp_micros(micros)
            .ok_or_else(|| sqlx::Error::Decode("no time".into()))
    };
    let index = Index {
        category: row.try_get("i_category")?,
        kind: row.try_get("i_type")?,
        job_id: row.try_get("i_job_id")?,
        array_job_id: row.try_get("i_array_job_id")?,
        task_id: row.try_get("i_task_id")?,
        het_job_id: row.try_get("i_het_job_id")?,
        het_offset: row.try_get("i_het_offset")?,
        run: row.try_get("i_run")?,
        user: row.try_get("i_user_name")?,
        account: row.try_get("i_account")?,
        partition: row.try_get("i_partition")?,
        node: row.try_get("i_node")?,
        occurred_at: moment("i_occurred_at")?,
        observed_at: moment("i_observed_at")?,
    };
    Ok((row.try_get("i_cluster")?, index))
}

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
    /// Fills the columns of entries that have none, wherever they are missing: after a migration emptied the table, or an operator did. Then
    /// guards them.
    pub(super) async fn complete_index(&self) -> Result<(), Error> {
        let mut after = 0;
        loop {
            // CROSS JOIN: SQLite then looks through the small entries, and reads payloads only where columns are missing.
            let page: Vec<(i64, Vec<u8>, Vec<u8>)> = sqlx::query_as(
                "SELECT e.seq, p.subject, p.body FROM entries e CROSS JOIN payloads p
                 WHERE p.seq = e.seq AND e.seq > $1 AND NOT EXISTS (SELECT 1 FROM event_index i WHERE i.seq = e.seq)
                 ORDER BY e.seq LIMIT $2",
            )
            .bind(after)
            .bind(PAGE)
            .fetch_all(&self.writer)
            .await
            .map_err(Error::Index)?;
            let Some((last, ..)) = page.last() else {
                break;
            };
            after = *last;
            tracing::info!(seq = after, "filling the columns for queries again");
            let facts: Vec<(i64, Fact)> = page
                .into_iter()
                .filter_map(|(seq, subject, body)| {
                    match Fact::stored(&String::from_utf8_lossy(&subject), Bytes::from(body)) {
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
        for guard in GUARDS {
            sqlx::query(guard)
                .execute(&self.writer)
                .await
                .map_err(Error::Index)?;
        }
        Ok(())
    }
}
