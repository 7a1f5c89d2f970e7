//! What a gate stores: its open circuit and the pause that the receiver asked for.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::attempt::circuit::OpenCircuit;

/// Key of the stored gate.
pub const STORED_GATE_KEY: &str = "gate";

/// A pause requested by the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = WebhookHold)]
pub struct RetryAfterPause {
    /// Start of the pause.
    pub since: DateTime<Utc>,
    /// End of the pause.
    pub until: DateTime<Utc>,
    /// The response that requested it.
    pub reason: String,
}

impl RetryAfterPause {
    /// True if a probe may be sent. A clock that was set back does not extend the pause.
    pub(super) fn is_over(&self, max: Duration, now: DateTime<Utc>) -> bool {
        let max = TimeDelta::from_std(max).unwrap_or(TimeDelta::MAX);
        now >= self.until || self.until - now > max
    }
}

/// State of a gate that survives restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The circuit, while it is open.
    pub open: Option<OpenCircuit>,
    /// The pause requested by the receiver.
    pub held: Option<RetryAfterPause>,
}

/// The gate as stored.
#[derive(Debug, Deserialize, Serialize)]
pub struct StoredGate {
    /// Revision of the endpoint. The state is discarded if it differs.
    pub revision: i64,
    /// State of the circuit breaker and of the pause.
    pub state: State,
}

impl StoredGate {
    /// Reads the stored state. Returns the default if there is none, or if it is of another revision.
    pub fn read(text: Option<&String>, revision: i64) -> State {
        text.and_then(|text| serde_json::from_str::<Self>(text).ok())
            .filter(|stored| stored.revision == revision)
            .map(|stored| stored.state)
            .unwrap_or_default()
    }
}
