//! gRPC: `mesh.ledger.v1.ProofService`.

use std::sync::Arc;

use axum::Router;
use chrono::DateTime;
use ledger_format::chain::Hash;
use mesh_api::ledger::proof_service_server::{ProofService, ProofServiceServer, SERVICE_NAME};
use mesh_events::proto::mesh::ledger::v1::{
    Checkpoint, GetCheckpointRequest, GetCheckpointResponse, ListCheckpointsRequest,
    ListCheckpointsResponse, ListKeysRequest, ListKeysResponse, ProveConsistencyRequest,
    ProveConsistencyResponse, ProveInclusionRequest, ProveInclusionResponse,
    ReportContradictionRequest, ReportContradictionResponse, ResumeLedgerRequest,
    ResumeLedgerResponse, RotateKeyRequest, RotateKeyResponse, SigningKey,
};
use mesh_events::timestamp;
use mesh_runtime::api::grpc::{caller, internal};
use tonic::{Request, Response, Status};

use super::recovery::ResumeJson;
use super::{CheckpointId, KeyInfo, ProofError, Proofs, invalid};
use crate::api::unavailable;
use crate::domain::checkpoint::StoredCheckpoint;

pub(super) fn router(proofs: Arc<Proofs>) -> Router {
    let service = ProofServiceServer::new(Adapter(proofs));
    Router::new().route_service(&format!("/{SERVICE_NAME}/{{*method}}"), service)
}

struct Adapter(Arc<Proofs>);

#[tonic::async_trait]
impl ProofService for Adapter {
    async fn get_checkpoint(
        &self,
        request: Request<GetCheckpointRequest>,
    ) -> Result<Response<GetCheckpointResponse>, Status> {
        caller(&request)?;
        let newest = self.0.newest().await.map_err(status)?;
        Ok(Response::new(GetCheckpointResponse {
            checkpoint: Some(checkpoint(newest)),
        }))
    }

    async fn list_checkpoints(
        &self,
        request: Request<ListCheckpointsRequest>,
    ) -> Result<Response<ListCheckpointsResponse>, Status> {
        caller(&request)?;
        let ListCheckpointsRequest { from_size, limit } = request.into_inner();
        let limit = (limit > 0).then_some(limit);
        let checkpoints = self.0.list(from_size, limit).await.map_err(status)?;
        Ok(Response::new(ListCheckpointsResponse {
            checkpoints: checkpoints.into_iter().map(checkpoint).collect(),
        }))
    }

    async fn prove_inclusion(
        &self,
        request: Request<ProveInclusionRequest>,
    ) -> Result<Response<ProveInclusionResponse>, Status> {
        let caller = caller(&request)?;
        let ProveInclusionRequest { seq, id, size } = request.into_inner();
        let requested = match (seq, id.is_empty()) {
            (0, false) => CheckpointId::Id(id),
            (_, true) => CheckpointId::Seq(seq),
            (_, false) => return Err(status(invalid("id", "set either seq or id, not both"))),
        };
        let size = (size > 0).then_some(size);
        let proof = self.0.prove_inclusion(&caller, requested, size);
        let proof = proof.await.map_err(status)?;
        Ok(Response::new(ProveInclusionResponse {
            seq: proof.seq,
            leaf: proof.leaf.to_vec(),
            size: proof.size,
            root: proof.root.to_vec(),
            path: bytes(&proof.path),
            checkpoint: proof.checkpoint.unwrap_or_default(),
        }))
    }

    async fn prove_consistency(
        &self,
        request: Request<ProveConsistencyRequest>,
    ) -> Result<Response<ProveConsistencyResponse>, Status> {
        caller(&request)?;
        let ProveConsistencyRequest { from_size, to_size } = request.into_inner();
        let to = (to_size > 0).then_some(to_size);
        let proof = self
            .0
            .prove_consistency(from_size, to)
            .await
            .map_err(status)?;
        Ok(Response::new(ProveConsistencyResponse {
            from_size: proof.from,
            from_root: proof.from_root.to_vec(),
            to_size: proof.to,
            to_root: proof.to_root.to_vec(),
            path: bytes(&proof.path),
            checkpoint: proof.checkpoint.unwrap_or_default(),
        }))
    }

    async fn list_keys(
        &self,
        request: Request<ListKeysRequest>,
    ) -> Result<Response<ListKeysResponse>, Status> {
        caller(&request)?;
        let keys = self.0.keys().await.map_err(status)?;
        Ok(Response::new(ListKeysResponse {
            keys: keys.into_iter().map(key).collect(),
        }))
    }

    async fn rotate_key(
        &self,
        request: Request<RotateKeyRequest>,
    ) -> Result<Response<RotateKeyResponse>, Status> {
        let caller = caller(&request)?;
        let (made, signed) = self.0.rotate(&caller).await.map_err(status)?;
        Ok(Response::new(RotateKeyResponse {
            key: Some(key(made)),
            checkpoint: signed.map(checkpoint),
        }))
    }

    async fn resume_ledger(
        &self,
        request: Request<ResumeLedgerRequest>,
    ) -> Result<Response<ResumeLedgerResponse>, Status> {
        let caller = caller(&request)?;
        let requested = request.into_inner();
        let requested = ResumeJson {
            checkpoint: given(requested.checkpoint),
            new_origin: given(requested.new_origin),
            reason: given(requested.reason),
        };
        let proofs = Arc::clone(&self.0);
        // Spawned, so that it continues if the client disconnects.
        let resumed = tokio::spawn(async move { proofs.resume(&caller, requested).await }).await;
        let resumed = resumed.map_err(|error| internal(&error))?;
        let resumed = resumed.map_err(status)?;
        Ok(Response::new(ResumeLedgerResponse {
            origin: resumed.origin,
            from_size: resumed.from,
            to_size: resumed.to,
            checkpoint: resumed.checkpoint,
        }))
    }

    async fn report_contradiction(
        &self,
        request: Request<ReportContradictionRequest>,
    ) -> Result<Response<ReportContradictionResponse>, Status> {
        caller(&request)?;
        let note = request.into_inner().checkpoint;
        let reason = self.0.contradicted_by(&note).await.map_err(status)?;
        Ok(Response::new(ReportContradictionResponse {
            contradicted: reason.is_some(),
            reason: reason.unwrap_or_default(),
        }))
    }
}

fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn checkpoint(stored: StoredCheckpoint) -> Checkpoint {
    Checkpoint {
        size: stored.size.unsigned_abs(),
        root: stored.root,
        note: stored.note,
        made_at: DateTime::from_timestamp_micros(stored.made_at).map(timestamp),
    }
}

fn key(known: KeyInfo) -> SigningKey {
    SigningKey {
        vkey: known.key.vkey,
        from_size: known.key.from_size.unsigned_abs(),
        to_size: known.to_size,
        made_at: DateTime::from_timestamp_micros(known.key.made_at).map(timestamp),
        made_by: known.key.made_by,
    }
}

fn bytes(hashes: &[Hash]) -> Vec<Vec<u8>> {
    hashes.iter().map(|hash| hash.to_vec()).collect()
}

fn status(error: ProofError) -> Status {
    let text = error.to_string();
    match &error {
        ProofError::InvalidFilter { .. } => Status::invalid_argument(text),
        ProofError::Forbidden(_) => Status::permission_denied(text),
        ProofError::NotFound(_) => Status::not_found(text),
        ProofError::Conflict(_) => Status::failed_precondition(text),
        ProofError::Store(error) => unavailable::status(error),
        ProofError::Broken => internal(&error),
    }
}
