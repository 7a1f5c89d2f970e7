//! Traces from a seed, after Lublin and Feitelson's model (The workload on parallel supercomputers, 2003): sizes from a two-stage
//! uniform distribution of log2, with powers of two preferred; run times from a hyper-gamma distribution whose mixture depends on the
//! size; arrivals with a daily cycle. Time limits are rounded up to usual values, and most are far above the run time.

use crate::queue::{Resources, Seconds};
use crate::random::Random;

use super::{Trace, TraceJob};

/// Kinds of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Load 0.91, the same all the time.
    Stationary,
    /// Load 0.75.
    Light,
    /// Starts empty, with load 1.6 for a week.
    Overload,
    /// Load 0.85, with bursts of one user's equal jobs.
    Bursts,
    /// Load 0.8 for the first half, 0.95 and shorter time limits for the second.
    Changing,
}

impl Kind {
    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "stationary" => Some(Self::Stationary),
            "light" => Some(Self::Light),
            "overload" => Some(Self::Overload),
            "bursts" => Some(Self::Bursts),
            "changing" => Some(Self::Changing),
            _ => None,
        }
    }
}

/// Processors of a generated machine.
const PROCESSORS: i64 = 256;
const DAY: Seconds = 86_400;
const LIMITS: [Seconds; 11] = [
    900,
    1_800,
    3_600,
    7_200,
    14_400,
    28_800,
    43_200,
    DAY,
    2 * DAY,
    4 * DAY,
    7 * DAY,
];

/// A trace of `jobs` jobs, without starts: to be scheduled.
pub fn generate(kind: Kind, jobs: usize, seed: u64) -> Trace {
    let random = &mut Random::seeded(&[seed, kind as u64]);
    let mut drawn = Vec::with_capacity(jobs);
    let mut burst: Option<(usize, TraceJob)> = None;
    for index in 0..jobs {
        if let Some((left, job)) = &mut burst {
            drawn.push(job.clone());
            *left -= 1;
            if *left == 0 {
                burst = None;
            }
            continue;
        }
        let job = job(kind, random, index * 2 >= jobs);
        let is_short = job.size.0[0] <= 8 && job.run.is_some_and(|run| run <= 7_200);
        if kind == Kind::Bursts && is_short && random.below(60) == 0 {
            burst = Some((20 + random.below(180), job.clone()));
        }
        drawn.push(job);
    }
    // The time between arrivals gives the load.
    let work: i64 = drawn
        .iter()
        .map(|job| job.size.0[0] * job.run.unwrap_or(0))
        .sum();
    let gap = |load: f64| work as f64 / jobs as f64 / PROCESSORS as f64 / load;
    let mut time = 0.0;
    let mut last: Option<(String, Seconds, Resources)> = None;
    for (index, job) in drawn.iter_mut().enumerate() {
        let load = match kind {
            Kind::Stationary => 0.91,
            Kind::Light => 0.75,
            Kind::Overload => 1.6,
            Kind::Bursts => 0.85,
            Kind::Changing => {
                if index * 2 < jobs {
                    0.8
                } else {
                    0.95
                }
            }
        };
        let same = (job.user.clone(), job.limit, job.size);
        let is_burst = kind == Kind::Bursts && last.as_ref() == Some(&same);
        if !is_burst {
            time += gap(load) * exponential(random) / daily(time);
        } else {
            time += 1.0;
        }
        last = Some(same);
        job.eligible = time as Seconds;
        job.id = (index + 1).to_string();
    }
    if kind == Kind::Bursts {
        // A burst comes at once, so the others must come more slowly.
        let span = gap(0.85) * jobs as f64;
        let stretch = (span / time).max(1.0);
        for job in &mut drawn {
            job.eligible = (job.eligible as f64 * stretch) as Seconds;
        }
    }
    if kind == Kind::Overload {
        drawn.retain(|job| job.eligible < 7 * DAY);
    }
    Trace {
        capacity: Resources::cpus(PROCESSORS),
        jobs: drawn,
        group_age: 0,
        cut_at: None,
    }
}

fn job(kind: Kind, random: &mut Random, is_second_half: bool) -> TraceJob {
    let size = size(random);
    // Users differ in how well they know their run times.
    let user = (uniform(random) * uniform(random) * 60.0) as u64;
    let run = run(random, size);
    let median = 0.1 + 0.3 * ((user % 7) as f64 / 6.0);
    let mut share = (median * (0.8 * normal(random)).exp()).clamp(0.01, 1.0);
    if kind == Kind::Changing && is_second_half {
        share = (share * 2.0).min(1.0);
    }
    let wanted = (run as f64 / share) as Seconds;
    let limit = LIMITS
        .iter()
        .copied()
        .find(|limit| *limit >= wanted)
        .unwrap_or(7 * DAY);
    TraceJob {
        id: String::new(),
        eligible: 0,
        left: None,
        run: Some(run.min(limit)),
        cancelled: false,
        size: Resources::cpus(size),
        limit,
        user: user.to_string(),
        partition: "1".to_owned(),
        group: 0,
    }
}

fn size(random: &mut Random) -> i64 {
    if uniform(random) < 0.24 {
        return 1;
    }
    let (low, middle, high) = (0.8, 4.5, (PROCESSORS as f64).log2());
    let log = if uniform(random) < 0.86 {
        low + (middle - low) * uniform(random)
    } else {
        middle + (high - middle) * uniform(random)
    };
    let log = if uniform(random) < 0.75 {
        log.round()
    } else {
        log
    };
    (log.exp2().round() as i64).clamp(1, PROCESSORS)
}

/// Log run times: two gammas, the longer one more likely for small jobs.
fn run(random: &mut Random, size: i64) -> Seconds {
    let share = (-0.0054 * size as f64 + 0.78).clamp(0.0, 1.0);
    let log = if uniform(random) < share {
        gamma(random, 4.2) * 0.94
    } else {
        gamma(random, 312.0) * 0.03
    };
    (log.min(12.3).exp() as Seconds).max(1)
}

/// Arrivals by hour of the day, with mean 1.
fn daily(time: f64) -> f64 {
    let hour = (time / 3_600.0) % 24.0;
    1.0 + 0.7 * ((hour - 14.0) * std::f64::consts::PI / 12.0).cos()
}

fn uniform(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn exponential(random: &mut Random) -> f64 {
    -(1.0 - uniform(random)).ln()
}

fn normal(random: &mut Random) -> f64 {
    let radius = (2.0 * exponential(random)).sqrt();
    radius * (2.0 * std::f64::consts::PI * uniform(random)).cos()
}

/// Marsaglia and Tsang's method, for shapes of at least 1.
fn gamma(random: &mut Random, shape: f64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(random);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - uniform(random)).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}
