//! gRPC: `mesh.ledger.v1.EventsService`, on the same address as REST.

use std::sync::Arc;

use axum::Router;
use chrono::{DateTime, Utc};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use mesh_api::ledger::events_service_server::{EventsService, EventsServiceServer, SERVICE_NAME};
use mesh_events::proto::mesh::cost::v1::Money;
use mesh_events::proto::mesh::ledger::v1::{
    EventFilter, ExportEventsRequest, ExportEventsResponse, GetJobRequest, GetJobResponse,
    GetNodeRequest, GetNodeResponse, GetStatsRequest, GetStatsResponse, JobRun, LedgerEntry,
    ListEventsRequest, ListEventsResponse, NodeState, RunCost, RunSummary, StatsRow,
    TailEventsRequest, TailEventsResponse, Wait,
};
use mesh_events::{from_timestamp, timestamp};
use mesh_runtime::api::{Caller, Problem, Shown};
use pbjson_types::Timestamp;
use tonic::{Request, Response, Status};

use super::fields::Fields;
use super::follow::Follower;
use super::pages::Pages;
use super::{ApiError, Content, Entry, EventsApi, count, shown, shown_runs, shown_sums};
use crate::domain::filter::{Filter, Moment};
use crate::domain::query::ListRequest;
use crate::domain::stats::{Group, Row};
use crate::domain::story::{Recorded, Run, Summary};

/// A route by hand: tonic's own router brings a fallback, and routers with fallbacks cannot be joined into one API.
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
        let asked = format!("{request:?}");
        let fields = fields(std::mem::take(&mut request.fields))?;
        let page = self
            .0
            .list(&caller, list_request(request)?)
            .await
            .map_err(status)?;
        let shown = shown(&caller, page.entries.iter().map(|entry| &entry.content));
        let answer = ListEventsResponse {
            entries: page
                .entries
                .into_iter()
                .map(|found| entry(found, fields.as_ref()))
                .collect::<Result<_, _>>()?,
            next_cursor: page.next_cursor.unwrap_or_default(),
        };
        Ok(showing(answer, shown.asked(asked)))
    }

    async fn tail_events(
        &self,
        request: Request<TailEventsRequest>,
    ) -> Result<Response<Self::TailEventsStream>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let (shown, counts) = Shown::to(&caller).asked(format!("{request:?}")).stream();
        let TailEventsRequest {
            filter: asked,
            after_seq,
            fields: parts,
        } = request;
        let fields = fields(parts)?;
        let asked = asked.unwrap_or_default();
        if asked.until.is_some() || asked.to_seq != 0 {
            return Err(Status::invalid_argument(
                "until, to_seq: a stream has no end; leave them out, or call ListEvents",
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
        Ok(showing(entries.boxed(), shown))
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
            return Ok(showing(stream::empty().boxed(), Shown::nothing()));
        }
        let (shown, counts) = Shown::to(&caller).asked(whole).stream();
        // The first page answers what is wrong with the question.
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
        Ok(showing(entries.try_flatten().boxed(), shown))
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
        let story = self
            .0
            .job(&caller, &cluster, &job, at)
            .await
            .map_err(status)?;
        let shown = shown_runs(&caller, &story.runs);
        let answer = GetJobResponse {
            runs: story.runs.into_iter().map(run).collect(),
            truncated: story.truncated,
        };
        Ok(showing(answer, shown.asked(asked)))
    }

    async fn get_node(
        &self,
        request: Request<GetNodeRequest>,
    ) -> Result<Response<GetNodeResponse>, Status> {
        let caller = caller(&request)?;
        let GetNodeRequest { cluster, node, at } = request.into_inner();
        let at = time(at, "at")?;
        let story = self
            .0
            .node(&caller, &cluster, &node, at)
            .await
            .map_err(status)?;
        let answer = GetNodeResponse {
            state: Some(NodeState {
                state: story.state.state,
                state_flags: story.state.flags,
                lifecycle: story.state.lifecycle,
                reason: story.state.reason,
                since: story.state.since.map(timestamp),
            }),
            timeline: story.timeline.into_iter().map(recorded).collect(),
            truncated: story.truncated,
        };
        Ok(showing(answer, Shown::nothing()))
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
        let shown = shown_sums(&caller, &rows, &by);
        let answer = GetStatsResponse {
            rows: rows.into_iter().map(|row| stats_row(row, &by)).collect(),
        };
        Ok(showing(answer, shown.asked(whole)))
    }
}

/// An answer that says what it shows.
fn showing<T>(answer: T, shown: Shown) -> Response<T> {
    let mut response = Response::new(answer);
    response.extensions_mut().insert(shown);
    response
}

/// The runtime's middleware has found out who calls before any service is reached.
pub(super) fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    request.extensions().get().cloned().ok_or_else(|| {
        Status::unauthenticated("show the service token, or call over the Unix socket")
    })
}

pub(super) fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn time(time: Option<Timestamp>, field: &str) -> Result<Option<DateTime<Utc>>, Status> {
    match time.as_ref().map(from_timestamp) {
        None => Ok(None),
        Some(Some(time)) => Ok(Some(time)),
        Some(None) => Err(Status::invalid_argument(format!(
            "{field}: out of range; allowed: a time a calendar can show"
        ))),
    }
}

pub(super) fn filter(filter: EventFilter) -> Result<Filter, Status> {
    Ok(Filter {
        cluster: present(filter.cluster),
        types: filter.types,
        job: present(filter.job),
        run: present(filter.run),
        array: (filter.array > 0).then_some(filter.array),
        user: present(filter.user),
        identity: present(filter.identity),
        account: present(filter.account),
        partition: present(filter.partition),
        node: present(filter.node),
        name: present(filter.name),
        since: time(filter.since, "since")?.map(Moment::At),
        until: time(filter.until, "until")?.map(Moment::At),
        from_seq: (filter.from_seq > 0).then_some(filter.from_seq),
        to_seq: (filter.to_seq > 0).then_some(filter.to_seq),
    })
}

/// A filter with absolute times, as it is asked for.
pub(super) fn asked_filter(filter: Filter) -> EventFilter {
    let time = |moment| match moment {
        Some(Moment::At(time)) => Some(timestamp(time)),
        Some(Moment::Ago(_)) | None => None,
    };
    EventFilter {
        cluster: filter.cluster.unwrap_or_default(),
        types: filter.types,
        job: filter.job.unwrap_or_default(),
        run: filter.run.unwrap_or_default(),
        array: filter.array.unwrap_or_default(),
        user: filter.user.unwrap_or_default(),
        identity: filter.identity.unwrap_or_default(),
        account: filter.account.unwrap_or_default(),
        partition: filter.partition.unwrap_or_default(),
        node: filter.node.unwrap_or_default(),
        name: filter.name.unwrap_or_default(),
        since: time(filter.since),
        until: time(filter.until),
        from_seq: filter.from_seq.unwrap_or_default(),
        to_seq: filter.to_seq.unwrap_or_default(),
    }
}

fn list_request(request: ListEventsRequest) -> Result<ListRequest, Status> {
    let short = EventFilter {
        cluster: request.cluster,
        types: request.types,
        job: request.job,
        user: request.user,
        since: request.since,
        until: request.until,
        ..EventFilter::default()
    };
    let asked = match request.filter {
        None => short,
        Some(asked) if short == EventFilter::default() => asked,
        Some(_) => {
            return Err(Status::invalid_argument(
                "filter: cluster, types, job, user, since and until are given beside it; allowed: all of them inside it",
            ));
        }
    };
    Ok(ListRequest {
        filter: filter(asked)?,
        cursor: present(request.cursor),
        limit: (request.limit > 0).then_some(request.limit),
        descending: request.descending,
    })
}

/// Our fault: the cause goes to the log, not to the caller.
pub(super) fn internal(error: &(dyn std::error::Error + 'static)) -> Status {
    tracing::error!(error = mesh_runtime::chain(error), "answer request");
    Status::internal("the service could not answer; its log says why")
}

fn status(error: ApiError) -> Status {
    match error {
        ApiError::Invalid(_) => Status::invalid_argument(error.to_string()),
        ApiError::Forbidden(_) => Status::permission_denied(error.to_string()),
        ApiError::NoJob { .. } | ApiError::NoNode { .. } => Status::not_found(error.to_string()),
        ApiError::Store(error) => internal(&error),
    }
}

/// An entry, or only the parts that were asked for.
fn entry(entry: Entry, fields: Option<&Fields>) -> Result<LedgerEntry, Status> {
    let Entry { seq, content } = entry;
    let (event, audit) = match (content, fields) {
        (Content::Event(event), None) => (Some(*event), None),
        (Content::Audit(audit), None) => (None, Some(*audit)),
        (Content::Event(event), Some(fields)) => (fields.event(&event).map_err(unfit)?, None),
        (Content::Audit(audit), Some(fields)) => (None, fields.audit(&audit).map_err(unfit)?),
    };
    let with_seq = fields.is_none_or(Fields::with_seq);
    Ok(LedgerEntry {
        seq: if with_seq { seq } else { 0 },
        event,
        audit,
    })
}

fn fields(paths: Vec<String>) -> Result<Option<Fields>, Status> {
    if paths.is_empty() {
        return Ok(None);
    }
    let fields = Fields::parse(&paths.join(","));
    fields
        .map(Some)
        .map_err(|problem| Status::invalid_argument(problem.detail))
}

/// What cannot be written as JSON; the log has the cause.
fn unfit(problem: Problem) -> Status {
    Status::internal(problem.detail)
}

fn run(run: Run) -> JobRun {
    JobRun {
        summary: Some(summary(&run.summary)),
        run: run.key,
        timeline: run.timeline.into_iter().map(recorded).collect(),
    }
}

fn recorded(recorded: Recorded) -> LedgerEntry {
    LedgerEntry {
        seq: recorded.seq,
        event: Some(recorded.event),
        audit: None,
    }
}

fn stats_row(row: Row, by: &[Group]) -> StatsRow {
    let words = by.iter().map(|group| group.as_str().to_owned());
    StatsRow {
        group: words
            .zip(row.key)
            .filter_map(|(word, value)| Some((word, value?)))
            .collect(),
        jobs: row.counts.into_iter().collect(),
        wait: row.wait.map(|wait| Wait {
            starts: wait.starts,
            p50_seconds: wait.p50,
            p90_seconds: wait.p90,
            max_seconds: wait.max,
        }),
        costs: row
            .costs
            .into_iter()
            .map(|(currency, micros)| Money { micros, currency })
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
