//! Deliveries and attempts as JSON.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::attempt::cause::Cause;
use crate::store::{Attempt, Delivery};

/// Delivery of one event to one webhook.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDelivery)]
pub(super) struct DeliveryJson {
    /// Id of the event.
    event_id: String,
    /// Type of the event. Empty for a message of the dispatcher itself, such as an array digest.
    event_type: String,
    /// `waiting`, `delivered`, `dead` or `expired`.
    state: &'static str,
    /// Number of attempts since the event was received or last redelivered.
    attempts: u32,
    /// HTTP status of the last attempt; 0 without a response.
    status: u16,
    /// Error message of the last attempt; empty on success.
    error: String,
    /// Cause of the last failed attempt, as in the `cause` filter of the list; empty on success.
    cause: &'static str,
    /// Number of redeliveries; 0 if it was never redelivered.
    round: u32,
    /// When the dispatcher received the event.
    created_at: DateTime<Utc>,
    /// When the delivery last changed.
    updated_at: DateTime<Utc>,
    /// When the next attempt is due; null if none is planned.
    next_at: Option<DateTime<Utc>>,
}

impl From<Delivery> for DeliveryJson {
    fn from(delivery: Delivery) -> Self {
        Self {
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            status: delivery.status,
            error: delivery.error,
            cause: delivery.cause.map_or("", Cause::as_str),
            round: delivery.round,
            created_at: delivery.created_at,
            updated_at: delivery.updated_at,
            next_at: delivery.next_at,
        }
    }
}

/// One attempt of a delivery.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookAttempt)]
pub(super) struct AttemptJson {
    /// Number of the attempt, from 1.
    number: u32,
    /// When it began.
    at: DateTime<Utc>,
    /// HTTP status of the response; 0 without a response.
    status: u16,
    /// Duration in milliseconds.
    latency_ms: u64,
    /// Cause of the failure, as in the `cause` filter of the list; empty on success.
    cause: &'static str,
    /// Error message; empty on success.
    error: String,
    /// First part of the response body, at most 1 KiB.
    snippet: String,
    /// When the next attempt was planned; null if there was none.
    next_at: Option<DateTime<Utc>>,
}

impl From<Attempt> for AttemptJson {
    fn from(attempt: Attempt) -> Self {
        Self {
            number: attempt.n,
            at: attempt.at,
            status: attempt.status,
            latency_ms: attempt.latency_ms,
            cause: attempt.cause.map_or("", Cause::as_str),
            error: attempt.error,
            snippet: attempt.snippet,
            next_at: attempt.next_at,
        }
    }
}
