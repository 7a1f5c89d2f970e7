//! Replays, shared by REST and gRPC.
//!
//! Every caller who may read events may replay them, on the bus or to a webhook endpoint of their
//! own. The caller's visibility is stored with the replay. Callers see their own replays.
//! Administrators and auditors see all replays; administrators may cancel all.

mod grpc;
pub(super) mod rest;

use std::sync::Arc;

use axum::Router;
use chrono::Utc;
use mesh_events::webhook_name;
use mesh_runtime::api::Caller;
use tokio::sync::Mutex;

use super::{ApiError, check_identity_filter};
use crate::adapters::Store;
use crate::domain::filter::InvalidFilter;
use crate::domain::query::DEFAULT_PAGE_SIZE;
use crate::domain::replay::{
    Replay, ReplayLimits, ReplayRefused, ReplayRequest, ReplayState, check_endpoint, check_key,
    owner,
};
use crate::error::Error;
use crate::replayer::Replayer;

const MAX_PAGE: u32 = 1000;

/// Starts, lists and cancels replays.
#[derive(Clone)]
pub struct Replays {
    store: Store,
    replayer: Replayer,
    limits: ReplayLimits,
    /// Held while a replay is started, so that concurrent requests to this ledger cannot exceed a
    /// caller's limit.
    beginning: Arc<Mutex<()>>,
}

/// A failed replay operation.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidFilter),
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The replay does not exist, or belongs to another user.
    #[error("no replay {0}, or you may not see it")]
    NotFound(String),
    /// The request conflicts with the current state.
    #[error("{0}")]
    Conflict(String),
    #[error(transparent)]
    Store(#[from] Error),
    /// The owner of the endpoint cannot be determined.
    #[error(
        "NATS does not answer, so the owner of the webhook endpoint is unknown; retry in a moment"
    )]
    Bus(#[source] mesh_bus::Error),
}

impl From<ReplayRefused> for ReplayError {
    fn from(refused: ReplayRefused) -> Self {
        match refused {
            ReplayRefused::Invalid(invalid) => Self::Invalid(invalid),
            ReplayRefused::Forbidden(reason) => Self::Forbidden(reason),
        }
    }
}

impl Replays {
    /// Creates the API on a store and a replayer, with its limits.
    pub fn new(store: Store, replayer: Replayer, limits: ReplayLimits) -> Self {
        Self {
            store,
            replayer,
            limits,
            beginning: Arc::default(),
        }
    }

    /// Completes the name of the webhook endpoint. A short name is an endpoint of the caller, or
    /// else one without an owner.
    async fn name_in_full(
        &self,
        caller: &Caller,
        mut requested: ReplayRequest,
    ) -> Result<ReplayRequest, ReplayError> {
        let Some(named) = requested.endpoint.take() else {
            return Ok(requested);
        };
        let mut owner = None;
        for full in webhook_name::candidates(&named, &caller.users) {
            let found = self.replayer.endpoint_owner(&full).await;
            owner = found.map_err(ReplayError::Bus)?;
            if let Some(owner) = &owner
                && (caller.sees_everything() || caller.is(owner))
            {
                requested.endpoint = Some(full);
                break;
            }
        }
        check_endpoint(caller, &named, owner.as_deref())?;
        Ok(requested)
    }

    /// Starts a replay. The flag is false if a replay with the same idempotency key exists.
    async fn start(
        &self,
        caller: &Caller,
        requested: ReplayRequest,
        key: Option<String>,
    ) -> Result<(Replay, bool), ReplayError> {
        match check_identity_filter(caller, &requested.filter) {
            Ok(()) => {}
            Err(ApiError::Forbidden(reason)) => return Err(ReplayError::Forbidden(reason)),
            Err(_) => {
                return Err(ReplayError::Forbidden(
                    "the filter selects events that you may not see",
                ));
            }
        }
        let requested = self.name_in_full(caller, requested).await?;
        let owner = owner(caller);
        if let Some(key) = &key {
            check_key(key)?;
            if let Some(known) = self.of_key(&owner, key, &requested).await? {
                return Ok((known, false));
            }
        }
        let head = self.store.head().await?.seq;
        let asked = requested.clone();
        let request = requested.check(caller, head, &self.limits, Utc::now())?;
        let _guard = self.beginning.lock().await;
        if let Some(key) = &key
            && let Some(known) = self.of_key(&owner, key, &asked).await?
        {
            return Ok((known, false));
        }
        let limit = self.limits.max_running;
        let running = self
            .store
            .replays(Some(&owner), Some(ReplayState::Running), limit)
            .await?;
        if running.len() >= limit as usize {
            return Err(ReplayError::Conflict(format!(
                "{limit} of your replays are running already; wait for one, or cancel one: {}",
                running[0].id
            )));
        }
        let id = uuid::Uuid::new_v4().to_string();
        let replay = Replay::new(id, request, Utc::now());
        let added = self.store.add_replay(&replay, &owner, key.as_deref());
        if !added.await? {
            // A concurrent request with the same key was faster.
            let known = match &key {
                Some(key) => self.of_key(&owner, key, &asked).await?,
                None => None,
            };
            return match known {
                Some(known) => Ok((known, false)),
                None => Err(ReplayError::Conflict("try again".to_owned())),
            };
        }
        self.replayer.wake();
        tracing::info!(
            replay.id = replay.id,
            by = caller.name,
            to_seq = replay.to_seq,
            "replay started"
        );
        Ok((replay, true))
    }

    async fn of_key(
        &self,
        owner: &str,
        key: &str,
        requested: &ReplayRequest,
    ) -> Result<Option<Replay>, ReplayError> {
        match self.store.replay_of_key(owner, key).await? {
            None => Ok(None),
            Some((known, _)) if known.request.requested == *requested => Ok(Some(known)),
            Some((known, _)) => Err(ReplayError::Conflict(format!(
                "the idempotency key was used by replay {} with another request; use another key",
                known.id
            ))),
        }
    }

    async fn get(&self, caller: &Caller, id: &str) -> Result<Replay, ReplayError> {
        match self.store.replay(id).await? {
            Some((replay, of)) if caller.sees_everything() || of == owner(caller) => Ok(replay),
            _ => Err(ReplayError::NotFound(id.to_owned())),
        }
    }

    async fn list(
        &self,
        caller: &Caller,
        state: Option<String>,
        limit: Option<u32>,
    ) -> Result<Vec<Replay>, ReplayError> {
        let limit = limit.unwrap_or(DEFAULT_PAGE_SIZE);
        if limit == 0 || limit > MAX_PAGE {
            return Err(InvalidFilter::new(
                "limit",
                format!("{limit} is out of range; allowed: 1 to {MAX_PAGE}"),
            )
            .into());
        }
        let state = state.as_deref().map(ReplayState::parse).transpose()?;
        let own = owner(caller);
        let owner_filter = (!caller.sees_everything()).then_some(own.as_str());
        Ok(self.store.replays(owner_filter, state, limit).await?)
    }

    async fn cancel(&self, caller: &Caller, id: &str) -> Result<Replay, ReplayError> {
        let known = self.store.replay(id).await?;
        match known {
            Some((_, of)) if of == owner(caller) || caller.may_write() => {}
            Some(_) if caller.sees_everything() => {
                return Err(ReplayError::Forbidden(
                    "only its owner and administrators may cancel it",
                ));
            }
            _ => return Err(ReplayError::NotFound(id.to_owned())),
        }
        let cancel = self.store.cancel_replay(id, &caller.name, Utc::now());
        let cancelled = cancel.await?;
        self.replayer.wake();
        let replay = self.get(caller, id).await?;
        if !cancelled && replay.state != ReplayState::Cancelled {
            return Err(ReplayError::Conflict(format!(
                "it has already ended: {}",
                replay.state.as_str()
            )));
        }
        Ok(replay)
    }
}

/// Returns the subject on which the replay can be followed.
fn subject_of(replay: &Replay) -> String {
    let endpoint = replay.request.requested.endpoint.as_deref();
    mesh_events::subject::replay(&replay.id, endpoint, ">")
}

/// Returns the REST and gRPC routes of replays, which contain no data of jobs.
pub fn router(replays: Arc<Replays>) -> Router {
    rest::router(Arc::clone(&replays)).merge(grpc::router(replays))
}
