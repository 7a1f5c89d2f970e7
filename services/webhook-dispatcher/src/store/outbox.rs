//! Outcomes that are not published yet.

use mesh_db::Bulk;
use mesh_db::cells::{CellColumn, CellRow};
use mesh_db::pool::{Conn, WriteTransaction};
use mesh_db::sql::Sql;

use crate::attempt::cause::Cause;
use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::{Delivery, State, time};

const COLUMNS: [CellColumn; 13] = [
    CellColumn::Bytes("endpoint"),
    CellColumn::Bytes("event_id"),
    CellColumn::Bytes("event_type"),
    CellColumn::Bytes("state"),
    CellColumn::Int("attempts"),
    CellColumn::Int("status"),
    CellColumn::Bytes("error"),
    CellColumn::Int("updated_at"),
    CellColumn::Int("round"),
    CellColumn::Bytes("cause"),
    CellColumn::Int("stream_sequence"),
    CellColumn::Bytes("subject"),
    CellColumn::Bytes("body"),
];

/// Selects the event only for dead letters.
const OUTBOX: &str =
    " FROM (SELECT endpoint, event_id, event_type, state, attempts, status, error, updated_at, round, cause, stream_sequence,
     CASE WHEN state = 'dead' THEN subject END AS subject, CASE WHEN state = 'dead' THEN body END AS body
 FROM deliveries WHERE announced = 0 AND state <> 'waiting' AND ";

/// Identifies an outcome. The round distinguishes the outcomes of a redelivered event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    endpoint: String,
    event_id: String,
    round: u32,
}

impl Key {
    /// The identity of a delivery's outcome.
    pub fn of(delivery: &Delivery) -> Self {
        Self {
            endpoint: delivery.endpoint.clone(),
            event_id: delivery.event_id.clone(),
            round: delivery.round,
        }
    }
}

impl Store {
    /// Unpublished outcomes of these endpoints, oldest first: what the audit and dead letters need of the deliveries.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn outbox(&self, endpoints: Vec<String>, max: u32) -> Result<Vec<Delivery>, Error> {
        if endpoints.is_empty() {
            return Ok(Vec::new());
        }
        let action = "read outcomes";
        // The `+` stops SQLite from scanning all deliveries of these endpoints.
        let rest = Sql::new(OUTBOX)
            .either("+endpoint", "endpoint")
            .any_of(endpoints)
            .append(" ORDER BY updated_at LIMIT ?) AS outcomes", [max.into()]);
        let read_all = async {
            let mut connection = self.database.readers.acquire().await?;
            let cells = connection.conn().cells(&COLUMNS, rest).await?;
            (0..cells.len())
                .map(|place| read(cells.row(place)))
                .collect::<Result<_, sqlx::Error>>()
        };
        read_all.await.map_err(Error::database(action))
    }
}

fn read(row: CellRow<'_>) -> Result<Delivery, sqlx::Error> {
    let bytes = |column| row.bytes(column).map(Option::unwrap_or_default);
    let text = |column| bytes(column).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let number = |column| {
        let number = row.int(column)?.unwrap_or_default();
        Ok::<_, sqlx::Error>(number.unsigned_abs())
    };
    Ok(Delivery {
        endpoint: text(0)?,
        event_id: text(1)?,
        event_type: text(2)?,
        state: State::parse(&text(3)?).unwrap_or_default(),
        attempts: number(4)?.try_into().unwrap_or(u32::MAX),
        status: number(5)?.try_into().unwrap_or_default(),
        error: text(6)?,
        updated_at: time(row.int(7)?.unwrap_or_default()),
        round: number(8)?.try_into().unwrap_or(u32::MAX),
        cause: Cause::parse(&text(9)?),
        stream_sequence: number(10)?,
        subject: text(11)?,
        body: bytes(12)?.to_vec().into(),
        ..Delivery::default()
    })
}

pub(super) async fn note(
    transaction: &mut WriteTransaction,
    keys: &[Key],
) -> Result<u64, sqlx::Error> {
    let bulk = Bulk::of(keys)
        .texts("endpoint", |key| key.endpoint.as_str())
        .texts("event_id", |key| key.event_id.as_str())
        .ints("round", |key| i64::from(key.round));
    if matches!(transaction.conn(), Conn::Postgres(_)) {
        // Lock in a fixed order: while an endpoint changes owner, two dispatchers may publish the same outcomes.
        let lock = "SELECT 1 FROM deliveries WHERE (endpoint, event_id) IN (SELECT endpoint, event_id FROM bulk)
             ORDER BY endpoint, event_id FOR UPDATE";
        transaction.conn().fetch_bulk(&bulk, lock).await?;
    }
    let update = "UPDATE deliveries SET announced = 1 WHERE (endpoint, event_id, round) IN (SELECT endpoint, event_id, round FROM bulk)";
    transaction.conn().execute_bulk(&bulk, update).await
}
