//! A node's history: its stays in the life-cycle classes with their durations, and how long its boots took.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use serde::Serialize;
use utoipa::ToSchema;

use super::job_history::{RecordedEvent, occurred_at};

/// Number of boots whose durations count.
const MAX_BOOTS: usize = 50;
/// Number of launches of which the failed ones are counted.
const MAX_LAUNCHES: usize = 20;

/// A stay of the node in a life-cycle class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct NodeStep {
    /// Life-cycle class: `provisioning`, `active`, `draining`, `drained`, `down`, `terminating`, `terminated` or `unknown`.
    pub lifecycle: String,
    /// When it began, RFC 3339.
    #[schema(value_type = Option<String>)]
    pub from: Option<DateTime<Utc>>,
    /// When the next one began, RFC 3339; null for the present one.
    #[schema(value_type = Option<String>)]
    pub to: Option<DateTime<Utc>>,
    /// Its duration; null for the present one.
    pub seconds: Option<i64>,
    /// Cause: `power_saving`, `launch_failed`, `unreachable`, `admin`, …; empty if unknown.
    pub cause: String,
    /// Rule set that recognised the cause: `slurm`, `aws-parallelcluster`, …; empty if none did.
    pub cause_source: String,
    /// User who caused it, or `system` for Slurm and cloud tools; empty if unknown.
    pub actor: String,
    /// Slurm's or the provider's reason text; empty if none.
    pub reason: String,
    /// Cloud instance id; empty if unknown.
    pub instance_id: String,
    /// Cloud instance type; empty if unknown.
    pub instance_type: String,
    /// Id of the event that began it.
    pub event: String,
}

/// How long the boots of a node took, and how many failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct BootStats {
    /// Number of the newest boots whose durations count, at most 50.
    pub boots: usize,
    /// Half of them took at most this many seconds; null without boots.
    pub p50_seconds: Option<i64>,
    /// 9 of 10 took at most this many seconds; null without boots.
    pub p90_seconds: Option<i64>,
    /// Number of the newest launches, at most 20.
    pub launches: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// Reason of the newest failure; empty if none failed.
    pub last_failure: String,
}

/// The stays of a node, from its events in chronological order. Events that change no class belong to the stay.
pub fn node_steps(timeline: &[RecordedEvent]) -> Vec<NodeStep> {
    let mut steps: Vec<NodeStep> = Vec::new();
    for recorded in timeline {
        let Some(Payload::Node(payload)) = &recorded.event.payload else {
            continue;
        };
        let Some(node) = &payload.node else { continue };
        let at = occurred_at(&recorded.event);
        let actor = recorded.event.actor.as_ref();
        let step = NodeStep {
            lifecycle: node.lifecycle.clone(),
            from: at,
            cause: payload.cause.clone(),
            cause_source: payload.cause_source.clone(),
            actor: actor.map_or_else(String::new, |actor| match actor.user.as_str() {
                "" => "system".to_owned(),
                user => user.to_owned(),
            }),
            reason: node.reason.clone(),
            instance_id: node.instance_id.clone(),
            instance_type: node.instance_type.clone(),
            event: recorded.event.id.clone(),
            ..NodeStep::default()
        };
        match steps.last_mut() {
            Some(last) if last.lifecycle == step.lifecycle => {
                // A reason may be set later than the state.
                if last.cause.is_empty() {
                    (last.cause, last.cause_source) = (step.cause, step.cause_source);
                    (last.actor, last.reason) = (step.actor, step.reason);
                }
                if !step.instance_id.is_empty() {
                    (last.instance_id, last.instance_type) = (step.instance_id, step.instance_type);
                }
            }
            last => {
                if let Some(last) = last {
                    last.to = at;
                    last.seconds = last
                        .from
                        .zip(at)
                        .map(|(from, at)| (at - from).num_seconds());
                }
                steps.push(step);
            }
        }
    }
    steps
}

/// The boots among these stays. A launch has succeeded if the node registered, and failed if anything else came next.
pub fn boot_stats(steps: &[NodeStep]) -> BootStats {
    let ended = steps.windows(2).filter_map(|pair| {
        let [launch, next] = pair else { return None };
        let is_launch = launch.lifecycle == "provisioning" && launch.cause == "power_saving";
        is_launch.then(|| {
            let has_registered =
                ["active", "draining", "drained"].contains(&next.lifecycle.as_str());
            (launch, next, has_registered)
        })
    });
    // Newest first.
    let launches: Vec<_> = ended.rev().collect();
    let succeeded = launches.iter().filter(|(_, _, registered)| *registered);
    let mut seconds: Vec<i64> = succeeded
        .filter_map(|(launch, ..)| launch.seconds)
        .take(MAX_BOOTS)
        .collect();
    seconds.sort_unstable();
    let newest = &launches[..launches.len().min(MAX_LAUNCHES)];
    let failed: Vec<_> = newest
        .iter()
        .filter(|(_, _, registered)| !registered)
        .collect();
    BootStats {
        boots: seconds.len(),
        p50_seconds: nearest_rank(&seconds, 50),
        p90_seconds: nearest_rank(&seconds, 90),
        launches: newest.len(),
        failed: failed.len(),
        last_failure: failed
            .first()
            .map_or_else(String::new, |(_, next, _)| next.reason.clone()),
    }
}

/// A percentile of sorted values by nearest rank. `None` without values.
fn nearest_rank(sorted: &[i64], percent: usize) -> Option<i64> {
    let rank = (sorted.len() * percent).div_ceil(100).checked_sub(1)?;
    sorted.get(rank).copied()
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
    use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
    use mesh_events::{Event, timestamp};

    use super::*;

    fn event(
        seconds: i64,
        lifecycle: &str,
        cause: &str,
        user: &str,
        reason: &str,
    ) -> RecordedEvent {
        let node = Node {
            name: "c1".into(),
            lifecycle: lifecycle.into(),
            reason: reason.into(),
            ..Node::default()
        };
        RecordedEvent {
            seq: 1,
            event: Event {
                id: format!("at-{seconds}"),
                occurred_at: DateTime::from_timestamp(seconds, 0).map(timestamp),
                actor: Some(Actor {
                    kind: ActorKind::System.into(),
                    user: user.into(),
                    ..Actor::default()
                }),
                payload: Some(Payload::Node(NodeEvent {
                    node: Some(node),
                    cause: cause.into(),
                    ..NodeEvent::default()
                })),
                ..Event::default()
            },
        }
    }

    #[test]
    fn steps_have_durations_causes_and_actors() {
        let steps = node_steps(&[
            event(0, "provisioning", "power_saving", "", ""),
            event(90, "active", "", "", ""),
            event(200, "draining", "", "", ""),
            // Why it drains is read later.
            event(201, "draining", "admin", "root", "bad disk"),
            event(500, "drained", "admin", "root", "bad disk"),
        ]);
        let found: Vec<_> = steps
            .iter()
            .map(|step| {
                (
                    step.lifecycle.as_str(),
                    step.seconds,
                    step.cause.as_str(),
                    step.actor.as_str(),
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("provisioning", Some(90), "power_saving", "system"),
                ("active", Some(110), "", "system"),
                ("draining", Some(300), "admin", "root"),
                ("drained", None, "admin", "root"),
            ]
        );
        assert_eq!(
            (steps[2].event.as_str(), steps[2].reason.as_str()),
            ("at-200", "bad disk")
        );
        assert_eq!(steps[2].to, steps[3].from);
    }

    #[test]
    fn boots_are_counted_with_quantiles_and_failures() {
        let mut events = Vec::new();
        // Boots of 10, 20, … 60 s, and two launches that never registered.
        for number in 1..=6 {
            let start = number * 1_000;
            events.push(event(start, "provisioning", "power_saving", "", ""));
            events.push(event(start + number * 10, "active", "", "", ""));
            events.push(event(start + 900, "terminated", "power_saving", "", ""));
        }
        for start in [8_000, 9_000] {
            events.push(event(start, "provisioning", "power_saving", "", ""));
            events.push(event(
                start + 600,
                "terminated",
                "launch_failed",
                "",
                "ResumeTimeout reached",
            ));
        }
        // A reboot is no launch, and a launch that has not ended counts for nothing.
        events.push(event(10_000, "provisioning", "reboot", "", ""));
        events.push(event(10_500, "active", "", "", ""));
        events.push(event(11_000, "provisioning", "power_saving", "", ""));
        let stats = boot_stats(&node_steps(&events));
        assert_eq!(
            stats,
            BootStats {
                boots: 6,
                p50_seconds: Some(30),
                p90_seconds: Some(60),
                launches: 8,
                failed: 2,
                last_failure: "ResumeTimeout reached".into(),
            }
        );
        assert_eq!(boot_stats(&[]), BootStats::default());
    }
}
