//! What every gRPC adapter needs: who calls, an answer that says what it shows, and what is said when something is broken here.

use tonic::{Request, Response, Status};

use super::problem::{BROKEN, log_broken};
use super::{AuditedRead, Caller};

/// Who calls; the middleware has found that out before any service is reached.
///
/// # Errors
/// `UNAUTHENTICATED`, if it has not.
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get().cloned();
    caller.ok_or_else(|| Status::unauthenticated("show a token, or call over the Unix socket"))
}

/// An answer that says what it shows of others.
pub fn audited_response<T>(answer: T, read: AuditedRead) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(read);
    response
}

/// `INTERNAL`: our fault. The cause goes to the log, not to the caller.
pub fn internal(error: &(dyn std::error::Error + 'static)) -> Status {
    log_broken(error);
    Status::internal(BROKEN)
}
