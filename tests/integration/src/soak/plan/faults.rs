//! Draws what breaks.

use std::time::Duration;

use super::{Break, Fault, Source};
use crate::soak::random::Random;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Everything that may be killed; ingest more often, it is what this is about.
const KILLED: [&str; 10] = [
    "ingest",
    "ingest",
    "ingest-2",
    "ingest-2",
    "node-watcher",
    "node-watcher-2",
    "cost-engine",
    "ledger",
    "webhook-dispatcher",
    "pending-explainer",
];

/// These, in some order, spread over the time.
fn spread(
    random: &mut Random,
    span: Duration,
    longest: Duration,
    mut whats: Vec<Break>,
) -> Vec<Fault> {
    random.shuffle(&mut whats);
    let share = span / u32::try_from(whats.len()).unwrap_or(1).max(1);
    whats
        .into_iter()
        .zip(0u32..)
        .map(|(what, place)| Fault {
            at: share * place + random.time(Duration::ZERO, share / 2),
            lasts: random.time(seconds(1), longest),
            what,
        })
        .collect()
}

/// What may break because the mesh asks Slurm so.
fn of_source(source: Source) -> Option<Break> {
    (source == Source::Rest).then_some(Break::Slurmrestd)
}

pub(super) fn short(random: &mut Random, span: Duration, source: Source) -> [Vec<Fault>; 2] {
    let services = [
        Break::Kill("ingest"),
        Break::Kill("ledger"),
        Break::Kill("ingest-2"),
    ];
    let mut others = vec![Break::Nats, Break::Slurmctld, Break::HooksOff];
    others.extend(of_source(source));
    [
        spread(random, span, seconds(3), services.to_vec()),
        spread(random, span, seconds(5), others),
    ]
}

/// One fault of each kind of sequence about every 20 seconds.
pub(super) fn long(random: &mut Random, span: Duration, source: Source) -> [Vec<Fault>; 2] {
    let count = usize::try_from(span.as_secs() / 20).unwrap_or(0).max(3);
    let mut services = vec![
        Break::Kill("ingest"),
        Break::Pause("ingest"),
        Break::Pause("ingest-2"),
        Break::Kill("node-watcher"),
    ];
    while services.len() < count {
        let name = random.pick(&KILLED).unwrap_or("ingest");
        services.push(if random.chance(75) {
            Break::Kill(name)
        } else {
            Break::Pause(name)
        });
    }
    let step = |random: &mut Random| {
        let size = i64::from(random.between(30, 1_200));
        Break::Clock(if random.chance(50) { size } else { -size })
    };
    let mut others = vec![
        Break::Nats,
        Break::Slurmctld,
        Break::Slurmdbd,
        Break::HooksOff,
        Break::SpoolFull,
        step(random),
    ];
    others.extend(of_source(source));
    while others.len() < count {
        let clock = step(random);
        let known = [
            Break::Nats,
            Break::Slurmctld,
            Break::Slurmdbd,
            Break::HooksOff,
            Break::SpoolFull,
            clock,
        ];
        others.extend(random.pick(&known));
    }
    [
        spread(random, span, seconds(12), services),
        spread(random, span, seconds(10), others),
    ]
}
