//! Rows of `event_index` and `event_nodes`: written with each entry, and verified against its body.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use mesh_db::cells::{CellColumn, CellRow};
use mesh_db::pool::{Conn, Transaction};
use mesh_db::sql::Column;

use crate::domain::nodes::NodeBlocks;
use crate::domain::record::{IndexColumns, Record};

/// SQLite allows 32,766 values per statement.
const MAX_INSERT_BLOCKS: usize = 10_000;

/// The columns read by [`matches`].
pub(super) const COLUMNS: [CellColumn; 23] = [
    CellColumn::Int("seq"),
    CellColumn::Int("recorded_at"),
    CellColumn::Bytes("cluster"),
    CellColumn::Bytes("category"),
    CellColumn::Bytes("type"),
    CellColumn::Int("job_id"),
    CellColumn::Int("array_job_id"),
    CellColumn::Int("task_id"),
    CellColumn::Int("het_job_id"),
    CellColumn::Int("het_offset"),
    CellColumn::Bytes("run"),
    CellColumn::Bytes("user_name"),
    CellColumn::Bytes("subject"),
    CellColumn::Bytes("email"),
    CellColumn::Bytes("account"),
    CellColumn::Bytes("partition"),
    CellColumn::Bytes("node"),
    CellColumn::Bytes("name"),
    CellColumn::Int("wait_seconds"),
    CellColumn::Int("cost_micros"),
    CellColumn::Bytes("currency"),
    CellColumn::Int("occurred_at"),
    CellColumn::Int("observed_at"),
];
const COLUMNS_BEFORE_CLUSTER: usize = 2;

/// True if the row and the node blocks match the body. An unreadable row never matches.
pub(super) fn matches<'a>(
    row: Option<CellRow<'_>>,
    blocks: impl ExactSizeIterator<Item = CellRow<'a>>,
    subject: &[u8],
    body: &[u8],
) -> bool {
    let subject = String::from_utf8_lossy(subject);
    let Ok(record) = Record::stored(&subject, Bytes::copy_from_slice(body)) else {
        // An unreadable body has no index rows.
        return row.is_none() && blocks.len() == 0;
    };
    row.is_some_and(|row| columns_match(row, &record).unwrap_or_default())
        && blocks_match(blocks, &record.index.nodes).unwrap_or_default()
}

fn columns_match(row: CellRow<'_>, record: &Record) -> Result<bool, sqlx::Error> {
    let place = Cell::new(COLUMNS_BEFORE_CLUSTER);
    // In the order of `COLUMNS`.
    let at = || place.replace(place.get() + 1);
    let text = |expected: Option<&str>| {
        let found = row.bytes(at())?;
        Ok::<_, sqlx::Error>(found == expected.map(str::as_bytes))
    };
    let big = |expected: Option<i64>| row.int(at()).map(|found| found == expected);
    let number = |expected: Option<u32>| big(expected.map(i64::from));
    let time = |expected: DateTime<Utc>| big(Some(expected.timestamp_micros()));
    let index = &record.index;
    Ok(text(Some(&record.cluster))?
        && text(Some(&index.category))?
        && text(Some(&index.kind))?
        && number(index.job_id)?
        && number(index.array_job_id)?
        && number(index.task_id)?
        && number(index.het_job_id)?
        && number(index.het_offset)?
        && text(index.run.as_deref())?
        && text(index.user.as_deref())?
        && text(index.subject.as_deref())?
        && text(index.email.as_deref())?
        && text(index.account.as_deref())?
        && text(index.partition.as_deref())?
        && text(index.node.as_deref())?
        && text(index.name.as_deref())?
        && number(index.wait_seconds)?
        && big(index.cost_micros)?
        && text(index.currency.as_deref())?
        && time(index.occurred_at)?
        && time(index.observed_at)?)
}

/// The second column of each row is its block.
fn blocks_match<'a>(
    rows: impl ExactSizeIterator<Item = CellRow<'a>>,
    nodes: &NodeBlocks,
) -> Result<bool, sqlx::Error> {
    if rows.len() != nodes.blocks.len() {
        return Ok(false);
    }
    let found = rows.map(|row| row.bytes(1));
    let found: BTreeSet<Option<&[u8]>> = found.collect::<Result<_, _>>()?;
    let expected = nodes.blocks.iter().map(|block| Some(block.as_bytes()));
    Ok(found.into_iter().eq(expected))
}

pub(super) struct IndexRow<'a> {
    pub seq: i64,
    pub recorded_at: i64,
    pub cluster: &'a str,
    pub index: &'a IndexColumns,
}

pub(super) async fn insert(conn: Conn<'_>, rows: &[IndexRow<'_>]) -> Result<(), sqlx::Error> {
    let number = |of: fn(&IndexColumns) -> Option<u32>| {
        Column::Ints(
            rows.iter()
                .map(|row| of(row.index).map(i64::from))
                .collect(),
        )
    };
    let text = |of: fn(&IndexColumns) -> Option<&str>| {
        Column::Texts(rows.iter().map(|row| of(row.index)).collect())
    };
    let time = |of: fn(&IndexColumns) -> DateTime<Utc>| {
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
    conn.insert("event_index", &columns).await
}

/// Inserts the missing node blocks.
pub(super) async fn insert_nodes(
    transaction: &mut Transaction<'_>,
    rows: &[IndexRow<'_>],
    there: &HashSet<(i64, String)>,
) -> Result<(), sqlx::Error> {
    let blocks = rows.iter().flat_map(|row| {
        let blocks = row.index.nodes.blocks.iter();
        blocks.map(|block| (row.seq, block))
    });
    let missing: Vec<(i64, &String)> = blocks
        .filter(|(seq, block)| there.is_empty() || !there.contains(&(*seq, (*block).clone())))
        .collect();
    for some in missing.chunks(MAX_INSERT_BLOCKS) {
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
        transaction.conn().insert("event_nodes", &columns).await?;
    }
    Ok(())
}
