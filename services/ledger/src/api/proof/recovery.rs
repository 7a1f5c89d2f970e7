//! `/v1/ledger/resume` and `/v1/ledger/contradictions`, to recover the history and to report
//! contradicting checkpoints.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use mesh_runtime::api::{Caller, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::rest::problem;
use super::{ProofError, Proofs, invalid};
use crate::api::responses;
use crate::domain::checkpoint::Checkpoint;
use crate::error::Error;

pub(super) fn router(proofs: Arc<Proofs>) -> Router {
    Router::new()
        .route("/v1/ledger/resume", post(resume))
        .route("/v1/ledger/contradictions", post(contradiction))
        .with_state(proofs)
}

/// How to resume a ledger whose database was set back. Without `new_origin`, the missing entries are recovered from the bus.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ResumeRequest)]
pub(in crate::api) struct ResumeJson {
    /// Signed note of the checkpoint up to which entries are recovered. Default: the newest known one. Not with `new_origin`.
    pub(super) checkpoint: Option<String>,
    /// Continues under this origin with the existing entries. Entries signed only under the former origin are lost.
    pub(super) new_origin: Option<String>,
    /// Reason for the new origin, recorded in the ledger.
    pub(super) reason: Option<String>,
}

/// Result of resuming a ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = Resumed)]
pub(in crate::api) struct ResumedJson {
    /// Origin of the ledger from now on.
    pub(super) origin: String,
    /// Number of entries before.
    pub(super) from: u64,
    /// Number of entries now.
    pub(super) to: u64,
    /// Signed note of the checkpoint of `to` entries.
    pub(super) checkpoint: String,
}

/// A checkpoint that appears to contradict the ledger.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ContradictionRequest)]
pub(in crate::api) struct SeenJson {
    /// The signed note.
    checkpoint: String,
}

/// Whether the ledger contradicts a checkpoint.
#[derive(Serialize, ToSchema)]
#[schema(as = Contradiction)]
pub(in crate::api) struct ContradictionJson {
    /// True if the ledger contradicts it. An audit entry of kind `history` records the contradiction.
    contradicted: bool,
    /// The contradiction; null if there is none.
    reason: Option<String>,
}

/// Resumes a ledger whose database was set back. Administrators only.
///
/// Recovers the missing entries from the bus, or continues under another origin.
#[utoipa::path(
    post, path = "/v1/ledger/resume", operation_id = "resumeLedger", tag = "proof", request_body = ResumeJson,
    responses(
        (status = 200, description = "The ledger was resumed", body = ResumedJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 409, response = responses::Conflict), (status = 503, response = responses::Unavailable),
    )
)]
pub(in crate::api) async fn resume(
    State(proofs): State<Arc<Proofs>>,
    caller: Caller,
    body: Bytes,
) -> Result<Json<ResumedJson>, Problem> {
    let requested: ResumeJson = match body.is_empty() {
        true => ResumeJson::default(),
        false => read(&body)?,
    };
    // Spawned, so that it continues if the client disconnects.
    let resumed = tokio::spawn(async move { proofs.resume(&caller, requested).await }).await;
    let resumed = resumed.map_err(|error| Problem::internal(&error))?;
    resumed.map(Json).map_err(problem)
}

/// Reports a checkpoint that contradicts the ledger.
///
/// The checkpoint must be signed by a key of the ledger; anyone may report it.
#[utoipa::path(
    post, path = "/v1/ledger/contradictions", operation_id = "reportContradiction", tag = "proof", request_body = SeenJson,
    responses(
        (status = 200, description = "Result of the check", body = ContradictionJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 503, response = responses::Unavailable),
    )
)]
pub(in crate::api) async fn contradiction(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
    body: Bytes,
) -> Result<Json<ContradictionJson>, Problem> {
    let SeenJson { checkpoint } = read(&body)?;
    let reason = proofs.contradicted_by(&checkpoint).await.map_err(problem)?;
    Ok(Json(ContradictionJson {
        contradicted: reason.is_some(),
        reason,
    }))
}

fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(format!("body: {error}")))
}

impl Proofs {
    pub(super) async fn resume(
        &self,
        caller: &Caller,
        requested: ResumeJson,
    ) -> Result<ResumedJson, ProofError> {
        if !caller.may_write() {
            return Err(ProofError::Forbidden(
                "only administrators may resume a ledger",
            ));
        }
        let ResumeJson {
            checkpoint,
            new_origin,
            reason,
        } = requested;
        if let Some(origin) = new_origin {
            if checkpoint.is_some() {
                return Err(invalid(
                    "checkpoint",
                    "not allowed with new_origin, which does not restore entries",
                ));
            }
            let reason = reason.unwrap_or_default();
            let begun = self
                .checkpointer
                .begin_origin(&origin, &reason, &caller.name)
                .await
                .map_err(conflict)?;
            let size = begun.size.unsigned_abs();
            return Ok(ResumedJson {
                origin,
                from: size - 1,
                to: size,
                checkpoint: begun.note,
            });
        }
        if let Some(note) = &checkpoint {
            Checkpoint::unverified(note)
                .map_err(|error| invalid("checkpoint", error.to_string()))?;
        }
        let resumed = self
            .checkpointer
            .resume(checkpoint.as_deref(), &caller.name)
            .await
            .map_err(conflict)?;
        Ok(ResumedJson {
            origin: resumed.origin,
            from: resumed.from,
            to: resumed.to,
            checkpoint: resumed.note,
        })
    }

    pub(super) async fn contradicted_by(&self, note: &str) -> Result<Option<String>, ProofError> {
        match self.checkpointer.contradicted_by(note).await {
            Err(Error::NotResumed(why)) => Err(invalid("checkpoint", why)),
            result => Ok(result?),
        }
    }
}

fn conflict(error: Error) -> ProofError {
    match error {
        Error::NoKey(_)
        | Error::Inconsistent(_)
        | Error::KeyUnfit { .. }
        | Error::NotResumed(_)
        | Error::Moved { .. } => ProofError::Conflict(mesh_runtime::error_chain(&error)),
        error => error.into(),
    }
}
