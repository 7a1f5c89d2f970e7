//! Formats of metrics.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// Media type of OpenMetrics 1.0.0.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Media type of Prometheus' text format 0.0.4.
pub const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// True if the client accepts OpenMetrics. Prometheus does, and prefers it to the text format.
pub fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT);
    let is_named = |accepted: &str| accepted.contains("application/openmetrics-text");
    accepted
        .iter()
        .any(|value| value.to_str().is_ok_and(is_named))
}
