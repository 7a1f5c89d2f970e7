//! The table of deliveries.

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use event_filter::DecodedEvent;
use mesh_db::sql::{Row, Sql};
use mesh_events::{Event, cloudevents};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::attempt::cause::Cause;
use crate::error::Error;
use crate::names;
use crate::store::delivery_position::DeliveryPosition;
use crate::stream::event::StreamEvent;
use crate::stream::event_cache::EventCache;
use crate::stream::queue::{Arrival, EventQueue};
use crate::string_enum::string_enum;

string_enum! {
    /// State of a delivery.
    #[derive(Default)]
    pub enum State {
        /// Scheduled for an attempt.
        #[default]
        Waiting = "waiting",
        /// Delivered.
        Delivered = "delivered",
        /// Given up: a dead letter.
        Dead = "dead",
        /// Too old to be sent.
        Expired = "expired",
    }
}

/// Delivery of one event to one webhook.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = WebhookDelivery)]
pub struct Delivery {
    /// Name of the endpoint.
    #[serde(skip)]
    pub endpoint: String,
    /// Id of the event.
    pub event_id: String,
    /// Type of the event. Empty for a message of the dispatcher itself, such as an array digest.
    pub event_type: String,
    /// `waiting`, `delivered`, `dead` or `expired`.
    #[schema(value_type = String)]
    pub state: State,
    /// Number of attempts since the event was received or last redelivered.
    pub attempts: u32,
    /// HTTP status of the last attempt; 0 without a response.
    pub status: u16,
    /// Error message of the last attempt; empty on success.
    pub error: String,
    /// Cause of the last failed attempt, as in the `cause` filter of the list; empty on success.
    #[serde(serialize_with = "cause_text")]
    #[schema(value_type = String)]
    pub cause: Option<Cause>,
    /// Number of redeliveries; 0 if it was never redelivered.
    pub round: u32,
    /// When the dispatcher received the event.
    pub created_at: DateTime<Utc>,
    /// When the delivery last changed.
    pub updated_at: DateTime<Utc>,
    /// When the next attempt is due; null if none is planned.
    pub next_at: Option<DateTime<Utc>>,
    /// When the current round began: on receipt, or at the last redelivery.
    #[serde(skip)]
    pub began_at: DateTime<Utc>,
    /// Subject of the event.
    #[serde(skip)]
    pub subject: String,
    /// Sequence of the event in its stream.
    #[serde(skip)]
    pub stream_sequence: u64,
    /// `traceparent` of the event, empty without one.
    #[serde(skip)]
    pub trace: String,
    /// Key of the cost it waits for, or of a pending notice.
    #[serde(skip)]
    pub pair: Option<String>,
    /// The encoded event. Empty once it is no longer needed.
    #[serde(skip)]
    pub body: Bytes,
    /// The decoded event, if it has just been read from the bus. Never read with it.
    #[serde(skip)]
    pub decoded: Option<Arc<DecodedEvent>>,
    /// The encoded cost event.
    #[serde(skip)]
    pub cost: Option<Vec<u8>>,
    /// The attempt that led to this state. Written with the delivery, never read with it.
    #[serde(skip)]
    pub attempt: Option<Attempt>,
    /// The event that it came from, which its first write settles. Never read with it.
    #[serde(skip)]
    pub arrival: Option<Arrival>,
    /// Provider state to store after the last response, by key. `None` removes a key. Written with the delivery,
    /// never read with it.
    #[serde(skip)]
    pub keep: Vec<(String, Option<String>)>,
}

/// One attempt of a delivery.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookAttempt)]
pub struct Attempt {
    /// Number of the attempt, from 1.
    #[serde(rename = "number")]
    pub n: u32,
    /// When it began.
    pub at: DateTime<Utc>,
    /// HTTP status of the response; 0 without a response.
    pub status: u16,
    /// Duration in milliseconds.
    pub latency_ms: u64,
    /// Cause of the failure, as in the `cause` filter of the list; empty on success.
    #[serde(serialize_with = "cause_text")]
    #[schema(value_type = String)]
    pub cause: Option<Cause>,
    /// Error message; empty on success.
    pub error: String,
    /// First part of the response body, at most 1 KiB.
    pub snippet: String,
    /// When the next attempt was planned; null if there was none.
    pub next_at: Option<DateTime<Utc>>,
}

fn cause_text<S: Serializer>(cause: &Option<Cause>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(Cause::str_of(*cause))
}

impl Delivery {
    /// Position in the endpoint's list of deliveries.
    pub fn place(&self) -> DeliveryPosition {
        DeliveryPosition {
            created_at: self.created_at.timestamp_millis(),
            stream_sequence: self.stream_sequence.cast_signed(),
            event_id: self.event_id.clone(),
        }
    }

    /// A new delivery of an event, stored under this id.
    pub fn of(
        queue: &Arc<EventQueue>,
        id: String,
        event: &StreamEvent,
        now: DateTime<Utc>,
    ) -> Self {
        // A replay does not continue the original trace.
        let is_replayed = event.replay.is_some();
        Self {
            event_type: event.event.r#type.clone(),
            next_at: None,
            subject: event.subject.clone(),
            stream_sequence: event.sequence,
            trace: if is_replayed {
                String::new()
            } else {
                event.trace.clone()
            },
            arrival: Some(Arrival {
                queue: Arc::clone(queue),
                sequence: event.sequence,
            }),
            decoded: Some(Arc::clone(&event.event)),
            ..Self::message(&queue.endpoint, id, event.body.clone(), now)
        }
    }

    /// Decodes the event.
    ///
    /// # Errors
    /// If the stored body is not an event.
    pub fn event(&self, event_cache: &EventCache) -> Result<Arc<DecodedEvent>, Error> {
        if let Some(event) = &self.decoded {
            return Ok(Arc::clone(event));
        }
        event_cache
            .read(&self.body)
            .map_err(|source| Error::Stored {
                id: self.event_id.clone(),
                source,
            })
    }

    /// The event as CloudEvents JSON. `None` once the body is removed, and for messages of the dispatcher.
    pub fn cloud_event(&self) -> Option<serde_json::Value> {
        let event = Event::from_bytes(&self.body).ok()?;
        names::is_event(&self.event_id)
            .then(|| cloudevents::to_json(&event).ok())
            .flatten()
    }

    /// A message of the dispatcher, due immediately.
    pub fn message(endpoint: &str, id: String, body: impl Into<Bytes>, now: DateTime<Utc>) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            event_id: id,
            next_at: Some(now),
            created_at: now,
            began_at: now,
            updated_at: now,
            body: body.into(),
            ..Self::default()
        }
    }
}

/// Columns to read. Listed by name, so that this version can still read after a newer one has added a column.
pub(super) const COLUMNS: &str = "endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, began_at, updated_at, subject,
     stream_sequence, trace, pair, body, cost, round, cause";

/// The table's CHECK allows no other value.
pub(super) fn state(row: &Row) -> Result<State, sqlx::Error> {
    let word: String = row.get("state")?;
    Ok(State::parse(&word).unwrap_or_default())
}

pub(super) fn read(row: &Row) -> Result<Delivery, sqlx::Error> {
    let time = |name| row.get::<i64>(name).map(time);
    let number = |name| row.get::<i64>(name).map(i64::unsigned_abs);
    Ok(Delivery {
        endpoint: row.get("endpoint")?,
        event_id: row.get("event_id")?,
        event_type: row.get("event_type")?,
        state: state(row)?,
        attempts: number("attempts")?.try_into().unwrap_or(u32::MAX),
        next_at: row
            .get::<Option<i64>>("next_at")?
            .and_then(DateTime::from_timestamp_millis),
        status: number("status")?.try_into().unwrap_or_default(),
        error: row.get("error")?,
        created_at: time("created_at")?,
        began_at: time("began_at")?,
        updated_at: time("updated_at")?,
        subject: row.get("subject")?,
        stream_sequence: number("stream_sequence")?,
        trace: row.get("trace")?,
        pair: row.get("pair")?,
        body: row
            .get::<Option<Vec<u8>>>("body")?
            .unwrap_or_default()
            .into(),
        cost: row.get("cost")?,
        round: number("round")?.try_into().unwrap_or(u32::MAX),
        cause: Cause::parse(&row.get::<String>("cause")?),
        ..Delivery::default()
    })
}

pub(super) fn read_attempt(row: &Row) -> Result<Attempt, sqlx::Error> {
    let number = |name| row.get::<i64>(name).map(i64::unsigned_abs);
    Ok(Attempt {
        n: number("n")?.try_into().unwrap_or(u32::MAX),
        at: time(row.get("at")?),
        status: number("status")?.try_into().unwrap_or_default(),
        latency_ms: number("latency_ms")?,
        cause: Cause::parse(&row.get::<String>("cause")?),
        error: row.get("error")?,
        snippet: row.get("snippet")?,
        next_at: row.get::<Option<i64>>("next_at")?.map(time),
    })
}

pub(super) fn place(row: &Row) -> Result<DeliveryPosition, sqlx::Error> {
    Ok(DeliveryPosition {
        created_at: row.get("created_at")?,
        stream_sequence: row.get("stream_sequence")?,
        event_id: row.get("event_id")?,
    })
}

/// Limits a query to rows before (`<`) or after (`>`) a position.
pub(super) fn beyond(sql: Sql, sign: &'static str, place: &DeliveryPosition) -> Sql {
    let sql = sql
        .push(" AND (created_at, stream_sequence, event_id) ")
        .push(sign);
    let place = [
        place.created_at.into(),
        place.stream_sequence.into(),
        place.event_id.as_str().into(),
    ];
    sql.append(" (?, ?, ?)", place)
}

/// Converts a stored time.
pub(super) fn time(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or_default()
}
