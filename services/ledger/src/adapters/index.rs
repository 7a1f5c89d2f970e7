//! The columns for queries: written with each entry, filled again from the payloads when they are missing, and compared with them.

use bytes::Bytes;
use chrono::{DateTime, SubsecRound as _, Utc};
use mesh_db::pool::{Access, Link};
use mesh_db::sql::{Column, Row as DbRow, Sql};

use super::store::Store;
use crate::domain::fact::{Fact, Index};
use crate::error::Error;

/// Rows of one transaction while filling again.
const PAGE: i64 = 1000;

/// Read by [`fits`].
pub(super) const COLUMNS: &str = "seq, cluster, category, type, job_id, array_job_id, task_id, het_job_id, het_offset, run, user_name, \
     subject, email, account, partition, node, name, wait_seconds, cost_micros, currency, occurred_at, observed_at";

/// True if the columns are those that the body gives. What cannot even be read does not fit.
pub(super) fn fits(row: Option<&DbRow>, subject: &[u8], body: &[u8]) -> bool {
    let subject = String::from_utf8_lossy(subject);
    let Ok(fact) = Fact::stored(&subject, Bytes::copy_from_slice(body)) else {
        // No columns can be read out of it, so there must be none.
        return row.is_none();
    };
    // As precise as the columns.
    let expected = Index {
        occurred_at: fact.index.occurred_at.trunc_subsecs(6),
        observed_at: fact.index.observed_at.trunc_subsecs(6),
        ..fact.index
    };
    row.is_some_and(|row| {
        stored(row).is_ok_and(|(cluster, index)| cluster == fact.cluster && index == expected)
    })
}

fn stored(row: &DbRow) -> Result<(String, Index), sqlx::Error> {
    let moment = |column| {
        let micros = row.get::<i64>(column)?;
        DateTime::<Utc>::from_timestamp_micros(micros)
            .ok_or_else(|| sqlx::Error::Decode("no time".into()))
    };
    let number = |column| {
        let number = row.get::<Option<i64>>(column)?;
        number
            .map(|number| u32::try_from(number).map_err(|error| sqlx::Error::Decode(error.into())))
            .transpose()
    };
    let index = Index {
        category: row.get("category")?,
        kind: row.get("type")?,
        job_id: number("job_id")?,
        array_job_id: number("array_job_id")?,
        task_id: number("task_id")?,
        het_job_id: number("het_job_id")?,
        het_offset: number("het_offset")?,
        run: row.get("run")?,
        user: row.get("user_name")?,
        subject: row.get("subject")?,
        email: row.get("email")?,
        account: row.get("account")?,
        partition: row.get("partition")?,
        node: row.get("node")?,
        name: row.get("name")?,
        wait_seconds: number("wait_seconds")?,
        cost_micros: row.get("cost_micros")?,
        currency: row.get("currency")?,
        occurred_at: moment("occurred_at")?,
        observed_at: moment("observed_at")?,
    };
    Ok((row.get("cluster")?, index))
}

pub(super) struct Row<'a> {
    pub seq: i64,
    pub recorded_at: i64,
    pub cluster: &'a str,
    pub index: &'a Index,
}

pub(super) async fn insert(link: Link<'_>, rows: &[Row<'_>]) -> Result<(), sqlx::Error> {
    let number = |of: fn(&Index) -> Option<u32>| {
        Column::Ints(
            rows.iter()
                .map(|row| of(row.index).map(i64::from))
                .collect(),
        )
    };
    let text = |of: fn(&Index) -> Option<&str>| {
        Column::Texts(rows.iter().map(|row| of(row.index)).collect())
    };
    let time = |of: fn(&Index) -> DateTime<Utc>| {
        let times = rows
            .iter()
            .map(|row| Some(of(row.index).timestamp_micros()));
        Column::Ints(times.collect())
    };
    let columns = [
        (
            "seq",
            Column::Ints(rows.iter().map(|row| Some(row.seq)).collect()),
        ),
        (
            "recorded_at",
            Column::Ints(rows.iter().map(|row| Some(row.recorded_at)).collect()),
        ),
        (
            "cluster",
            Column::Texts(rows.iter().map(|row| Some(row.cluster)).collect()),
        ),
        ("category", text(|index| Some(&index.category))),
        ("type", text(|index| Some(&index.kind))),
        ("job_id", number(|index| index.job_id)),
        ("array_job_id", number(|index| index.array_job_id)),
        ("task_id", number(|index| index.task_id)),
        ("het_job_id", number(|index| index.het_job_id)),
        ("het_offset", number(|index| index.het_offset)),
        ("run", text(|index| index.run.as_deref())),
        ("user_name", text(|index| index.user.as_deref())),
        ("subject", text(|index| index.subject.as_deref())),
        ("email", text(|index| index.email.as_deref())),
        ("account", text(|index| index.account.as_deref())),
        ("partition", text(|index| index.partition.as_deref())),
        ("node", text(|index| index.node.as_deref())),
        ("name", text(|index| index.name.as_deref())),
        ("wait_seconds", number(|index| index.wait_seconds)),
        (
            "cost_micros",
            Column::Ints(rows.iter().map(|row| row.index.cost_micros).collect()),
        ),
        ("currency", text(|index| index.currency.as_deref())),
        ("occurred_at", time(|index| index.occurred_at)),
        ("observed_at", time(|index| index.observed_at)),
    ];
    link.insert("event_index", &columns).await
}

impl Store {
    /// Fills the columns of entries that have none, wherever they are missing: after a migration emptied the table, or an operator did.
    pub(super) async fn complete_index(&self) -> Result<(), Error> {
        // What is archived has no body to read them out of.
        let mut after = self.archived_to().await?.cast_signed();
        while let Some(last) = self.complete_page(after).await.map_err(Error::Index)? {
            tracing::info!(seq = last, "filling the columns for queries again");
            after = last;
        }
        Ok(())
    }

    /// Fills a page, and says where it ends; `None` if nothing more is missing.
    async fn complete_page(&self, after: i64) -> Result<Option<i64>, sqlx::Error> {
        let missing = Sql::new("SELECT e.seq FROM entries e WHERE e.seq > ")
            .bind(after)
            .push(
                " AND NOT EXISTS (SELECT 1 FROM event_index i WHERE i.seq = e.seq)
                 ORDER BY e.seq LIMIT ",
            )
            .bind(PAGE);
        let mut writer = self.writer.acquire().await?;
        // Looked for without the lock, as almost always there is nothing.
        if writer.link().first(&missing).await?.is_none() {
            return Ok(None);
        }
        let mut transaction = writer.begin(Access::Write).await?;
        // As for appending: two replicas do not fill the same rows.
        let lock = Sql::new("SELECT seq FROM head").either("", " FOR UPDATE");
        transaction.link().first(&lock).await?;
        let seqs = transaction.link().rows(&missing).await?;
        let seqs = seqs
            .iter()
            .map(|row| row.get("seq"))
            .collect::<Result<Vec<i64>, _>>()?;
        let Some(last) = seqs.last().copied() else {
            return Ok(None);
        };
        let payloads = Sql::new("SELECT seq, recorded_at, ")
            .bytes("subject")
            .push(", body FROM payloads WHERE seq")
            .any_of(seqs);
        let mut facts = Vec::new();
        for row in transaction.link().rows(&payloads).await? {
            let (seq, recorded_at) = (row.get::<i64>("seq")?, row.get::<i64>("recorded_at")?);
            let subject: Vec<u8> = row.get("subject")?;
            let body = Bytes::from(row.get::<Vec<u8>>("body")?);
            match Fact::stored(&String::from_utf8_lossy(&subject), body) {
                Ok(fact) => facts.push((seq, recorded_at, fact)),
                // Tampered with: `smesh verify` names it, and the rest stays readable.
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    seq,
                    "ledger body cannot be read, run smesh verify"
                ),
            }
        }
        let rows: Vec<Row<'_>> = facts
            .iter()
            .map(|(seq, recorded_at, fact)| Row {
                seq: *seq,
                recorded_at: *recorded_at,
                cluster: &fact.cluster,
                index: &fact.index,
            })
            .collect();
        insert(transaction.link(), &rows).await?;
        transaction.commit().await?;
        Ok(Some(last))
    }
}
