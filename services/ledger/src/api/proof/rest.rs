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
use mesh_events::chain::Hash;
use mesh_runtime::api::{Caller, Problem};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Consistency, Inclusion, KnownKey, ProofError, Proofs, Wanted, invalid, root_of};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::export::Line;

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

/// The note itself, to be kept as a file.
async fn newest(State(proofs): State<Arc<Proofs>>, _caller: Caller) -> Result<Response, Problem> {
    let newest = proofs.newest().await.map_err(problem)?;
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((text, newest.note).into_response())
}

async fn list(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let mut query = Query::of(query, &["from", "limit"]).map_err(problem)?;
    let from = query.number("from").map_err(problem)?.unwrap_or(0);
    let limit = query.number("limit").map_err(problem)?;
    let limit = limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    let checkpoints = proofs.list(from, limit).await.map_err(problem)?;
    let checkpoints: Vec<Value> = checkpoints.iter().map(checkpoint).collect();
    Ok(Json(json!({ "checkpoints": checkpoints })))
}

async fn inclusion(
    State(proofs): State<Arc<Proofs>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let mut query = Query::of(query, &["seq", "id", "size"]).map_err(problem)?;
    let seq = query.number("seq").map_err(problem)?;
    let wanted = match (seq, query.take("id")) {
        (Some(seq), None) => Wanted::Seq(seq),
        (None, Some(id)) => Wanted::Id(id),
        (Some(_), Some(_)) => {
            return Err(problem(invalid("id", "give either seq or id, not both")));
        }
        (None, None) => return Err(problem(invalid("seq", "give the entry, by seq or id"))),
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
        .prove_inclusion(&caller, wanted, size)
        .await
        .map_err(problem)?;
    Ok(Json(json!({
        "seq": seq,
        "leaf": hex::encode(leaf),
        "size": size,
        "root": hex::encode(root),
        "path": hexes(&path),
        "checkpoint": checkpoint,
    })))
}

async fn consistency(
    State(proofs): State<Arc<Proofs>>,
    _caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Problem> {
    let mut query = Query::of(query, &["from", "to"]).map_err(problem)?;
    let from = query.number("from").map_err(problem)?;
    let from =
        from.ok_or_else(|| problem(invalid("from", "give the size of the smaller ledger")))?;
    let to = query.number("to").map_err(problem)?;
    let Consistency {
        from,
        from_root,
        to,
        to_root,
        path,
        checkpoint,
    } = proofs.prove_consistency(from, to).await.map_err(problem)?;
    Ok(Json(json!({
        "from": from,
        "from_root": hex::encode(from_root),
        "to": to,
        "to_root": hex::encode(to_root),
        "path": hexes(&path),
        "checkpoint": checkpoint,
    })))
}

async fn keys(State(proofs): State<Arc<Proofs>>, _caller: Caller) -> Result<Json<Value>, Problem> {
    let keys = proofs.keys().await.map_err(problem)?;
    let keys: Vec<Value> = keys.iter().map(key).collect();
    Ok(Json(json!({ "keys": keys })))
}

async fn rotate(State(proofs): State<Arc<Proofs>>, caller: Caller) -> Result<Json<Value>, Problem> {
    let (made, signed) = proofs.rotate(&caller).await.map_err(problem)?;
    Ok(Json(
        json!({ "key": key(&made), "checkpoint": signed.as_ref().map(checkpoint) }),
    ))
}

/// Streams an export. If it cannot go on, the connection is cut, which no complete export looks like.
async fn export(
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

/// The lines of the next entries, and the last of them.
async fn next_page(proofs: &Proofs, after: u64, to: u64) -> std::io::Result<(Bytes, u64)> {
    let entries = proofs.store.entries(after, to).await;
    let entries = entries.map_err(std::io::Error::other)?;
    let mut text = Vec::new();
    let mut last = after;
    for entry in entries {
        let entry = Line::of(entry).map_err(|bad| std::io::Error::other(bad.to_string()))?;
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

fn checkpoint(stored: &StoredCheckpoint) -> Value {
    json!({
        "size": stored.size,
        "root": root_of(stored).map(hex::encode),
        "note": stored.note,
        "made_at": time(stored.made_at),
    })
}

fn key(known: &KnownKey) -> Value {
    json!({
        "vkey": known.key.vkey,
        "from_size": known.key.from_size,
        "to_size": known.to_size,
        "made_at": time(known.key.made_at),
        "made_by": known.key.made_by,
    })
}

fn hexes(hashes: &[Hash]) -> Vec<String> {
    hashes.iter().map(hex::encode).collect()
}

fn time(micros: i64) -> Option<String> {
    DateTime::from_timestamp_micros(micros)
        .map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

fn problem(error: ProofError) -> Problem {
    let text = error.to_string();
    match &error {
        ProofError::Invalid { .. } => Problem::bad_request(text),
        ProofError::Forbidden(_) => Problem::new(StatusCode::FORBIDDEN, text),
        ProofError::NotFound(_) => Problem::not_found(text),
        ProofError::Conflict(_) => Problem::new(StatusCode::CONFLICT, text),
        ProofError::Broken | ProofError::Store(_) => Problem::internal(&error),
    }
}

/// Parameters, each once.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(query: Option<String>, allowed: &[&str]) -> Result<Self, ProofError> {
        let query = query.unwrap_or_default();
        let mut given: Vec<(String, String)> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let unknown = !allowed.contains(&name.as_ref());
            if unknown || given.iter().any(|(other, _)| *other == name) {
                return Err(ProofError::Invalid {
                    field: "query",
                    fault: format!(
                        "{name}: {}; allowed: {}",
                        if unknown {
                            "there is no such parameter"
                        } else {
                            "it is given twice"
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
                format!("{text:?} is no number; allowed: a whole number from 1"),
            )),
        }
    }
}
