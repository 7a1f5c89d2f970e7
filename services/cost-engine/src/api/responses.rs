//! The responses of failed requests, for the OpenAPI description.

use mesh_runtime::api::openapi::problem_responses;

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it",
    Unauthorized: "The token is missing or invalid",
    Forbidden: "The caller lacks the permission",
    NotFound: "It does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    Unavailable: "NATS does not store the audit entry of the read now; retry after `Retry-After` seconds",
}
