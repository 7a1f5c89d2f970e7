//! Maps errors of the store to responses, the same for REST and gRPC.

use axum::http::StatusCode;
use mesh_runtime::api::{Problem, grpc, log_unavailable};
use tonic::Status;

use crate::error::Error;

const TIMEOUT_DETAIL: &str = "the query exceeded ledger.db.query_timeout: narrow the time (since, until), the range (from_seq, to_seq) or the filter";

/// Converts the error for REST. A retry of a query that exceeds its time limit would fail as well.
pub(super) fn problem(error: &Error) -> Problem {
    if error.is_timeout() {
        log_unavailable(error);
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, TIMEOUT_DETAIL);
    }
    Problem::of_failure(error, error.is_unavailable())
}

/// Converts the error for gRPC.
pub(super) fn status(error: &Error) -> Status {
    if error.is_timeout() {
        log_unavailable(error);
        return Status::deadline_exceeded(TIMEOUT_DETAIL);
    }
    grpc::failure(error, error.is_unavailable())
}
