//! Reads and writes runs. Costs are in `costs`.

use mesh_db::sql::{Row, Sql, Value};
use mesh_events::Event;
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;

use super::accruals::envelope;
use super::transaction::Transaction;
use crate::domain::suspension::SuspensionChange;
use crate::error::Error;
use crate::usage::{RunHistory, pricing_facts, tags};

impl Transaction {
    /// Reads the history of a run.
    ///
    /// # Errors
    /// If the database refuses, or a stored job cannot be decoded.
    pub async fn history(&mut self, cluster: &str, run: &str) -> Result<RunHistory, Error> {
        let sql =
            Sql::new("SELECT start_job, end_job, ended_at, account FROM runs WHERE cluster = ")
                .bind(cluster)
                .push(" AND run = ")
                .bind(run);
        let stored = self.first("read run", &sql).await?;
        let sql = Sql::new("SELECT kind, at, job FROM marks WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run)
            .push(" ORDER BY at");
        let marks = self.conn().rows(&sql).await;
        let marks = marks.map_err(Error::database("read changes of run"))?;
        history(run, stored.as_ref(), &marks)
    }

    /// Stores the start of a run, with what later events about its cost have of this one. The first snapshot is kept, and an ended run
    /// stays ended.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_start(
        &mut self,
        event: &Event,
        (user, account): (&str, &str),
        job: &Job,
    ) -> Result<(), Error> {
        let (facts, envelope) = (pricing_facts(job).encode_to_vec(), envelope(event));
        let cluster = event.cluster.as_str();
        let sql = new_run(cluster, user, account, job, "open", "start_job, start_event")
            .bind(facts.as_slice())
            .push(", ")
            .bind(envelope.as_slice())
            .push(
                ") ON CONFLICT (cluster, run) DO UPDATE SET start_job = excluded.start_job WHERE runs.start_job IS NULL",
            );
        self.run("store start", &sql).await.map(drop)
    }

    /// Stores the end of a run with its record.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_end(
        &mut self,
        cluster: &str,
        user: &str,
        account: &str,
        job: &Job,
        ended_at: i64,
    ) -> Result<(), Error> {
        let facts = pricing_facts(job).encode_to_vec();
        let sql = new_run(cluster, user, account, job, "ended", "ended_at, end_job")
            .bind(ended_at)
            .push(", ")
            .bind(facts.as_slice())
            .push(
                ") ON CONFLICT (cluster, run) DO UPDATE SET state = 'ended', ended_at = excluded.ended_at, end_job = excluded.end_job,
                   start_event = NULL",
            );
        self.run("store end", &sql).await.map(drop)
    }

    /// Closes a run without a record of its end.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn close_run(&mut self, cluster: &str, run: &str) -> Result<(), Error> {
        let sql = Sql::new("UPDATE runs SET state = 'ended' WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run);
        self.run("close run", &sql).await.map(drop)
    }

    /// Stores a change of a run: `suspended`, `resumed`, or `resized` with the job afterwards. False if it was stored already.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_mark(
        &mut self,
        (cluster, run): (&str, &str),
        kind: &str,
        (at, run_seq): (i64, u64),
        job: Option<&Job>,
    ) -> Result<bool, Error> {
        let facts = job.map(|job| pricing_facts(job).encode_to_vec());
        let run_seq = i64::try_from(run_seq).unwrap_or(i64::MAX);
        let sql = Sql::new("INSERT INTO marks (cluster, run, kind, at, run_seq, job) VALUES (")
            .list([
                cluster.into(),
                run.into(),
                kind.into(),
                at.into(),
                run_seq.into(),
                Value::from(facts.as_deref()),
            ])
            .push(") ON CONFLICT DO NOTHING");
        Ok(self.run("store change of run", &sql).await? > 0)
    }
}

/// Start of an INSERT for a run. The values of the last columns follow.
fn new_run(
    cluster: &str,
    user: &str,
    account: &str,
    job: &Job,
    state: &'static str,
    columns: &'static str,
) -> Sql {
    Sql::new(
        "INSERT INTO runs (cluster, run, display_id, user_name, account, partition_name, tags, state, ",
    )
    .push(columns)
    .push(") VALUES (")
    .list([
        cluster.into(),
        (&job.run).into(),
        (&job.display_id).into(),
        user.into(),
        account.into(),
        (&job.partition).into(),
        tags(job).as_str().into(),
        state.into(),
    ])
    .push(", ")
}

/// Assembles the history of a run from the rows of the tables.
pub(super) fn history(run: &str, stored: Option<&Row>, marks: &[Row]) -> Result<RunHistory, Error> {
    const ACTION: &str = "read run";
    let decode = |bytes: Vec<u8>| {
        Job::decode(bytes.as_slice()).map_err(|source| Error::Damaged {
            action: ACTION,
            run: run.to_owned(),
            source,
        })
    };
    let job = |row: &Row, column| {
        let bytes = row.get::<Option<Vec<u8>>>(column);
        let bytes = bytes.map_err(Error::database(ACTION))?;
        bytes.map(decode).transpose()
    };
    let mut history = RunHistory::default();
    if let Some(row) = stored {
        history.account = row.get("account").map_err(Error::database(ACTION))?;
        history.start = job(row, "start_job")?;
        let ended_at: Option<i64> = row.get("ended_at").map_err(Error::database(ACTION))?;
        history.end = ended_at.zip(job(row, "end_job")?);
    }
    for row in marks {
        let kind: String = row.get("kind").map_err(Error::database(ACTION))?;
        let at: i64 = row.get("at").map_err(Error::database(ACTION))?;
        match kind.as_str() {
            "suspended" => history.marks.push((at, SuspensionChange::Suspended)),
            "resumed" => history.marks.push((at, SuspensionChange::Resumed)),
            // A resize; the table's CHECK allows no other kind. Without a snapshot it has no effect.
            _ => history
                .resizes
                .extend(job(row, "job")?.map(|job| (at, job))),
        }
    }
    Ok(history)
}
