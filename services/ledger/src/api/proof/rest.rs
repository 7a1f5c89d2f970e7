//! REST: `/v1/ledger/checkpoint`, `/checkpoints`, `/proof/inclusion`, `/proof/consistency`, `/keys`, `/export`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use chrono::{DateTime, SecondsFormat};
use futures_util::stream;
use ledger_format::chain::Hash;
use mesh_runtime::api::{Caller, Problem};
use serde::Serialize;
use utoipa::ToSchema;

use super::{CheckpointId, Consistency, Inclusion, KeyInfo, ProofError, Proofs, invalid, root_of};
use crate::api::{responses, unavailable};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::export::ExportLine;

pub(super) fn router(proofs: Arc<Proofs>) -> Router {
    Router::new()
        .route("/v1/ledger/checkpoint", get(newest))
        .route("/v1/ledger/checkpoints", get(list))
        .route("/v1/ledger/proof/inclusion", get(inclusion))
        .route("/v1/ledger/proof/consistency", get(consistency))
        .route("/v1/ledger/keys", get(keys).post(rotate))
        .with_state(proofs)
}

pub(super) fn export_router(proofs: Arc<Proofs>) -> Router {
    Router::new()
        .route("/v1/ledger/export", get(export))
        .with_state(proofs)
}

/// A signed checkpoint of the ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = Checkpoint)]
pub(in crate::api) struct CheckpointJson {
    /// Number of entries it covers.
    size: i64,
    /// Root hash of the Merkle tree over these entries, in hexadecimal; null if the note is unreadable.
    root: Option<String>,
    /// The signed note. Only the note is proof.
    note: String,
    /// When it was signed, RFC 3339. Neither signed nor verified: only a witness's cosignature in the note has a signed time.
    made_at: Option<String>,
}

/// A list of checkpoints.
#[derive(Serialize, ToSchema)]
#[schema(as = Checkpoints)]
pub(in crate::api) struct CheckpointsJson {
    /// The checkpoints, smallest size first.
    checkpoints: Vec<CheckpointJson>,
}

/// Proof that a ledger of some size includes an entry (RFC 6962 §2.1.1). Hashes are in hexadecimal.
#[derive(Serialize, ToSchema)]
#[schema(as = InclusionProof)]
pub(in crate::api) struct InclusionJson {
    /// Ledger sequence of the entry; its index in the tree is one less.
    seq: u64,
    /// Leaf hash of the entry.
    leaf: String,
    /// Number of entries of the ledger.
    size: u64,
    /// Root hash of the Merkle tree over these entries.
    root: String,
    /// Audit path: the hashes from the leaf to the root.
    path: Vec<String>,
    /// Signed note of the checkpoint of this size; null if there is none.
    checkpoint: Option<String>,
}

/// Proof that a smaller ledger is a prefix of a larger one (RFC 6962 §2.1.2). Hashes are in hexadecimal.
#[derive(Serialize, ToSchema)]
#[schema(as = ConsistencyProof)]
pub(in crate::api) struct ConsistencyJson {
    /// Number of entries of the smaller ledger.
    from: u64,
    /// Root hash of the smaller ledger.
    from_root: String,
    /// Number of entries of the larger ledger.
    to: u64,
    /// Root hash of the larger ledger.
    to_root: String,
    /// Hashes of the proof.
    path: Vec<String>,
    /// Signed note of the checkpoint of the larger ledger; null if there is none.
    checkpoint: Option<String>,
}

/// A current or former key that signs checkpoints.
#[derive(Serialize, ToSchema)]
#[schema(as = SigningKey)]
pub(in crate::api) struct KeyJson {
    /// Public key: `<name>+<key id>+<base64>`.
    vkey: String,
    /// Number of entries when the key was created.
    from_size: i64,
    /// Size of the last checkpoint it signed; 0 if it signed none.
    to_size: u64,
    /// When it was created, RFC 3339. Of a key after the first, `smesh verify` compares it with the audit; of the first, it is neither signed nor verified.
    made_at: Option<String>,
    /// Caller who created it; empty for the first key, which the ledger creates.
    made_by: String,
}

/// A list of signing keys.
#[derive(Serialize, ToSchema)]
#[schema(as = SigningKeys)]
pub(in crate::api) struct KeysJson {
    /// The keys, oldest first. The last one signs.
    keys: Vec<KeyJson>,
}

/// A new signing key.
#[derive(Serialize, ToSchema)]
#[schema(as = NewSigningKey)]
pub(in crate::api) struct RotatedJson {
    /// The new key.
    key: KeyJson,
    /// Checkpoint signed by both the new and the previous key; null if the ledger is empty.
    checkpoint: Option<CheckpointJson>,
}

/// Returns the signed note of the newest checkpoint.
#[utoipa::path(
    get, path = "/v1/ledger/checkpoint", operation_id = "getCheckpoint", tag = "proof",
    responses(
        (status = 200, description = "The signed note", content_type = "text/plain; charset=utf-8", body = String),
        (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound),
    )
)]
pub(in crate::api) async fn newest(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
) -> Result<Response, Problem> {
    let newest = proofs.newest().await.map_err(problem)?;
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((text, newest.note).into_response())
}

/// Lists checkpoints, smallest size first.
#[utoipa::path(
    get, path = "/v1/ledger/checkpoints", operation_id = "listCheckpoints", tag = "proof",
    params(
        ("from" = Option<u64>, Query, description = "Minimum size, in entries. Default: 0"),
        ("limit" = Option<u32>, Query, description = "Maximum number of checkpoints, 1 to 1000. Default: 100", minimum = 1),
    ),
    responses(
        (status = 200, description = "The checkpoints", body = CheckpointsJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized),
    )
)]
pub(in crate::api) async fn list(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<CheckpointsJson>, Problem> {
    let mut query = Query::of(query, &["from", "limit"]).map_err(problem)?;
    let from = query.number("from").map_err(problem)?.unwrap_or(0);
    let limit = query.number("limit").map_err(problem)?;
    let limit = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    let checkpoints = proofs.list(from, limit).await.map_err(problem)?;
    let checkpoints = checkpoints.into_iter().map(checkpoint).collect();
    Ok(Json(CheckpointsJson { checkpoints }))
}

/// Proves that the ledger includes an entry.
///
/// Any caller may select an entry by `seq`. Selecting it by `id` requires permission to see the entry.
#[utoipa::path(
    get, path = "/v1/ledger/proof/inclusion", operation_id = "getInclusionProof", tag = "proof",
    params(
        ("seq" = Option<u64>, Query, description = "Ledger sequence of the entry. Either `seq` or `id` is required", minimum = 1),
        ("id" = Option<String>, Query, description = "Id of the event. Either `seq` or `id` is required"),
        ("size" = Option<u64>, Query, description = "Size of the ledger, in entries. Default: the size of the newest checkpoint", minimum = 1),
    ),
    responses(
        (status = 200, description = "The proof", body = InclusionJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound),
    )
)]
pub(in crate::api) async fn inclusion(
    State(proofs): State<Arc<Proofs>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<InclusionJson>, Problem> {
    let mut query = Query::of(query, &["seq", "id", "size"]).map_err(problem)?;
    let seq = query.number("seq").map_err(problem)?;
    let requested = match (seq, query.take("id")) {
        (Some(seq), None) => CheckpointId::Seq(seq),
        (None, Some(id)) => CheckpointId::Id(id),
        (Some(_), Some(_)) => {
            return Err(problem(invalid("id", "set either seq or id, not both")));
        }
        (None, None) => return Err(problem(invalid("seq", "set seq or id of the entry"))),
    };
    let size = query.number("size").map_err(problem)?;
    let Inclusion {
        seq,
        leaf,
        size,
        root,
        path,
        checkpoint,
    } = proofs
        .prove_inclusion(&caller, requested, size)
        .await
        .map_err(problem)?;
    Ok(Json(InclusionJson {
        seq,
        leaf: hex::encode(leaf),
        size,
        root: hex::encode(root),
        path: hexes(&path),
        checkpoint,
    }))
}

/// Proves that a smaller ledger is a prefix of a larger one, so that no entry was changed or removed.
#[utoipa::path(
    get, path = "/v1/ledger/proof/consistency", operation_id = "getConsistencyProof", tag = "proof",
    params(
        ("from" = u64, Query, description = "Size of the smaller ledger, in entries", minimum = 1),
        ("to" = Option<u64>, Query, description = "Size of the larger ledger, in entries. Default: the size of the newest checkpoint", minimum = 1),
    ),
    responses(
        (status = 200, description = "The proof", body = ConsistencyJson),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 404, response = responses::NotFound),
    )
)]
pub(in crate::api) async fn consistency(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<ConsistencyJson>, Problem> {
    let mut query = Query::of(query, &["from", "to"]).map_err(problem)?;
    let from = query.number("from").map_err(problem)?;
    let from =
        from.ok_or_else(|| problem(invalid("from", "set the size of the smaller ledger")))?;
    let to = query.number("to").map_err(problem)?;
    let Consistency {
        from,
        from_root,
        to,
        to_root,
        path,
        checkpoint,
    } = proofs.prove_consistency(from, to).await.map_err(problem)?;
    Ok(Json(ConsistencyJson {
        from,
        from_root: hex::encode(from_root),
        to,
        to_root: hex::encode(to_root),
        path: hexes(&path),
        checkpoint,
    }))
}

/// Lists the current and former signing keys.
#[utoipa::path(
    get, path = "/v1/ledger/keys", operation_id = "listSigningKeys", tag = "proof",
    responses((status = 200, description = "The keys", body = KeysJson), (status = 401, response = responses::Unauthorized))
)]
pub(in crate::api) async fn keys(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
) -> Result<Json<KeysJson>, Problem> {
    let keys = proofs.keys().await.map_err(problem)?;
    let keys = keys.into_iter().map(key).collect();
    Ok(Json(KeysJson { keys }))
}

/// Creates a new signing key, which signs from now on. Administrators only.
#[utoipa::path(
    post, path = "/v1/ledger/keys", operation_id = "rotateSigningKey", tag = "proof",
    responses(
        (status = 200, description = "The new key", body = RotatedJson),
        (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 409, response = responses::Conflict),
    )
)]
pub(in crate::api) async fn rotate(
    State(proofs): State<Arc<Proofs>>,
    caller: Caller,
) -> Result<Json<RotatedJson>, Problem> {
    let (made, signed) = proofs.rotate(&caller).await.map_err(problem)?;
    Ok(Json(RotatedJson {
        key: key(made),
        checkpoint: signed.map(checkpoint),
    }))
}

/// Exports all entries up to the newest checkpoint, for offline verification. Administrators and auditors only.
///
/// If the export cannot be completed, the connection is aborted.
#[utoipa::path(
    get, path = "/v1/ledger/export", operation_id = "exportLedger", tag = "proof",
    params(("from" = Option<u64>, Query, description = "Ledger sequence of the first entry. Default: 1", minimum = 1)),
    responses(
        (status = 200, description = "A header line, then one line per entry", content_type = "application/x-ndjson", body = String),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 404, response = responses::NotFound),
    )
)]
pub(in crate::api) async fn export(
    State(proofs): State<Arc<Proofs>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::of(query, &["from"]).map_err(problem)?;
    let from = query.number("from").map_err(problem)?.unwrap_or(1);
    let (header, size) = proofs.header(&caller, from).await.map_err(problem)?;
    let first = line(&header).map_err(|error| Problem::internal(&error))?;
    let pages = stream::try_unfold((proofs, from - 1), move |(proofs, after)| async move {
        if after >= size {
            return Ok(None);
        }
        let page = next_page(&proofs, after, size).await.inspect_err(|error| {
            tracing::error!(error = %error, after, "export the ledger");
        })?;
        Ok::<_, std::io::Error>(Some((page.0, (proofs, page.1))))
    });
    let lines = futures_util::StreamExt::chain(stream::iter([Ok(first)]), pages);
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(lines)).into_response())
}

/// Returns the lines of the next entries, and the sequence of the last.
async fn next_page(proofs: &Proofs, after: u64, to: u64) -> std::io::Result<(Bytes, u64)> {
    let entries = proofs.store.entries(after, to).await;
    let entries = entries.map_err(std::io::Error::other)?;
    let mut text = Vec::new();
    let mut last = after;
    for entry in entries {
        let entry = ExportLine::of(entry).map_err(|bad| std::io::Error::other(bad.to_string()))?;
        last = entry.seq;
        text.extend(line(&entry)?);
    }
    if last == after {
        return Err(std::io::Error::other(format!(
            "entry {} is missing",
            after + 1
        )));
    }
    Ok((text.into(), last))
}

fn line(value: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text.into())
}

fn checkpoint(stored: StoredCheckpoint) -> CheckpointJson {
    CheckpointJson {
        size: stored.size,
        root: root_of(&stored).map(hex::encode),
        made_at: time(stored.made_at),
        note: stored.note,
    }
}

fn key(known: KeyInfo) -> KeyJson {
    KeyJson {
        vkey: known.key.vkey,
        from_size: known.key.from_size,
        to_size: known.to_size,
        made_at: time(known.key.made_at),
        made_by: known.key.made_by,
    }
}

fn hexes(hashes: &[Hash]) -> Vec<String> {
    hashes.iter().map(hex::encode).collect()
}

fn time(micros: i64) -> Option<String> {
    DateTime::from_timestamp_micros(micros)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

pub(super) fn problem(error: ProofError) -> Problem {
    let text = error.to_string();
    match &error {
        ProofError::InvalidFilter { .. } => Problem::bad_request(text),
        ProofError::Forbidden(_) => Problem::new(StatusCode::FORBIDDEN, text),
        ProofError::NotFound(_) => Problem::not_found(text),
        ProofError::Conflict(_) => Problem::new(StatusCode::CONFLICT, text),
        ProofError::Store(error) => unavailable::problem(error),
        ProofError::Broken => Problem::internal(&error),
    }
}

/// Query parameters, each at most once.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(query: Option<String>, allowed: &[&str]) -> Result<Self, ProofError> {
        let query = query.unwrap_or_default();
        let mut given: Vec<(String, String)> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let unknown = !allowed.contains(&name.as_ref());
            if unknown || given.iter().any(|(other, _)| *other == name) {
                return Err(ProofError::InvalidFilter {
                    field: "query",
                    fault: format!(
                        "{name}: {}; allowed: {}",
                        if unknown {
                            "unknown parameter"
                        } else {
                            "given twice"
                        },
                        allowed.join(", ")
                    ),
                });
            }
            given.push((name.into_owned(), value.trim().to_owned()));
        }
        Ok(Self(given))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(other, _)| other == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn number(&mut self, name: &'static str) -> Result<Option<u64>, ProofError> {
        let Some(text) = self.take(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(invalid(
                name,
                format!("{text:?} is not a whole number from 1"),
            )),
        }
    }
}
