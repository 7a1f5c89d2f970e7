//! The rows of `sacctmgr -n -P show event event=node`.

use slurm_types::{NodeState, UnixTime};

use super::association::read;
use crate::drift::Unread;
use crate::record::NodeEventRecord;

/// Columns. The reason is last, because it may contain a `|`. `State` would hide that a drained node is down.
pub(crate) const NODE_EVENT_FORMAT: &str = "format=NodeName,Start,End,StateRaw,User,Reason";

/// The downtimes, and the rows that could not be parsed.
pub(crate) fn node_events(output: &str) -> (Vec<NodeEventRecord>, Unread) {
    read(output, node_event)
}

fn node_event(line: &str) -> Option<NodeEventRecord> {
    let row: Vec<&str> = line.splitn(6, '|').collect();
    let &[node, start, end, state, user, reason] = &row[..] else {
        return None;
    };
    let time = |text: &str| text.parse().ok().map(UnixTime::from_secs);
    let end = match end {
        "Unknown" => None,
        end => Some(time(end)?),
    };
    // `root(0)`
    let user = user.split_once('(').map_or(user, |(name, _)| name);
    (!node.is_empty()).then_some(())?;
    Some(NodeEventRecord {
        node: node.to_owned(),
        start: time(start)?,
        end,
        state: NodeState::from_bits(state.parse().ok()?)?,
        user: user.to_owned(),
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use slurm_types::{NodeBaseState, NodeFlag};

    use super::*;

    #[test]
    fn downtimes_of_three_releases_are_read_alike() {
        for printed in [
            include_str!("../../tests/data/22.05/sacctmgr/event.txt"),
            include_str!("../../tests/data/24.11/sacctmgr/event.txt"),
            include_str!("../../tests/data/26.05/sacctmgr/event.txt"),
        ] {
            let (found, unread) = node_events(printed);
            assert_eq!((found.len(), unread.count), (5, 0));
            let [powered_down, _, down, drained, both] = &found[..] else {
                panic!("{found:?}");
            };
            assert!(powered_down.end.is_none() && powered_down.state.has(NodeFlag::PoweredDown));
            assert_eq!((down.node.as_str(), down.user.as_str()), ("n1", "root"));
            assert_eq!(down.reason, "test it|x");
            assert_eq!(down.state.base, Some(NodeBaseState::Down));
            assert_eq!(drained.state.base, Some(NodeBaseState::Idle));
            assert!(drained.state.has(NodeFlag::Drain));
            assert_eq!(drained.end, Some(both.start));
            assert_eq!(both.state.base, Some(NodeBaseState::Down));
            assert!(both.state.has(NodeFlag::Drain));
        }
    }

    #[test]
    fn other_rows_are_unread() {
        for row in [
            "",
            "n1|1|2|1|root(0)",
            "|1|2|1|root(0)|x",
            "n1|now|2|1|root(0)|x",
            "n1|1|later|1|root(0)|x",
            "n1|1|2|down|root(0)|x",
            "n1|1|2|15|root(0)|x",
        ] {
            let (found, unread) = node_events(&format!("{row}\n"));
            assert_eq!((found.len(), unread.count), (0, 1), "{row}");
        }
    }
}
