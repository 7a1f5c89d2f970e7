//! What every OpenAPI description has: how callers say who they are, and how an answer looks that says what was wrong.

use utoipa::Modify;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

/// Adds the security scheme `token`: over TCP a bearer token is needed; over the Unix socket the kernel says who calls.
pub struct BearerAuth;

impl Modify for BearerAuth {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document
            .components
            .get_or_insert_default()
            .add_security_scheme("token", scheme);
    }
}

/// Declares responses that are a [`Problem`](crate::api::Problem), by name and description. Needs `utoipa` where it is used.
#[macro_export]
macro_rules! problem_responses {
    ($($name:ident: $description:literal),+ $(,)?) => {$(
        #[doc = $description]
        #[derive(::utoipa::ToResponse)]
        #[response(description = $description, content_type = "application/problem+json")]
        #[allow(dead_code, reason = "it describes an answer")]
        pub(super) struct $name(#[to_schema] $crate::api::Problem);
    )+};
}
pub use crate::problem_responses;
