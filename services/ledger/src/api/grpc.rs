//! gRPC: `mesh.ledger.v1.EventsService`, on the same address as REST.

use std::sync::Arc;

use axum::Router;
use mesh_api::ledger::events_service_server::{EventsService, EventsServiceServer, SERVICE_NAME};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::ledger::v1::{
    GetJobRequest, GetJobResponse, JobRun, LedgerEntry, ListEventsRequest, ListEventsResponse,
    RunCost, RunSummary,
};
use mesh_events::timestamp;
use mesh_runtime::api::{Caller, Shown};
use tonic::{Request, Response, Status};

use super::{ApiError, Content, Entry, EventsApi, shown};
use crate::domain::query::{ListRequest, Moment};
use crate::domain::story::{Run, Summary};

/// A route by hand: tonic's own router brings a fallback, and routers with fallbacks cannot be joined into one API.
pub(super) fn router<A: EventsApi>(api: Arc<A>) -> Router {
    let service = EventsServiceServer::new(Adapter(api));
    Router::new().route_service(&format!("/{SERVICE_NAME}/{{*method}}"), service)
}

struct Adapter<A>(Arc<A>);

#[tonic::async_trait]
impl<A: EventsApi> EventsService for Adapter<A> {
    async fn list_events(
        &self,
        request: Request<ListEventsRequest>,
    ) -> Result<Response<ListEventsResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let asked = format!("{request:?}");
        let page = self
            .0
            .list(&caller, list_request(request)?)
            .await
            .map_err(status)?;
        let shown = shown(&caller, page.entries.iter().map(|entry| &entry.content));
        let answer = ListEventsResponse {
            entries: page.entries.into_iter().map(entry).collect(),
            next_cursor: page.next_cursor.unwrap_or_default(),
        };
        Ok(showing(answer, shown.asked(asked)))
    }

    async fn get_job(
        &self,
        request: Request<GetJobRequest>,
    ) -> Result<Response<GetJobResponse>, Status> {
        let caller = caller(&request)?;
        let GetJobRequest { cluster, job } = request.into_inner();
        let story = self.0.job(&caller, &cluster, &job).await.map_err(status)?;
        let mut shown = Shown::to(&caller).asked(format!("job {job} on {cluster}"));
        for run in &story.runs {
            shown.row(&run.summary.user);
        }
        let answer = GetJobResponse {
            runs: story.runs.into_iter().map(run).collect(),
            truncated: story.truncated,
        };
        Ok(showing(answer, shown))
    }
}

/// An answer that says what it shows.
fn showing<T>(answer: T, shown: Shown) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(shown);
    response
}

/// The runtime's middleware has found out who calls before any service is reached.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    request.extensions().get().cloned().ok_or_else(|| {
        Status::unauthenticated("show the service token, or call over the Unix socket")
    })
}

fn list_request(request: ListEventsRequest) -> Result<ListRequest, Status> {
    let present = |text: String| (!text.is_empty()).then_some(text);
    let moment = |time: Option<_>, field| match time.as_ref().map(from_timestamp) {
        None => Ok(None),
        Some(Some(time)) => Ok(Some(Moment::At(time))),
        Some(None) => Err(Status::invalid_argument(format!(
            "{field}: out of range; allowed: a time a calendar can show"
        ))),
    };
    Ok(ListRequest {
        cluster: present(request.cluster),
        types: request.types,
        job: present(request.job),
        user: present(request.user),
        since: moment(request.since, "since")?,
        until: moment(request.until, "until")?,
        cursor: present(request.cursor),
        limit: (request.limit > 0).then_some(request.limit),
        descending: request.descending,
    })
}

fn status(error: ApiError) -> Status {
    match error {
        ApiError::Invalid(_) => Status::invalid_argument(error.to_string()),
        ApiError::Forbidden(_) => Status::permission_denied(error.to_string()),
        ApiError::NoJob { .. } => Status::not_found(error.to_string()),
        ApiError::Store(error) => {
            tracing::error!(error = mesh_runtime::chain(&error), "answer request");
            Status::internal("the service could not answer; its log says why")
        }
    }
}

fn entry(entry: Entry) -> LedgerEntry {
    let (event, audit) = match entry.content {
        Content::Event(event) => (Some(*event), None),
        Content::Audit(audit) => (None, Some(*audit)),
    };
    LedgerEntry {
        seq: entry.seq,
        event,
        audit,
    }
}

fn run(run: Run) -> JobRun {
    JobRun {
        summary: Some(summary(&run.summary)),
        run: run.key,
        timeline: run
            .timeline
            .into_iter()
            .map(|recorded| LedgerEntry {
                seq: recorded.seq,
                event: Some(recorded.event),
                audit: None,
            })
            .collect(),
    }
}

fn summary(summary: &Summary) -> RunSummary {
    RunSummary {
        display_id: summary.display_id.clone(),
        name: summary.name.clone(),
        user: summary.user.clone(),
        account: summary.account.clone(),
        partition: summary.partition.clone(),
        state: summary.state.clone(),
        submitted: summary.submitted.map(timestamp),
        started: summary.started.map(timestamp),
        ended: summary.ended.map(timestamp),
        exit_code: summary.exit_code,
        cost: summary.cost.as_ref().map(|cost| RunCost {
            kind: cost.kind.as_str().to_owned(),
            amount: Some(cost.amount.clone()),
        }),
    }
}
