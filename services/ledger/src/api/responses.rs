//! The error responses of the REST API in its OpenAPI description.

use mesh_runtime::api::openapi::problem_responses;

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it and its allowed values",
    Unauthorized: "The token is missing or invalid",
    Forbidden: "The caller lacks the permission",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    Unavailable: "The query exceeded its time limit (narrow the filter), or the database is unavailable (for replays to a webhook also NATS); retry after `Retry-After` seconds",
    NotFound: "It does not exist, or the caller may not see it",
}
