//! `GET /v1/costs/nodes`: what each node cost in a period, and what that paid for.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller, Problem};
use serde::{Deserialize, Serialize};

use super::response::{amount_text, amount_texts};
use super::{Api, time};
use crate::domain::Micros;
use crate::domain::node_lines::NodeCost;
use crate::node_view::{self, NodeReport, NodeView};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeQuery {
    since: Option<String>,
    until: Option<String>,
    cluster: Option<String>,
}

/// Nodes and their costs in a period. The lines of each node add up to its cost.
#[derive(Clone, Debug, Serialize)]
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
    cost_micros: Micros,
    /// Sums of the lines over the nodes.
    #[serde(serialize_with = "amount_texts")]
    line_micros: BTreeMap<&'static str, Micros>,
    /// The nodes.
    nodes: Vec<NodeRow>,
}

/// A node and its cost.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct NodeRow {
    cluster: String,
    node: String,
    /// Empty if no node type covers the node.
    node_type: String,
    /// Cloud instances that it was in the period.
    instance_ids: Vec<String>,
    /// Cost of the seconds that it was charged.
    #[serde(serialize_with = "amount_text")]
    cost_micros: Micros,
    /// Charged seconds.
    charged_seconds: u64,
    /// What the cost paid for.
    #[serde(serialize_with = "amount_texts")]
    line_micros: BTreeMap<&'static str, Micros>,
    /// Seconds by state; they add up to the period.
    state_seconds: BTreeMap<&'static str, u64>,
    /// Why there is no cost. Empty if there is one.
    problem: String,
}

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
    let period = (since, until);
    let view = match &book {
        Some(book) => {
            let cluster = query.cluster.as_deref();
            node_view::of_period(&api.store, book, cluster, period, now.timestamp())
                .await
                .map_err(|error| Problem::internal(&error))?
        }
        None => NodeView::default(),
    };
    let mut audited_read = AuditedRead::to(&caller);
    for _ in &view.nodes {
        audited_read.row_about_people();
    }
    let mut answer = answer(view);
    answer.since = DateTime::from_timestamp(since, 0).unwrap_or_default();
    answer.until = DateTime::from_timestamp(until, 0).unwrap_or_default();
    answer.price_book = book.as_ref().map(|book| book.label());
    answer.currency = book.map(|book| book.currency.clone());
    Ok((audited_read.extension(), Json(answer)))
}

fn answer(view: NodeView) -> NodeCosts {
    let nodes: Vec<NodeRow> = view.nodes.into_iter().map(row).collect();
    let mut line_micros: BTreeMap<&'static str, Micros> = BTreeMap::new();
    for (line, micros) in nodes.iter().flat_map(|node| &node.line_micros) {
        let sum = line_micros.entry(line).or_default();
        *sum = *sum + *micros;
    }
    NodeCosts {
        since: DateTime::default(),
        until: DateTime::default(),
        price_book: None,
        currency: None,
        unpriced_runs: view.unpriced_runs,
        cost_micros: nodes.iter().map(|node| node.cost_micros).sum(),
        line_micros,
        nodes,
    }
}

fn row(report: NodeReport) -> NodeRow {
    let mut row = NodeRow {
        cluster: report.cluster,
        node: report.node,
        node_type: report.node_type,
        instance_ids: report.instance_ids,
        ..NodeRow::default()
    };
    match report.cost {
        Ok(NodeCost {
            cost,
            seconds,
            lines,
            states,
        }) => {
            row.cost_micros = cost;
            row.charged_seconds = seconds;
            row.line_micros = lines
                .into_iter()
                .map(|(line, micros)| (line.as_str(), micros))
                .collect();
            row.state_seconds = states
                .into_iter()
                .map(|(state, seconds)| (state.as_str(), seconds))
                .collect();
        }
        Err(problem) => row.problem = problem,
    }
    row
}
