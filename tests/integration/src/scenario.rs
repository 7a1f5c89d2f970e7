//! A day in short, played by real jobs, and what must come of it.
//!
//! Every part submits its job at once and then does what is its own to do (cancel, requeue, resume a node) when the moment has
//! come, whatever the others do. What must come of it is data, so that [`complaints`] can say what is missing and what is
//! too much.

mod check;
mod play;

use std::collections::BTreeMap;

pub use check::{complaints, node_complaints, repeated};
pub use play::{MANAGER, play};

/// What must come of one submission: the words of `docs/reference/job-events.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// What it shows.
    pub title: &'static str,
    /// Who submitted it.
    pub user: String,
    /// The job.
    pub job: u32,
    /// The recorded events of each run of the job itself, oldest run first.
    pub runs: Vec<Vec<&'static str>>,
    /// The recorded events of each array task.
    pub tasks: BTreeMap<u32, Vec<&'static str>>,
    /// Whether it waits long enough for `pending` and an explanation.
    pub explained: bool,
}

impl Expected {
    /// A job of one run.
    pub fn new(title: &'static str, user: &str, job: u32, words: &[&'static str]) -> Self {
        Self {
            title,
            user: user.to_owned(),
            job,
            runs: vec![words.to_vec()],
            tasks: BTreeMap::new(),
            explained: false,
        }
    }

    /// One more run of it, after a requeue.
    pub fn then(mut self, words: &[&'static str]) -> Self {
        self.runs.push(words.to_vec());
        self
    }

    /// A task of it.
    pub fn task(mut self, task: u32, words: &[&'static str]) -> Self {
        self.tasks.insert(task, words.to_vec());
        self
    }

    /// It waits long enough for `pending` and an explanation.
    pub const fn explained(mut self) -> Self {
        self.explained = true;
        self
    }
}

/// A part of the day that cannot be played here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impossible {
    /// What it would have shown.
    pub title: &'static str,
    /// Why not.
    pub why: String,
}

/// The day.
#[derive(Clone, Debug, Default)]
pub struct Day {
    /// What must come of it.
    pub expected: Vec<Expected>,
    /// What cannot be played here.
    pub impossible: Vec<Impossible>,
}

/// What the machines of the test cluster cost.
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

/// Who the users of the test cluster are.
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
