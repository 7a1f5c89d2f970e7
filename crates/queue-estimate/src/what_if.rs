//! What if a request were different: the same forward runs with one job changed.
//!
//! Draws are seeded by snapshot time, job and number, so both queues have the same run times (common random numbers), and a difference
//! between their starts comes from the change alone. The quantiles of the changed job are those of its draws, stretched as the job's own
//! estimate is.

use crate::calibration;
use crate::draws::{self, DRAWS, RunningDraws};
use crate::estimator::Estimator;
use crate::history::{WHOLE_LIMIT, quantile};
use crate::queue::{Key, Seconds, Snapshot, Waiting};

/// A start that differs by no more is the same.
pub const MIN_GAIN: Seconds = 600;
/// Share of the draws, in percent, from which on a difference is probable.
pub const PROBABLE: usize = 60;

/// A changed request.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The job as it would be. It keeps its key.
    pub job: Waiting,
    /// Its index among the waiting jobs, once its old request is taken out.
    pub position: usize,
}

/// What a change would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Remaining wait that half of such jobs would not exceed. `None` if the job has no such estimate.
    pub p50: Option<Seconds>,
    /// Remaining wait that nine of ten such jobs would not exceed.
    pub p90: Option<Seconds>,
    /// Percent of the draws in which it starts more than ten minutes earlier.
    pub earlier: usize,
    /// Percent of the draws in which it starts more than ten minutes later.
    pub later: usize,
    /// By how much it starts earlier, in the median of the draws. Negative if later.
    pub gain: Seconds,
}

/// What a user's last runs say about a shorter time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShorterLimit {
    /// Runs known.
    pub runs: usize,
    /// Runs that used a larger part of their limit than the new limit is of the old one.
    pub ended: usize,
    /// The longest, as a part of the old limit.
    pub longest: Seconds,
}

impl ShorterLimit {
    /// True if the runs contradict the limit: one of ten would have been ended by it.
    pub const fn is_contradiction(self) -> bool {
        self.ended * 10 >= self.runs && self.ended > 0
    }
}

impl Estimator {
    /// Compares variants of a waiting job with the job as it is. `None` if the draws do not reach the job; `None` for a variant that they
    /// do not start.
    pub fn what_if(
        &self,
        snapshot: &Snapshot,
        index: usize,
        variants: &[Variant],
    ) -> Option<Vec<Option<Effect>>> {
        let mut running = RunningDraws::new();
        let base = self.drawn(snapshot, index, &mut running)?;
        let estimate = self.estimate(snapshot, &[index]).pop()?;
        let own = [estimate.p50, estimate.p90];
        let original = &snapshot.waiting[index];
        let (mut changed, positions) = reached(snapshot, index);
        let effects = variants.iter().map(|variant| {
            let position = positions.partition_point(|other| *other < variant.position);
            let mut job = variant.job.clone();
            job.job = original.job;
            changed.waiting.insert(position, job);
            let drawn = self.drawn(&changed, position, &mut running);
            changed.waiting.remove(position);
            Some(effect(&base, &drawn?, own, snapshot.at))
        });
        Some(effects.collect())
    }

    /// What the user's last runs say about a shorter limit. `None` if nothing is known.
    pub fn cut(&self, user: Key, old: Seconds, new: Seconds) -> Option<ShorterLimit> {
        let shares = self.run_times().last_of(user);
        let run = |share: u32| i64::from(share) * old / i64::from(WHOLE_LIMIT);
        let runs: Vec<Seconds> = shares.map(run).collect();
        Some(ShorterLimit {
            runs: runs.len(),
            ended: runs.iter().filter(|run| **run > new).count(),
            longest: runs.into_iter().max()?,
        })
    }

    /// The start of a job in each forward run. `None` if not all reach it.
    fn drawn(
        &self,
        snapshot: &Snapshot,
        index: usize,
        running: &mut RunningDraws,
    ) -> Option<Vec<Seconds>> {
        draws::by_draw(snapshot, index, self.run_times(), DRAWS, running)
    }
}

/// The queue without a job, as far as forward runs can reach, and the positions of its jobs in the whole queue without it.
fn reached(snapshot: &Snapshot, index: usize) -> (Snapshot, Vec<usize>) {
    let mut counts = vec![0; snapshot.pools.len()];
    let others = snapshot.waiting.iter().enumerate();
    let others = others
        .filter(|(other, _)| *other != index)
        .map(|(_, job)| job);
    let (mut waiting, mut positions) = (Vec::new(), Vec::new());
    for (position, job) in others.enumerate() {
        let is_reached = job
            .pools
            .iter()
            .any(|pool| counts[*pool] < draws::MAX_DRAWN);
        for pool in &job.pools {
            counts[*pool] += 1;
        }
        if is_reached {
            waiting.push(job.clone());
            positions.push(position);
        }
    }
    let queue = Snapshot {
        at: snapshot.at,
        waiting,
        running: snapshot.running.clone(),
        pools: snapshot.pools.clone(),
    };
    (queue, positions)
}

fn effect(base: &[Seconds], drawn: &[Seconds], own: [Option<Seconds>; 2], at: Seconds) -> Effect {
    let mut gains: Vec<Seconds> = base
        .iter()
        .zip(drawn)
        .map(|(base, start)| base - start)
        .collect();
    gains.sort_unstable();
    let percent = |count: usize| count * 100 / gains.len().max(1);
    let stretched = |share: usize, own: Option<Seconds>| {
        let of = |starts: &[Seconds]| {
            let mut starts = starts.to_vec();
            starts.sort_unstable();
            quantile(&starts, share).map(|start| calibration::log(start - at))
        };
        Some(calibration::from_log(
            calibration::log(own?) + of(drawn)? - of(base)?,
        ))
    };
    let p50 = stretched(50, own[0]);
    Effect {
        p50,
        p90: stretched(90, own[1]).max(p50),
        earlier: percent(gains.iter().filter(|gain| **gain > MIN_GAIN).count()),
        later: percent(gains.iter().filter(|gain| **gain < -MIN_GAIN).count()),
        gain: quantile(&gains, 50).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Pool, Resources, Running};

    /// Eight of ten CPUs are held for an hour; a job of ten waits for them, and one of two behind it.
    fn full() -> Snapshot {
        let running = Running {
            job: Key(1),
            user: Key(1),
            pool: 0,
            size: Resources::cpus(8),
            start: 0,
            limit: 3_600,
        };
        let waiting = |job, cpus, limit| Waiting {
            job: Key(job),
            user: Key(job),
            partition: Key(0),
            pools: vec![0],
            size: Resources::cpus(cpus),
            eligible: 0,
            limit,
            planned: None,
        };
        Snapshot {
            at: 0,
            pools: vec![Pool {
                capacity: Resources::cpus(10),
                ..Pool::default()
            }],
            running: vec![running],
            waiting: vec![waiting(2, 10, 3_600), waiting(3, 2, 7_200)],
        }
    }

    fn with_limit(limit: Seconds) -> Variant {
        let job = full().waiting.remove(1);
        Variant {
            job: Waiting { limit, ..job },
            position: 1,
        }
    }

    #[test]
    fn a_shorter_limit_lets_a_job_be_backfilled() {
        let variants = [with_limit(3_600), with_limit(7_200), with_limit(3_601)];
        let effects = Estimator::default().what_if(&full(), 1, &variants).unwrap();
        let effects: Vec<Effect> = effects.into_iter().flatten().collect();
        // Behind the large job, which runs for an hour after the first.
        assert_eq!((effects[0].earlier, effects[0].gain), (100, 7_200));
        assert_eq!(effects[0].p90, Some(0));
        for same in &effects[1..] {
            assert_eq!((same.earlier, same.later, same.gain), (0, 0, 0));
            assert_eq!(same.p90, Some(7_200));
        }
    }

    /// Two pools with more jobs than the draws reach.
    fn long() -> Snapshot {
        let mut queue = full();
        queue.pools.push(queue.pools[0].clone());
        let template = queue.waiting[1].clone();
        queue.waiting = (0..1_200)
            .map(|number: usize| Waiting {
                job: Key(10 + number as u64),
                user: Key(number as u64 % 7),
                pools: vec![number % 2],
                size: Resources::cpus(1 + number as i64 % 5),
                limit: 600 * (1 + number as i64 % 9),
                ..template.clone()
            })
            .collect();
        queue
    }

    #[test]
    fn jobs_that_no_draw_reaches_are_left_out_without_a_difference() {
        let (queue, index) = (long(), 40);
        let mut estimator = Estimator::default();
        for user in 0..7 {
            for run in 1..20 {
                estimator.ended(Key(user), run * 29 * (1 + user as i64), 3_600, 0);
            }
        }
        let variant = |position: usize, pool: usize| Variant {
            job: Waiting {
                pools: vec![pool],
                ..queue.waiting[index].clone()
            },
            position,
        };
        let variants = [(0, 0), (40, 1), (700, 0), (998, 1), (1_000, 1), (1_199, 0)];
        let variants = variants.map(|(position, pool)| variant(position, pool));
        let effects = estimator.what_if(&queue, index, &variants).unwrap();
        let mut running = RunningDraws::new();
        let base = estimator.drawn(&queue, index, &mut running).unwrap();
        let estimate = estimator.estimate(&queue, &[index]).pop().unwrap();
        let whole = variants.iter().map(|variant| {
            let mut changed = queue.clone();
            changed.waiting.remove(index);
            changed
                .waiting
                .insert(variant.position, variant.job.clone());
            let drawn = estimator.drawn(&changed, variant.position, &mut running)?;
            let own = [estimate.p50, estimate.p90];
            Some(effect(&base, &drawn, own, queue.at))
        });
        assert_eq!(effects, whole.collect::<Vec<_>>());
        let reached: Vec<bool> = effects.iter().map(Option::is_some).collect();
        assert_eq!(reached, [true, true, true, true, false, false]);
    }

    #[test]
    fn what_does_not_fit_has_no_effect_and_what_is_not_reached_no_comparison() {
        let mut large = with_limit(60);
        large.job.size = Resources::cpus(11);
        let estimator = Estimator::default();
        assert_eq!(estimator.what_if(&full(), 1, &[large]), Some(vec![None]));
        let mut never = full();
        never.waiting[1].size = Resources::cpus(11);
        assert_eq!(estimator.what_if(&never, 1, &[with_limit(60)]), None);
    }

    #[test]
    fn runs_of_the_user_contradict_a_limit_that_would_have_ended_them() {
        let mut estimator = Estimator::default();
        assert_eq!(estimator.cut(Key(7), 3_600, 60), None);
        for minutes in 1..=20 {
            estimator.ended(Key(7), minutes * 60, 3_600, 0);
        }
        let cut = |minutes: Seconds| estimator.cut(Key(7), 3_600, minutes * 60).unwrap();
        assert_eq!(
            (cut(15).runs, cut(15).ended, cut(15).longest),
            (20, 5, 1_199)
        );
        assert!(cut(18).is_contradiction() && !cut(19).is_contradiction());
    }
}
