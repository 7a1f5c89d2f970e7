//! Generates the faults.

use std::time::Duration;

use super::{Fault, FaultKind, Source};
use crate::random::Random;

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
    mut kinds: Vec<FaultKind>,
) -> Vec<Fault> {
    random.shuffle(&mut kinds);
    let share = span / u32::try_from(kinds.len()).unwrap_or(1).max(1);
    kinds
        .into_iter()
        .zip(0u32..)
        .map(|(what, place)| Fault {
            at: share * place + random.time(Duration::ZERO, share / 2),
            lasts: match what {
                FaultKind::PauseLeader(_) => random.time(TAKEN_OVER, TAKEN_OVER * 2),
                _ => random.time(seconds(1), longest),
            },
            what,
        })
        .collect()
}

/// A fault specific to this source.
fn of_source(source: Source) -> Option<FaultKind> {
    (source == Source::Rest).then_some(FaultKind::Slurmrestd)
}

pub(super) fn short(random: &mut Random, span: Duration, source: Source) -> [Vec<Fault>; 2] {
    let services = [
        FaultKind::KillLeader("ingest"),
        FaultKind::Kill("ledger"),
        FaultKind::PauseLeader("ingest"),
    ];
    let mut others = vec![FaultKind::Nats, FaultKind::Slurmctld, FaultKind::HooksOff];
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
        FaultKind::KillLeader("ingest"),
        FaultKind::PauseLeader("ingest"),
        FaultKind::KillLeader("node-watcher"),
        FaultKind::PauseLeader("node-watcher"),
        FaultKind::Kill("cost-engine"),
        FaultKind::Kill("ledger"),
        FaultKind::Kill("webhook-dispatcher"),
        FaultKind::Kill("pending-explainer"),
    ];
    while services.len() < count {
        let name = random.pick(&KILLED).unwrap_or("ingest");
        services.push(match random.between(1, 100) {
            1..=55 => FaultKind::Kill(name),
            56..=75 => FaultKind::Pause(name),
            76..=88 => FaultKind::KillLeader("ingest"),
            _ => FaultKind::PauseLeader("ingest"),
        });
    }
    let step = |random: &mut Random| {
        let size = i64::from(random.between(30, 1_200));
        FaultKind::Clock(if random.chance(50) { size } else { -size })
    };
    let every = |random: &mut Random| {
        let mut kinds = vec![
            FaultKind::Nats,
            FaultKind::Slurmctld,
            FaultKind::Slurmdbd,
            FaultKind::HooksOff,
            FaultKind::SpoolFull,
            step(random),
        ];
        kinds.extend(of_source(source));
        kinds
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
