//! A short day, played by real jobs, with its expected results.
//!
//! Every part submits its job at once and performs its own actions (cancel, requeue, resume a node) when their time has come,
//! independently of the others. The expected results are data, so that [`complaints`] can name missing and surplus events.

mod check;
mod play;

use std::collections::BTreeMap;

pub use check::{complaints, node_complaints, repeated};
pub use play::{MANAGER, play};

/// Expected results of one submission, in the terms of `docs/reference/job-events.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Title of the part.
    pub title: &'static str,
    /// Submitting user.
    pub user: String,
    /// Job id.
    pub job: u32,
    /// Recorded events of each run of the job itself, oldest run first.
    pub runs: Vec<Vec<&'static str>>,
    /// Recorded events of each array task.
    pub tasks: BTreeMap<u32, Vec<&'static str>>,
    /// True if it is pending long enough for `pending` and an explanation.
    pub explained: bool,
}

impl Expected {
    /// A job with one run.
    pub fn new(title: &'static str, user: &str, job: u32, event_names: &[&'static str]) -> Self {
        Self {
            title,
            user: user.to_owned(),
            job,
            runs: vec![event_names.to_vec()],
            tasks: BTreeMap::new(),
            explained: false,
        }
    }

    /// Adds a run after a requeue.
    pub fn then(mut self, event_names: &[&'static str]) -> Self {
        self.runs.push(event_names.to_vec());
        self
    }

    /// Adds a task.
    pub fn task(mut self, task: u32, event_names: &[&'static str]) -> Self {
        self.tasks.insert(task, event_names.to_vec());
        self
    }

    /// Expects `pending` and an explanation.
    pub const fn explained(mut self) -> Self {
        self.explained = true;
        self
    }
}

/// A part that cannot be played on this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impossible {
    /// Title of the part.
    pub title: &'static str,
    /// The reason.
    pub why: String,
}

/// A played day.
#[derive(Clone, Debug, Default)]
pub struct Day {
    /// Expected results.
    pub expected: Vec<Expected>,
    /// Parts that cannot be played here.
    pub impossible: Vec<Impossible>,
}

/// Prices of the test cluster's nodes.
pub const PRICE_BOOK: &str = r#"name = "demo"
version = "1"
currency = "EUR"
mode = "max_share"

[[node_type]]
name = "cpu"
nodes = "n[1-2]"
cpu = 4
mem = 4000
    [[node_type.price]]
    on_demand = "36"

[[node_type]]
name = "a100"
nodes = "n[3-4]"
cpu = 4
mem = 4000
gpu = 4
    [[node_type.price]]
    on_demand = "160.5"

[[node_type]]
name = "cloud"
nodes = "c[1-2]"
cpu = 4
mem = 4000
    [[node_type.price]]
    on_demand = "41"
    spot = "12.3"

[[spot]]
nodes = "c[1-2]"
"#;

/// Identities of the test cluster's users.
pub const IDENTITIES: &str = r#"[users.alice]
issuer = "https://id.example.org"
subject = "248289761001"
email = "alice@example.org"
name = "Alice Adams"

[users.bob]
issuer = "https://id.example.org"
subject = "248289761002"
email = "bob@example.org"
name = "Bob Brown"

[users.carol]
issuer = "https://id.example.org"
subject = "248289761003"
email = "carol@example.org"
name = "Carol Clark"
"#;
