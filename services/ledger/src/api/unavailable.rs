//! Maps errors of the store to responses, the same for REST and gRPC.

use axum::http::StatusCode;
use mesh_runtime::api::{Problem, grpc};
use tonic::Status;

use crate::error::Error;

/// Retry-After in seconds.
pub(super) const RETRY_AFTER_SECONDS: u64 = 5;

/// Why the ledger cannot respond.
enum UnavailableReason {
    /// The query exceeds its time limit: a retry would fail as well.
    TooLong,
    /// The database is temporarily unavailable.
    Database,
    /// An internal error.
    Ours,
}

impl UnavailableReason {
    fn of(error: &Error) -> Self {
        if error.is_timeout() {
            Self::TooLong
        } else if error.is_unavailable() {
            Self::Database
        } else {
            Self::Ours
        }
    }
}

const TIMEOUT_DETAIL: &str = "the query exceeded ledger.db.query_timeout: narrow the time (since, until), the range (from_seq, to_seq) or the filter";
const UNAVAILABLE_DETAIL: &str =
    "the ledger's database does not answer: see /readyz; retry in a moment";

/// Converts the error for REST.
pub(super) fn problem(error: &Error) -> Problem {
    match UnavailableReason::of(error) {
        UnavailableReason::TooLong => {
            log(error);
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, TIMEOUT_DETAIL)
        }
        UnavailableReason::Database => {
            log(error);
            Problem::unavailable(UNAVAILABLE_DETAIL, RETRY_AFTER_SECONDS)
        }
        UnavailableReason::Ours => Problem::internal(error),
    }
}

/// Converts the error for gRPC.
pub(super) fn status(error: &Error) -> Status {
    match UnavailableReason::of(error) {
        UnavailableReason::TooLong => {
            log(error);
            Status::deadline_exceeded(TIMEOUT_DETAIL)
        }
        UnavailableReason::Database => {
            log(error);
            Status::unavailable(UNAVAILABLE_DETAIL)
        }
        UnavailableReason::Ours => grpc::internal(error),
    }
}

/// Logs the cause for the operator.
pub(super) fn log(error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(error = mesh_runtime::error_chain(error), "request failed");
}
