//! The error responses of the REST API in its OpenAPI description.

use mesh_runtime::api::openapi::problem_responses;

problem_responses! {
    BadRequest: "A parameter or the body is invalid; `detail` names it",
    Unauthorized: "The token is missing or invalid",
    Unsigned: "The signature of the source is missing or wrong, or its time is too far from ours",
    Forbidden: "The caller lacks the permission",
    NotFound: "The rule, run or source does not exist, or the caller may not see it",
    Conflict: "The current state does not permit the request; `detail` gives the reason",
    TooLarge: "The body, or `data` in it, is too large",
    NotJson: "The content type is not JSON",
    Unprocessable: "The body has a wrong field, the data does not meet the rule's condition, or a guard refuses the firing; `detail` gives the reason",
    TooMany: "A limit of the sender is reached, or the bus has no room; retry after `Retry-After` seconds",
    Unavailable: "NATS stores neither events nor audit entries now, or the source's secret is not readable; retry after `Retry-After` seconds",
}
