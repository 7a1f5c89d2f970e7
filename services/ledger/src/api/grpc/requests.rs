//! Converts gRPC messages to requests.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::ledger::v1::{EventFilter, ListEventsRequest};
use pbjson_types::Timestamp;
use tonic::Status;

use crate::api::fields::Fields;
use crate::domain::filter::{self, Filter, InvalidFilter};
use crate::domain::query::ListRequest;

pub(in crate::api) fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn time(
    at: Option<Timestamp>,
    field: &'static str,
) -> Result<Option<DateTime<Utc>>, Status> {
    filter::time(field, at).map_err(invalid)
}

pub(in crate::api) fn filter(filter: EventFilter) -> Result<Filter, Status> {
    filter.try_into().map_err(invalid)
}

fn invalid(error: InvalidFilter) -> Status {
    Status::invalid_argument(error.to_string())
}

pub(super) fn list_request(request: ListEventsRequest) -> Result<ListRequest, Status> {
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
                "filter: cluster, types, job, user, since and until must be set inside it, not beside it",
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

pub(super) fn fields(paths: Vec<String>) -> Result<Option<Fields>, Status> {
    if paths.is_empty() {
        return Ok(None);
    }
    let fields = Fields::parse(&paths.join(","));
    fields
        .map(Some)
        .map_err(|problem| Status::invalid_argument(problem.detail))
}
