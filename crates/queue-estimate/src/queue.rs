//! What an estimate is made from: a queue at one moment.

use serde::{Deserialize, Serialize};

/// Seconds: a duration, or a Unix time.
pub type Seconds = i64;

/// Identifies a job, user or partition. The state of an estimator holds these hashes only, no names.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Key(pub u64);

impl Key {
    /// FNV-1a of the text.
    pub fn of(text: &str) -> Self {
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }
}

/// CPUs, memory in MiB, GPUs. An amount of 0 is not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources(pub [i64; 3]);

impl Resources {
    /// CPUs only.
    pub const fn cpus(cpus: i64) -> Self {
        Self([cpus, 0, 0])
    }

    /// True if all amounts are available in `free`.
    pub fn fits(self, free: Self) -> bool {
        (0..3).all(|i| self.0[i] == 0 || self.0[i] <= free.0[i])
    }

    /// The sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    /// The difference; negative amounts are kept.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - other.0[i]))
    }

    /// The largest share of any amount of `capacity`, in 1/1024, from 1 to 1024.
    pub fn share(self, capacity: Self) -> i64 {
        let share = |i: usize| match capacity.0[i] {
            0 => 0,
            all => self.0[i].saturating_mul(1024) / all,
        };
        (0..3).map(share).max().unwrap_or(0).clamp(1, 1024)
    }
}

/// Nodes that share a queue: a partition, or several with common nodes.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// What its usable nodes have.
    pub capacity: Resources,
    /// Slurm's reservations, each of which takes an amount away for some time.
    pub reservations: Vec<Reservation>,
}

/// A reservation of Slurm: a job whose time limit reaches into it cannot use what it takes.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Begin.
    pub start: Seconds,
    /// End.
    pub end: Seconds,
    /// Amount.
    pub size: Resources,
}

impl Pool {
    /// What reservations take away from a job that would run in this period.
    pub(crate) fn reserved(&self, from: Seconds, to: Seconds) -> Resources {
        let overlapping = self
            .reservations
            .iter()
            .filter(|reservation| reservation.start < to && from < reservation.end);
        overlapping.fold(Resources::default(), |sum, reservation| {
            sum.plus(reservation.size)
        })
    }
}

/// A job that holds an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// The job.
    pub job: Key,
    /// Its owner.
    pub user: Key,
    /// Index of its pool.
    pub pool: usize,
    /// Its allocation.
    pub size: Resources,
    /// Start.
    pub start: Seconds,
    /// Time limit.
    pub limit: Seconds,
}

/// A job that waits for its turn.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The job.
    pub job: Key,
    /// Its owner.
    pub user: Key,
    /// Its partition.
    pub partition: Key,
    /// Indices of its pools; it starts in the first that has room.
    pub pools: Vec<usize>,
    /// What it asks for.
    pub size: Resources,
    /// Since when it is eligible.
    pub eligible: Seconds,
    /// Time limit.
    pub limit: Seconds,
    /// Slurm's own plan, if it is fresh.
    pub planned: Option<Seconds>,
}

/// A queue at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When.
    pub at: Seconds,
    /// Pools.
    pub pools: Vec<Pool>,
    /// Jobs that hold an allocation.
    pub running: Vec<Running>,
    /// Waiting jobs in the order in which the scheduler looks at them.
    pub waiting: Vec<Waiting>,
}
