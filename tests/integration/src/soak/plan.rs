//! What a seed means: who does what when, and what breaks meanwhile. Pure.
//!
//! The same seed, number of jobs and form give the same plan. When things happen exactly is up to the machine, so a failing seed is
//! likely to fail again, not certain.

mod faults;
mod works;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::random::Random;

/// Who submits. Carol's account may use two CPUs at a time, so her jobs wait for a limit.
const USERS: [&str; 3] = ["alice", "bob", "carol"];
/// Nodes that jobs of no special place run on. `n3` and `n4` fail now and then.
const STEADY: [&str; 2] = ["n1", "n2"];
const FAILING: [&str; 2] = ["n3", "n4"];
/// The node that nobody uses but jobs that are preempted, and who preempts them.
pub(super) const ARENA: &str = "n5";

/// How much is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A few faults, within about three minutes: for `make test`.
    Short,
    /// Every kind of fault, as long as there are jobs.
    Long,
}

/// How the mesh asks Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// By its commands.
    Commands,
    /// By slurmrestd, which is killed, too.
    Rest,
}

/// What somebody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A job that ends by itself with this code.
    Exit { code: u32, low: bool },
    /// A job that dies of this signal.
    Signal { signal: u32 },
    /// An array whose every fourth task fails.
    Array {
        tasks: u32,
        throttle: u32,
        low: bool,
    },
    /// An array that is cancelled while some of its tasks run.
    ArrayCancelled { tasks: u32 },
    /// An array of which one waiting task is cancelled this many seconds after its submission, then all others.
    TaskCancelled { tasks: u32, task: u32, after: u32 },
    /// Cancelled while it waits for its begin time.
    CancelledWaiting,
    /// Cancelled while it runs.
    CancelledRunning,
    /// Runs into its time limit.
    TimedOut,
    /// Held, then released; it starts at once, or waits for its begin time.
    Held {
        by_admin: bool,
        at_submit: bool,
        starts: bool,
    },
    /// Requeued while it runs; held then, or not.
    Requeued { held: bool },
    /// Requeued some seconds after it ended by itself with this code; with both ingests away from before its end on, or not.
    FinishedRequeued { code: u32, unseen: bool },
    /// Preempted by a job of a better partition.
    Preempted { requeue: bool },
    /// Its node is set down.
    NodeDown { node: &'static str, requeue: bool },
    /// Its node's slurmd and everything it started is killed.
    NodeKilled { node: &'static str },
    /// A node is drained and resumed.
    Drained { node: &'static str },
    /// Suspended and resumed, then it ends or is cancelled.
    Suspended { twice: bool, cancelled: bool },
    /// Suspended, and over within about a second of that or of its resume.
    SuspendedBriefly { resumed: bool, cancelled: bool },
    /// A job that waits for another, which succeeds or not.
    Dependent { succeeds: bool },
    /// A heterogeneous job of two components.
    Het,
    /// Gives back one of two nodes.
    Resized,
    /// Two jobs in a QOS that lets each user run one.
    Limited,
    /// A job that Slurm refuses.
    Refused,
}

impl Kind {
    /// How many jobs or tasks this is.
    const fn jobs(&self) -> u32 {
        match self {
            Self::Array { tasks, .. }
            | Self::ArrayCancelled { tasks }
            | Self::TaskCancelled { tasks, .. } => *tasks,
            Self::Preempted { .. } | Self::Dependent { .. } | Self::Het | Self::Limited => 2,
            Self::Drained { .. } => 0,
            _ => 1,
        }
    }
}

/// Something somebody does at some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) number: usize,
    pub(super) at: Duration,
    pub(super) user: &'static str,
    pub(super) kind: Kind,
}

/// What breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// A service is killed (-9).
    Kill(&'static str),
    /// The one of this service's replicas that leads is killed (-9).
    KillLeader(&'static str),
    /// A service stands still (SIGSTOP).
    Pause(&'static str),
    /// The one of this service's replicas that leads stands still, until after another has taken over.
    PauseLeader(&'static str),
    /// nats-server is killed (-9).
    Nats,
    /// slurmctld is restarted.
    Slurmctld,
    /// slurmdbd is killed (-9).
    Slurmdbd,
    /// slurmrestd is killed (-9).
    Slurmrestd,
    /// The hooks find no configuration, and ring nobody.
    HooksOff,
    /// NATS is away and the hooks' spool is full.
    SpoolFull,
    /// The clock of the mesh goes wrong by these seconds.
    Clock(i64),
}

impl Break {
    /// What faults are counted by.
    pub(super) fn kind(self) -> String {
        match self {
            Self::Clock(_) => "clock of the mesh wrong".to_owned(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(name) => write!(f, "{name} killed"),
            Self::KillLeader(name) => write!(f, "leading {name} killed"),
            Self::Pause(name) => write!(f, "{name} paused"),
            Self::PauseLeader(name) => write!(f, "leading {name} paused"),
            Self::Nats => write!(f, "nats-server killed"),
            Self::Slurmctld => write!(f, "slurmctld restarted"),
            Self::Slurmdbd => write!(f, "slurmdbd killed"),
            Self::Slurmrestd => write!(f, "slurmrestd killed"),
            Self::HooksOff => write!(f, "hooks off"),
            Self::SpoolFull => write!(f, "nats-server killed and the hooks' spool full"),
            Self::Clock(offset) => write!(f, "clock of the mesh wrong by {offset:+} s"),
        }
    }
}

/// Something that breaks at some time, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) what: Break,
}

/// Everything a seed means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// How many jobs and tasks.
    pub jobs: u32,
    /// How much is broken.
    pub form: Form,
    /// How the mesh asks Slurm.
    pub source: Source,
    pub(super) works: Vec<Work>,
    /// Two sequences that go on at the same time: faults of services, and of everything around them.
    pub(super) faults: [Vec<Fault>; 2],
}

impl Plan {
    /// Draws the plan.
    pub fn draw(seed: u64, jobs: u32, form: Form, source: Source) -> Self {
        let mut random = Random::new(seed);
        let mut kinds = works::at_least(&mut random, form);
        kinds.retain_mut(|kind| works::fit(kind, source));
        let mut count: u32 = kinds.iter().map(Kind::jobs).sum();
        while count < jobs {
            let mut kind = works::more(&mut random, jobs - count, form);
            if works::fit(&mut kind, source) {
                count += kind.jobs();
                kinds.push(kind);
            }
        }
        random.shuffle(&mut kinds);
        let pace = match source {
            // About three jobs a second: what two processors do while everything else goes on.
            Source::Commands => 300,
            // Several sweeps go on meanwhile, which are 30 s apart.
            Source::Rest => 1_500,
        };
        let span = Duration::from_millis(u64::from(jobs) * pace);
        let mut works: Vec<Work> = kinds
            .into_iter()
            .map(|kind| Work {
                number: 0,
                at: random.time(Duration::ZERO, span),
                user: random.pick(&USERS).unwrap_or(USERS[0]),
                kind,
            })
            .collect();
        works.sort_by_key(|work| work.at);
        for (number, work) in works.iter_mut().enumerate() {
            work.number = number + 1;
            // Two CPUs are too few for these, and then they would wait for something else than they are about.
            if !matches!(
                work.kind,
                Kind::Exit { .. } | Kind::Signal { .. } | Kind::Array { .. } | Kind::Het
            ) && work.user == "carol"
            {
                work.user = USERS[number % 2];
            }
        }
        let faults = match form {
            Form::Short => faults::short(&mut random, span, source),
            Form::Long => faults::long(&mut random, span, source),
        };
        Self {
            seed,
            jobs: count,
            form,
            source,
            works,
            faults,
        }
    }

    /// What breaks when, a line each.
    pub fn schedule(&self) -> String {
        let mut faults: Vec<&Fault> = self.faults.iter().flatten().collect();
        faults.sort_by_key(|fault| fault.at);
        let lines = faults.into_iter().map(|fault| {
            let (at, lasts) = (fault.at.as_secs_f64(), fault.lasts.as_secs_f64());
            format!("{at:7.1} s  fault: {} for {lasts:.1} s\n", fault.what)
        });
        lines.collect()
    }

    /// How many of each kind break.
    pub fn faults(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for fault in self.faults.iter().flatten() {
            *kinds.entry(fault.what.kind()).or_default() += 1;
        }
        kinds
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for work in &self.works {
            let at = work.at.as_secs_f64();
            writeln!(
                f,
                "{at:7.1} s  #{:<4} {:6} {:?}",
                work.number, work.user, work.kind
            )?;
        }
        f.write_str(&self.schedule())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Service;

    fn draw(seed: u64, form: Form) -> Plan {
        Plan::draw(seed, 300, form, Source::Commands)
    }

    #[test]
    fn a_seed_replays() {
        for form in [Form::Short, Form::Long] {
            assert_eq!(draw(7, form), draw(7, form));
            assert_ne!(draw(7, form), draw(8, form));
        }
    }

    #[test]
    fn there_are_as_many_jobs_as_asked_for() {
        for seed in 0..50 {
            let plan = Plan::draw(seed, 250, Form::Long, Source::Commands);
            let jobs: u32 = plan.works.iter().map(|work| work.kind.jobs()).sum();
            assert!((250..260).contains(&jobs), "{jobs} jobs with seed {seed}");
            assert_eq!(plan.jobs, jobs);
        }
    }

    #[test]
    fn the_long_form_breaks_everything() {
        for seed in 0..50 {
            let faults = draw(seed, Form::Long).faults();
            for service in Service::ALL {
                let killed = faults.keys().filter(|kind| kind.ends_with("killed"));
                assert!(killed.clone().any(|kind| kind.contains(service)));
            }
            for kind in [
                "leading ingest paused",
                "leading node-watcher paused",
                "nats-server killed",
                "slurmctld restarted",
                "slurmdbd killed",
                "hooks off",
                "nats-server killed and the hooks' spool full",
                "clock of the mesh wrong",
            ] {
                assert!(faults.contains_key(kind), "{kind} with seed {seed}");
            }
        }
    }

    #[test]
    fn by_slurmrestd_nothing_is_done_that_only_sweeps_would_show() {
        for seed in 0..50 {
            let plan = Plan::draw(seed, 250, Form::Long, Source::Rest);
            assert!(plan.faults().contains_key("slurmrestd killed"));
            assert!(!plan.works.iter().any(|work| matches!(
                work.kind,
                Kind::TaskCancelled { .. } | Kind::Suspended { twice: true, .. }
            )));
        }
    }

    #[test]
    fn faults_of_a_sequence_come_one_after_the_other() {
        for seed in 0..50 {
            for faults in Plan::draw(seed, 250, Form::Long, Source::Rest).faults {
                assert!(faults.is_sorted_by_key(|fault| fault.at));
            }
        }
    }
}
