//! The OpenAPI description of the REST API, made from the code that answers.

use axum::{Extension, Json};
use mesh_runtime::api::{Caller, Shown};
use utoipa::openapi::OpenApi as Document;
use utoipa::{OpenApi, ToResponse, ToSchema};

use super::rest;

/// The description of the dispatcher's REST API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "slurm-mesh webhook-dispatcher",
        description = "The Webhooks API: endpoints that are told of events, and what was delivered to them.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(rest::list, rest::create, rest::show, rest::edit, rest::remove, rest::pause, rest::resume, rest::rotate, rest::test, rest::preview, rest::deliveries, rest::delivery,
        rest::redeliver, rest::redeliveries),
    components(responses(BadRequest, Unauthorized, Forbidden, NotFound, Conflict, Unprocessable, Unprepared)),
    security((), ("token" = [])),
    modifiers(&Token),
    tags((name = "webhooks", description = "Who is told of what")),
)]
struct Dispatcher;

/// Over TCP a bearer token is needed; over the Unix socket the kernel says who calls.
struct Token;

impl utoipa::Modify for Token {
    fn modify(&self, document: &mut Document) {
        use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("token", scheme);
    }
}

/// The description.
pub fn document() -> Document {
    Dispatcher::openapi()
}

pub(super) async fn serve(_caller: Caller) -> (Extension<Shown>, Json<Document>) {
    (Shown::nothing().extension(), Json(document()))
}

/// What was wrong with a request (RFC 9457).
#[derive(ToSchema)]
#[schema(as = Problem)]
#[allow(dead_code, reason = "it describes the problem of mesh-runtime")]
struct ProblemJson {
    /// HTTP status.
    status: u16,
    /// What kind of problem.
    title: String,
    /// What exactly, and what to do.
    detail: String,
}

macro_rules! problem_response {
    ($name:ident, $description:literal) => {
        #[doc = $description]
        #[derive(ToResponse)]
        #[response(description = $description, content_type = "application/problem+json")]
        #[allow(dead_code, reason = "it describes an answer")]
        pub(super) struct $name(#[to_schema] ProblemJson);
    };
}

problem_response!(BadRequest, "The body is no JSON");
problem_response!(Unauthorized, "No token, or one that is not valid");
problem_response!(Forbidden, "The caller may not do this");
problem_response!(NotFound, "There is no such webhook, or it is another's");
problem_response!(
    Conflict,
    "It cannot be done as things stand; the answer says why, and where endpoints of mesh.toml are written"
);
problem_response!(
    Unprocessable,
    "A field is wrong; the answer names each and what is allowed"
);
problem_response!(
    Unprepared,
    "There is no key to encrypt secrets with, or what is needed is away"
);
