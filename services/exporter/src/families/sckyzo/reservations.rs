//! Reservations, and the states of their nodes.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::queue::v1::Reservation;
use slurm_types::{HostList, NodeBaseState, NodeFlag};

use crate::domain::exposition::{Exposition, Kind};
use crate::domain::nodes::{Node, Nodes};
use crate::families::{Inputs, float};

/// Largest number of nodes of a reservation whose states are counted.
const MAX_RESERVED: usize = 100_000;

pub(super) fn reservations(inputs: &Inputs, page: &mut Exposition) {
    let reservations = &inputs.scheduler.reservations;
    let name = "slurm_reservation_info";
    page.metric(
        name,
        Kind::Gauge,
        "Always 1; the labels describe the reservation",
    );
    for found in reservations {
        let (users, flags) = (found.users.join(","), found.flags.join(","));
        let labels = [
            ("reservation_name", found.name.as_str()),
            ("state", &found.state),
            ("users", &users),
            ("nodes", &found.nodes),
            ("flags", &flags),
        ];
        page.sample(name, &labels, 1.0);
    }
    for (name, help, at) in [
        (
            "slurm_reservation_start_time_seconds",
            "When it begins",
            (|found| found.start) as fn(&Reservation) -> i64,
        ),
        (
            "slurm_reservation_end_time_seconds",
            "When it ends",
            |found| found.end,
        ),
    ] {
        page.metric(name, Kind::Gauge, help);
        for found in reservations.iter().filter(|found| at(found) > 0) {
            let seconds = u64::try_from(at(found)).unwrap_or_default();
            page.sample(name, &[("reservation_name", &found.name)], float(seconds));
        }
    }
    let hosts: Vec<(&str, Vec<String>)> = reservations
        .iter()
        .map(|found| {
            let hosts = HostList::expand_up_to(&found.nodes, MAX_RESERVED);
            (found.name.as_str(), hosts.unwrap_or_default())
        })
        .collect();
    let name = "slurm_reservation_node_count";
    page.metric(name, Kind::Gauge, "Nodes of the reservation");
    for (reservation, hosts) in &hosts {
        let labels = [("reservation_name", *reservation)];
        page.sample(name, &labels, float(hosts.len() as u64));
    }
    if let Some(nodes) = &inputs.nodes {
        reserved(nodes, &hosts, page);
    }
}

/// Nodes of reservations by state. One may be in several: `mix` and `drain`.
fn reserved(nodes: &Nodes, reservations: &[(&str, Vec<String>)], page: &mut Exposition) {
    let by_name: BTreeMap<&str, &Node> = nodes
        .nodes
        .iter()
        .map(|node| (node.summary.name.as_str(), node))
        .collect();
    let base = |node: &Node, bases: &[NodeBaseState]| {
        node.state.base.is_some_and(|base| bases.contains(&base))
    };
    let up = [
        NodeBaseState::Allocated,
        NodeBaseState::Idle,
        NodeBaseState::Mixed,
    ];
    let is_drained = |node: &Node| node.state.flags.contains(NodeFlag::Drain);
    type IsIn<'a> = &'a dyn Fn(&Node) -> bool;
    let states: [(&str, IsIn<'_>); 8] = [
        ("alloc", &|node| base(node, &[NodeBaseState::Allocated])),
        ("idle", &|node| base(node, &[NodeBaseState::Idle])),
        ("mix", &|node| base(node, &[NodeBaseState::Mixed])),
        ("down", &|node| base(node, &[NodeBaseState::Down])),
        ("drain", &is_drained),
        ("planned", &|node| {
            node.state.flags.contains(NodeFlag::Planned)
        }),
        ("other", &|node| {
            !base(node, &up) && !base(node, &[NodeBaseState::Down])
        }),
        ("healthy", &|node| base(node, &up) && !is_drained(node)),
    ];
    for (name, is_in) in states {
        let name = format!("slurm_reservation_nodes_{name}");
        page.metric(&name, Kind::Gauge, "Nodes of the reservation in this state");
        for (reservation, hosts) in reservations {
            let nodes = hosts.iter().filter_map(|host| by_name.get(host.as_str()));
            let number = nodes.filter(|node| is_in(node)).count();
            page.sample(&name, &[("reservation", reservation)], float(number as u64));
        }
    }
}
