//! Endpoints as displayed, with their statistics.

use chrono::{DateTime, Utc};
use mesh_events::webhook_name;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{ApiError, Webhooks};
use crate::adapters::endpoint_stats::{Counts, EndpointStats};
use crate::adapters::endpoints::EndpointRow;
use crate::admission::StoredGate;
use crate::clock;
use crate::domain::circuit::{LONGEST, OpenCircuit};
use crate::domain::gate::Held;

/// An endpoint as it may be shown.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Webhook {
    /// Its name, which its owner has only once.
    pub name: String,
    /// How paths and requests name it: `alice/ci` (in a path `alice%2Fci`), or its name alone if it belongs to no user.
    pub full_name: String,
    /// Unix user it belongs to; empty for those of `mesh.toml`.
    pub owner: String,
    /// `api`, or `file` for those of `mesh.toml`.
    pub source: &'static str,
    /// `active`, `paused`, `disabled` or `removed`.
    pub state: &'static str,
    /// Why; empty if nobody said so.
    pub reason: String,
    /// Since when.
    pub since: DateTime<Utc>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it was changed.
    pub updated_at: DateTime<Utc>,
    /// What it is: `url`, `format`, `types` and what else was given, secrets masked; `signed`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub spec: Map<String, Value>,
    /// Deliveries by state.
    pub counts: Counts,
    /// Whether its receiver is at work, as far as attempts say.
    pub circuit: Circuit,
    /// The pause that its receiver asked for (`Retry-After`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Hold>,
}

/// Whether an endpoint is tried.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookCircuit)]
pub struct Circuit {
    /// `closed`: everything is sent; `open`: nothing is; `half-open`: the next delivery is sent as a probe.
    pub state: &'static str,
    /// Since when it is not closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// When the next probe may be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_at: Option<DateTime<Utc>>,
    /// The last failure; empty while it is closed.
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

/// A pause that a receiver asked for.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookHold)]
pub struct Hold {
    /// Since when.
    pub since: DateTime<Utc>,
    /// Until when nothing is sent.
    pub until: DateTime<Utc>,
    /// Its answer.
    pub reason: String,
}

impl From<Held> for Hold {
    fn from(held: Held) -> Self {
        Self {
            since: held.since,
            until: held.until,
            reason: held.reason,
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
            held: state.held.filter(|held| held.until > now).map(Hold::from),
        }
    }
}

impl Webhooks {
    /// An endpoint for display.
    pub(super) async fn shown(&self, stored: EndpointRow) -> Result<Webhook, ApiError> {
        let names = vec![stored.name.clone()];
        let mut standings = self.shared.store.standings(names).await?;
        let standing = standings.remove(&stored.name).unwrap_or_default();
        Ok(Webhook::of(stored, standing, clock::now()))
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
