//! `GET /metrics/<page>`: a family of metrics, for callers with the role admin, auditor or metrics.

use std::sync::PoisonError;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use mesh_runtime::api::{Caller, Problem, accepts_openmetrics};

use crate::domain::exposition::Format;
use crate::refresh::Published;

pub(crate) fn router(published: Published) -> Router {
    Router::new()
        .route("/metrics/{page}", get(page))
        .with_state(published)
}

async fn page(
    State(published): State<Published>,
    caller: Caller,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if !caller.may_read_metrics() {
        return Err(Problem::forbidden(
            "metrics require the role admin, auditor or metrics",
        ));
    }
    let pages = published
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if pages.is_empty() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the metrics are not made yet: NATS or the database does not answer",
        ));
    }
    let Some(bodies) = pages.get(name.as_str()) else {
        let names: Vec<&str> = pages.keys().copied().collect();
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            format!(
                "no such page; exporter.families serves {}",
                names.join(", ")
            ),
        ));
    };
    let encodings = headers.get_all(header::ACCEPT_ENCODING);
    let is_gzip = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("gzip"));
    let (format, body) = match bodies.get(&true) {
        Some(body) if accepts_openmetrics(&headers) => (Format::OpenMetrics, Some(body)),
        _ => (Format::Text, bodies.get(&false)),
    };
    let Some(body) = body else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no such page"));
    };
    let content_type = (header::CONTENT_TYPE, format.content_type());
    Ok(match encodings.iter().any(is_gzip) {
        true => (
            [content_type, (header::CONTENT_ENCODING, "gzip")],
            body.gzip.clone(),
        )
            .into_response(),
        false => ([content_type], body.plain.clone()).into_response(),
    })
}
