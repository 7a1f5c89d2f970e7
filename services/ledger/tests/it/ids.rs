//! A program written from docs/reference/events.md alone computes the ids of every type in the catalogue, and finds that each type
//! has the identity that the page gives it. tests/integration does the same with a real cluster.

mod audit;

use std::path::Path;
use std::process::Command;

use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Entity, Event, IdSource};
use mesh_events::proto::mesh::user::v1::UserEvent;
use mesh_events::{Category, EventId, EventType, FactKind, Slot};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::{Database, Process, bus, node_event};

/// Runs the program on an export. Returns whether it computed everything, and what it printed.
pub fn computed(export: &str, keys: &[String]) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let (lines, vkeys) = (folder.path().join("export"), folder.path().join("keys"));
    std::fs::write(&lines, export).unwrap();
    std::fs::write(&vkeys, keys.join("\n")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/ledger.py");
    let output = Command::new("python3")
        .arg(script)
        .args([lines, vkeys])
        .output();
    let output = output.expect("python3 is needed for this test: apt-get install python3");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), printed)
}

/// The ledger's own export and keys, with every entry signed.
pub async fn exported(process: &Process, entries: usize) -> (String, Vec<String>) {
    let mut text = String::new();
    process
        .until("everything is signed", async |process| {
            text = process.get("/v1/ledger/export").await.unwrap_or_default();
            text.lines().count() > entries
        })
        .await;
    let keys = process.json("/v1/ledger/keys").await.unwrap();
    let keys = keys["keys"].as_array().unwrap().iter();
    let vkey = |key: &Value| key["vkey"].as_str().unwrap().to_owned();
    (text, keys.map(vkey).collect())
}

/// An event of a type, not yet with an id.
fn event(kind: EventType, number: u32) -> Event {
    let of = |entity: &str, key: String, payload| Event {
        r#type: kind.to_string(),
        entity: Some(Entity {
            kind: entity.into(),
            key,
        }),
        payload: Some(payload),
        ..node_event("n1", 1)
    };
    match kind.category() {
        Category::Job | Category::Cost | Category::Queue => {
            fixtures::job_event(kind, fixtures::job(number))
        }
        Category::Node => Event {
            r#type: kind.to_string(),
            ..node_event(&format!("n{number}"), 1)
        },
        Category::User => {
            let user = format!("u{number}");
            let payload = UserEvent {
                user: user.clone(),
                ..UserEvent::default()
            };
            of("user", format!("user/{user}"), Payload::User(payload))
        }
        Category::Capture => {
            let payload = CaptureEvent {
                source: "slurmctld".into(),
                ..CaptureEvent::default()
            };
            of(
                "cluster",
                "capture/slurmctld".into(),
                Payload::Capture(payload),
            )
        }
    }
}

/// The event with its id, by each identity that its type may have.
fn with_ids(kind: EventType, number: u32) -> Vec<Event> {
    let event = event(kind, number);
    let with = |id: EventId, id_source| Event {
        id: id.to_string(),
        id_source,
        ..event.clone()
    };
    let recorded = |slot| {
        let id = EventId::recorded(&fixtures::run(number), slot);
        with(id, IdSource::recorded(kind, slot))
    };
    let key = event.entity_key().to_owned();
    let n = u64::from(number);
    let sampled = || {
        with(
            EventId::sampled(CLUSTER, &key, kind, n),
            IdSource::sampled(n),
        )
    };
    let derived = |cause: EventId| {
        with(
            EventId::derived(cause, kind, 1),
            IdSource::derived(cause, 1),
        )
    };
    let cause = || EventId::recorded(&fixtures::run(number), Slot::End);
    match kind.identity() {
        FactKind::Recorded => {
            let at = fixtures::submit_time().timestamp() + 60;
            match kind {
                EventType::JobSuspended => vec![recorded(Slot::Suspended(at))],
                EventType::JobResumed => vec![recorded(Slot::Resumed(at))],
                EventType::JobResized => vec![recorded(Slot::Resized(at))],
                EventType::JobCancelled => {
                    vec![recorded(Slot::End), recorded(Slot::TasksCancelled(at))]
                }
                _ => vec![recorded(Slot::of_type(kind).unwrap())],
            }
        }
        FactKind::Sampled => {
            let other = EventId::sampled(CLUSTER, "another/entity", kind, n);
            vec![
                sampled(),
                with(other, IdSource::sampled_for("another/entity", n)),
            ]
        }
        FactKind::Derived => vec![derived(cause())],
        FactKind::SampledOrDerived => vec![sampled(), derived(cause())],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_every_type_are_computed_from_the_page() {
    let nats = NatsServer::start().await;
    let database = Database::sqlite();
    let process = Process::start(&nats, &database).await;
    let numbered = EventType::ALL.iter().copied().zip(1_u32..);
    let events: Vec<Event> = numbered
        .flat_map(|(kind, number)| with_ids(kind, number))
        .collect();
    let count = events.len();
    let bus = bus(&nats, "admin").await;
    bus.publish_all(events, &CancellationToken::new())
        .await
        .unwrap();
    let (text, keys) = exported(&process, count).await;
    let (is_computed, printed) = computed(&text, &keys);
    assert!(is_computed, "{printed}");
    for kind in EventType::ALL {
        let identity = match kind.identity() {
            FactKind::Recorded => "recorded",
            FactKind::Sampled => "sampled",
            FactKind::Derived => "derived",
            FactKind::SampledOrDerived => "sampled or derived",
        };
        let line = format!("type {kind}: {identity}");
        assert!(
            printed.lines().any(|printed| printed.ends_with(&line)),
            "{line}: {printed}"
        );
    }
}
