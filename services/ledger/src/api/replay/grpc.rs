//! gRPC: `mesh.ledger.v1.ReplayService`.

use std::sync::Arc;

use axum::Router;
use chrono::DateTime;
use mesh_api::ledger::replay_service_server::{ReplayService, ReplayServiceServer, SERVICE_NAME};
use mesh_events::proto::mesh::ledger::v1::{
    CancelReplayRequest, CancelReplayResponse, GetReplayRequest, GetReplayResponse,
    ListReplaysRequest, ListReplaysResponse, Replay, StartReplayRequest, StartReplayResponse,
};
use mesh_events::timestamp;
use mesh_runtime::api::{grpc::caller, log_unavailable};
use tonic::{Request, Response, Status};

use super::{ReplayError, Replays, subject_of};
use crate::api::grpc::{filter, present};
use crate::api::unavailable;
use crate::domain::replay::{Replay as Stored, ReplayRequest};

pub(super) fn router(replays: Arc<Replays>) -> Router {
    let service = ReplayServiceServer::new(Adapter(replays));
    Router::new().route_service(&format!("/{SERVICE_NAME}/{{*method}}"), service)
}

struct Adapter(Arc<Replays>);

#[tonic::async_trait]
impl ReplayService for Adapter {
    async fn start_replay(
        &self,
        request: Request<StartReplayRequest>,
    ) -> Result<Response<StartReplayResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let requested = ReplayRequest {
            filter: filter(request.filter.unwrap_or_default())?,
            endpoint: present(request.endpoint),
            rate: (request.rate > 0).then_some(request.rate),
        };
        let key = present(request.idempotency_key);
        let (replay, _) = self
            .0
            .start(&caller, requested, key)
            .await
            .map_err(status)?;
        Ok(Response::new(StartReplayResponse {
            replay: Some(to_proto(replay)),
        }))
    }

    async fn get_replay(
        &self,
        request: Request<GetReplayRequest>,
    ) -> Result<Response<GetReplayResponse>, Status> {
        let caller = caller(&request)?;
        let id = request.into_inner().id;
        let replay = self.0.get(&caller, &id).await.map_err(status)?;
        Ok(Response::new(GetReplayResponse {
            replay: Some(to_proto(replay)),
        }))
    }

    async fn list_replays(
        &self,
        request: Request<ListReplaysRequest>,
    ) -> Result<Response<ListReplaysResponse>, Status> {
        let caller = caller(&request)?;
        let ListReplaysRequest { state, limit } = request.into_inner();
        let limit = (limit > 0).then_some(limit);
        let found = self.0.list(&caller, present(state), limit).await;
        Ok(Response::new(ListReplaysResponse {
            replays: found.map_err(status)?.into_iter().map(to_proto).collect(),
        }))
    }

    async fn cancel_replay(
        &self,
        request: Request<CancelReplayRequest>,
    ) -> Result<Response<CancelReplayResponse>, Status> {
        let caller = caller(&request)?;
        let id = request.into_inner().id;
        let replay = self.0.cancel(&caller, &id).await.map_err(status)?;
        Ok(Response::new(CancelReplayResponse {
            replay: Some(to_proto(replay)),
        }))
    }
}

fn to_proto(replay: Stored) -> Replay {
    let time = |micros| DateTime::from_timestamp_micros(micros).map(timestamp);
    Replay {
        state: replay.state.as_str().to_owned(),
        made_by: replay.request.requester.name.clone(),
        made_at: time(replay.made_at),
        ended_at: replay.ended_at.and_then(time),
        subject: subject_of(&replay),
        rate: replay.request.rate,
        from_seq: replay.request.begin().unsigned_abs() + 1,
        to_seq: replay.to_seq.unsigned_abs(),
        cursor: replay.cursor.unsigned_abs(),
        sent: replay.sent.unsigned_abs(),
        progress: replay.progress(),
        filter: Some(replay.request.filter.into()),
        endpoint: replay.request.requested.endpoint.unwrap_or_default(),
        problem: replay.problem,
        cancelled_by: replay.cancelled_by.unwrap_or_default(),
        id: replay.id,
    }
}

fn status(error: ReplayError) -> Status {
    let text = error.to_string();
    match &error {
        ReplayError::Invalid(_) => Status::invalid_argument(text),
        ReplayError::Forbidden(_) => Status::permission_denied(text),
        ReplayError::NotFound(_) => Status::not_found(text),
        ReplayError::Conflict(_) => Status::failed_precondition(text),
        ReplayError::Store(error) => unavailable::status(error),
        ReplayError::Bus(_) => {
            log_unavailable(&error);
            Status::unavailable(text)
        }
    }
}
