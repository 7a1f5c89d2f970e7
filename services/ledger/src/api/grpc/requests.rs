//! Converts gRPC messages to requests.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::ledger::v1::{EventFilter, ListEventsRequest};
use mesh_events::{from_timestamp, timestamp};
use mesh_runtime::TimeBound;
use pbjson_types::Timestamp;
use tonic::Status;

use crate::api::fields::Fields;
use crate::domain::filter::Filter;
use crate::domain::query::ListRequest;

pub(in crate::api) fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn time(time: Option<Timestamp>, field: &str) -> Result<Option<DateTime<Utc>>, Status> {
    match time.as_ref().map(from_timestamp) {
        None => Ok(None),
        Some(Some(time)) => Ok(Some(time)),
        Some(None) => Err(Status::invalid_argument(format!(
            "{field}: out of range; allowed: years 1 to 9999"
        ))),
    }
}

pub(in crate::api) fn filter(filter: EventFilter) -> Result<Filter, Status> {
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
        since: time(filter.since, "since")?.map(TimeBound::At),
        until: time(filter.until, "until")?.map(TimeBound::At),
        from_seq: (filter.from_seq > 0).then_some(filter.from_seq),
        to_seq: (filter.to_seq > 0).then_some(filter.to_seq),
    })
}

/// Converts a filter to a message. Its times must be absolute.
pub(in crate::api) fn asked_filter(filter: Filter) -> EventFilter {
    let time = |bound| match bound {
        Some(TimeBound::At(time)) => Some(timestamp(time)),
        Some(TimeBound::Ago(_)) | None => None,
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
