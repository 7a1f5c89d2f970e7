//! Errors of the API, as RFC 9457 problem details.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Text of every internal error.
pub(super) const BROKEN: &str = "internal error; see the log of the service";
/// Text while a database is away.
pub(super) const AWAY: &str =
    "the database of this service does not answer: see /readyz; retry in a moment";
/// When to retry if nothing better is known, in seconds.
const RETRY_AFTER_SECONDS: u64 = 5;

/// Error response: problem details (RFC 9457).
#[derive(Clone, Debug, Serialize, PartialEq, Eq, ToSchema)]
pub struct Problem {
    /// HTTP status code.
    pub status: u16,
    /// Reason phrase of the status, such as `Not Found`.
    pub title: String,
    /// Cause of the error, and how to correct the request.
    pub detail: String,
    #[serde(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// A problem with a status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Problem").to_owned();
        Self {
            status: status.as_u16(),
            title,
            detail: detail.into(),
            headers: Vec::new(),
        }
    }

    /// 503: a dependency is unavailable; the caller may retry in a moment.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::unavailable_for(detail, RETRY_AFTER_SECONDS)
    }

    /// As [`Self::unavailable`]; the caller may retry after this many seconds.
    pub fn unavailable_for(detail: impl Into<String>, retry_after: u64) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail)
            .with(header::RETRY_AFTER, retry_after.into())
    }

    /// 429: too many requests; the caller may retry after this many seconds.
    pub fn too_many(detail: impl Into<String>, retry_after: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
            .with(header::RETRY_AFTER, retry_after.into())
    }

    /// The problem with one more header.
    #[must_use]
    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// 400: the request is wrong.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 404: there is no such thing, or the caller may not know of it.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 403: the caller may not do this.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// 500: our fault. The cause goes to the log, not to the caller.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        log_broken(error);
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, BROKEN)
    }

    /// 503 with the time of a retry if the service's database is away, else [`Self::internal`].
    pub fn of_failure(error: &(dyn std::error::Error + 'static), is_unavailable: bool) -> Self {
        if !is_unavailable {
            return Self::internal(error);
        }
        log_unavailable(error);
        Self::unavailable(AWAY)
    }
}

/// Logs for the operator why a request failed, if that may pass by itself.
pub fn log_unavailable(error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(error = crate::error_chain(error), "request failed");
}

/// Logs an internal error for the operator.
pub(super) fn log_broken(error: &(dyn std::error::Error + 'static)) {
    tracing::error!(error = crate::error_chain(error), "request failed");
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = std::mem::take(&mut self.headers);
        let mut response = (status, Json(self)).into_response();
        response.headers_mut().extend(headers);
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}
