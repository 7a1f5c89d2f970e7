//! Shared by all gRPC adapters: the caller, audited responses, and internal errors.

use tonic::{Request, Response, Status};

use super::problem::{AWAY, BROKEN, log_broken, log_unavailable};
use super::{AuditedRead, Caller};

/// The caller, as the authentication middleware found it.
///
/// # Errors
/// `UNAUTHENTICATED` if there is none.
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get().cloned();
    caller.ok_or_else(|| Status::unauthenticated("send a token, or call over the Unix socket"))
}

/// A response with a record of the data of others that it shows.
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

/// `UNAVAILABLE` if the service's database is away, else [`internal`].
pub fn failure(error: &(dyn std::error::Error + 'static), is_unavailable: bool) -> Status {
    if !is_unavailable {
        return internal(error);
    }
    log_unavailable(error);
    Status::unavailable(AWAY)
}
