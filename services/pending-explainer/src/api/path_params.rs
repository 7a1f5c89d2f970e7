//! The parameters in paths of the REST API in its OpenAPI description.

use utoipa::IntoParams;

/// Names a cluster.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct ClusterPath {
    /// Name of the cluster.
    cluster: String,
}

/// Names a job.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[allow(dead_code, reason = "it describes a path")]
pub(super) struct JobPath {
    /// Name of the cluster.
    cluster: String,
    /// Job id in Slurm's form: `123`, `123_4`, `123+1`.
    job: String,
}
