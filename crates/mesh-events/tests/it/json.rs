use mesh_events::proto::mesh::cost::v1::{CostEvent, CostLine, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind, Correlation, Identity};
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, Job, NodeAllocation};
use mesh_events::{Event, EventType, cloudevents};
use mesh_testkit::fixtures::{ended, job, job_event};
use proptest::prelude::*;
use prost::Message as _;

/// A failed array task with every field that an end may carry.
fn failed() -> Event {
    let failed = Job {
        display_id: "41_7".into(),
        array: Some(ArrayInfo {
            job_id: 41,
            task_id: Some(7),
            tasks: String::new(),
            max_running: 2,
        }),
        reason: "NonZeroExitCode".into(),
        exit_code: Some(ExitCode { code: 3, signal: 0 }),
        allocations: vec![NodeAllocation {
            nodes: "n1".into(),
            cpus: 4,
            memory_mib: Some(8192),
            ..NodeAllocation::default()
        }],
        ..ended(job(48), "FAILED", 61)
    };
    let mut event = job_event(EventType::JobFailed, failed);
    event.observed_at = event.occurred_at;
    event.run_seq = 3;
    event.actor = Some(Actor {
        kind: ActorKind::User.into(),
        user: "alice".into(),
        ..Actor::default()
    });
    event.correlation = Some(Correlation {
        event_ids: vec!["x".into()],
        entities: vec!["node/n1".into()],
    });
    event.owner.as_mut().unwrap().identity = Some(Identity {
        issuer: "https://login.example.org".into(),
        subject: "a1b2".into(),
        email: "alice@example.org".into(),
        name: "Alice Ångström".into(),
        provenance: "map-file".into(),
    });
    event
}

#[test]
fn an_end_as_json() {
    insta::assert_json_snapshot!(cloudevents::to_json(&failed()).unwrap());
}

#[test]
fn an_event_of_an_unknown_type_has_no_json() {
    let event = Event {
        r#type: "job.exploded".into(),
        ..failed()
    };
    assert!(cloudevents::to_json(&event).is_err());
}

#[test]
fn json_without_data_is_refused() {
    assert!(cloudevents::from_json(&serde_json::json!({ "id": "x" })).is_err());
    assert!(cloudevents::from_json(&serde_json::json!({ "data": { "id": 7 } })).is_err());
}

prop_compose! {
    fn costs()(
        micros: i64,
        rate: i64,
        seconds: u64,
        name in "\\PC{0,40}",
        comment in "(?s).{0,40}",
        priority: u32,
        limit: Option<u32>,
        nanos in 0..1_000_000_000i32,
        user in "\\PC{0,12}",
    ) -> Event {
        let job = Job { name, comment, priority, time_limit_minutes: limit, ..job(7) };
        let mut event = job_event(EventType::CostFinalized, job.clone());
        event.observed_at.as_mut().unwrap().nanos = nanos;
        event.owner.as_mut().unwrap().user = user;
        event.payload = Some(Payload::Cost(CostEvent {
            job: Some(job),
            total: Some(Money { micros, currency: "EUR".into() }),
            charged_seconds: seconds,
            lines: vec![CostLine { rate_micros_per_hour: rate, seconds, ..CostLine::default() }],
            ..CostEvent::default()
        }));
        event
    }
}

proptest! {
    #[test]
    fn any_event_survives_json_and_protobuf(event in costs()) {
        let json = cloudevents::to_json(&event).unwrap();
        let text = cloudevents::to_text(&event).unwrap();
        let read = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&json, &read);
        let back = cloudevents::from_json(&read).unwrap();
        prop_assert_eq!(&back, &event);
        prop_assert_eq!(Event::from_bytes(&event.encode_to_vec()).unwrap(), event);
    }

    #[test]
    fn any_bytes_are_an_event_or_an_error(bytes: Vec<u8>) {
        // Must not panic.
        drop(Event::from_bytes(&bytes));
    }
}
