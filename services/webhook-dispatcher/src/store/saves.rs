//! Stores deliveries in batches, with the cursors that they move: one statement for many costs little more than one for a single delivery.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use mesh_db::pool::Transaction;
use mesh_db::sql::{Column, Sql};

use crate::attempt::cause::Cause;
use crate::store::cursors::save_arrivals;
use crate::store::delivery::{Attempt, Delivery, State};

/// Maximum stored attempts per delivery. The oldest are deleted.
const MAX_ATTEMPTS: u32 = 50;

/// Keeps the cost of an existing row: only [`Command::JoinCost`](crate::store::command::Command::JoinCost) sets it.
const STORE: &str = "INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at,
     subject, stream_sequence, trace, pair, body, cost, cause, began_at, sent_at, latency_ms, snippet)
 SELECT endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at,
     subject, stream_sequence, trace, pair, body, cost, cause, began_at, sent_at, latency_ms, snippet FROM bulk WHERE TRUE
 ON CONFLICT (event_id, endpoint) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, next_at = excluded.next_at,
     status = excluded.status, error = excluded.error, updated_at = excluded.updated_at, pair = excluded.pair, body = excluded.body,
     cause = excluded.cause, sent_at = excluded.sent_at, latency_ms = excluded.latency_ms, snippet = excluded.snippet
 WHERE deliveries.state = 'waiting'";

/// Idempotent: an attempt is inserted once. The `+` stops SQLite from scanning all attempts of that time.
const NOTE: &str = "INSERT INTO attempts (endpoint, event_id, at, status, latency_ms, cause, error, snippet, next_at, n)
 SELECT endpoint, event_id, at, status, latency_ms, cause, error, snippet, next_at,
     COALESCE((SELECT MAX(n) FROM attempts WHERE attempts.endpoint = bulk.endpoint AND attempts.event_id = bulk.event_id), 0) + 1
 FROM bulk WHERE NOT EXISTS (SELECT 1 FROM attempts
     WHERE attempts.endpoint = bulk.endpoint AND attempts.event_id = bulk.event_id AND +attempts.at = bulk.at)";

const TRIM: &str = "DELETE FROM attempts WHERE (endpoint, event_id) IN (SELECT endpoint, event_id FROM bulk)
 AND n <= (SELECT MAX(newest.n) FROM attempts AS newest WHERE newest.endpoint = attempts.endpoint AND newest.event_id = attempts.event_id)
     - (SELECT MIN(most) FROM bulk)";

/// Distinct deliveries to store in one statement. Their order does not matter.
#[derive(Default)]
pub(super) struct Group<'a> {
    deliveries: Vec<&'a Delivery>,
    keys: HashSet<(&'a str, &'a str)>,
}

impl<'a> Group<'a> {
    /// Adds a delivery. Returns false if it is already in the group, which must then be stored first.
    pub fn add(&mut self, delivery: &'a Delivery) -> bool {
        let new = self.keys.insert((&delivery.endpoint, &delivery.event_id));
        if new {
            self.deliveries.push(delivery);
        }
        new
    }

    /// Stores the deliveries and empties the group.
    pub async fn store(&mut self, transaction: &mut Transaction<'_>) -> Result<(), sqlx::Error> {
        save(transaction, &self.deliveries).await?;
        self.deliveries.clear();
        self.keys.clear();
        Ok(())
    }
}

/// Upserts distinct deliveries with their attempts and provider state. Returns the number of rows.
pub(super) async fn save(
    transaction: &mut Transaction<'_>,
    deliveries: &[&Delivery],
) -> Result<u64, sqlx::Error> {
    let texts = |of: fn(&Delivery) -> &str| {
        let all = deliveries.iter().map(|delivery| Some(of(delivery)));
        Column::Texts(all.collect())
    };
    let numbers = |of: fn(&Delivery) -> Option<i64>| {
        Column::Ints(deliveries.iter().map(|delivery| of(delivery)).collect())
    };
    let times = |of: fn(&Delivery) -> DateTime<Utc>| {
        let all = deliveries.iter();
        Column::Ints(
            all.map(|delivery| Some(of(delivery).timestamp_millis()))
                .collect(),
        )
    };
    let bulk = [
        ("endpoint", texts(|delivery| &delivery.endpoint)),
        ("event_id", texts(|delivery| &delivery.event_id)),
        ("event_type", texts(|delivery| &delivery.event_type)),
        ("state", texts(|delivery| delivery.state.as_str())),
        (
            "attempts",
            numbers(|delivery| Some(delivery.attempts.into())),
        ),
        ("next_at", numbers(|delivery| delivery.next_at.map(millis))),
        ("status", numbers(|delivery| Some(delivery.status.into()))),
        ("error", texts(|delivery| &delivery.error)),
        ("created_at", times(|delivery| delivery.created_at)),
        ("updated_at", times(|delivery| delivery.updated_at)),
        ("subject", texts(|delivery| &delivery.subject)),
        (
            "stream_sequence",
            numbers(|delivery| Some(delivery.stream_sequence.cast_signed())),
        ),
        ("trace", texts(|delivery| &delivery.trace)),
        (
            "pair",
            Column::Texts(
                deliveries
                    .iter()
                    .map(|delivery| delivery.pair.as_deref())
                    .collect(),
            ),
        ),
        (
            "body",
            Column::Blobs(
                deliveries
                    .iter()
                    .map(|delivery| needed_body(delivery))
                    .collect(),
            ),
        ),
        (
            "cost",
            Column::Blobs(
                deliveries
                    .iter()
                    .map(|delivery| delivery.cost.as_deref())
                    .collect(),
            ),
        ),
        ("cause", texts(|delivery| word(delivery.cause))),
        ("began_at", times(|delivery| delivery.began_at)),
        (
            "sent_at",
            numbers(|delivery| Some(millis(only_attempt(delivery)?.at))),
        ),
        (
            "latency_ms",
            numbers(|delivery| Some(only_attempt(delivery)?.latency_ms.cast_signed())),
        ),
        (
            "snippet",
            Column::Texts(
                deliveries
                    .iter()
                    .map(|delivery| Some(only_attempt(delivery)?.snippet.as_str()))
                    .collect(),
            ),
        ),
    ];
    let rows = transaction.conn().execute_bulk(&bulk, STORE).await?;
    note(transaction, deliveries).await?;
    let arrivals = deliveries.iter();
    let arrivals = arrivals.filter_map(|delivery| delivery.arrival.as_ref());
    save_arrivals(transaction, arrivals).await?;
    for delivery in deliveries {
        for (key, value) in &delivery.keep {
            let (endpoint, now) = (&delivery.endpoint, delivery.updated_at);
            keep(transaction, endpoint, now, key, value.as_deref()).await?;
        }
    }
    Ok(rows)
}

/// Inserts the attempts that need rows of their own, and deletes the oldest beyond the limit.
async fn note(
    transaction: &mut Transaction<'_>,
    deliveries: &[&Delivery],
) -> Result<(), sqlx::Error> {
    let noted: Vec<(&Delivery, &Attempt)> = deliveries
        .iter()
        .filter(|delivery| only_attempt(delivery).is_none())
        .filter_map(|delivery| Some((*delivery, delivery.attempt.as_ref()?)))
        .collect();
    let texts = |of: for<'a> fn(&'a Delivery, &'a Attempt) -> &'a str| {
        let all = noted
            .iter()
            .map(|(delivery, attempt)| Some(of(delivery, attempt)));
        Column::Texts(all.collect())
    };
    let numbers = |of: fn(&Attempt) -> Option<i64>| {
        Column::Ints(noted.iter().map(|(_, attempt)| of(attempt)).collect())
    };
    let bulk = [
        ("endpoint", texts(|delivery, _| &delivery.endpoint)),
        ("event_id", texts(|delivery, _| &delivery.event_id)),
        ("at", numbers(|attempt| Some(millis(attempt.at)))),
        ("status", numbers(|attempt| Some(attempt.status.into()))),
        (
            "latency_ms",
            numbers(|attempt| Some(attempt.latency_ms.cast_signed())),
        ),
        ("cause", texts(|_, attempt| word(attempt.cause))),
        ("error", texts(|_, attempt| &attempt.error)),
        ("snippet", texts(|_, attempt| &attempt.snippet)),
        ("next_at", numbers(|attempt| attempt.next_at.map(millis))),
    ];
    transaction.conn().execute_bulk(&bulk, NOTE).await?;
    let many = noted
        .iter()
        .map(|(delivery, _)| delivery)
        .filter(|delivery| {
            // Attempts of earlier rounds count as well.
            delivery.attempts > MAX_ATTEMPTS || delivery.round > 0
        });
    let (endpoints, events): (Vec<_>, Vec<_>) = many
        .map(|delivery| {
            (
                Some(delivery.endpoint.as_str()),
                Some(delivery.event_id.as_str()),
            )
        })
        .unzip();
    let bulk = [
        (
            "most",
            Column::Ints(vec![Some(MAX_ATTEMPTS.into()); endpoints.len()]),
        ),
        ("endpoint", Column::Texts(endpoints)),
        ("event_id", Column::Texts(events)),
    ];
    transaction.conn().execute_bulk(&bulk, TRIM).await?;
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

fn word(cause: Option<Cause>) -> &'static str {
    cause.map_or("", Cause::as_str)
}

/// Upserts or deletes provider state of an endpoint.
pub(super) async fn keep(
    transaction: &mut Transaction<'_>,
    endpoint: &str,
    now: DateTime<Utc>,
    key: &str,
    value: Option<&str>,
) -> Result<(), sqlx::Error> {
    let sql = match value {
        Some(value) => Sql::new("INSERT INTO kept (endpoint, key, value, updated_at) VALUES (")
            .list([
                endpoint.into(),
                key.into(),
                value.into(),
                now.timestamp_millis().into(),
            ])
            .push(") ON CONFLICT (endpoint, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at"),
        None => Sql::new("DELETE FROM kept WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND key = ")
            .bind(key),
    };
    transaction.conn().execute(&sql).await.map(drop)
}
