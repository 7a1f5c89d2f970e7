//! CPU time and memory of one cycle of estimates, and CPU time of a what-if with eight variants: `cargo run --release -p queue-estimate --example speed`.

#![allow(clippy::cast_possible_wrap, reason = "small numbers")]

use std::time::Duration;

use queue_estimate::history::Class;
use queue_estimate::random::Random;
use queue_estimate::what_if::Variant;
use queue_estimate::{Estimator, Key, Pool, Resources, Running, Snapshot, Waiting};

#[allow(clippy::print_stdout, reason = "its output")]
fn main() {
    println!(
        "waiting  running  seconds   MiB at most  what-if, ms: next, 50th, 100th of its partition"
    );
    for (waiting, running) in [(1_000, 2_000), (10_000, 5_000), (100_000, 10_000)] {
        let (snapshot, estimator) = queue(waiting, running);
        let all: Vec<usize> = (0..waiting).collect();
        let began = cpu_time();
        let estimates = estimator.estimate(&snapshot, &all);
        let seconds = (cpu_time() - began).as_secs_f64();
        assert_eq!(estimates.len(), waiting);
        let memory = peak_mib();
        let what_if = [0, 50, 100].map(|ahead| what_if(&snapshot, &estimator, 4 * ahead));
        println!("{waiting:7} {running:8} {seconds:8.3} {memory:8}     {what_if:?}");
    }
}

/// Milliseconds of an answer with eight variants of the job.
fn what_if(snapshot: &Snapshot, estimator: &Estimator, index: usize) -> u128 {
    let variants: Vec<Variant> = (1..=8)
        .map(|eighth| {
            let mut job = snapshot.waiting[index].clone();
            job.limit = job.limit * eighth / 8;
            Variant {
                job,
                position: index,
            }
        })
        .collect();
    let began = cpu_time();
    let effects = estimator.what_if(snapshot, index, &variants);
    assert!(effects.is_some_and(|effects| effects.len() == 8));
    (cpu_time() - began).as_millis()
}

/// CPU time of this thread: others may want the same core.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split_whitespace()
        .next()
        .and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// A full cluster with four partitions, and an estimator that has learnt from 2,000 starts and ends.
fn queue(waiting: usize, running: usize) -> (Snapshot, Estimator) {
    let mut random = Random::seeded(&[waiting as u64]);
    let now = 1_000_000_000;
    let mut pools = vec![Pool::default(); 4];
    let running: Vec<Running> = (0..running)
        .map(|index| {
            let job = Running {
                job: Key(index as u64),
                user: Key(random.below(200) as u64),
                pool: index % 4,
                size: Resources([1 + random.below(64) as i64, 4_000, 0]),
                start: now - random.below(80_000) as i64,
                limit: 86_400,
            };
            let pool = &mut pools[job.pool];
            pool.capacity = pool.capacity.plus(job.size);
            job
        })
        .collect();
    let waiting = (0..waiting).map(|index| Waiting {
        job: Key(1_000_000 + index as u64),
        user: Key(random.below(200) as u64),
        partition: Key(index as u64 % 4),
        pools: vec![index % 4],
        size: Resources([1 + random.below(128) as i64, 8_000, 0]),
        eligible: now - random.below(100_000) as i64,
        limit: 3_600 * (1 + random.below(24) as i64),
        planned: None,
    });
    let snapshot = Snapshot {
        at: now,
        waiting: waiting.collect(),
        running,
        pools,
    };
    let mut estimator = Estimator::default();
    for index in 0..2_000_u64 {
        let user = Key(index % 200);
        estimator.ended(user, 600 + random.below(80_000) as i64, 86_400, now);
        let job = &snapshot.waiting[random.below(snapshot.waiting.len())];
        let class = Class::of(
            job.partition,
            job.size,
            snapshot.pools[job.pools[0]].capacity,
            job.limit,
        );
        estimator.started(Key(index), class, 60 + random.below(100_000) as i64, now);
    }
    (snapshot, estimator)
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1_024
}
