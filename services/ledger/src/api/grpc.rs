//! gRPC: `mesh.ledger.v1.EventsService`, on the same address as REST.

mod answers;
mod requests;

use std::sync::Arc;

use axum::Router;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use mesh_api::ledger::events_service_server::{EventsService, EventsServiceServer, SERVICE_NAME};
use mesh_events::proto::mesh::ledger::v1::{
    ExportEventsRequest, ExportEventsResponse, GetJobRequest, GetJobResponse, GetNodeRequest,
    GetNodeResponse, GetStatsRequest, GetStatsResponse, ListEventsRequest, ListEventsResponse,
    NodeState, TailEventsRequest, TailEventsResponse,
};
use mesh_events::timestamp;
use mesh_runtime::api::AuditedRead;
use mesh_runtime::api::grpc::{audited_response, caller};
use tonic::{Request, Response, Status};

use self::answers::{entry, recorded, run, stats_row};
use self::requests::{fields, list_request, time};
pub(super) use self::requests::{filter, present};
use super::follow::Follower;
use super::pages::Pages;
use super::{ApiError, EventsApi, audited_read, audited_runs, audited_stats, count, unavailable};
use crate::domain::query::ListRequest;
use crate::domain::stats::Group;

/// Adds the route by hand: tonic's router has a fallback, and routers with fallbacks cannot be
/// merged.
pub(super) fn router<A: EventsApi>(api: Arc<A>) -> Router {
    let service = EventsServiceServer::new(Adapter(api));
    Router::new().route_service(&format!("/{SERVICE_NAME}/{{*method}}"), service)
}

struct Adapter<A>(Arc<A>);

#[tonic::async_trait]
impl<A: EventsApi> EventsService for Adapter<A> {
    type TailEventsStream = BoxStream<'static, Result<TailEventsResponse, Status>>;
    type ExportEventsStream = BoxStream<'static, Result<ExportEventsResponse, Status>>;

    async fn list_events(
        &self,
        request: Request<ListEventsRequest>,
    ) -> Result<Response<ListEventsResponse>, Status> {
        let caller = caller(&request)?;
        let mut request = request.into_inner();
        // All pages of a listing count as one request, so the cursor is removed.
        let asked = format!(
            "{:?}",
            ListEventsRequest {
                cursor: String::new(),
                ..request.clone()
            }
        );
        let fields = fields(std::mem::take(&mut request.fields))?;
        let page = self
            .0
            .list(&caller, list_request(request)?)
            .await
            .map_err(status)?;
        let audited_read = audited_read(&caller, page.entries.iter().map(|entry| &entry.content));
        let answer = ListEventsResponse {
            entries: page
                .entries
                .into_iter()
                .map(|found| entry(found, fields.as_ref()))
                .collect::<Result<_, _>>()?,
            next_cursor: page.next_cursor.unwrap_or_default(),
        };
        Ok(audited_response(answer, audited_read.asked(asked)))
    }

    async fn tail_events(
        &self,
        request: Request<TailEventsRequest>,
    ) -> Result<Response<Self::TailEventsStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let (audited_read, counts) = AuditedRead::to(&caller)
            .asked(format!("{request:?}"))
            .stream();
        let TailEventsRequest {
            filter: asked,
            after_seq,
            fields: parts,
        } = request;
        let fields = fields(parts)?;
        let asked = asked.unwrap_or_default();
        if asked.until.is_some() || asked.to_seq != 0 {
            return Err(Status::invalid_argument(
                "until, to_seq: a stream has no end; omit them, or call ListEvents",
            ));
        }
        let request = ListRequest {
            filter: filter(asked)?,
            ..ListRequest::default()
        };
        let follower = Follower::begin(Arc::clone(&self.0), caller, request, after_seq)
            .await
            .map_err(status)?;
        let entries = stream::unfold(
            (follower, fields, counts),
            async |(mut follower, fields, counts)| {
                let found = follower.next().await?.map_err(status);
                let response = found.and_then(|found| {
                    count(&counts, &found.content);
                    let entry = Some(entry(found, fields.as_ref())?);
                    Ok(TailEventsResponse { entry })
                });
                Some((response, (follower, fields, counts)))
            },
        );
        Ok(audited_response(entries.boxed(), audited_read))
    }

    async fn export_events(
        &self,
        request: Request<ExportEventsRequest>,
    ) -> Result<Response<Self::ExportEventsStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let whole = format!("{request:?}");
        let fields = fields(request.fields)?;
        let filter = filter(request.filter.unwrap_or_default())?;
        let pages = Pages::begin(Arc::clone(&self.0), caller.clone(), filter).await;
        let mut pages = pages.map_err(status)?;
        if pages.is_done() {
            return Ok(audited_response(
                stream::empty().boxed(),
                AuditedRead::nothing(),
            ));
        }
        let (audited_read, counts) = AuditedRead::to(&caller).asked(whole).stream();
        // Reads the first page before responding, to report errors of the request.
        let first = pages.next().await.map_err(status)?;
        let rest = stream::try_unfold(pages, async |mut pages| {
            let page = pages.next().await.map_err(status)?;
            Ok::<_, Status>(page.map(|page| (page, pages)))
        });
        let entries = stream::iter(first.map(Ok)).chain(rest).map_ok(move |page| {
            let responses = page.into_iter().map(|found| {
                count(&counts, &found.content);
                let entry = Some(entry(found, fields.as_ref())?);
                Ok(ExportEventsResponse { entry })
            });
            stream::iter(responses.collect::<Vec<_>>())
        });
        Ok(audited_response(
            entries.try_flatten().boxed(),
            audited_read,
        ))
    }

    async fn get_job(
        &self,
        request: Request<GetJobRequest>,
    ) -> Result<Response<GetJobResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let asked = format!("{request:?}");
        let GetJobRequest { cluster, job, at } = request;
        let at = time(at, "at")?;
        let history = self
            .0
            .job(&caller, &cluster, &job, at)
            .await
            .map_err(status)?;
        let audited_read = audited_runs(&caller, &history.runs);
        let answer = GetJobResponse {
            runs: history.runs.into_iter().map(run).collect(),
            truncated: history.truncated,
        };
        Ok(audited_response(answer, audited_read.asked(asked)))
    }

    async fn get_node(
        &self,
        request: Request<GetNodeRequest>,
    ) -> Result<Response<GetNodeResponse>, Status> {
        let caller = caller(&request)?;
        let GetNodeRequest { cluster, node, at } = request.into_inner();
        let at = time(at, "at")?;
        let history = self
            .0
            .node(&caller, &cluster, &node, at)
            .await
            .map_err(status)?;
        let answer = GetNodeResponse {
            state: Some(NodeState {
                state: history.state.state,
                state_flags: history.state.flags,
                lifecycle: history.state.lifecycle,
                reason: history.state.reason,
                since: history.state.since.map(timestamp),
            }),
            timeline: history.timeline.into_iter().map(recorded).collect(),
            truncated: history.truncated,
        };
        Ok(audited_response(answer, AuditedRead::nothing()))
    }

    async fn get_stats(
        &self,
        request: Request<GetStatsRequest>,
    ) -> Result<Response<GetStatsResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let whole = format!("{request:?}");
        let GetStatsRequest { filter: asked, by } = request;
        let by = if by.is_empty() {
            Vec::new()
        } else {
            Group::parse_list(&by.join(",")).map_err(|invalid| status(invalid.into()))?
        };
        let rows = self
            .0
            .stats(&caller, filter(asked.unwrap_or_default())?, &by)
            .await
            .map_err(status)?;
        let audited_read = audited_stats(&caller, &rows, &by);
        let answer = GetStatsResponse {
            rows: rows.into_iter().map(|row| stats_row(row, &by)).collect(),
        };
        Ok(audited_response(answer, audited_read.asked(whole)))
    }
}

fn status(error: ApiError) -> Status {
    match error {
        ApiError::Invalid(_) => Status::invalid_argument(error.to_string()),
        ApiError::Forbidden(_) => Status::permission_denied(error.to_string()),
        ApiError::NoJob { .. } | ApiError::NoNode { .. } => Status::not_found(error.to_string()),
        ApiError::Store(error) => unavailable::status(&error),
    }
}
