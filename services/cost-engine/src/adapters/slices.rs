//! Queries for costs by slice: final costs wholly within a slice are summed by the database, those of runs that its bounds cut are
//! returned one by one. A report of many slices takes as many queries as one of a single slice.

use mesh_db::pool::{Access, Transaction as Snapshot};
use mesh_db::sql::{Row, Sql};

use super::Store;
use super::finalized_runs::{FinalizedRun, finalized, overlapping, priced, read_runs};
use super::open_runs::{OpenRun, read_open_runs};
use super::queries::{CostGroup, CostSum, Filter, filtered, of_slices, read_sum, sums};
use crate::domain::Interval;
use crate::error::Error;

/// Final costs of slices that follow each other.
#[derive(Clone, Debug, Default)]
pub struct SliceCosts {
    /// Sums of runs that started and ended within one slice, with its position.
    pub sums: Vec<(usize, CostSum)>,
    /// Runs that a bound cuts.
    pub cut: Vec<FinalizedRun>,
}

impl Store {
    /// Final costs of slices that follow each other, as of one snapshot. `since` and `until` of the filter are ignored.
    ///
    /// # Errors
    /// If the database refuses, or a stored job cannot be decoded.
    pub async fn slice_costs(
        &self,
        by: CostGroup,
        filter: &Filter,
        slices: &[Interval],
    ) -> Result<SliceCosts, Error> {
        let mut reader = self.database.reader(READ_SLICES).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        let mut snapshot = snapshot.map_err(Error::database(READ_SLICES))?;
        read_slices(&mut snapshot, by, filter, slices).await
    }

    /// The same with the runs that are open in this snapshot.
    ///
    /// # Errors
    /// As [`Store::slice_costs`].
    pub async fn slice_costs_and_open_runs(
        &self,
        by: CostGroup,
        filter: &Filter,
        slices: &[Interval],
    ) -> Result<(SliceCosts, Vec<OpenRun>), Error> {
        let mut reader = self.database.reader(READ_SLICES).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        let mut snapshot = snapshot.map_err(Error::database(READ_SLICES))?;
        let costs = read_slices(&mut snapshot, by, filter, slices).await?;
        Ok((costs, read_open_runs(&mut snapshot, filter).await?))
    }

    /// Start of the first run that has a final cost, in Unix seconds.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn first_start(&self, filter: &Filter) -> Result<Option<i64>, Error> {
        const ACTION: &str = "read first cost";
        let sql = Sql::new(
            "SELECT MIN(at - charged_seconds) AS started FROM costs WHERE kind = 'finalized'",
        );
        let rows = self.database.rows(ACTION, &filtered(sql, filter)).await?;
        let read = |row: &Row| row.get::<Option<i64>>("started");
        let started = rows.first().map(read).transpose();
        Ok(started.map_err(Error::database(ACTION))?.flatten())
    }
}

const READ_SLICES: &str = "read costs of slices";

async fn read_slices(
    snapshot: &mut Snapshot<'_>,
    by: CostGroup,
    filter: &Filter,
    slices: &[Interval],
) -> Result<SliceCosts, Error> {
    if slices.is_empty() {
        return Ok(SliceCosts::default());
    }
    let rows = snapshot.conn().rows(&sums(by, filter, Some(slices))).await;
    let rows = rows.map_err(Error::database(READ_SLICES))?;
    let read = |row: &Row| {
        let slice: i64 = row.get("slice")?;
        Ok((usize::try_from(slice).unwrap_or_default(), read_sum(row)?))
    };
    let sums: Result<_, sqlx::Error> = rows.iter().map(read).collect();
    Ok(SliceCosts {
        sums: sums.map_err(Error::database(READ_SLICES))?,
        cut: read_cut_runs(snapshot, filter, slices).await?,
    })
}

/// Final costs of runs that a bound of slices that follow each other cuts, as of a snapshot.
pub(super) async fn read_cut_runs(
    snapshot: &mut Snapshot<'_>,
    filter: &Filter,
    slices: &[Interval],
) -> Result<Vec<FinalizedRun>, Error> {
    let (Some((from, _)), Some((_, to))) = (slices.first(), slices.last()) else {
        return Ok(Vec::new());
    };
    // The slice in which a run ended, so that each run is compared with one bound. After the last one comes the rest of time.
    let ends = [slices, &[(*to, i64::MAX)]].concat();
    let sql = of_slices(finalized().push(" FROM "), &ends)
        .push(" JOIN costs ON costs.at > s.column1 AND costs.at <= s.column2 AND costs.at - charged_seconds < s.column1");
    let sql = overlapping(priced(sql, filter), (*from, *to)).push(" ORDER BY cluster, run");
    read_runs(snapshot, sql).await
}

/// Only runs that started and ended within the slice.
pub(super) fn within(sql: Sql, (from, to): Interval) -> Sql {
    sql.push(" AND costs.at >= ")
        .bind(from)
        .push(" AND costs.at <= ")
        .bind(to)
        .push(" AND costs.at - charged_seconds >= ")
        .bind(from)
        .push(" AND costs.at - charged_seconds < ")
        .bind(to)
}
