//! Compares the results with the expected ones.

use std::collections::{BTreeMap, BTreeSet};

use mesh_events::EventType;

use super::Expected;
use crate::Fact;
use crate::fact::{Run, lives};

/// Missing and surplus events as text. Empty if everything is as expected. Facts of other jobs are ignored.
pub fn complaints(expected: &[Expected], facts: &[Fact]) -> Vec<String> {
    let lives = lives(facts);
    let mut complaints = Vec::new();
    for part in expected {
        complaints.extend(of_part(part, facts, &lives));
    }
    complaints
}

/// Ids that occur twice in the ledger.
pub fn repeated(facts: &[Fact]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let duplicates = facts.iter().filter(|fact| !seen.insert(&fact.event.id));
    duplicates
        .map(|fact| format!("the ledger holds {} {} twice", fact.kind, fact.event.id))
        .collect()
}

/// Missing node events: n4 was drained and resumed, a cloud node was started.
pub fn node_complaints(facts: &[Fact]) -> Vec<String> {
    let in_order = |prefix: &str, kinds: [EventType; 2]| {
        let mut expected = kinds.into_iter().peekable();
        for fact in facts {
            if fact.event.entity_key().starts_with(prefix) {
                expected.next_if(|kind| *kind == fact.kind);
            }
        }
        expected.next().map(|kind| format!("no {kind} of {prefix}"))
    };
    let n4 = in_order(
        "node/n4",
        [EventType::NodeDrained, EventType::NodeRecovered],
    );
    let cloud = in_order(
        "node/c",
        [EventType::NodeProvisioning, EventType::NodeActive],
    );
    n4.into_iter().chain(cloud).collect()
}

fn of_part(
    part: &Expected,
    facts: &[Fact],
    lives: &BTreeMap<Run, Vec<&'static str>>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |id: &str, problem: String| {
        complaints.push(format!("job {id} ({}): {problem}", part.title));
    };
    let own = |task: Option<u32>| {
        lives
            .range((part.job, task, i64::MIN, 0)..=(part.job, task, i64::MAX, u32::MAX))
            .map(|(_, event_names)| event_names.clone())
            .collect::<Vec<_>>()
    };
    let id = part.job.to_string();
    if own(None) != part.runs {
        complain(&id, difference(&part.runs, &own(None)));
    }
    let tasks = lives.keys().filter(|run| run.0 == part.job);
    let seen = tasks.filter_map(|run| run.1);
    let mut tasks: Vec<u32> = seen.chain(part.tasks.keys().copied()).collect();
    tasks.sort_unstable();
    tasks.dedup();
    for task in tasks {
        let expected: Vec<_> = part.tasks.get(&task).cloned().into_iter().collect();
        if own(Some(task)) != expected {
            complain(
                &format!("{id}_{task}"),
                difference(&expected, &own(Some(task))),
            );
        }
    }
    let of_job = |kind: EventType| {
        let mut runs = facts
            .iter()
            .filter(|fact| fact.kind == kind)
            .filter_map(Fact::run)
            .filter(|run| run.0 == part.job)
            .collect::<Vec<_>>();
        runs.sort_unstable();
        runs
    };
    if part.explained {
        for kind in [EventType::JobPending, EventType::QueueExplained] {
            if of_job(kind).is_empty() {
                complain(&id, format!("no {kind}"));
            }
        }
    }
    // A run that started and ended has a cost and a usage, exactly one of each.
    let ran: Vec<Run> = lives
        .iter()
        .filter(|(run, event_names)| run.0 == part.job && event_names.contains(&"started"))
        .map(|(run, _)| *run)
        .collect();
    let once = [
        EventType::CostEstimated,
        EventType::CostFinalized,
        EventType::JobUpdated,
    ];
    for kind in once {
        if of_job(kind) != ran {
            let (have, expected_count) = (of_job(kind).len(), ran.len());
            complain(
                &id,
                format!("{have} {kind} for {expected_count} runs that started"),
            );
        }
    }
    complaints
}

fn difference(expected: &[Vec<&'static str>], came: &[Vec<&'static str>]) -> String {
    let event_names = |runs: &[Vec<&'static str>]| match runs {
        [] => "nothing".to_owned(),
        runs => runs
            .iter()
            .map(|event_names| event_names.join(", "))
            .collect::<Vec<_>>()
            .join("; then "),
    };
    format!(
        "{} came instead of {}",
        event_names(came),
        event_names(expected)
    )
}

#[cfg(test)]
mod tests {
    use mesh_events::Event;
    use mesh_events::proto::mesh::event::v1::Entity;

    use super::*;

    fn facts(list: &[(&str, EventType)]) -> Vec<Fact> {
        let fact = |(seq, (key, kind)): (usize, &(&str, EventType))| Fact {
            seq: seq as u64 + 1,
            kind: *kind,
            event: Event {
                cluster: "c".into(),
                entity: Some(Entity {
                    kind: "job".into(),
                    key: (*key).into(),
                }),
                ..Event::default()
            },
        };
        list.iter().enumerate().map(fact).collect()
    }

    const WHOLE: &[(&str, EventType)] = &[
        ("job/5/100", EventType::JobSubmitted),
        ("job/5/100", EventType::JobStarted),
        ("job/5/100", EventType::CostEstimated),
        ("job/5/100", EventType::JobCompleted),
        ("job/5/100", EventType::CostFinalized),
        ("job/5/100", EventType::JobUpdated),
    ];

    fn expected() -> Expected {
        Expected::new("t", "alice", 5, &["submitted", "started", "completed"])
    }

    #[test]
    fn expected_events_are_no_fault() {
        assert_eq!(
            complaints(&[expected()], &facts(WHOLE)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_missing_and_each_further_event_is_a_complaint() {
        for removed in 0..WHOLE.len() {
            let rest = [&WHOLE[..removed], &WHOLE[removed + 1..]].concat();
            assert!(
                !complaints(&[expected()], &facts(&rest)).is_empty(),
                "{removed}"
            );
        }
        let further = [
            ("job/5/100", EventType::JobFailed),
            ("job/5/200", EventType::JobSubmitted),
            ("job/5_1/100", EventType::JobStarted),
            ("job/5/100", EventType::CostFinalized),
            ("job/5/100", EventType::JobUpdated),
        ];
        for event in further {
            let all = [WHOLE, &[event]].concat();
            assert!(
                !complaints(&[expected()], &facts(&all)).is_empty(),
                "{event:?}"
            );
        }
        let explained = expected().explained();
        assert_eq!(complaints(&[explained], &facts(WHOLE)).len(), 2);
    }

    #[test]
    fn other_jobs_do_not_count() {
        let all = [WHOLE, &[("job/6/100", EventType::JobStarted)]].concat();
        assert_eq!(
            complaints(&[expected()], &facts(&all)),
            Vec::<String>::new()
        );
    }
}
