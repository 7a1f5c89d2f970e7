//! REST: `/v1/ledger/resume` and `/v1/ledger/contradictions`, to recover the history and to report
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
use crate::api::openapi;
use crate::domain::checkpoint::Checkpoint;
use crate::error::Error;

pub(super) fn router(proofs: Arc<Proofs>) -> Router {
    Router::new()
        .route("/v1/ledger/resume", post(resume))
        .route("/v1/ledger/contradictions", post(contradiction))
        .with_state(proofs)
}

/// How a ledger goes on that was set back. Without `new_origin` the rest of its history is brought back from the bus.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ResumeRequest)]
pub(in crate::api) struct ResumeJson {
    /// The signed checkpoint up to which the history is brought back; the newest that is known if it is left out.
    checkpoint: Option<String>,
    /// The ledger goes on under this origin, with the entries it has: what else its former origin signed is lost.
    new_origin: Option<String>,
    /// Why it needs a new origin; goes into the ledger.
    reason: Option<String>,
}

/// How it went on.
#[derive(Serialize, ToSchema)]
#[schema(as = Resumed)]
pub(in crate::api) struct ResumedJson {
    /// Origin of the ledger from now on.
    origin: String,
    /// Entries that it had.
    from: u64,
    /// Entries that it has.
    to: u64,
    /// The checkpoint of so many entries.
    checkpoint: String,
}

/// A checkpoint that does not seem to be one of this history.
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
    /// True if both cannot be true: then an entry of the audit, kind `history`, says so.
    contradicted: bool,
    /// What does not fit; null if nothing.
    reason: Option<String>,
}

/// Lets a ledger that was set back go on: with what the bus has of its history, or under another origin (administrators).
#[utoipa::path(
    post, path = "/v1/ledger/resume", operation_id = "resumeLedger", tag = "proof", request_body = ResumeJson,
    responses(
        (status = 200, description = "It goes on", body = ResumedJson),
        (status = 400, response = openapi::BadRequest), (status = 401, response = openapi::Unauthorized), (status = 403, response = openapi::Forbidden),
        (status = 409, response = openapi::Conflict), (status = 503, response = openapi::Unavailable),
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

/// Reports a checkpoint that the ledger contradicts. A signature by one of its keys is proof, whoever submits it.
#[utoipa::path(
    post, path = "/v1/ledger/contradictions", operation_id = "reportContradiction", tag = "proof", request_body = SeenJson,
    responses(
        (status = 200, description = "Whether it does", body = ContradictionJson),
        (status = 400, response = openapi::BadRequest), (status = 401, response = openapi::Unauthorized), (status = 503, response = openapi::Unavailable),
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
    async fn resume(
        &self,
        caller: &Caller,
        requested: ResumeJson,
    ) -> Result<ResumedJson, ProofError> {
        if !caller.may_write() {
            return Err(ProofError::Forbidden(
                "a ledger is resumed for administrators only",
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
                    "not with new_origin: its history is not brought back",
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

    async fn contradicted_by(&self, note: &str) -> Result<Option<String>, ProofError> {
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
