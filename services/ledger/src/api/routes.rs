//! The REST routes of events, and of their description.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use super::{EventsApi, export, kpis, openapi, rest, stats, stream};

pub(super) fn router<A: EventsApi>(api: Arc<A>) -> Router {
    Router::new()
        .route("/v1/events", get(rest::list::<A>))
        .route("/v1/events/export", get(export::export::<A>))
        .route("/v1/events/stream", get(stream::follow::<A>))
        .route("/v1/events/stats", get(stats::stats::<A>))
        .route("/v1/kpis", get(kpis::kpis::<A>))
        .route("/v1/events/openapi.json", get(openapi::serve))
        .route("/v1/jobs/{cluster}/{job}", get(rest::job::<A>))
        .route("/v1/nodes/{cluster}/{node}", get(rest::node::<A>))
        .route("/v1/ledger/head", get(rest::head::<A>))
        .with_state(api)
}
