//! Generates the actions.

use super::{BriefEnd, FAILING, Form, Kind, STEADY, Source};
use crate::random::Random;

/// Actions that every soak includes, so that every type of event is compared.
pub(super) fn at_least(random: &mut Random, form: Form) -> Vec<Kind> {
    let mut kinds = vec![
        Kind::Exit {
            code: 0,
            low: false,
        },
        Kind::Exit {
            code: 3,
            low: false,
        },
        Kind::Signal { signal: 9 },
        Kind::ArrayCancelled { tasks: 6 },
        Kind::TaskCancelled {
            tasks: 4,
            task: 2,
            // One poll has shown the array, but no second one yet.
            after: random.between(6, 7),
        },
        Kind::CancelledWaiting,
        Kind::CancelledRunning,
        Kind::TimedOut,
        Kind::Held {
            by_admin: random.chance(50),
            at_submit: true,
            starts: true,
        },
        Kind::Held {
            by_admin: random.chance(50),
            at_submit: false,
            starts: false,
        },
        Kind::Requeued { held: false },
        Kind::Requeued { held: true },
        Kind::FinishedRequeued {
            code: 0,
            unseen: false,
        },
        Kind::FinishedRequeued {
            code: 3,
            unseen: true,
        },
        Kind::Preempted { requeue: true },
        Kind::NodeDown {
            node: random.pick(&FAILING).unwrap_or(FAILING[0]),
            requeue: random.chance(50),
        },
        Kind::Drained {
            node: random.pick(&STEADY).unwrap_or(STEADY[0]),
        },
        Kind::Suspended {
            twice: true,
            cancelled: false,
        },
        Kind::SuspendedBriefly {
            resumed: true,
            end: BriefEnd::Completed,
        },
        Kind::Dependent { succeeds: true },
        Kind::Dependent { succeeds: false },
        Kind::Het,
        Kind::Resized,
        Kind::Limited,
        Kind::Refused,
    ];
    if form == Form::Long {
        kinds.push(Kind::NodeKilled {
            node: random.pick(&FAILING).unwrap_or(FAILING[0]),
        });
    }
    kinds
}

/// One more action, with at most this many jobs.
pub(super) fn more(random: &mut Random, room: u32, form: Form) -> Kind {
    let low = random.chance(25);
    let small = |random: &mut Random| Kind::Exit {
        code: if random.chance(60) {
            0
        } else {
            random.between(1, 120)
        },
        low,
    };
    match random.between(1, 100) {
        1..=35 if room >= 4 => Kind::Array {
            tasks: random.between(4, room.min(24)),
            throttle: if random.chance(50) {
                0
            } else {
                random.between(2, 6)
            },
            low,
        },
        36..=38 if room >= 4 => Kind::ArrayCancelled {
            tasks: random.between(4, room.min(12)),
        },
        39..=41 if room >= 4 => Kind::TaskCancelled {
            tasks: random.between(3, 4),
            task: random.between(0, 2),
            after: random.between(0, 60),
        },
        42..=45 => Kind::CancelledWaiting,
        46..=49 => Kind::CancelledRunning,
        50 => Kind::TimedOut,
        51..=55 => Kind::Held {
            by_admin: random.chance(50),
            at_submit: random.chance(50),
            starts: random.chance(50),
        },
        56..=58 => Kind::Requeued {
            held: random.chance(30),
        },
        59..=60 => Kind::FinishedRequeued {
            code: random.pick(&[0, 1, 9, 77]).unwrap_or(0),
            unseen: random.chance(50),
        },
        61..=64 => Kind::Preempted {
            requeue: random.chance(70),
        },
        65..=66 if form == Form::Long => Kind::NodeDown {
            node: random.pick(&FAILING).unwrap_or(FAILING[0]),
            requeue: random.chance(60),
        },
        67 if form == Form::Long => Kind::NodeKilled {
            node: random.pick(&FAILING).unwrap_or(FAILING[0]),
        },
        68..=69 => Kind::Drained {
            node: random.pick(&STEADY).unwrap_or(STEADY[0]),
        },
        70..=72 => Kind::Suspended {
            twice: random.chance(50),
            cancelled: random.chance(50),
        },
        73..=74 => {
            let resumed = random.chance(70);
            let end = match random.between(1, 10) {
                // A suspended job cannot end by itself.
                1..=4 if resumed => BriefEnd::Completed,
                1..=6 => BriefEnd::Cancelled,
                7..=8 if form == Form::Long => {
                    BriefEnd::NodeDown(random.pick(&FAILING).unwrap_or(FAILING[0]))
                }
                _ => BriefEnd::Requeued,
            };
            Kind::SuspendedBriefly { resumed, end }
        }
        75..=77 => Kind::Dependent {
            succeeds: random.chance(60),
        },
        78..=80 => Kind::Het,
        81..=82 => Kind::Resized,
        83..=84 => Kind::Limited,
        85 => Kind::Refused,
        86..=88 => Kind::Signal {
            signal: random.pick(&[9, 15, 6]).unwrap_or(9),
        },
        _ => small(random),
    }
}

/// Adapts the action so that it can be compared with this source. False if that is impossible. Polls of slurmrestd are 30 s apart: a
/// task that is cancelled individually before any poll has seen its array leaves no trace, and of several suspensions between two
/// polls Slurm has only the last one.
pub(super) const fn fit(kind: &mut Kind, source: Source) -> bool {
    match (source, kind) {
        (Source::Rest, Kind::TaskCancelled { .. }) => false,
        (Source::Rest, Kind::Suspended { twice, .. }) => {
            *twice = false;
            true
        }
        _ => true,
    }
}
