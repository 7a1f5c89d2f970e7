//! Builds the envelope of a change.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, IdSource, Source};
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent, SpotNotice};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, hooks, timestamp};
use slurm_client::NodeRecord;
use slurm_types::{NodeFlag, UnixTime};

use super::absence::ObservedNode;
use super::spot_notice;
use super::tracked_node::TrackedNode;

/// The events of a node after a poll with `asked`. Their numbers continue from the node's previous ones.
pub fn of(cluster: &str, asked: &str, seen: &ObservedNode) -> Vec<Event> {
    let first = seen.after.n - seen.changes.len() as u64;
    let entity = format!("node/{}", seen.record.name);
    let numbered = seen.changes.iter().zip(first + 1..);
    // Slurm knows nothing of a provider's notice.
    let origin = |change: &super::NodeChange| {
        if change.kind == EventType::NodePreempted && spot_notice::is_hooks_word(&change.cause) {
            (Source::Hook, hooks::SPOT_NOTICE_HOOK, Confidence::Inferred)
        } else {
            (Source::Sweep, asked, Confidence::Observed)
        }
    };
    let event = |(change, n): (&super::NodeChange, u64)| Event {
        id: EventId::sampled(cluster, &entity, change.kind, n).to_string(),
        id_source: IdSource::sampled(n),
        cluster: cluster.to_owned(),
        r#type: change.kind.to_string(),
        occurred_at: Some(timestamp(change.at)),
        observed_at: Some(timestamp(change.at)),
        source: origin(change).0.into(),
        source_detail: origin(change).1.to_owned(),
        confidence: origin(change).2.into(),
        actor: change.cause.actor.clone(),
        entity: Some(Entity {
            kind: "node".to_owned(),
            key: entity.clone(),
        }),
        run_seq: n,
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::Node(NodeEvent {
            node: Some(node(&seen.record, &seen.after)),
            previous_lifecycle: change
                .previous
                .map_or("", |previous| previous.as_str())
                .to_owned(),
            cause: change.cause.code.clone(),
            cause_source: change.cause.source.clone(),
            notice: seen.after.notice.as_ref().map(notice),
        })),
        ..Event::default()
    };
    numbered.map(event).collect()
}

/// The events of a downtime that accounting has and no poll has seen.
pub fn of_downtime(cluster: &str, observed_at: DateTime<Utc>, seen: &ObservedNode) -> Vec<Event> {
    let events = of(cluster, "sacctmgr show event", seen).into_iter();
    let from_accounting = |event| Event {
        source: Source::Accounting.into(),
        observed_at: Some(timestamp(observed_at)),
        late: true,
        ..event
    };
    events.map(from_accounting).collect()
}

fn notice(notice: &spot_notice::SpotNotice) -> SpotNotice {
    SpotNotice {
        provider: notice.provider.clone(),
        action: notice.action.clone(),
        deadline: notice.deadline.map(timestamp),
        noticed_at: Some(timestamp(notice.noticed_at)),
    }
}

/// The snapshot in an event.
fn node(record: &NodeRecord, tracked: &TrackedNode) -> Node {
    let flags = NodeFlag::ALL
        .iter()
        .filter(|(flag, _)| record.state.has(*flag))
        .map(|(_, name)| (*name).to_owned());
    let time = |time: Option<UnixTime>| {
        time.and_then(|time| DateTime::from_timestamp(time.as_secs(), 0))
            .map(timestamp)
    };
    Node {
        name: record.name.clone(),
        state: record.state.base.map_or("", |base| base.name()).to_owned(),
        state_flags: flags.chain(record.state.unknown.iter().cloned()).collect(),
        lifecycle: tracked.lifecycle.as_str().to_owned(),
        suspect: tracked.suspect,
        reason: record.reason.clone(),
        reason_user: record.reason_user.clone(),
        reason_time: time(record.reason_time),
        cpus: record.cpus_effective,
        alloc_cpus: record.cpus_alloc,
        memory_mib: record.real_memory_mib,
        alloc_memory_mib: record.alloc_memory_mib,
        gres: record.gres.clone(),
        partitions: record.partitions.clone(),
        features: record.active_features.clone(),
        boot_time: time(record.boot_time),
        slurmd_start_time: time(record.slurmd_start_time),
        instance_id: if record.instance_id.is_empty() {
            tracked.instance_id.clone()
        } else {
            record.instance_id.clone()
        },
        instance_type: record.instance_type.clone(),
    }
}
