//! Stores deliveries in batches, with the cursors that they move: one statement for many costs little more than one for a single delivery.

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql::Sql;
use mesh_db::{Bulk, sql};

use crate::attempt::cause::Cause;
use crate::store::cursor_rows::save_arrivals;
use crate::store::delivery::{Attempt, Delivery, State};

/// Maximum stored attempts per delivery. The oldest are deleted.
const MAX_ATTEMPTS: u32 = 50;

/// Keeps the cost of an existing row: only [`EndpointRows::join_cost`](crate::store::endpoint_rows::EndpointRows::join_cost) sets it.
const UPSERT_DELIVERIES: &str = "INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at,
     subject, stream_sequence, trace, pair, body, cost, cause, began_at, sent_at, latency_ms, snippet)
 SELECT endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at,
     subject, stream_sequence, trace, pair, body, cost, cause, began_at, sent_at, latency_ms, snippet FROM bulk WHERE TRUE
 ON CONFLICT (event_id, endpoint) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, next_at = excluded.next_at,
     status = excluded.status, error = excluded.error, updated_at = excluded.updated_at, pair = excluded.pair, body = excluded.body,
     cause = excluded.cause, sent_at = excluded.sent_at, latency_ms = excluded.latency_ms, snippet = excluded.snippet
 WHERE deliveries.state = 'waiting'";

/// Idempotent: an attempt is inserted once. The `+` stops SQLite from scanning all attempts of that time.
const INSERT_ATTEMPTS: &str = "INSERT INTO attempts (endpoint, event_id, at, status, latency_ms, cause, error, snippet, next_at, n)
 SELECT endpoint, event_id, at, status, latency_ms, cause, error, snippet, next_at,
     COALESCE((SELECT MAX(n) FROM attempts WHERE attempts.endpoint = bulk.endpoint AND attempts.event_id = bulk.event_id), 0) + 1
 FROM bulk WHERE NOT EXISTS (SELECT 1 FROM attempts
     WHERE attempts.endpoint = bulk.endpoint AND attempts.event_id = bulk.event_id AND +attempts.at = bulk.at)";

const PRUNE_ATTEMPTS: &str = "DELETE FROM attempts WHERE (endpoint, event_id) IN (SELECT endpoint, event_id FROM bulk)
 AND n <= (SELECT MAX(newest.n) FROM attempts AS newest WHERE newest.endpoint = attempts.endpoint AND newest.event_id = attempts.event_id)
     - (SELECT MIN(most) FROM bulk)";

/// Upserts distinct deliveries with their attempts and provider state. Returns the number of rows.
pub(super) async fn save(
    transaction: &mut WriteTransaction,
    deliveries: &[&Delivery],
) -> Result<u64, sqlx::Error> {
    let bulk = Bulk::of(deliveries)
        .texts("endpoint", |delivery| delivery.endpoint.as_str())
        .texts("event_id", |delivery| delivery.event_id.as_str())
        .texts("event_type", |delivery| delivery.event_type.as_str())
        .texts("state", |delivery| delivery.state.as_str())
        .ints("attempts", |delivery| i64::from(delivery.attempts))
        .ints("next_at", |delivery| delivery.next_at.map(millis))
        .ints("status", |delivery| i64::from(delivery.status))
        .texts("error", |delivery| delivery.error.as_str())
        .ints("created_at", |delivery| millis(delivery.created_at))
        .ints("updated_at", |delivery| millis(delivery.updated_at))
        .texts("subject", |delivery| delivery.subject.as_str())
        .ints("stream_sequence", |delivery| {
            delivery.stream_sequence.cast_signed()
        })
        .texts("trace", |delivery| delivery.trace.as_str())
        .texts("pair", |delivery| delivery.pair.as_deref())
        .blobs("body", |delivery| needed_body(delivery))
        .blobs("cost", |delivery| delivery.cost.as_deref())
        .texts("cause", |delivery| Cause::str_of(delivery.cause))
        .ints("began_at", |delivery| millis(delivery.began_at))
        .ints("sent_at", |delivery| {
            Some(millis(only_attempt(delivery)?.at))
        })
        .ints("latency_ms", |delivery| {
            Some(only_attempt(delivery)?.latency_ms.cast_signed())
        })
        .texts("snippet", |delivery| {
            Some(only_attempt(delivery)?.snippet.as_str())
        });
    let rows = transaction
        .conn()
        .execute_bulk(&bulk, UPSERT_DELIVERIES)
        .await?;
    insert_attempts(transaction, deliveries).await?;
    let arrivals = deliveries.iter();
    let arrivals = arrivals.filter_map(|delivery| delivery.arrival.as_ref());
    save_arrivals(transaction, arrivals).await?;
    for delivery in deliveries {
        for (key, value) in &delivery.keep {
            let (endpoint, now) = (&delivery.endpoint, delivery.updated_at);
            let sql = provider_state_statement(endpoint, now, key, value.as_deref());
            transaction.conn().execute(&sql).await?;
        }
    }
    Ok(rows)
}

/// Inserts the attempts that need rows of their own, and deletes the oldest beyond the limit.
async fn insert_attempts(
    transaction: &mut WriteTransaction,
    deliveries: &[&Delivery],
) -> Result<(), sqlx::Error> {
    let noted: Vec<(&Delivery, &Attempt)> = deliveries
        .iter()
        .filter(|delivery| only_attempt(delivery).is_none())
        .filter_map(|delivery| Some((*delivery, delivery.attempt.as_ref()?)))
        .collect();
    let bulk = Bulk::of(&noted)
        .texts("endpoint", |(delivery, _)| delivery.endpoint.as_str())
        .texts("event_id", |(delivery, _)| delivery.event_id.as_str())
        .ints("at", |(_, attempt)| millis(attempt.at))
        .ints("status", |(_, attempt)| i64::from(attempt.status))
        .ints("latency_ms", |(_, attempt)| {
            attempt.latency_ms.cast_signed()
        })
        .texts("cause", |(_, attempt)| Cause::str_of(attempt.cause))
        .texts("error", |(_, attempt)| attempt.error.as_str())
        .texts("snippet", |(_, attempt)| attempt.snippet.as_str())
        .ints("next_at", |(_, attempt)| attempt.next_at.map(millis));
    transaction
        .conn()
        .execute_bulk(&bulk, INSERT_ATTEMPTS)
        .await?;
    let mut many: Vec<&Delivery> = noted.iter().map(|(delivery, _)| *delivery).collect();
    // Attempts of earlier rounds count as well.
    many.retain(|delivery| delivery.attempts > MAX_ATTEMPTS || delivery.round > 0);
    let bulk = Bulk::of(&many)
        .ints("most", |_| i64::from(MAX_ATTEMPTS))
        .texts("endpoint", |delivery| delivery.endpoint.as_str())
        .texts("event_id", |delivery| delivery.event_id.as_str());
    transaction
        .conn()
        .execute_bulk(&bulk, PRUNE_ATTEMPTS)
        .await?;
    Ok(())
}

/// Only deliveries that may be sent again need their event.
fn needed_body(delivery: &Delivery) -> Option<&[u8]> {
    let needed = matches!(delivery.state, State::Waiting | State::Dead);
    needed.then_some(&*delivery.body)
}

/// The attempt of a delivery that succeeded on the first one. Most deliveries do, so it is stored in the delivery's
/// row: a row in the other table would double the cost.
fn only_attempt(delivery: &Delivery) -> Option<&Attempt> {
    let only = delivery.state == State::Delivered && delivery.attempts == 1 && delivery.round == 0;
    delivery.attempt.as_ref().filter(|_| only)
}

fn millis(time: DateTime<Utc>) -> i64 {
    time.timestamp_millis()
}

/// Upserts or deletes provider state of an endpoint.
pub(super) fn provider_state_statement(
    endpoint: &str,
    now: DateTime<Utc>,
    key: &str,
    value: Option<&str>,
) -> Sql {
    match value {
        Some(value) => sql!(
            "INSERT INTO kept (endpoint, key, value, updated_at) VALUES (?, ?, ?, ?) ON CONFLICT (endpoint, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
            endpoint,
            key,
            value,
            now.timestamp_millis(),
        ),
        None => sql!(
            "DELETE FROM kept WHERE endpoint = ? AND key = ?",
            endpoint,
            key
        ),
    }
}
