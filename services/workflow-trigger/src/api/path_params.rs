//! The parameters in paths of the REST API in its OpenAPI description.

use utoipa::IntoParams;

/// Names a rule.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct RulePath {
    /// Unix user who owns the rule.
    owner: String,
    /// Name of the rule.
    name: String,
}

/// Names a run.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct RunPath {
    /// Key of the run.
    key: String,
}
