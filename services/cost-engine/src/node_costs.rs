//! Cost of each node in a period, by category.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::node::v1::Node;
use mesh_events::{Event, EventType};

use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::adapters::{Filter, FinalizedRun, FinalizedRuns, NodeChange, OpenRun, Store};
use crate::api::view::{amount_text, amount_texts};
use crate::costing;
use crate::domain::node_costs::{
    HeldShare, NodeCost, NodeCostError, NodeState, NodeTimeline, allocate,
};
use crate::domain::price::Shares;
use crate::domain::{Interval, Micros, PriceError};
use crate::error::Error;
use crate::price_book::PriceBook;

/// The change that a node event says. `None` for events about something else.
pub(crate) fn change_of(event: &Event) -> Option<NodeChange> {
    let kind = event.kind().ok()?;
    let Some(Payload::Node(payload)) = &event.payload else {
        return None;
    };
    let node = payload.node.as_ref()?;
    Some(NodeChange {
        cluster: event.cluster.clone(),
        node: node.name.clone(),
        at: event.occurred_at.as_ref()?.seconds,
        seq: event.run_seq,
        state: state_of(kind, node),
        instance_id: node.instance_id.clone(),
        partition: node.partitions.first().cloned().unwrap_or_default(),
    })
}

/// What a node is doing, by its life cycle and its flags.
fn state_of(kind: EventType, node: &Node) -> NodeState {
    let has = |flag: &str| node.state_flags.iter().any(|known| known.starts_with(flag));
    if kind == EventType::NodeRemoved {
        return NodeState::Off;
    }
    match node.lifecycle.as_str() {
        "provisioning" | "down" if has("REBOOT") => NodeState::Rebooting,
        "provisioning" => NodeState::Booting,
        "active" | "draining" | "drained" if has("MAINT") => NodeState::Maintenance,
        "active" if has("PLANNED") => NodeState::Planned,
        "active" => NodeState::Active,
        "draining" => NodeState::Draining,
        "drained" => NodeState::Drained,
        "down" => NodeState::Down,
        "terminating" => NodeState::PoweringDown,
        // A machine of one's own that saves power is still paid for.
        "terminated" if !has("CLOUD") => NodeState::PoweredDown,
        "terminated" => NodeState::Off,
        _ => NodeState::Unknown,
    }
}

/// A node and its cost in a period, as in the API.
#[derive(Clone, Debug, Default, Serialize, utoipa::ToSchema)]
pub(crate) struct NodeCostRow {
    /// Cluster of the node.
    pub cluster: String,
    /// Name of the node.
    pub node: String,
    /// Node type in the price book. Empty if none covers the node.
    pub node_type: String,
    /// Cloud instances that it was in the period.
    pub instance_ids: Vec<String>,
    /// Cost of the seconds that it was charged.
    #[serde(serialize_with = "amount_text")]
    #[schema(value_type = String)]
    pub cost_micros: Micros,
    /// Charged seconds.
    pub charged_seconds: u64,
    /// Amounts by category.
    #[serde(serialize_with = "amount_texts")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub category_micros: BTreeMap<&'static str, Micros>,
    /// Seconds by state; they add up to the period.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub state_seconds: BTreeMap<&'static str, u64>,
    /// Why there is no cost. Empty if there is one.
    pub problem: String,
}

/// Computes the rows of a period, and the number of runs whose shares of nodes are not known. Running jobs hold their nodes until `now`.
pub(crate) async fn of_period(
    store: &Store,
    book: &Arc<PriceBook>,
    cluster: Option<&str>,
    period: Interval,
    now: i64,
) -> Result<(Vec<NodeCostRow>, u64), Error> {
    let filter = Filter {
        cluster: cluster.map(str::to_owned),
        ..Filter::all()
    };
    let changes = store.node_changes(cluster, period).await?;
    // Idle time at the end of the period is before a power-down unless a run comes first, so these runs are needed too.
    let power_downs = changes.iter().filter(|change| change.state.is_power_down());
    let until = power_downs.map(|change| change.at).max();
    let until = until.unwrap_or_default().max(period.1);
    let mut runs = Runs {
        period,
        held: Held::new(),
        unpriced: store.unpriced_runs_in(&filter, period).await?,
    };
    let mut pages = FinalizedRuns::new(store, &filter, (period.0, until));
    while let Some(page) = pages.next().await? {
        let add = move || {
            for (run, book) in &page {
                let shares = book.as_ref().and_then(|book| of_ended(book, run));
                runs.add(&run.keys.cluster, (run.started, run.ended), shares);
            }
            runs
        };
        runs = spawn_blocking(add).await.map_err(Error::Interrupted)?;
    }
    let open = store.open_runs(&filter).await?;
    let book = Arc::clone(book);
    let compute = move || {
        for run in &open {
            let start = run.job.start_time.as_ref();
            let start = start.map_or(now, |start| start.seconds);
            let shares = of_open(&book, run, now).ok().flatten();
            runs.add(&run.keys.cluster, (start, now), shares);
        }
        (rows(&book, &changes, runs.held, period), runs.unpriced)
    };
    spawn_blocking(compute).await.map_err(Error::Interrupted)
}

fn of_ended(book: &PriceBook, run: &FinalizedRun) -> Option<Shares> {
    let (_, record) = run.history.end.as_ref()?;
    costing::shares(book, &run.history, record, run.ended)
        .ok()
        .flatten()
}

fn of_open(book: &PriceBook, run: &OpenRun, now: i64) -> Result<Option<Shares>, PriceError> {
    let until = costing::accrued_until(&run.history, &run.job, now);
    costing::shares(book, &run.history, &run.job, until)
}

/// Shares by cluster and node.
type Held = BTreeMap<(String, String), Vec<HeldShare>>;

/// What the runs of a period held.
struct Runs {
    period: Interval,
    held: Held,
    /// Runs of the period whose shares are not known.
    unpriced: u64,
}

impl Runs {
    fn add(&mut self, cluster: &str, (start, end): Interval, shares: Option<Shares>) {
        let Some(shares) = shares else {
            let is_in_period = start < self.period.1 && end > self.period.0;
            self.unpriced += u64::from(is_in_period);
            return;
        };
        for (node, time, share) in shares {
            let held = self.held.entry((cluster.to_owned(), node)).or_default();
            held.push(HeldShare { time, share });
        }
    }
}

fn rows(
    book: &PriceBook,
    changes: &[NodeChange],
    mut held: Held,
    period: Interval,
) -> Vec<NodeCostRow> {
    let mut changes_of: BTreeMap<(&str, &str), Vec<&NodeChange>> = BTreeMap::new();
    for change in changes {
        let key = (change.cluster.as_str(), change.node.as_str());
        changes_of.entry(key).or_default().push(change);
    }
    let is_of_period = |held: &HeldShare| held.time.0 < period.1 && held.time.1 > period.0;
    let began = |changes: &&Vec<&NodeChange>| changes.iter().any(|change| change.at < period.1);
    let nodes = changes_of.iter().filter(|(_, changes)| began(changes));
    let nodes = nodes.map(|((cluster, node), _)| ((*cluster).to_owned(), (*node).to_owned()));
    // Also nodes that no event named, if runs held them.
    let held_nodes = held
        .iter()
        .filter(|(_, held)| held.iter().any(is_of_period));
    let nodes: BTreeSet<(String, String)> = nodes
        .chain(held_nodes.map(|(node, _)| node.clone()))
        .collect();
    let row = |key: (String, String)| {
        let held = held.remove(&key).unwrap_or_default();
        let changes = changes_of.get(&(key.0.as_str(), key.1.as_str()));
        row(
            book,
            key.clone(),
            changes.map(Vec::as_slice).unwrap_or_default(),
            held,
            period,
        )
    };
    nodes.into_iter().map(row).collect()
}

fn row(
    book: &PriceBook,
    (cluster, node): (String, String),
    changes: &[&NodeChange],
    held: Vec<HeldShare>,
    period: Interval,
) -> NodeCostRow {
    let states = changes.iter().map(|change| (change.at, change.state));
    let timeline = NodeTimeline {
        states: states.collect(),
        held,
    };
    let of_period = changes.partition_point(|change| change.at < period.1);
    let changes = &changes[..of_period];
    let partition = changes
        .last()
        .map_or("", |change| change.partition.as_str());
    let spec = book.node(&node, partition);
    let cost = match &spec {
        Some(spec) => allocate(&timeline, &spec.rates, period).map_err(|error| match error {
            NodeCostError::PriceMissing(at) => PriceError::PriceMissing {
                node_type: spec.node_type.clone(),
                market: spec.market,
                at,
            }
            .problem(),
            NodeCostError::Amount(error) => error.problem(),
        }),
        None => Err(PriceError::NodeTypeMissing { node: node.clone() }.problem()),
    };
    let row = NodeCostRow {
        instance_ids: instances(changes, period),
        node_type: spec.map(|spec| spec.node_type).unwrap_or_default(),
        cluster,
        node,
        ..NodeCostRow::default()
    };
    match cost {
        Ok(cost) => with_cost(row, cost),
        Err(problem) => NodeCostRow { problem, ..row },
    }
}

fn with_cost(row: NodeCostRow, cost: NodeCost) -> NodeCostRow {
    let categories = cost.categories.into_iter();
    let states = cost.states.into_iter();
    NodeCostRow {
        cost_micros: cost.cost,
        charged_seconds: cost.seconds,
        category_micros: categories
            .map(|(category, micros)| (category.as_str(), micros))
            .collect(),
        state_seconds: states
            .map(|(state, seconds)| (state.as_str(), seconds))
            .collect(),
        ..row
    }
}

/// The instances that a node was in the period, in order.
fn instances(changes: &[&NodeChange], (from, _): Interval) -> Vec<String> {
    let began = changes.partition_point(|change| change.at <= from);
    let relevant = changes.get(began.saturating_sub(1)..).unwrap_or_default();
    let mut ids: Vec<String> = relevant
        .iter()
        .map(|change| change.instance_id.clone())
        .filter(|id| !id.is_empty())
        .collect();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_follows_from_the_life_cycle_and_the_flags() {
        for (lifecycle, flags, state) in [
            ("active", &["PLANNED"][..], NodeState::Planned),
            ("active", &["MAINTENANCE"], NodeState::Maintenance),
            (
                "provisioning",
                &["CLOUD", "POWERING_UP"],
                NodeState::Booting,
            ),
            ("provisioning", &["REBOOT_ISSUED"], NodeState::Rebooting),
            ("terminated", &["CLOUD", "POWERED_DOWN"], NodeState::Off),
            ("terminating", &["POWERING_DOWN"], NodeState::PoweringDown),
            ("terminated", &["POWERED_DOWN"], NodeState::PoweredDown),
            ("drained", &["DRAIN"], NodeState::Drained),
            ("later", &[], NodeState::Unknown),
        ] {
            let node = Node {
                lifecycle: lifecycle.into(),
                state_flags: flags.iter().map(ToString::to_string).collect(),
                ..Node::default()
            };
            assert_eq!(
                state_of(EventType::NodeActive, &node),
                state,
                "{lifecycle} {flags:?}"
            );
            assert_eq!(state_of(EventType::NodeRemoved, &node), NodeState::Off);
        }
    }
}
