//! Property tests: any number and order of observations yields the same recorded facts.

use std::collections::{BTreeSet, HashMap};

use mesh_events::{EventId, RunKey, Slot};
use proptest::prelude::*;

use super::observation::{EPOCH, apply, step};
use crate::domain::{Fact, FactId, RunState, RunStore};

#[derive(Clone, Copy, Debug)]
enum Attempt {
    /// Ends in this state.
    Ends(&'static str),
    /// Cancelled while it waits.
    NeverStarts,
}

/// How a run that is followed by another one ended: state in accounting, state in jobcomp.
const REQUEUES: [(&str, &str); 3] = [
    ("REQUEUED", "PENDING"),
    ("PREEMPTED", "PREEMPTED"),
    ("NODE_FAIL", "NODE_FAIL"),
];

/// History of a job: the ends of its earlier runs, and its last run.
#[derive(Clone, Debug)]
struct History {
    requeues: Vec<(&'static str, &'static str)>,
    last: Attempt,
}

fn histories() -> impl Strategy<Value = History> {
    let last = prop_oneof![
        prop::sample::select(vec![
            "COMPLETED",
            "FAILED",
            "TIMEOUT",
            "CANCELLED",
            "OUT_OF_MEMORY"
        ])
        .prop_map(Attempt::Ends),
        Just(Attempt::NeverStarts),
    ];
    (
        prop::collection::vec(prop::sample::select(REQUEUES.to_vec()), 0..3),
        last,
    )
        .prop_map(|(requeues, last)| History { requeues, last })
}

impl History {
    /// Every state of the controller's record, in the table's notation.
    fn controller(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for run in 0..=self.requeues.len() {
            let base = run * 1000;
            texts.push(format!("PENDING submit={base} restarts={run}"));
            let times = format!("submit={base} start={} end={}", base + 10, base + 90);
            if run < self.requeues.len() {
                texts.push(format!("RUNNING,CONFIGURING n1 {times} restarts={run}"));
                texts.push(format!("RUNNING n1 {times} restarts={run}"));
                // The next restart is counted while the old run is cleaned up.
                texts.push(format!("COMPLETING n1 {times} restarts={}", run + 1));
                continue;
            }
            match self.last {
                Attempt::Ends(state) => {
                    texts.push(format!("RUNNING n1 {times} restarts={run}"));
                    texts.push(format!("COMPLETING n1 {times} restarts={run}"));
                    texts.push(format!("{state} n1 {times} restarts={run}"));
                }
                Attempt::NeverStarts => texts.push(format!(
                    "CANCELLED submit={base} start={0} end={0} restarts={run}",
                    base + 90
                )),
            }
        }
        texts
    }

    fn accounting(&self) -> String {
        let rows = (0..=self.requeues.len()).map(|run| {
            let base = run * 1000;
            let times = format!("submit={base} start={} end={}", base + 10, base + 90);
            match (self.requeues.get(run), self.last) {
                (Some((state, _)), _) => format!("{state} n1 {times}"),
                (None, Attempt::Ends(state)) => format!("{state} n1 {times}"),
                (None, Attempt::NeverStarts) => {
                    format!("CANCELLED submit={base} end={}", base + 90)
                }
            }
        });
        format!("sacct: {}", rows.collect::<Vec<_>>().join(" & "))
    }

    /// Accounting's answer with the steps.
    fn settled(&self) -> String {
        self.accounting() + " used"
    }

    fn jobcomp(&self) -> Vec<String> {
        let requeued = self
            .requeues
            .iter()
            .enumerate()
            .map(|(run, (_, state))| (run, *state, true));
        let last = self.requeues.len();
        let end = match self.last {
            Attempt::Ends(state) => (last, state, true),
            Attempt::NeverStarts => (last, "CANCELLED", false),
        };
        let text = |(run, state, started): (usize, &str, bool)| {
            let base = run * 1000;
            let nodes = if started { "n1" } else { "" };
            format!(
                "jobcomp: {state} {nodes} submit={base} start={} end={}",
                base + 10,
                base + 90
            )
        };
        requeued.chain([end]).map(text).collect()
    }

    /// Recorded facts of this history, by their definition.
    fn facts(&self) -> BTreeSet<EventId> {
        let mut ids = BTreeSet::new();
        for run in 0..=self.requeues.len() {
            let submit_time = EPOCH + i64::try_from(run * 1000).unwrap();
            let key = RunKey {
                cluster: "c".into(),
                job_id: 9,
                task_id: None,
                submit_time,
                attempt: 0,
            };
            let started = run < self.requeues.len() || matches!(self.last, Attempt::Ends(_));
            ids.extend([
                EventId::recorded(&key, Slot::Submitted),
                EventId::recorded(&key, Slot::End),
            ]);
            let ran = [Slot::Started, Slot::Updated];
            let ran = ran.into_iter().filter(|_| started);
            ids.extend(ran.map(|slot| EventId::recorded(&key, slot)));
        }
        ids
    }
}

/// Returns what is published for these observations in this order. Panics if a recorded fact is published twice, if a run ends twice, or if
/// its sequence numbers do not grow.
fn previous(readings: &[String]) -> BTreeSet<EventId> {
    let mut run_store = RunStore::default();
    let mut ids = BTreeSet::new();
    let mut counts: HashMap<RunKey, u64> = HashMap::new();
    let mut restarts: HashMap<RunKey, Option<u32>> = HashMap::new();
    let mut ends = BTreeSet::new();
    for (poll, text) in readings.iter().enumerate() {
        for fact in apply(&mut run_store, step(text, u64::try_from(poll).unwrap())) {
            let count = counts.insert(fact.run.clone(), fact.seq).unwrap_or(0);
            assert_eq!(fact.seq, count + 1, "{:?} in {readings:?}", fact.kind);
            let runs_before = u32::try_from((fact.run.submit_time - EPOCH) / 1000).unwrap();
            assert!(
                fact.restart_count
                    .is_none_or(|restarts| restarts == runs_before),
                "{fact:?} in {readings:?}"
            );
            // A restart count, once published, is in every later event of the run.
            let counted = restarts.entry(fact.run.clone()).or_default();
            assert!(*counted <= fact.restart_count, "{fact:?} in {readings:?}");
            *counted = fact.restart_count;
            if fact.kind.is_end() {
                assert!(ends.insert(fact.run.clone()), "{readings:?}");
            }
            if matches!(fact.id, FactId::Recorded(_)) {
                assert!(
                    ids.insert(fact.event_id()),
                    "{:?} of {} told twice in {readings:?}",
                    fact.kind,
                    fact.run
                );
            }
        }
    }
    ids
}

/// Returns what a process publishes that may crash after each observation. Published facts are on the bus; the state is stored only
/// sometimes.
fn published_over_crashes(readings: &[String], stored: &[bool]) -> BTreeSet<EventId> {
    let mut run_store = RunStore::default();
    let mut disk = Vec::new();
    let mut ids = BTreeSet::new();
    for (at, text) in readings.iter().enumerate() {
        let facts = apply(&mut run_store, step(text, u64::try_from(at).unwrap()));
        let recorded = facts
            .iter()
            .filter(|fact| matches!(fact.id, FactId::Recorded(_)));
        ids.extend(recorded.map(Fact::event_id));
        if stored[at % stored.len()] {
            let runs = run_store
                .iter()
                .map(|(run, tracked)| (run.entity_key(), tracked));
            disk = serde_json::to_vec(&runs.collect::<Vec<_>>()).unwrap();
        }
        // Every process starts with the state that the previous one has stored.
        run_store = RunStore::default();
        let runs: Vec<(String, RunState)> = match &disk[..] {
            [] => Vec::new(),
            disk => serde_json::from_slice(disk).unwrap(),
        };
        for (run, tracked) in runs {
            run_store.put(RunKey::parse("c", &run).unwrap(), tracked);
        }
    }
    ids
}

proptest! {
    #[test]
    fn a_crash_after_any_observation_gives_the_same_facts(
        history in histories(),
        order in Just((0..24_usize).collect::<Vec<_>>()).prop_shuffle(),
        stored in prop::collection::vec(any::<bool>(), 1..16),
    ) {
        let mut all = history.controller();
        all.extend(history.jobcomp());
        all.extend([history.accounting(), history.settled()]);
        let mut readings: Vec<String> = order.into_iter().filter_map(|index| all.get(index % 24).cloned()).collect();
        // No crash after this point.
        let crashes = readings.len();
        readings.extend([history.settled(), history.controller().pop().unwrap(), history.settled()]);
        let mut stored: Vec<bool> = stored.into_iter().cycle().take(crashes).collect();
        stored.extend([true; 3]);
        prop_assert_eq!(published_over_crashes(&readings, &stored), history.facts());
    }

    #[test]
    fn any_subset_of_the_observations_gives_the_same_facts(history in histories(), seen in prop::collection::vec(any::<bool>(), 32)) {
        let all = history.controller();
        let mut readings: Vec<String> = all.iter().zip(seen).filter(|(_, seen)| *seen).map(|(text, _)| text.clone()).collect();
        // Finally accounting is read, and the controller once more.
        readings.push(history.accounting());
        readings.push(all[all.len() - 1].clone());
        readings.push(history.settled());
        prop_assert_eq!(previous(&readings), history.facts());
    }

    #[test]
    fn hooks_on_and_hooks_off_give_the_same_facts(history in histories(), hooks in any::<bool>(), last in any::<bool>()) {
        let mut readings = history.controller();
        let mut runs = history.jobcomp().into_iter();
        if hooks {
            // Each end rings right after the last read of the old run.
            readings = readings.into_iter().flat_map(|text| {
                let ends = text.starts_with("COMPLETING");
                std::iter::once(text).chain(ends.then(|| runs.next()).flatten())
            }).collect();
        }
        if last || !hooks {
            readings.push(history.accounting());
        }
        let newest = history.controller().pop().unwrap();
        readings.extend([newest, history.settled()]);
        prop_assert_eq!(previous(&readings), history.facts());
    }

    #[test]
    fn stale_and_repeated_observations_in_any_order_give_the_same_facts(
        history in histories(),
        order in Just((0..24_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let mut all = history.controller();
        all.extend(history.jobcomp());
        all.extend([history.accounting(), history.settled()]);
        let mut readings: Vec<String> = order.into_iter().filter_map(|index| all.get(index % 24).cloned()).collect();
        readings.push(history.settled());
        readings.push(history.controller().pop().unwrap());
        readings.push(history.settled());
        prop_assert_eq!(previous(&readings), history.facts());
    }

    #[test]
    fn any_environment_of_a_hook_is_survived(state in "[A-Z_]{0,12}", submit in ".{0,12}", nodes in ".{0,8}", task in any::<u32>()) {
        let environment = [("JOBID", "9".into()), ("JOBSTATE", state), ("SUBMIT", submit), ("NODES", nodes), ("ARRAYJOBID", "9".into()), ("ARRAYTASKID", task.to_string())];
        let doorbell = mesh_events::proto::mesh::hook::v1::Doorbell {
            hook: "JobComp".into(),
            cluster: "c".into(),
            job_id: 9,
            environment: environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Default::default()
        };
        if let Ok(evidence) = crate::domain::Evidence::read("c", &doorbell) {
            prop_assert_eq!(evidence.job_id, 9);
        }
    }
}
