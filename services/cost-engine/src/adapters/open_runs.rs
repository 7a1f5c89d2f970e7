//! Queries for open runs.

use std::collections::HashMap;

use mesh_db::pool::{Access, Transaction as Snapshot};
use mesh_db::sql::{Row, Sql};
use mesh_events::proto::mesh::job::v1::Job;

use super::Store;
use super::queries::{Filter, RunKeys, filtered, run_of};
use super::runs::history;
use crate::error::Error;
use crate::usage::RunHistory;

/// A run that has started and not ended.
#[derive(Clone, Debug)]
pub struct OpenRun {
    /// What it is grouped by.
    pub keys: RunKeys,
    /// The job in its first event.
    pub job: Job,
    /// Later changes of the run.
    pub history: RunHistory,
}

impl Store {
    /// Open runs that match the filter, oldest job first.
    ///
    /// # Errors
    /// If the database refuses, or a stored job cannot be decoded.
    pub async fn open_runs(&self, filter: &Filter) -> Result<Vec<OpenRun>, Error> {
        const ACTION: &str = "read open runs";
        let mut reader = self.database.reader(ACTION).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        read_open_runs(&mut snapshot.map_err(Error::database(ACTION))?, filter).await
    }
}

/// Open runs that match the filter, as of a snapshot.
pub(super) async fn read_open_runs(
    snapshot: &mut Snapshot<'_>,
    filter: &Filter,
) -> Result<Vec<OpenRun>, Error> {
    const ACTION: &str = "read open runs";
    let runs = Sql::new(
        "SELECT cluster, run, user_name, account, tags, start_job, end_job, ended_at FROM runs WHERE state = 'open'",
    );
    let runs = filtered(runs, filter).push(" ORDER BY cluster, run");
    let marks = Sql::new(
            "SELECT m.cluster, m.run, m.kind, m.at, m.job FROM marks m JOIN runs r ON r.cluster = m.cluster AND r.run = m.run
             WHERE r.state = 'open' ORDER BY m.at",
        );
    let (rows, marks) = async {
        let rows = snapshot.conn().rows(&runs).await?;
        Ok((rows, snapshot.conn().rows(&marks).await?))
    }
    .await
    .map_err(Error::database(ACTION))?;
    let mut marks_of: HashMap<(String, String), Vec<Row>> = HashMap::new();
    for mark in marks {
        let run = run_of(&mark).map_err(Error::database(ACTION))?;
        marks_of.entry(run).or_default().push(mark);
    }
    let mut open = Vec::with_capacity(rows.len());
    for row in rows {
        let key = run_of(&row).map_err(Error::database(ACTION))?;
        let marks = marks_of.remove(&key).unwrap_or_default();
        let history = history(&key.1, Some(&row), &marks)?;
        // An open run always has a start.
        let Some(job) = history.start.clone() else {
            continue;
        };
        open.push(OpenRun {
            keys: RunKeys {
                cluster: key.0,
                user: row.get("user_name").map_err(Error::database(ACTION))?,
                account: row.get("account").map_err(Error::database(ACTION))?,
                partition: job.partition.clone(),
                qos: job.qos.clone(),
                tags: row.get("tags").map_err(Error::database(ACTION))?,
            },
            job,
            history,
        });
    }
    Ok(open)
}
