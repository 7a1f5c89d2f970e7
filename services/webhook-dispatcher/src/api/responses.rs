//! The problem responses that the handlers' descriptions name.

use mesh_runtime::api::openapi::problem_responses;

problem_responses! {
    BadRequest: "The body is not valid JSON",
    Unauthorized: "The token is missing or invalid",
    Forbidden: "The caller lacks the permission",
    NotFound: "The webhook or delivery does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason. Webhooks of mesh.toml are changed there",
    Unprocessable: "A field is invalid; `detail` names each invalid field and its allowed values",
    TooMany: "A test of this webhook is running, its rate limit is exhausted, or the dispatcher's limit of concurrent requests is reached; retry after `Retry-After` seconds",
    Unprepared: "No key to encrypt secrets is configured, or a dependency is unavailable",
}
