//! The table of replays, and the entries to replay.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_db::sql::{Row, Sql};
use mesh_runtime::api::Visibility;

use super::page::ScanLimits;
use super::store::Store;
use crate::domain::filter::Selection;
use crate::domain::query::Query;
use crate::domain::replay::{AuditProgress, Replay, ReplayState};
use crate::error::Error;

/// How far the clock of another replica may be ahead.
const MAX_REPLICA_CLOCK_LEAD: TimeDelta = TimeDelta::minutes(1);

/// A replay claimed by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayLease {
    /// The replay.
    pub replay: Replay,
    /// Fencing token, incremented on each claim: writes of a former holder have no effect.
    pub fence: i64,
}

/// An entry to replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedMessage {
    /// Sequence.
    pub seq: i64,
    /// NATS subject on which it was received.
    pub subject: String,
    /// Body as received.
    pub body: Vec<u8>,
}

impl Store {
    /// Adds a replay. Returns false if its owner already has one with this idempotency key.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn add_replay(
        &self,
        replay: &Replay,
        owner: &str,
        key: Option<&str>,
    ) -> Result<bool, Error> {
        let sql = Sql::new(
            "INSERT INTO replays (id, owner, request, made_at, to_seq, cursor, shown, state, idempotency_key) VALUES (",
        )
        .bind(&replay.id)
        .push(", ")
        .bind(owner)
        .push(", ")
        .bind(&json(&replay.request))
        .push(", ")
        .bind(replay.made_at)
        .push(", ")
        .bind(replay.to_seq)
        .push(", ")
        .bind(replay.cursor)
        .push(", ")
        .bind(&json(&replay.disclosed))
        .push(", ")
        .bind(replay.state.as_str())
        .push(", ")
        .bind(key)
        .push(") ON CONFLICT DO NOTHING");
        self.write_replay(&sql).await
    }

    /// Returns a replay and its owner.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn replay(&self, id: &str) -> Result<Option<(Replay, String)>, Error> {
        let sql = select().push(" WHERE id = ").bind(id);
        self.first_replay(&sql).await
    }

    /// Returns the replay that an owner started with an idempotency key.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn replay_of_key(
        &self,
        owner: &str,
        key: &str,
    ) -> Result<Option<(Replay, String)>, Error> {
        let sql = select()
            .push(" WHERE owner = ")
            .bind(owner)
            .push(" AND idempotency_key = ")
            .bind(key);
        self.first_replay(&sql).await
    }

    async fn first_replay(&self, sql: &Sql) -> Result<Option<(Replay, String)>, Error> {
        let row = self.first(sql).await?;
        let Some(row) = row else { return Ok(None) };
        let owner = row.get("owner").map_err(Error::Read)?;
        Ok(Some((replay(&row)?, owner)))
    }

    /// Returns replays, newest first, of one owner or of all.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn replays(
        &self,
        owner: Option<&str>,
        state: Option<ReplayState>,
        limit: u32,
    ) -> Result<Vec<Replay>, Error> {
        let mut sql = select().push(" WHERE 1 = 1");
        if let Some(owner) = owner {
            sql = sql.push(" AND owner = ").bind(owner);
        }
        if let Some(state) = state {
            sql = sql.push(" AND state = ").bind(state.as_str());
        }
        let sql = sql.push(" ORDER BY made_at DESC, id LIMIT ").bind(limit);
        let rows = self.rows(&sql).await?;
        rows.iter().map(replay).collect()
    }

    /// Cancels a running replay. Returns false if it is not running. The process that works on it
    /// notices at its next write.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn cancel_replay(
        &self,
        id: &str,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new(
            "UPDATE replays SET state = 'cancelled', problem = '', lease_until = 0, ended_at = ",
        )
        .bind(now.timestamp_micros())
        .push(", cancelled_by = ")
        .bind(by)
        .push(" WHERE state = 'running' AND id = ")
        .bind(id);
        self.write_replay(&sql).await
    }

    /// Claims the oldest unfinished replay that no process holds. A lease that ends far later than
    /// a new one was stored by a process whose clock was ahead, and holds nothing.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn claim_replay(
        &self,
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Option<ReplayLease>, Error> {
        let open = |sql: Sql| {
            let lead = until + MAX_REPLICA_CLOCK_LEAD;
            sql.push(" audited < 2 AND (lease_until < ")
                .bind(now.timestamp_micros())
                .push(" OR lease_until > ")
                .bind(lead.timestamp_micros())
                .push(")")
        };
        // Searched without a lock, because usually there is none.
        let oldest =
            open(Sql::new("SELECT id FROM replays WHERE")).push(" ORDER BY made_at, id LIMIT 1");
        let row = self.first(&oldest).await?;
        let Some(row) = row else { return Ok(None) };
        let id: String = row.get("id").map_err(Error::Read)?;
        let claim = Sql::new("UPDATE replays SET fence = fence + 1, lease_until = ")
            .bind(until.timestamp_micros())
            .push(" WHERE id = ")
            .bind(&id)
            .push(" AND");
        let claim = open(claim).push(" RETURNING owner, fence, ").push(COLUMNS);
        let row = self
            .database
            .writer
            .first(&claim)
            .await
            .map_err(Error::Replay)?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(ReplayLease {
            replay: replay(&row)?,
            fence: row.get("fence").map_err(Error::Read)?,
        }))
    }

    /// Saves the progress of a claimed replay and extends the lease. Returns false if another
    /// process holds it, or its state has changed.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn save_replay(
        &self,
        claimed: &ReplayLease,
        before: ReplayState,
        until: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let ReplayLease { replay, fence } = claimed;
        let sql = Sql::new("UPDATE replays SET cursor = ")
            .bind(replay.cursor)
            .push(", sent = ")
            .bind(replay.sent)
            .push(", shown = ")
            .bind(&json(&replay.disclosed))
            .push(", problem = ")
            .bind(&replay.problem)
            .push(", audited = ")
            .bind(match replay.audited {
                AuditProgress::Nothing => 0_i64,
                AuditProgress::Begin => 1,
                AuditProgress::End => 2,
            })
            .push(", lease_until = ")
            .bind(until.timestamp_micros())
            .push(", state = ")
            .bind(replay.state.as_str())
            .push(", ended_at = ")
            .bind(replay.ended_at)
            .push(" WHERE id = ")
            .bind(&replay.id)
            .push(" AND fence = ")
            .bind(*fence)
            .push(" AND state = ")
            .bind(before.as_str());
        self.write_replay(&sql).await
    }

    /// Deletes replays that ended before a time.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn purge_replays(&self, before: DateTime<Utc>) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM replays WHERE audited = 2 AND ended_at < ")
            .bind(before.timestamp_micros());
        self.write_replay(&sql).await.map(drop)
    }

    /// Returns the replays that ended between two times.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn replays_that_ended(
        &self,
        since: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<Vec<String>, Error> {
        let sql = Sql::new("SELECT id FROM replays WHERE ended_at >= ")
            .bind(since.timestamp_micros())
            .push(" AND ended_at < ")
            .bind(until.timestamp_micros());
        let rows = self.rows(&sql).await?;
        let ids: Result<_, _> = rows.iter().map(|row| row.get("id")).collect();
        ids.map_err(Error::Read)
    }

    /// Executes the statement. Returns true if it affected a row.
    async fn write_replay(&self, sql: &Sql) -> Result<bool, Error> {
        let mut writer = self
            .database
            .writer
            .acquire()
            .await
            .map_err(Error::Replay)?;
        let rows = writer.conn().execute(sql).await.map_err(Error::Replay)?;
        Ok(rows > 0)
    }

    /// Returns the selected and visible entries of a range after a sequence, plus one if the limit
    /// cuts off more.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn recorded(
        &self,
        selection: &Selection,
        visibility: &Visibility,
        after: i64,
        to: i64,
        limit: u32,
    ) -> Result<Vec<RecordedMessage>, Error> {
        let selection = Selection {
            to_seq: Some(to),
            ..selection.clone()
        };
        let query = Query::of(selection, after, limit);
        let rows = self
            .page_by(&query, visibility, ScanLimits::default())
            .await?;
        rows.iter().map(recorded).collect()
    }
}

const COLUMNS: &str = "id, request, made_at, to_seq, cursor, sent, shown, state, ended_at, cancelled_by, problem, audited";

fn select() -> Sql {
    Sql::new("SELECT owner, ")
        .push(COLUMNS)
        .push(" FROM replays")
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("no maps with other keys than texts")
}

fn recorded(row: &Row) -> Result<RecordedMessage, Error> {
    let seq = row.get("seq").map_err(Error::Read)?;
    let entry = || Ok::<_, sqlx::Error>((row.get("subject")?, row.get("body")?));
    match entry().map_err(Error::Read)? {
        (Some(subject), Some(body)) => Ok(RecordedMessage { seq, subject, body }),
        _ => Err(Error::Corrupt { seq }),
    }
}

fn replay(row: &Row) -> Result<Replay, Error> {
    let text = |column| row.get::<String>(column).map_err(Error::Read);
    let number = |column| row.get::<i64>(column).map_err(Error::Read);
    let id = text("id")?;
    let corrupt = || Error::CorruptReplay(id.clone());
    Ok(Replay {
        request: serde_json::from_str(&text("request")?).map_err(|_| corrupt())?,
        made_at: number("made_at")?,
        to_seq: number("to_seq")?,
        cursor: number("cursor")?,
        sent: number("sent")?,
        disclosed: serde_json::from_str(&text("shown")?).map_err(|_| corrupt())?,
        state: ReplayState::parse(&text("state")?).map_err(|_| corrupt())?,
        ended_at: row.get("ended_at").map_err(Error::Read)?,
        cancelled_by: row.get("cancelled_by").map_err(Error::Read)?,
        problem: text("problem")?,
        audited: match number("audited")? {
            0 => AuditProgress::Nothing,
            1 => AuditProgress::Begin,
            _ => AuditProgress::End,
        },
        id,
    })
}
