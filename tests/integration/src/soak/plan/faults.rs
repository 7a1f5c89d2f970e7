//! Generates the faults.

use std::time::Duration;

use super::{Break, Fault, Source};
use crate::soak::random::Random;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Everything that may be killed. Ingest more often, because the test is mainly about it.
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

/// A standby takes over after six seconds without a renewal (docs/internals/adr/0005-leadership.md).
const TAKEN_OVER: Duration = seconds(8);

/// Spreads these over the time, in random order.
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
            lasts: match what {
                Break::PauseLeader(_) => random.time(TAKEN_OVER, TAKEN_OVER * 2),
                _ => random.time(seconds(1), longest),
            },
            what,
        })
        .collect()
}

/// A fault specific to this source.
fn of_source(source: Source) -> Option<Break> {
    (source == Source::Rest).then_some(Break::Slurmrestd)
}

pub(super) fn short(random: &mut Random, span: Duration, source: Source) -> [Vec<Fault>; 2] {
    let services = [
        Break::KillLeader("ingest"),
        Break::Kill("ledger"),
        Break::PauseLeader("ingest"),
    ];
    let mut others = vec![Break::Nats, Break::Slurmctld, Break::HooksOff];
    others.extend(of_source(source));
    [
        spread(random, span, seconds(3), services.to_vec()),
        spread(random, span, seconds(5), others),
    ]
}

/// About one fault of each sequence every 20 seconds.
pub(super) fn long(random: &mut Random, span: Duration, source: Source) -> [Vec<Fault>; 2] {
    let count = usize::try_from(span.as_secs() / 20).unwrap_or(0).max(3);
    let mut services = vec![
        Break::KillLeader("ingest"),
        Break::PauseLeader("ingest"),
        Break::KillLeader("node-watcher"),
        Break::PauseLeader("node-watcher"),
        Break::Kill("cost-engine"),
        Break::Kill("ledger"),
        Break::Kill("webhook-dispatcher"),
        Break::Kill("pending-explainer"),
    ];
    while services.len() < count {
        let name = random.pick(&KILLED).unwrap_or("ingest");
        services.push(match random.between(1, 100) {
            1..=55 => Break::Kill(name),
            56..=75 => Break::Pause(name),
            76..=88 => Break::KillLeader("ingest"),
            _ => Break::PauseLeader("ingest"),
        });
    }
    let step = |random: &mut Random| {
        let size = i64::from(random.between(30, 1_200));
        Break::Clock(if random.chance(50) { size } else { -size })
    };
    let every = |random: &mut Random| {
        let mut whats = vec![
            Break::Nats,
            Break::Slurmctld,
            Break::Slurmdbd,
            Break::HooksOff,
            Break::SpoolFull,
            step(random),
        ];
        whats.extend(of_source(source));
        whats
    };
    let mut others = every(random);
    while others.len() < count {
        let known = every(random);
        others.extend(random.pick(&known));
    }
    [
        spread(random, span, seconds(12), services),
        spread(random, span, seconds(10), others),
    ]
}
