//! The error responses of the REST API in its OpenAPI description.

use mesh_runtime::api::openapi::problem_responses;

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it",
    Unauthorized: "The token is missing or invalid",
    NotFound: "It does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    Unavailable: "The state is not loaded yet, too little is known for an estimate, or NATS does not store the audit entry of the read; retry later",
}
