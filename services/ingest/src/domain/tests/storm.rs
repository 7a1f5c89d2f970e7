//! Flapping reasons: few events, and the last one is true.

use mesh_events::EventType;
use proptest::prelude::*;
use slurm_types::Reason;

use super::observation::{apply, step};
use crate::domain::RunStore;
use crate::domain::run_state::{MAX_BURST, MIN_INTERVAL_SECS};

/// Reasons of different classes.
const REASONS: [&str; 4] = [
    "Dependency",
    "Priority",
    "BeginTime",
    "QOSMaxJobsPerUserLimit",
];
/// Poll interval in seconds.
const EVERY: i64 = 5;

/// Returns the times, in seconds, at which changes of class are published if polls show these reasons. Updates `run_store`.
fn previous(
    run_store: &mut RunStore,
    began: i64,
    reasons: impl IntoIterator<Item = &'static str>,
) -> Vec<i64> {
    let mut times = Vec::new();
    for (poll, reason) in (began..).zip(reasons) {
        let at = poll * EVERY;
        // The number of the poll already counts as seconds, so subtract it.
        let text = format!("PENDING reason={reason} later={}", at - poll);
        let facts = apply(run_store, step(&text, u64::try_from(poll).unwrap()));
        let pending = facts
            .iter()
            .filter(|fact| fact.kind == EventType::JobPending);
        times.extend(pending.map(|_| at));
    }
    times
}

proptest! {
    #[test]
    fn a_run_whose_class_flaps_is_published_a_few_times_then_rarely(
        lengths in prop::collection::vec((0..REASONS.len(), 1_usize..6), 1..100),
        last in 0..REASONS.len(),
    ) {
        let mut run_store = RunStore::default();
        let reasons = lengths.iter().flat_map(|(reason, polls)| std::iter::repeat_n(REASONS[*reason], *polls));
        let reasons: Vec<&str> = reasons.collect();
        let mut times = previous(&mut run_store, 1, reasons.iter().copied());
        // The reason stops changing.
        let began = i64::try_from(reasons.len()).unwrap() + 1;
        let polls = usize::try_from(MIN_INTERVAL_SECS / EVERY).unwrap() + 3;
        times.extend(previous(&mut run_store, began, std::iter::repeat_n(REASONS[last], polls)));
        for (n, first) in times.iter().enumerate() {
            for within in [60, MIN_INTERVAL_SECS, 10 * MIN_INTERVAL_SECS] {
                let count = times[n..].iter().filter(|at| **at < first + within).count();
                prop_assert!(i64::try_from(count).unwrap() <= MAX_BURST + within / MIN_INTERVAL_SECS, "{times:?}");
            }
        }
        let (_, tracked) = run_store.iter().next().unwrap();
        prop_assert_eq!(tracked.class, Some(Reason::lookup(REASONS[last]).class()));
    }
}

#[test]
fn fifty_thousand_flapping_jobs_are_bounded() {
    // Each class for two polls: without a limit, an event every ten seconds.
    let flaps = (0..4 * 3_600 / EVERY).map(|poll| REASONS[usize::from(poll % 4 < 2)]);
    let times = previous(&mut RunStore::default(), 1, flaps);
    let at_once = usize::try_from(MAX_BURST).unwrap();
    assert!(times[at_once - 1] <= 6 * EVERY, "{times:?}");
    // One event per job in ten minutes, so five thousand a minute for all of them.
    let spread = &times[at_once..];
    let apart = spread.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(
        apart.min() > Some(MIN_INTERVAL_SECS - 6 * EVERY),
        "{times:?}"
    );
    assert!((22..=24).contains(&spread.len()), "{times:?}");
}

#[test]
fn a_run_that_is_quiet_is_not_read_again_and_again() {
    let mut run_store = RunStore::default();
    let flaps = (0..12).map(|poll| REASONS[usize::from(poll % 4 < 2)]);
    assert_eq!(previous(&mut run_store, 1, flaps).len(), 3);
    let now = 12 * EVERY + super::observation::EPOCH + 100_000;
    let (_, tracked) = run_store.iter().next().unwrap();
    let awaited = [now, now + MIN_INTERVAL_SECS].map(|now| tracked.unsettled(now));
    assert!(tracked.candidate.is_some());
    assert_eq!(awaited, [false, true]);
}
