//! Reasons that go to and fro: little is told of them, and in the end what is true.

use mesh_events::EventType;
use proptest::prelude::*;
use slurm_types::Reason;

use super::observation::{apply, step};
use crate::domain::RunStore;
use crate::domain::pending_reason::{APART, AT_ONCE};

/// Reasons of different classes.
const REASONS: [&str; 4] = [
    "Dependency",
    "Priority",
    "BeginTime",
    "QOSMaxJobsPerUserLimit",
];
/// Seconds from one sweep to the next.
const EVERY: i64 = 5;

/// The times at which a change of class is told, in seconds, if sweeps show these reasons; and the book after them.
fn told(
    book: &mut RunStore,
    began: i64,
    reasons: impl IntoIterator<Item = &'static str>,
) -> Vec<i64> {
    let mut times = Vec::new();
    for (sweep, reason) in (began..).zip(reasons) {
        let at = sweep * EVERY;
        // What the sweep's number counts already is taken off.
        let text = format!("PENDING reason={reason} later={}", at - sweep);
        let facts = apply(book, step(&text, u64::try_from(sweep).unwrap()));
        let pending = facts
            .iter()
            .filter(|fact| fact.kind == EventType::JobPending);
        times.extend(pending.map(|_| at));
    }
    times
}

proptest! {
    #[test]
    fn a_run_whose_class_flaps_is_told_of_a_few_times_and_then_rarely(
        lengths in prop::collection::vec((0..REASONS.len(), 1_usize..6), 1..100),
        last in 0..REASONS.len(),
    ) {
        let mut book = RunStore::default();
        let reasons = lengths.iter().flat_map(|(reason, sweeps)| std::iter::repeat_n(REASONS[*reason], *sweeps));
        let reasons: Vec<&str> = reasons.collect();
        let mut times = told(&mut book, 1, reasons.iter().copied());
        // It comes to rest.
        let began = i64::try_from(reasons.len()).unwrap() + 1;
        let sweeps = usize::try_from(APART / EVERY).unwrap() + 3;
        times.extend(told(&mut book, began, std::iter::repeat_n(REASONS[last], sweeps)));
        for (n, first) in times.iter().enumerate() {
            for within in [60, APART, 10 * APART] {
                let count = times[n..].iter().filter(|at| **at < first + within).count();
                prop_assert!(i64::try_from(count).unwrap() <= AT_ONCE + within / APART, "{times:?}");
            }
        }
        let (_, tracked) = book.iter().next().unwrap();
        prop_assert_eq!(tracked.class, Some(Reason::lookup(REASONS[last]).class()));
    }
}

#[test]
fn fifty_thousand_flapping_jobs_are_bounded() {
    // Each class for two sweeps: what would be told every ten seconds.
    let flaps = (0..4 * 3_600 / EVERY).map(|sweep| REASONS[usize::from(sweep % 4 < 2)]);
    let times = told(&mut RunStore::default(), 1, flaps);
    let at_once = usize::try_from(AT_ONCE).unwrap();
    assert!(times[at_once - 1] <= 6 * EVERY, "{times:?}");
    // Of each job one in ten minutes, so of all of them five thousand a minute.
    let later = &times[at_once..];
    let apart = later.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(apart.min() > Some(APART - 6 * EVERY), "{times:?}");
    assert!((22..=24).contains(&later.len()), "{times:?}");
}

#[test]
fn a_run_that_is_quiet_is_not_read_again_and_again() {
    let mut book = RunStore::default();
    let flaps = (0..12).map(|sweep| REASONS[usize::from(sweep % 4 < 2)]);
    assert_eq!(told(&mut book, 1, flaps).len(), 3);
    let now = 12 * EVERY + super::observation::EPOCH + 100_000;
    let (_, tracked) = book.iter().next().unwrap();
    let awaited = [now, now + APART].map(|now| tracked.unsettled(now));
    assert!(tracked.candidate.is_some());
    assert_eq!(awaited, [false, true]);
}
