//! The driver's own log: what it did, and what it read back. The oracle for everything Slurm keeps no time of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use chrono::Utc;

use super::Run;
use super::plan::Break;

/// A job that was seen waiting for one reason until sweeps must have seen it.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) job: u32,
    /// Slurm's word.
    pub(super) reason: String,
    /// When it was read back first and last, Unix seconds.
    pub(super) from: i64,
    pub(super) until: i64,
}

/// A job that was held.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) job: u32,
    /// Whether sweeps must have seen it held.
    pub(super) polled: bool,
    /// Whether it was released such that a sweep or its start shows it.
    pub(super) released: bool,
}

/// A suspend or a resume.
#[derive(Clone, Debug)]
pub(super) struct Pause {
    pub(super) job: u32,
    /// `suspended` or `resumed`.
    pub(super) word: &'static str,
    /// Whether Slurm's records prove it: of what happened in the second of the end they do not.
    pub(super) proven: bool,
    /// Between these moments, Unix seconds.
    pub(super) from: i64,
    pub(super) until: i64,
}

/// What was done to a node.
#[derive(Clone, Debug)]
pub(super) struct NodeAct {
    pub(super) node: String,
    /// `drain`, `down`, `killed`, `resume`
    pub(super) what: &'static str,
    /// The reason given.
    pub(super) reason: String,
    /// Just before it was done, Unix seconds.
    pub(super) from: i64,
    /// Whether node-watcher must have seen it.
    pub(super) seen: bool,
}

/// A run that is over as slurmctld showed it: for those that accounting never lists, and for ends that accounting has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) user: String,
    pub(super) start: Option<i64>,
    pub(super) end: i64,
    pub(super) state: String,
    pub(super) nodes: String,
}

/// A fault, with the times it began and ended (Unix seconds).
#[derive(Clone, Debug)]
pub(super) struct Broken {
    pub(super) what: Break,
    pub(super) from: i64,
    pub(super) until: i64,
}

/// The log.
#[derive(Debug)]
pub(super) struct Log {
    started: Instant,
    /// Ids of everything that was submitted.
    pub(super) jobs: BTreeSet<u32>,
    /// How many tasks each array has.
    pub(super) arrays: BTreeMap<u32, u32>,
    pub(super) waits: Vec<Wait>,
    pub(super) holds: Vec<Hold>,
    pub(super) pauses: Vec<Pause>,
    /// Tasks that were cancelled while they waited, each alone.
    pub(super) cancelled_tasks: Vec<(u32, u32)>,
    pub(super) nodes: Vec<NodeAct>,
    /// Jobs that were requeued after they had ended.
    pub(super) requeued: BTreeSet<u32>,
    /// By run.
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
            requeued: BTreeSet::new(),
            witnesses: BTreeMap::new(),
            broken: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Notes a line with the time.
    pub(super) fn note(&mut self, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
        let line = format!("{at:7.1} s  {}  {text}", Utc::now().format("%H:%M:%S%.3f"));
        self.lines.push(line);
    }

    /// Whether something of this kind was broken at some time between these.
    pub(super) fn was_broken(&self, is: impl Fn(Break) -> bool, from: i64, until: i64) -> bool {
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
