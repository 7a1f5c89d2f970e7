//! The plan of a seed: actions of users and faults, with their times. Pure.
//!
//! The same seed, number of jobs and form give the same plan. The exact times depend on the machine, so a failing seed is likely to
//! fail again, but not certain to.

mod faults;
mod works;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::random::Random;

/// Submitting users. Carol's account is limited to two CPUs, so her jobs wait for a limit.
const USERS: [&str; 3] = ["alice", "bob", "carol"];
/// Nodes of ordinary jobs. `n3` and `n4` fail occasionally.
const STEADY: [&str; 2] = ["n1", "n2"];
const FAILING: [&str; 2] = ["n3", "n4"];
/// The node reserved for preempted jobs and the jobs that preempt them.
pub(super) const ARENA: &str = "n5";

/// Amount of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A few faults, within about three minutes: for `make test`.
    Short,
    /// Every kind of fault, as long as there are jobs.
    Long,
}

/// How the mesh queries Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// With its commands.
    Commands,
    /// With slurmrestd, which is killed, too.
    Rest,
}

/// An action of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A job that ends by itself with this code.
    Exit { code: u32, low: bool },
    /// A job that dies of this signal.
    Signal { signal: u32 },
    /// An array in which every fourth task fails.
    Array {
        tasks: u32,
        throttle: u32,
        low: bool,
    },
    /// An array that is cancelled while some of its tasks run.
    ArrayCancelled { tasks: u32 },
    /// An array of which one pending task is cancelled this many seconds after its submission, then all others.
    TaskCancelled { tasks: u32, task: u32, after: u32 },
    /// Cancelled while it waits for its begin time.
    CancelledWaiting,
    /// Cancelled while it runs.
    CancelledRunning,
    /// Reaches its time limit.
    TimedOut,
    /// Held, then released; it starts at once, or waits for its begin time.
    Held {
        by_admin: bool,
        at_submit: bool,
        starts: bool,
    },
    /// Requeued while it runs, and held or not.
    Requeued { held: bool },
    /// Requeued some seconds after it ended by itself with this code. With `unseen`, both ingests are stopped from before its end.
    FinishedRequeued { code: u32, unseen: bool },
    /// Preempted by a job of a better partition.
    Preempted { requeue: bool },
    /// Its node is set down.
    NodeDown { node: &'static str, requeue: bool },
    /// Its node's slurmd and all processes started by it are killed.
    NodeKilled { node: &'static str },
    /// A node is drained and resumed.
    Drained { node: &'static str },
    /// Suspended and resumed, then it ends or is cancelled.
    Suspended { twice: bool, cancelled: bool },
    /// Suspended, and ended within about a second of that or of its resume.
    SuspendedBriefly { resumed: bool, end: BriefEnd },
    /// A job that waits for another one, which succeeds or not.
    Dependent { succeeds: bool },
    /// A heterogeneous job of two components.
    Het,
    /// Releases one of two nodes.
    Resized,
    /// Two jobs in a QOS that allows each user one running job.
    Limited,
    /// A job that Slurm refuses.
    Refused,
}

/// How a run ends within about a second of its suspension or resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BriefEnd {
    /// By itself, once resumed.
    Completed,
    /// By `scancel`.
    Cancelled,
    /// By `scontrol requeue`; the next run ends at once.
    Requeued,
    /// Its node is set down, and it is not requeued.
    NodeDown(&'static str),
}

impl Kind {
    /// Number of jobs or tasks.
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

/// An action with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) number: usize,
    pub(super) at: Duration,
    pub(super) user: &'static str,
    pub(super) kind: Kind,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// A service is killed (-9).
    Kill(&'static str),
    /// The leader among this service's replicas is killed (-9).
    KillLeader(&'static str),
    /// A service is paused (SIGSTOP).
    Pause(&'static str),
    /// The leader among this service's replicas is paused until another one has taken over.
    PauseLeader(&'static str),
    /// nats-server is killed (-9).
    Nats,
    /// slurmctld is restarted.
    Slurmctld,
    /// slurmdbd is killed (-9).
    Slurmdbd,
    /// slurmrestd is killed (-9).
    Slurmrestd,
    /// The hooks find no configuration and send nothing.
    HooksOff,
    /// NATS is unavailable and the hooks' spool is full.
    SpoolFull,
    /// The clock of the mesh is wrong by this many seconds.
    Clock(i64),
}

impl FaultKind {
    /// Name under which faults are counted.
    pub(super) fn kind(self) -> String {
        match self {
            Self::Clock(_) => "clock of the mesh wrong".to_owned(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for FaultKind {
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

/// A fault with its time and duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) what: FaultKind,
}

/// A complete plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Number of jobs and tasks.
    pub jobs: u32,
    /// Amount of faults.
    pub form: Form,
    /// How the mesh queries Slurm.
    pub source: Source,
    pub(super) works: Vec<Work>,
    /// Two concurrent sequences: faults of services, and of everything around them.
    pub(super) faults: [Vec<Fault>; 2],
}

impl Plan {
    /// Generates the plan.
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
            // About three jobs a second, which two processors can handle beside everything else.
            Source::Commands => 300,
            // Long enough for several polls, which are 30 s apart.
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
            // Two CPUs are too few for these jobs, which would then wait for another reason than intended.
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

    /// The faults with their times, one per line.
    pub fn schedule(&self) -> String {
        let mut faults: Vec<&Fault> = self.faults.iter().flatten().collect();
        faults.sort_by_key(|fault| fault.at);
        let lines = faults.into_iter().map(|fault| {
            let (at, lasts) = (fault.at.as_secs_f64(), fault.lasts.as_secs_f64());
            format!("{at:7.1} s  fault: {} for {lasts:.1} s\n", fault.what)
        });
        lines.collect()
    }

    /// Number of faults of each kind.
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
    use integration::Programs;

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
            for service in Programs::SERVICES {
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
    fn over_slurmrestd_nothing_depends_on_polls_alone() {
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
