//! Facts without a time in Slurm's records, judged by the driver's own log.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType};

use super::facts::Facts;
use crate::log::Log;
use crate::plan::FaultKind;
use crate::published::Published;
use crate::verdict::Verdict;
use integration::run_of;

/// Slurm stores only the time of the last suspend or resume, and accounting none.
pub(super) fn pauses(log: &Log, facts: &mut Facts<'_>, verdict: &mut Verdict) {
    for pause in &log.pauses {
        let runs: Vec<_> = facts
            .by_slot
            .keys()
            .filter(|(run, slot)| run.0 == pause.job && *slot == pause.event_name)
            .copied()
            .collect();
        let found = runs
            .into_iter()
            .find_map(|(run, slot)| facts.take_at(run, slot, pause.from - 1, pause.until + 1));
        match found {
            Some(_) if pause.event_name == "suspended" => verdict.right("job.suspended"),
            Some(_) => verdict.right("job.resumed"),
            None => {
                let what = format!(
                    "job.{} of {} between {} and {}; the driver did it",
                    pause.event_name, pause.job, pause.from, pause.until
                );
                if pause.proven {
                    verdict.missing.push(what);
                } else {
                    verdict.unjudged.push(what);
                }
            }
        }
    }
}

fn of_kind(published: &Published, kind: EventType) -> impl Iterator<Item = &Event> {
    let events = published.bus.values();
    events.filter(move |event| event.kind() == Ok(kind))
}

fn about(event: &Event, job: u32) -> bool {
    run_of(event).is_some_and(|run| run.0 == job && run.1.is_none())
}

/// Reasons that lasted for several polls.
pub(super) fn waits(log: &Log, published: &Published, verdict: &mut Verdict) {
    for wait in &log.waits {
        let pending = of_kind(published, EventType::JobPending)
            .filter(|event| about(event, wait.job))
            .any(|event| event.job().is_some_and(|job| job.reason == wait.reason));
        let missing = |kind| {
            format!(
                "{kind} of {} with {}; it waited so from {} to {}",
                wait.job, wait.reason, wait.from, wait.until
            )
        };
        if pending {
            verdict.right("job.pending");
        } else {
            verdict.missing.push(missing("job.pending"));
        }
        let explained = of_kind(published, EventType::QueueExplained)
            .filter(|event| about(event, wait.job))
            .filter_map(|event| match event.payload.as_ref()? {
                Payload::Queue(queue) => queue.explanation.as_ref(),
                _ => None,
            })
            .any(|explanation| explanation.reason == wait.reason);
        // It explains only jobs that are still pending.
        let stops = |what| {
            let services = [
                FaultKind::Kill("pending-explainer"),
                FaultKind::Pause("pending-explainer"),
            ];
            matches!(what, FaultKind::Nats | FaultKind::SpoolFull) || services.contains(&what)
        };
        if explained {
            verdict.right("queue.explained");
        } else if !log.was_broken(stops, wait.from, wait.until) {
            verdict.missing.push(missing("queue.explained"));
        }
    }
    // Only changes of the class are published.
    let mut last: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut pending: Vec<&Event> = of_kind(published, EventType::JobPending).collect();
    pending.sort_by_key(|event| event.run_seq);
    for event in pending {
        let class = event.job().map(|job| job.reason_class.clone());
        let class = class.unwrap_or_default();
        let key = event.entity_key().to_owned();
        if let Some((_, before)) = last.insert(key.clone(), (event.run_seq, class.clone()))
            && before == class
            && !log.holds.iter().any(|hold| about(event, hold.job))
        {
            verdict
                .wrong
                .push(format!("job.pending of {key} has {class} twice in a row"));
        }
    }
}

/// Holds and releases.
pub(super) fn holds(log: &Log, published: &Published, verdict: &mut Verdict) {
    let kinds = [
        (EventType::JobHeld, "job.held"),
        (EventType::JobReleased, "job.released"),
    ];
    for (kind, name) in kinds {
        let mut published_of: BTreeMap<u32, usize> = BTreeMap::new();
        for event in of_kind(published, kind) {
            let job = run_of(event).map(|run| run.0).unwrap_or_default();
            *published_of.entry(job).or_default() += 1;
        }
        for hold in &log.holds {
            let expected = match kind {
                EventType::JobHeld => hold.polled,
                _ => hold.polled && hold.released,
            };
            match published_of.remove(&hold.job) {
                Some(1) => verdict.right(name),
                Some(times) => verdict
                    .duplicates
                    .push(format!("{name} of {} {times} times: {hold:?}", hold.job)),
                None if expected => verdict
                    .missing
                    .push(format!("{name} of {}: {hold:?}", hold.job)),
                None => {}
            }
        }
        for job in published_of.keys() {
            verdict
                .extra
                .push(format!("{name} of {job}, which the driver did not hold"));
        }
    }
}

/// Drains, downs and resumes of nodes.
pub(super) fn node_events(log: &Log, published: &Published, verdict: &mut Verdict) {
    for act in log.nodes.iter().filter(|act| act.seen) {
        let (name, kinds): (_, &[EventType]) = match act.what {
            "drain" => (
                "node.drained",
                &[EventType::NodeDrained, EventType::NodeDraining],
            ),
            "resume" => continue,
            _ => ("node.down", &[EventType::NodeDown]),
        };
        let found = kinds.iter().flat_map(|kind| of_kind(published, *kind));
        let mut nodes = found.filter_map(|event| match event.payload.as_ref()? {
            Payload::Node(node) => node.node.as_ref(),
            _ => None,
        });
        let found = nodes.any(|node| node.name == act.node && node.reason.contains(&act.reason));
        if found {
            verdict.right(name);
        } else {
            verdict.missing.push(format!("{name}: {act:?}"));
        }
    }
    let of_node = |kind, node: &str| {
        of_kind(published, kind)
            .filter(|event| event.entity_key() == format!("node/{node}"))
            .count()
    };
    for node in ["n1", "n2", "n3", "n4", "n5"] {
        let acts = log.nodes.iter().filter(|act| act.node == node);
        let resumes = acts.clone().filter(|act| act.what == "resume");
        let (all, seen) = (
            resumes.clone().count(),
            resumes.filter(|act| act.seen).count(),
        );
        let count = |what: &[&str]| acts.clone().filter(|act| what.contains(&act.what)).count();
        // A node may stop responding on a busy machine; slurmctld sets it down and takes it back.
        let unresponsive = log.unresponsive.get(node).copied().unwrap_or_default();
        let by_itself = unresponsive.saturating_sub(count(&["killed"]));
        let all = all + by_itself;
        let recovered = of_node(EventType::NodeRecovered, node);
        if recovered < seen {
            verdict.missing.push(format!(
                "node.recovered of {node}: {recovered} times, it was resumed {seen} times"
            ));
        } else if recovered > all {
            verdict.extra.push(format!(
                "node.recovered of {node}: {recovered} times, it was resumed {all} times at most"
            ));
        } else {
            for _ in 0..recovered {
                verdict.right("node.recovered");
            }
        }
        let drained = max_drained(log, node);
        let limits = [
            (EventType::NodeDrained, drained),
            (EventType::NodeDraining, drained),
            (EventType::NodeDown, count(&["down", "killed"]) + by_itself),
        ];
        for (kind, max) in limits {
            let times = of_node(kind, node);
            if times > max {
                verdict.extra.push(format!(
                    "{kind} of {node}: {times} times, by what the driver did and slurmctld logged {max} times at most"
                ));
            }
        }
    }
}

/// Maximum number of times a node may have become drained. A suspended job releases its CPUs, so its node is drained until the job
/// resumes, and drains again then (seen on 22.05).
fn max_drained(log: &Log, node: &str) -> usize {
    let mut times = 0;
    let mut since = None;
    for act in log.nodes.iter().filter(|act| act.node == node) {
        if act.what == "drain" {
            times += 1;
            since = Some(act.from);
        } else if let Some(since) = since.take() {
            let during = log.pauses.iter().filter(|pause| {
                pause.event_name == "resumed" && pause.until >= since && pause.from <= act.from + 1
            });
            times += during.count();
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{NodeAct, Pause};

    #[test]
    fn a_job_that_continues_returns_its_node_to_draining() {
        let mut log = Log::new();
        let act = |what, from| NodeAct {
            node: "n2".to_owned(),
            what,
            reason: "soak 1".to_owned(),
            from,
            seen: true,
        };
        log.nodes.extend([act("drain", 100), act("resume", 150)]);
        assert_eq!(max_drained(&log, "n2"), 1);
        let resumed = |from| Pause {
            job: 7,
            event_name: "resumed",
            proven: true,
            from,
            until: from + 1,
        };
        log.pauses.extend([resumed(90), resumed(120), resumed(160)]);
        assert_eq!(max_drained(&log, "n2"), 2);
        assert_eq!(max_drained(&log, "n1"), 0);
    }
}
