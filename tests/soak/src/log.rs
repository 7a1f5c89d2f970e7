//! The driver's log: its actions and the states it read. The oracle for facts whose time Slurm does not store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use chrono::Utc;
use slurm_types::HostList;

use super::Run;
use super::plan::FaultKind;

/// A job that was seen pending for one reason long enough for polls to have seen it.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) job: u32,
    /// Slurm's keyword.
    pub(super) reason: String,
    /// First time it was read, Unix seconds.
    pub(super) from: i64,
    pub(super) until: i64,
}

/// A job that was held.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) job: u32,
    /// True if polls must have seen it held.
    pub(super) polled: bool,
    /// True if its release is visible to a poll or by its start.
    pub(super) released: bool,
}

/// A suspend or a resume.
#[derive(Clone, Debug)]
pub(super) struct Pause {
    pub(super) job: u32,
    /// `suspended` or `resumed`.
    pub(super) event_name: &'static str,
    /// True if Slurm's records prove it. They do not for the second in which the job ended.
    pub(super) proven: bool,
    /// Earliest time, Unix seconds.
    pub(super) from: i64,
    pub(super) until: i64,
}

/// An action on a node.
#[derive(Clone, Debug)]
pub(super) struct NodeAct {
    pub(super) node: String,
    /// `drain`, `down`, `killed` or `resume`.
    pub(super) what: &'static str,
    /// The reason given.
    pub(super) reason: String,
    /// Time just before the action, Unix seconds.
    pub(super) from: i64,
    /// True if node-watcher must have seen it.
    pub(super) seen: bool,
}

/// An ended run as shown by slurmctld, for runs that accounting never lists and ends that it has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) user: String,
    pub(super) start: Option<i64>,
    pub(super) end: i64,
    pub(super) state: String,
    pub(super) nodes: String,
}

/// A fault, with the times of its begin and end (Unix seconds).
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) what: FaultKind,
    pub(super) from: i64,
    pub(super) until: i64,
}

/// The log.
#[derive(Debug)]
pub(super) struct Log {
    started: Instant,
    /// Ids of all submitted jobs.
    pub(super) jobs: BTreeSet<u32>,
    /// Number of tasks of each array.
    pub(super) arrays: BTreeMap<u32, u32>,
    pub(super) waits: Vec<Wait>,
    pub(super) holds: Vec<Hold>,
    pub(super) pauses: Vec<Pause>,
    /// Tasks that were cancelled individually while pending.
    pub(super) cancelled_tasks: Vec<(u32, u32)>,
    pub(super) nodes: Vec<NodeAct>,
    /// How often slurmctld set each node down because it did not respond, by its log.
    pub(super) unresponsive: BTreeMap<String, usize>,
    /// Jobs that were requeued after their end.
    pub(super) requeued: BTreeSet<u32>,
    /// Ended runs as shown by slurmctld.
    pub(super) witnesses: BTreeMap<Run, Witness>,
    pub(super) broken: Vec<Broken>,
    lines: Vec<String>,
}

impl Log {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            jobs: BTreeSet::new(),
            arrays: BTreeMap::new(),
            waits: Vec::new(),
            holds: Vec::new(),
            pauses: Vec::new(),
            cancelled_tasks: Vec::new(),
            nodes: Vec::new(),
            unresponsive: BTreeMap::new(),
            requeued: BTreeSet::new(),
            witnesses: BTreeMap::new(),
            broken: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Writes a line with the time.
    pub(super) fn note(&mut self, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
        let line = format!("{at:7.1} s  {}  {text}", Utc::now().format("%H:%M:%S%.3f"));
        self.lines.push(line);
    }

    /// Reads from slurmctld's log which nodes it set down by itself (`Nodes n[1,3] not responding, setting DOWN`, 22.05 to 26.05).
    pub(super) fn read_unresponsive(&mut self, slurmctld: &str) {
        self.unresponsive.clear();
        let lists = slurmctld.lines().filter_map(|line| {
            let (_, list) = line.split_once("error: Nodes ")?;
            list.split_once(" not responding, setting DOWN")
        });
        for node in lists
            .filter_map(|(list, _)| HostList::expand(list).ok())
            .flatten()
        {
            *self.unresponsive.entry(node).or_default() += 1;
        }
    }

    /// True if such a fault was active at some time in this interval.
    pub(super) fn was_broken(&self, is: impl Fn(FaultKind) -> bool, from: i64, until: i64) -> bool {
        let broken = self.broken.iter();
        broken
            .filter(|broken| broken.from <= until && broken.until >= from)
            .any(|broken| is(broken.what))
    }

    /// All lines.
    pub(super) fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }
}

/// Unix seconds now.
pub(super) fn now() -> i64 {
    Utc::now().timestamp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_slurmctld_set_down_are_counted() {
        let mut log = Log::new();
        log.read_unresponsive(
            "[2026-11-26T11:12:38.000] error: Nodes n4 not responding, setting DOWN\n\
             [2026-11-26T11:13:48.011] error: Nodes n[3-4] not responding, setting DOWN\n\
             [2026-11-26T11:13:48.100] error: Nodes n5 not responding\n",
        );
        let expected = [("n3".to_owned(), 1), ("n4".to_owned(), 2)];
        assert_eq!(log.unresponsive, BTreeMap::from(expected));
    }
}
