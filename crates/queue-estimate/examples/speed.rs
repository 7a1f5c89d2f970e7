//! Time and memory of one cycle of estimates: `cargo run --release -p queue-estimate --example speed`.

#![allow(clippy::cast_possible_wrap, reason = "small numbers")]

use std::time::Instant;

use queue_estimate::history::Class;
use queue_estimate::random::Random;
use queue_estimate::{Estimator, Key, Pool, Resources, Running, Snapshot, Waiting};

#[allow(clippy::print_stdout, reason = "its output")]
fn main() {
    println!("waiting  running  seconds   MiB at most");
    for (waiting, running) in [(1_000, 2_000), (10_000, 5_000), (100_000, 10_000)] {
        let (snapshot, estimator) = queue(waiting, running);
        let all: Vec<usize> = (0..waiting).collect();
        let began = Instant::now();
        let estimates = estimator.estimate(&snapshot, &all);
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(estimates.len(), waiting);
        println!("{waiting:7} {running:8} {seconds:8.3} {:8}", peak_mib());
    }
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
