//! Shared by all OpenAPI descriptions: the security scheme and the problem responses.

use utoipa::Modify;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

/// Adds the security scheme `token`: TCP requires a bearer token; over the Unix socket the kernel identifies the caller.
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

/// Declares responses with a [`Problem`](crate::api::Problem), by name and description. Needs `utoipa` where it is used.
#[macro_export]
macro_rules! problem_responses {
    ($($name:ident: $description:literal),+ $(,)?) => {$(
        #[doc = $description]
        #[derive(::utoipa::ToResponse)]
        #[response(description = $description, content_type = "application/problem+json")]
        #[allow(dead_code, reason = "it describes a response")]
        pub(super) struct $name(#[to_schema] $crate::api::Problem);
    )+};
}
pub use crate::problem_responses;
