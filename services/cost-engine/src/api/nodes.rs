//! `GET /v1/costs/nodes`: cost of each node in a period, by category.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::view::{amount_text, amount_texts};
use super::{Api, responses, time};
use crate::domain::Micros;
use crate::node_costs::{self, NodeCostRow};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeQuery {
    /// Start: a time, a date, or an age such as `7d`. Default: the start of the month, UTC.
    since: Option<String>,
    /// End, as `since`. Default: now.
    until: Option<String>,
    /// Only this cluster.
    cluster: Option<String>,
}

/// Nodes and their costs in a period. The categories of each node add up to its cost.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct NodeCosts {
    /// Start of the period.
    since: DateTime<Utc>,
    /// End of the period.
    until: DateTime<Utc>,
    /// Label of the price book; absent without one.
    price_book: Option<String>,
    /// Currency of every amount; absent without a price book.
    currency: Option<String>,
    /// Number of runs whose shares of nodes are not known; what they held appears as not held.
    unpriced_runs: u64,
    /// Sum over the nodes.
    #[serde(serialize_with = "amount_text")]
    #[schema(value_type = String)]
    cost_micros: Micros,
    /// Sums of the categories over the nodes.
    #[serde(serialize_with = "amount_texts")]
    #[schema(value_type = BTreeMap<String, String>)]
    category_micros: BTreeMap<&'static str, Micros>,
    /// The nodes.
    nodes: Vec<NodeCostRow>,
}

/// Most days of a period.
const MAX_DAYS: i64 = 400;

/// Lists the costs of nodes in a period, by category.
#[utoipa::path(get, operation_id = "listNodeCosts", path = "/v1/costs/nodes", tag = "costs", params(NodeQuery), responses(
    (status = 200, description = "Costs of the nodes", body = NodeCosts), (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 503, response = responses::Unavailable),
))]
pub(super) async fn list(
    caller: Caller,
    State(api): State<Api>,
    query: Result<Query<NodeQuery>, QueryRejection>,
) -> Result<(Extension<AuditedRead>, Json<NodeCosts>), Problem> {
    let Query(query) = query.map_err(|error| Problem::bad_request(error.body_text()))?;
    if !caller.sees_everything() {
        return Err(Problem::forbidden(
            "only administrators and auditors may see what nodes cost, because it shows what everybody holds",
        ));
    }
    let book = api.book();
    let now = Utc::now();
    let month = now.format("%Y-%m-01").to_string();
    let since = time("since", Some(query.since.as_deref().unwrap_or(&month)), now)?;
    let until = time("until", query.until.as_deref(), now)?;
    let since = since.unwrap_or_default();
    let until = until.unwrap_or(i64::MAX).min(now.timestamp());
    if until < since {
        return Err(Problem::bad_request("until: is before since"));
    }
    if until.saturating_sub(since) > MAX_DAYS * 86_400 {
        return Err(Problem::bad_request(format!(
            "the period has more than {MAX_DAYS} days: set since and until"
        )));
    }
    let period = (since, until);
    let (nodes, unpriced_runs) = match &book {
        Some(book) => {
            let cluster = query.cluster.as_deref();
            node_costs::of_period(&api.store, book, cluster, period, now.timestamp()).await?
        }
        None => (Vec::new(), 0),
    };
    let mut audited_read = AuditedRead::to(&caller);
    for _ in &nodes {
        audited_read.row_about_people();
    }
    let answer = NodeCosts {
        since: DateTime::from_timestamp(since, 0).unwrap_or_default(),
        until: DateTime::from_timestamp(until, 0).unwrap_or_default(),
        price_book: book.as_ref().map(|book| book.label()),
        currency: book.map(|book| book.currency.clone()),
        unpriced_runs,
        cost_micros: nodes.iter().map(|node| node.cost_micros).sum(),
        category_micros: sums(&nodes),
        nodes,
    };
    Ok((audited_read.extension(), Json(answer)))
}

fn sums(nodes: &[NodeCostRow]) -> BTreeMap<&'static str, Micros> {
    let mut sums: BTreeMap<&'static str, Micros> = BTreeMap::new();
    for (category, micros) in nodes.iter().flat_map(|node| &node.category_micros) {
        let sum = sums.entry(category).or_default();
        *sum = *sum + *micros;
    }
    sums
}
