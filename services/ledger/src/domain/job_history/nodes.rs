//! Events of a job's nodes while it ran there. They are part of its history, because they may
//! explain its end.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use slurm_types::HostList;

use super::{RecordedEvent, Run, in_order, occurred_at};

/// Node failures are detected late: node events up to this time after a run's end belong to the
/// run.
const NODE_EVENT_GRACE: TimeDelta = TimeDelta::minutes(1);
/// Maximum number of nodes. Histories with more nodes omit node events.
const MAX_NODES: usize = 1024;

/// Nodes during a time window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWindow {
    /// Names of the nodes.
    pub nodes: BTreeSet<String>,
    /// Start of the window.
    pub from: DateTime<Utc>,
    /// End of the window, `None` if the run has not ended.
    pub to: Option<DateTime<Utc>>,
}

impl NodeWindow {
    /// Returns the nodes of a run. `None` if the run has not started, or its host list is invalid
    /// or too long.
    pub(super) fn of(
        nodes: &str,
        from: Option<DateTime<Utc>>,
        ended: Option<DateTime<Utc>>,
    ) -> Option<Self> {
        let nodes = HostList::expand_up_to(nodes, MAX_NODES).ok()?;
        let window = Self {
            nodes: nodes.into_iter().collect(),
            from: from?,
            to: ended.map(|ended| ended + NODE_EVENT_GRACE),
        };
        (!window.nodes.is_empty()).then_some(window)
    }

    fn has(&self, recorded: &RecordedEvent) -> bool {
        let Some(Payload::Node(event)) = &recorded.event.payload else {
            return false;
        };
        let is_of_it = |node: &str| self.nodes.contains(node);
        let at = occurred_at(&recorded.event);
        event.node.as_ref().is_some_and(|node| is_of_it(&node.name))
            && at.is_some_and(|at| self.from <= at && self.to.is_none_or(|to| at <= to))
    }
}

/// Returns all nodes of these runs, from the first start to the last end. `None` if there are no
/// nodes, or too many.
pub fn node_windows(runs: &[Run]) -> Option<NodeWindow> {
    let mut all: Option<NodeWindow> = None;
    for window in runs.iter().filter_map(|run| run.window.as_ref()) {
        let Some(all) = &mut all else {
            all = Some(window.clone());
            continue;
        };
        all.nodes.extend(window.nodes.iter().cloned());
        if all.nodes.len() > MAX_NODES {
            return None;
        }
        all.from = all.from.min(window.from);
        all.to = all.to.zip(window.to).map(|(one, other)| one.max(other));
    }
    all
}

/// Adds to each run the events of its nodes during its window.
pub fn add_node_events(runs: &mut [Run], events: &[RecordedEvent]) {
    for run in runs {
        let Some(window) = &run.window else { continue };
        let before = run.timeline.len();
        let of_it = events.iter().filter(|recorded| window.has(recorded));
        run.timeline.extend(of_it.cloned());
        if run.timeline.len() > before {
            in_order(&mut run.timeline);
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
    use mesh_events::{Event, timestamp};

    use super::super::Summary;
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn run(nodes: &str, from: i64, to: Option<i64>) -> Run {
        Run {
            key: "job/5/100".into(),
            summary: Summary::default(),
            window: NodeWindow::of(nodes, Some(at(from)), to.map(at)),
            timeline: Vec::new(),
        }
    }

    fn down(seq: u64, node: &str, seconds: i64) -> RecordedEvent {
        let node = Node {
            name: node.into(),
            ..Node::default()
        };
        RecordedEvent {
            seq,
            event: Event {
                occurred_at: Some(timestamp(at(seconds))),
                payload: Some(Payload::Node(NodeEvent {
                    node: Some(node),
                    ..NodeEvent::default()
                })),
                ..Event::default()
            },
        }
    }

    #[test]
    fn a_run_has_the_events_of_its_nodes_during_its_window() {
        let mut runs = [run("n[1-2]", 100, Some(200)), run("n2", 300, None)];
        let all = node_windows(&runs).unwrap();
        assert_eq!(all.nodes.len(), 2);
        assert_eq!((all.from, all.to), (at(100), None));
        let events = [
            down(1, "n1", 99),
            down(2, "n2", 150),
            down(3, "n3", 150),
            down(4, "n1", 260),
            down(5, "n1", 261),
            down(6, "n2", 400),
        ];
        add_node_events(&mut runs, &events);
        let timelines = runs.map(|run| {
            run.timeline
                .iter()
                .map(|event| event.seq)
                .collect::<Vec<_>>()
        });
        assert_eq!(timelines, [vec![2, 4], vec![6]]);
    }

    #[test]
    fn runs_without_nodes_or_with_too_many_have_no_window() {
        assert_eq!(
            node_windows(&[run("", 100, None), run("n[1", 100, None)]),
            None
        );
        assert_eq!(node_windows(&[run("n[1-1025]", 100, None)]), None);
        let many = [run("n[1-1000]", 100, None), run("m[1-1000]", 100, None)];
        assert_eq!(node_windows(&many), None);
        assert_eq!(NodeWindow::of("n1", None, None), None);
    }
}
