//! Aggregations over `event_index`.

use std::borrow::Cow;

use chrono::DateTime;
use mesh_db::sql::{Row, Sql};
use mesh_runtime::api::Visibility;

use super::block_ranges::BLOCK_ENTRIES;
use super::conditions::Conditions as _;
use super::sequence_range::SequenceRange;
use super::store::Store;
use crate::domain::filter::Selection;
use crate::domain::record::{COST_FINAL, JOB_STARTED};
use crate::domain::stats::{Aggregates, Group, GroupKey, MAX_GROUPS, WaitStats};
use crate::error::Error;

const DAY_MICROS: i64 = 86_400_000_000;
/// Maximum number of fetched rows: 40 for each of the groups that a response may have.
const MAX_ROWS: usize = MAX_GROUPS * 40;

impl Store {
    /// Aggregates the entries that are selected and that the caller may see.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn aggregates(
        &self,
        selection: &Selection,
        visibility: &Visibility,
        by: &[Group],
    ) -> Result<Aggregates, Error> {
        let selection = &self.within_blocks(selection).await?;
        let query = StatsQuery {
            selection,
            visibility,
            by,
        };
        let rows = async |sql: Sql| {
            let sql = sql.push(format!(" LIMIT {MAX_ROWS}"));
            self.database.readers.rows(&sql).await
        };
        let sums = async || {
            let counts = rows(query.counts()).await?;
            let waits = rows(query.waits()).await?;
            let costs = rows(query.costs()).await?;
            Ok(Aggregates {
                counts: read(&counts, |row| query.count(row))?,
                waits: read(&waits, |row| query.wait(row))?,
                costs: read(&costs, |row| query.cost(row))?,
            })
        };
        sums().await.map_err(Error::Read)
    }

    /// Adds the Unix users of the selection's identity, and the sequence range of its cluster and time,
    /// because none of them has an index.
    async fn within_blocks(&self, selection: &Selection) -> Result<Selection, Error> {
        if selection.is_narrow() {
            return Ok(selection.clone());
        }
        let block_entries = BLOCK_ENTRIES.cast_signed();
        let head = self.head().await?.seq.cast_signed();
        let mut within = self
            .with_identity_users(selection, head, block_entries)
            .await?;
        if !selection.is_in_blocks() {
            return Ok(within);
        }
        let spans = self.spans(selection, head, block_entries).await?;
        let nothing = SequenceRange {
            from: Some(1),
            to: Some(0),
        };
        let span = SequenceRange::around(&spans).unwrap_or(nothing);
        let span = span.and(SequenceRange {
            from: selection.from_seq,
            to: selection.to_seq,
        });
        (within.from_seq, within.to_seq) = (span.from, span.to);
        Ok(within)
    }
}

fn read<T>(
    rows: &[Row],
    of: impl FnMut(&Row) -> Result<T, sqlx::Error>,
) -> Result<Vec<T>, sqlx::Error> {
    rows.iter().map(of).collect()
}

struct StatsQuery<'a> {
    selection: &'a Selection,
    visibility: &'a Visibility,
    by: &'a [Group],
}

impl StatsQuery<'_> {
    fn counts(&self) -> Sql {
        let sql = Sql::new(format!(
            "SELECT {}i.type AS word, COUNT(*) AS happened FROM event_index i",
            self.columns()
        ));
        self.only(sql, " WHERE i.category = 'job'").push(format!(
            " GROUP BY {}i.type",
            self.each(|_, column| format!("{column}, "))
        ))
    }

    fn count(&self, row: &Row) -> Result<(GroupKey, String, u64), sqlx::Error> {
        let event_name: String = row.get("word")?;
        let event_name = event_name
            .strip_prefix("job.")
            .unwrap_or(&event_name)
            .to_owned();
        let happened: i64 = row.get("happened")?;
        Ok((self.key(row)?, event_name, happened.unsigned_abs()))
    }

    fn waits(&self) -> Sql {
        let partition = match self.each(|n, column| {
            let comma = if n == 0 { "PARTITION BY " } else { ", " };
            format!("{comma}{column}")
        }) {
            none if none.is_empty() => String::new(),
            some => some + " ",
        };
        let sql = Sql::new(format!(
            "WITH waits AS (SELECT {}i.wait_seconds AS wait, COUNT(*) OVER ({partition}) AS starts,
                 ROW_NUMBER() OVER ({partition}ORDER BY i.wait_seconds) AS place
             FROM event_index i",
            self.columns()
        ));
        let started = format!(" WHERE i.wait_seconds IS NOT NULL AND i.type = '{JOB_STARTED}'");
        let names = self.each(|n, _| format!("g{n}, "));
        let group = self.each(|n, _| {
            let comma = if n == 0 { " GROUP BY " } else { ", " };
            format!("{comma}g{n}")
        });
        // The nearest rank: the shortest wait that this share of the starts did not exceed.
        self.only(sql, started).push(format!(
            ") SELECT {names}MAX(starts) AS starts, MIN(CASE WHEN place * 2 >= starts THEN wait END) AS p50,
                 MIN(CASE WHEN place * 10 >= starts * 9 THEN wait END) AS p90, MAX(wait) AS longest
             FROM waits{group} HAVING COUNT(*) > 0"
        ))
    }

    fn wait(&self, row: &Row) -> Result<(GroupKey, WaitStats), sqlx::Error> {
        let number = |column| row.get::<i64>(column).map(i64::unsigned_abs);
        let wait = WaitStats {
            starts: number("starts")?,
            p50: number("p50")?,
            p90: number("p90")?,
            max: number("longest")?,
        };
        Ok((self.key(row)?, wait))
    }

    /// Only the last cost event of each run counts: an adjustment replaces the earlier cost.
    fn costs(&self) -> Sql {
        let final_types = COST_FINAL.map(|kind| format!("'{kind}'")).join(", ");
        let sql = Sql::new(format!(
            "SELECT {}i.currency AS currency, CAST(SUM(i.cost_micros) AS BIGINT) AS micros FROM event_index i",
            self.columns()
        ));
        let last = format!(
            " WHERE i.cost_micros IS NOT NULL AND i.currency IS NOT NULL AND i.type IN ({final_types}) AND NOT EXISTS (
                 SELECT 1 FROM event_index l WHERE l.job_id = i.job_id AND l.run = i.run AND l.seq > i.seq AND l.cluster = i.cluster
                     AND l.cost_micros IS NOT NULL AND l.type IN ({final_types}))"
        );
        self.only(sql, last).push(format!(
            " GROUP BY {}i.currency",
            self.each(|_, column| format!("{column}, "))
        ))
    }

    fn cost(&self, row: &Row) -> Result<(GroupKey, String, i64), sqlx::Error> {
        Ok((self.key(row)?, row.get("currency")?, row.get("micros")?))
    }

    /// Restricts to the query, with a further condition.
    fn only(&self, sql: Sql, further: impl Into<Cow<'static, str>>) -> Sql {
        let sql = sql.push(further).visible(self.visibility);
        let Some(node) = &self.selection.node else {
            return sql.chosen(self.selection);
        };
        let rest = Selection {
            node: None,
            ..self.selection.clone()
        };
        sql.of_node(node).chosen(&rest)
    }

    /// Returns `i.user_name AS g0, i.account AS g1, `.
    fn columns(&self) -> String {
        self.each(|n, column| format!("{column} AS g{n}, "))
    }

    fn each(&self, text: impl Fn(usize, &str) -> String) -> String {
        self.by
            .iter()
            .enumerate()
            .map(|(n, group)| text(n, column(*group)))
            .collect()
    }

    fn key(&self, row: &Row) -> Result<GroupKey, sqlx::Error> {
        let value = |(n, group): (usize, &Group)| {
            let name = format!("g{n}");
            match group {
                Group::Day => row.get::<i64>(&name).map(|day| Some(date(day))),
                _ => row.get(&name),
            }
        };
        self.by.iter().enumerate().map(value).collect()
    }
}

const fn column(group: Group) -> &'static str {
    match group {
        Group::Day => "(i.occurred_at / 86400000000)",
        Group::Cluster => "i.cluster",
        Group::User => "i.user_name",
        Group::Account => "i.account",
        Group::Partition => "i.partition",
        Group::Name => "i.name",
    }
}

/// Formats a day as `2026-11-22`.
fn date(day: i64) -> String {
    DateTime::from_timestamp_micros(day.saturating_mul(DAY_MICROS))
        .map_or_else(|| day.to_string(), |time| time.date_naive().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_written_as_a_date() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(20_779), "2026-11-22");
        assert!(column(Group::Day).contains(&DAY_MICROS.to_string()));
    }
}
