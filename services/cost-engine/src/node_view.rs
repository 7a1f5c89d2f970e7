//! What each node cost in a period, and what that paid for.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::node::v1::Node;
use mesh_events::{Event, EventType};

use crate::adapters::{CutRun, Filter, NodeChange, OpenRun, PriceBooks, Store};
use crate::costing;
use crate::domain::node_lines::{
    HeldShare, NodeCost, NodeCostError, NodeState, NodeTimeline, divide,
};
use crate::domain::price::Shares;
use crate::domain::{Interval, PriceError};
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
        "provisioning" | "down" if has("REBOOT") => NodeState::Reboot,
        "provisioning" => NodeState::Booting,
        "active" | "draining" | "drained" if has("MAINT") => NodeState::Maintenance,
        "active" if has("PLANNED") => NodeState::Planned,
        "active" => NodeState::Active,
        "draining" => NodeState::Draining,
        "drained" => NodeState::Drained,
        "down" => NodeState::Down,
        // A machine of one's own that saves power is still paid for.
        "terminating" | "terminated" if !has("CLOUD") => NodeState::PoweringDown,
        "terminating" => NodeState::PoweringDown,
        "terminated" => NodeState::Off,
        _ => NodeState::Unknown,
    }
}

/// A node with its cost in a period.
#[derive(Clone, Debug)]
pub(crate) struct NodeReport {
    pub cluster: String,
    pub node: String,
    /// Node type in the price book. Empty if none covers the node.
    pub node_type: String,
    /// Cloud instances that it was in the period.
    pub instance_ids: Vec<String>,
    /// The cost, or why there is none.
    pub cost: Result<NodeCost, String>,
}

/// The nodes of a period, and the number of runs whose shares are not known.
#[derive(Debug, Default)]
pub(crate) struct NodeView {
    pub nodes: Vec<NodeReport>,
    pub unpriced_runs: u64,
}

/// Shares by cluster and node.
type Held = BTreeMap<(String, String), Vec<HeldShare>>;

/// Computes the view of a period. Running jobs hold their nodes until `now`.
pub(crate) async fn of_period(
    store: &Store,
    book: &PriceBook,
    cluster: Option<&str>,
    period: Interval,
    now: i64,
) -> Result<NodeView, Error> {
    let filter = Filter {
        cluster: cluster.map(str::to_owned),
        ..Filter::all()
    };
    let changes = store.node_changes(cluster, period.1).await?;
    let ended = store.runs_in(&filter, period).await?;
    let open = store.open_runs(&filter).await?;
    let mut books = PriceBooks::of(store);
    let (mut held, mut unpriced_runs) = (Held::new(), 0);
    for run in &ended {
        let book = books.get(&run.price_book).await?;
        let shares = book.and_then(|book| of_ended(&book, run));
        unpriced_runs += u64::from(!add(&mut held, &run.keys.cluster, shares));
    }
    for run in &open {
        let shares = of_open(book, run, now).ok().flatten();
        unpriced_runs += u64::from(!add(&mut held, &run.keys.cluster, shares));
    }
    Ok(NodeView {
        nodes: reports(book, &changes, held, period),
        unpriced_runs,
    })
}

fn of_ended(book: &PriceBook, run: &CutRun) -> Option<Shares> {
    let (_, record) = run.history.end.as_ref()?;
    costing::shares(book, &run.history, record, run.ended)
        .ok()
        .flatten()
}

fn of_open(book: &PriceBook, run: &OpenRun, now: i64) -> Result<Option<Shares>, PriceError> {
    let until = costing::accrued_until(&run.history, &run.job, now);
    costing::shares(book, &run.history, &run.job, until)
}

/// False if the shares are not known.
fn add(held: &mut Held, cluster: &str, shares: Option<Shares>) -> bool {
    let Some(shares) = shares else { return false };
    for (node, time, share) in shares {
        let held = held.entry((cluster.to_owned(), node)).or_default();
        held.push(HeldShare { time, share });
    }
    true
}

fn reports(
    book: &PriceBook,
    changes: &[NodeChange],
    mut held: Held,
    period: Interval,
) -> Vec<NodeReport> {
    let mut by_node: BTreeMap<(String, String), Vec<&NodeChange>> = BTreeMap::new();
    for change in changes {
        let key = (change.cluster.clone(), change.node.clone());
        by_node.entry(key).or_default().push(change);
    }
    // Also nodes that no event named, if runs held them.
    for key in held.keys() {
        by_node.entry(key.clone()).or_default();
    }
    let report = |((cluster, node), changes): ((String, String), Vec<&NodeChange>)| {
        let timeline = NodeTimeline {
            states: changes
                .iter()
                .map(|change| (change.at, change.state))
                .collect(),
            held: held
                .remove(&(cluster.clone(), node.clone()))
                .unwrap_or_default(),
        };
        let partition = changes
            .last()
            .map_or("", |change| change.partition.as_str());
        let spec = book.node(&node, partition);
        let cost = match &spec {
            Some(spec) => divide(&timeline, &spec.rates, period).map_err(|error| match error {
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
        NodeReport {
            instance_ids: instances(&changes, period),
            node_type: spec.map(|spec| spec.node_type).unwrap_or_default(),
            cluster,
            node,
            cost,
        }
    };
    by_node.into_iter().map(report).collect()
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
            ("provisioning", &["REBOOT_ISSUED"], NodeState::Reboot),
            ("terminated", &["CLOUD", "POWERED_DOWN"], NodeState::Off),
            ("terminated", &["POWERED_DOWN"], NodeState::PoweringDown),
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
