//! The columns for queries: written with each entry, and compared with its body.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use chrono::{DateTime, SubsecRound as _, Utc};
use mesh_db::pool::{Link, Transaction};
use mesh_db::sql::{Column, Row as DbRow};

use crate::domain::fact::{Fact, Index};
use crate::domain::nodes::Nodes;

/// Blocks of nodes that one statement inserts: SQLite takes 32,766 values.
const BLOCKS: usize = 10_000;

/// Read by [`fits`].
pub(super) const COLUMNS: &str = "seq, cluster, category, type, job_id, array_job_id, task_id, het_job_id, het_offset, run, user_name, \
     subject, email, account, partition, node, name, wait_seconds, cost_micros, currency, occurred_at, observed_at";

/// True if the columns and the blocks of nodes are those that the body gives. What cannot even be read does not fit.
pub(super) fn fits(row: Option<&DbRow>, blocks: &[DbRow], subject: &[u8], body: &[u8]) -> bool {
    let subject = String::from_utf8_lossy(subject);
    let Ok(fact) = Fact::stored(&subject, Bytes::copy_from_slice(body)) else {
        // No columns can be read out of it, so there must be none.
        return row.is_none() && blocks.is_empty();
    };
    // As precise as the columns.
    let expected = Index {
        occurred_at: fact.index.occurred_at.trunc_subsecs(6),
        observed_at: fact.index.observed_at.trunc_subsecs(6),
        nodes: Nodes {
            unread: false,
            ..fact.index.nodes
        },
        ..fact.index
    };
    blocks.len() == expected.nodes.blocks.len()
        && row.is_some_and(|row| {
            stored(row, blocks)
                .is_ok_and(|(cluster, index)| cluster == fact.cluster && index == expected)
        })
}

fn stored(row: &DbRow, blocks: &[DbRow]) -> Result<(String, Index), sqlx::Error> {
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
    let block = |row: &DbRow| {
        let block = row.get::<Vec<u8>>("block")?;
        String::from_utf8(block).map_err(|error| sqlx::Error::Decode(error.into()))
    };
    let blocks: BTreeSet<String> = blocks.iter().map(block).collect::<Result<_, _>>()?;
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
        nodes: Nodes {
            blocks,
            unread: false,
        },
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

/// The blocks of nodes, but for those that are there.
pub(super) async fn insert_nodes(
    transaction: &mut Transaction<'_>,
    rows: &[Row<'_>],
    there: &HashSet<(i64, String)>,
) -> Result<(), sqlx::Error> {
    let blocks = rows.iter().flat_map(|row| {
        let blocks = row.index.nodes.blocks.iter();
        blocks.map(|block| (row.seq, block))
    });
    let missing: Vec<(i64, &String)> = blocks
        .filter(|(seq, block)| there.is_empty() || !there.contains(&(*seq, (*block).clone())))
        .collect();
    for some in missing.chunks(BLOCKS) {
        let columns = [
            (
                "seq",
                Column::Ints(some.iter().map(|(seq, _)| Some(*seq)).collect()),
            ),
            (
                "block",
                Column::Texts(some.iter().map(|(_, block)| Some(block.as_str())).collect()),
            ),
        ];
        transaction.link().insert("event_nodes", &columns).await?;
    }
    Ok(())
}
