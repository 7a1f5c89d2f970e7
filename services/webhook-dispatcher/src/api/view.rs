//! Endpoints as displayed, with their statistics.

use chrono::{DateTime, Utc};
use mesh_events::webhook_name;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{ApiError, Webhooks};
use crate::attempt::circuit::{LONGEST, OpenCircuit};
use crate::attempt::gate::{RetryAfterPause, StoredGate};
use crate::clock;
use crate::store::cursors::Missed;
use crate::store::endpoint_stats::{Counts, EndpointStats};
use crate::store::endpoints::EndpointRow;

/// A webhook endpoint. Secrets are masked.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Webhook {
    /// Name, unique per owner.
    pub name: String,
    /// Name with its owner, for paths and requests: `alice/ci` (`alice%2Fci` in a path). Equals `name` without an owner.
    pub full_name: String,
    /// Unix user who owns it. Empty without an owner, as for webhooks of `mesh.toml`.
    pub owner: String,
    /// Where it is defined: `api`, or `file` for `mesh.toml`.
    pub source: &'static str,
    /// `active`, `paused`, `disabled` (the receiver responded 410) or `removed`.
    pub state: &'static str,
    /// Reason for the state; empty if none was given.
    pub reason: String,
    /// When it entered the state.
    pub since: DateTime<Utc>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it was last changed.
    pub updated_at: DateTime<Utc>,
    /// Its configuration (`url`, `format`, `types` and other keys that are set) with secrets masked, and `signed`:
    /// whether requests are signed.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub spec: Map<String, Value>,
    /// Number of deliveries by state.
    pub counts: Counts,
    /// State of the circuit breaker.
    pub circuit: Circuit,
    /// Pause requested by the receiver (`Retry-After`). Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<RetryAfterPause>,
    /// Events that the bus no longer had when the webhook came to them, for example after a pause of weeks. Absent if
    /// there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<Missed>,
}

/// State of a circuit breaker, which stops deliveries to a failing receiver.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookCircuit)]
pub struct Circuit {
    /// `closed`: deliveries are sent; `open`: none is sent; `half-open`: the next delivery is sent as a probe.
    pub state: &'static str,
    /// When the circuit opened. Absent while it is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// When the next probe may be sent. Absent while the circuit is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_at: Option<DateTime<Utc>>,
    /// The last failure; empty while the circuit is closed.
    pub reason: String,
}

impl Circuit {
    fn of(open: Option<OpenCircuit>, now: DateTime<Utc>) -> Self {
        let Some(open) = open else {
            return Self {
                state: "closed",
                since: None,
                probe_at: None,
                reason: String::new(),
            };
        };
        Self {
            state: if open.is_due(now, LONGEST) {
                "half-open"
            } else {
                "open"
            },
            since: Some(open.since),
            probe_at: Some(open.until),
            reason: open.reason,
        }
    }
}

impl Webhook {
    fn of(stored: EndpointRow, standing: EndpointStats, now: DateTime<Utc>) -> Self {
        let state = StoredGate::read(standing.gate.as_ref(), stored.revision);
        let spec = match stored.spec {
            Value::Object(spec) => spec,
            _ => Map::new(),
        };
        Self {
            name: webhook_name::short(&stored.name).to_owned(),
            full_name: stored.name,
            owner: stored.owner,
            source: stored.source.as_str(),
            state: stored.activity.as_str(),
            reason: stored.reason,
            since: stored.since,
            created_at: stored.created_at,
            updated_at: stored.updated_at,
            spec,
            counts: standing.counts,
            circuit: Circuit::of(state.open, now),
            held: state.held.filter(|held| held.until > now),
            missed: standing.missed,
        }
    }
}

impl Webhooks {
    /// An endpoint for display.
    pub(super) async fn shown(&self, stored: EndpointRow) -> Result<Webhook, ApiError> {
        let shown = self.all_shown(vec![stored]).await?.pop();
        Ok(shown.expect("one for one"))
    }

    /// Endpoints for display.
    pub(super) async fn all_shown(&self, all: Vec<EndpointRow>) -> Result<Vec<Webhook>, ApiError> {
        let names = all.iter().map(|stored| stored.name.clone()).collect();
        let mut standings = self.shared.store.standings(names).await?;
        let now = clock::now();
        let shown = all.into_iter().map(|stored| {
            let standing = standings.remove(&stored.name).unwrap_or_default();
            Webhook::of(stored, standing, now)
        });
        Ok(shown.collect())
    }
}
