//! What rules tell people: events about users on `SLURM_EVENTS`, which webhook endpoints deliver and ledgers store. No rule fires on them, see
//! [`super::rule::fires_rules`].

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{
    Confidence, Correlation, Entity, IdSource, Owner, Source,
};
use mesh_events::proto::mesh::user::v1::{Notice, UserEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, timestamp};

use super::intent::Intent;

/// A message of the action `notify`, for the user as whom the rule acts. A run has one, however often it is tried.
pub fn message(intent: &Intent, text: &str, data: &BTreeMap<String, String>) -> Event {
    let notice = Notice {
        text: text.to_owned(),
        data: data.clone(),
        ..of_run(intent)
    };
    let owner = &intent.user;
    event(intent, EventType::UserNotified, owner, 1, notice)
}

/// The request to a user to approve a run. A run that is redriven is a request of its own.
pub fn request(intent: &Intent, approver: &str, until: DateTime<Utc>) -> Event {
    let what = match &intent.action {
        Some(action) => action.summary(),
        None => "nothing".to_owned(),
    };
    let notice = Notice {
        text: format!(
            "{what}, because of {}. To decide: smesh triggers approve {key}, or reject {key}",
            intent.cause.event_type,
            key = intent.key
        ),
        expires: Some(timestamp(until)),
        ..of_run(intent)
    };
    let number = u64::try_from(intent.created_at.timestamp_micros()).unwrap_or(1);
    event(
        intent,
        EventType::UserApprovalRequested,
        approver,
        number,
        notice,
    )
}

fn of_run(intent: &Intent) -> Notice {
    Notice {
        rule: intent.rule.to_string(),
        run: intent.key.clone(),
        event_id: intent.cause.event_id.clone(),
        ..Notice::default()
    }
}

fn event(intent: &Intent, kind: EventType, user: &str, number: u64, notice: Notice) -> Event {
    let cluster = &intent.cause.cluster;
    let key = format!("rule/{}/{}/{user}", intent.rule, intent.key);
    let cause: Option<EventId> = intent.cause.event_id.parse().ok();
    Event {
        id: EventId::sampled(cluster, &key, kind, number).to_string(),
        id_source: IdSource::sampled(number),
        cluster: cluster.clone(),
        r#type: kind.to_string(),
        // The same at each attempt.
        occurred_at: Some(timestamp(intent.created_at)),
        observed_at: Some(timestamp(intent.created_at)),
        source: Source::Derived.into(),
        source_detail: "rule".to_owned(),
        confidence: Confidence::Observed.into(),
        correlation: cause.map(|cause| Correlation {
            event_ids: vec![cause.to_string()],
            entities: Vec::new(),
        }),
        owner: Some(Owner {
            user: user.to_owned(),
            ..Owner::default()
        }),
        entity: Some(Entity {
            kind: "rule".to_owned(),
            key,
        }),
        run_seq: 1,
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::User(UserEvent {
            user: user.to_owned(),
            attribute: "Rule".to_owned(),
            after: intent.rule.to_string(),
            notice: Some(notice),
            ..UserEvent::default()
        })),
        ..Event::default()
    }
}
