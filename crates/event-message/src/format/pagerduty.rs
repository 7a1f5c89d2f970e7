//! PagerDuty, Events API v2: incidents that are triggered by failures and resolved by recoveries.
//!
//! | triggers | resolves |
//! | --- | --- |
//! | a job's failed end (failed, timeout, out_of_memory, node_fail, boot_fail, deadline), if requested by the endpoint | `job.completed` of the same job, or of a job of the same name and user |
//! | `node.down`, `node.preempted` | `node.recovered`, `node.active` |
//! | `user.quota_high` (a warning), `user.quota_exceeded` | `user.quota_cleared` |
//! | `capture.source_down`, `capture.gap_opened` | `capture.source_up`, `capture.gap_closed` |
//!
//! Deliveries arrive in any order, and a retry may be hours late. So the time of the last event sent is stored for
//! each incident, and older events are not sent: a late "down" does not reopen what "recovered" has resolved.
//! Concurrent deliveries do not see each other's state, so they are sequential unless configured otherwise.
//!
//! Limits: 512 KB in total, summary 1,024 characters, `dedup_key` 255.

use event_filter::fields::cut;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::user::v1::UserEvent;
use mesh_events::{Event, EventType, from_timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::request::{ProviderState, Request, Response, Unsendable, Verdict};
use super::{Content, Secret, Step};
use crate::message;
use crate::{Dialect, Message, Severity};

/// Types of an endpoint that names none. Failed jobs concern their users, so they must be named.
pub(super) const DEFAULT_TYPES: &[EventType] = &[
    EventType::NodeDown,
    EventType::NodePreempted,
    EventType::NodeRecovered,
    EventType::NodeActive,
    EventType::UserQuotaHigh,
    EventType::UserQuotaExceeded,
    EventType::UserQuotaCleared,
    EventType::CaptureSourceDown,
    EventType::CaptureSourceUp,
    EventType::CaptureGapOpened,
    EventType::CaptureGapClosed,
];

/// Settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagerDuty {
    /// Integration key.
    pub routing_key: Secret,
    /// Which failures of jobs share an incident.
    #[serde(default)]
    pub incident: Incident,
}

/// Which failures of jobs share an incident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Incident {
    /// Those of one job, including its requeues. Each array task has its own incident.
    #[default]
    Job,
    /// Those of a user's jobs of one name. The next completed job resolves it.
    Name,
}

impl PagerDuty {
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let fault = self.routing_key.fault();
        fault
            .map(|problem| {
                (
                    "routing_key",
                    format!(
                        "{problem}; it is the integration key of an \"Events API V2\" integration"
                    ),
                )
            })
            .into_iter()
            .collect()
    }

    pub(super) fn takes(&self, kind: EventType, event: &Event) -> bool {
        action(kind).is_some() && message::of(event, None).is_some()
    }

    pub(super) fn keys(&self, content: &Content<'_>) -> Vec<String> {
        match content {
            Content::Event { event, .. } => vec![kept_key(&self.dedup_key(event))],
            Content::Message { .. } => Vec::new(),
        }
    }

    pub(super) fn begin(
        &self,
        address: &Url,
        content: &Content<'_>,
        state: &ProviderState,
    ) -> Result<Step, Unsendable> {
        let message = content.message().ok_or(Unsendable::Nothing)?;
        let (action, key, keep) = match content {
            Content::Event { event, .. } => {
                let action = action(event.kind()?).ok_or(Unsendable::Nothing)?;
                let key = self.dedup_key(event);
                let now = occurred(event);
                let last = state
                    .get(&kept_key(&key))
                    .and_then(|last| last.parse().ok());
                if last.is_some_and(|last: i64| now < last) {
                    return Ok(Step::Done(Verdict::needless()));
                }
                let keep = vec![(kept_key(&key), Some(now.to_string()))];
                (action, key, keep)
            }
            Content::Message { id, .. } => {
                ("trigger", bounded(format!("slurm-mesh/{id}")), Vec::new())
            }
        };
        let mut body = json!({
            "routing_key": self.routing_key.expose(),
            "event_action": action,
            "dedup_key": key,
        });
        // A resolve may have a payload as well, which PagerDuty shows in the incident's log.
        body["payload"] = payload(&message, content);
        body["client"] = "slurm-mesh".into();
        let links: Vec<Value> = message
            .links
            .iter()
            .map(|link| json!({"href": link.url, "text": link.label}))
            .collect();
        if !links.is_empty() {
            body["links"] = links.into();
        }
        // 202 is success. 400 is permanent, 429 and 5xx are not.
        let request = Request::json(address, &body);
        Ok(Step::once_keeping(request, Response::by_status, keep))
    }

    /// Identifies the incident.
    fn dedup_key(&self, event: &Event) -> String {
        let cluster = &event.cluster;
        bounded(match &event.payload {
            Some(Payload::Job(_)) => match (event.job(), self.incident) {
                (Some(job), Incident::Name) => {
                    let user = event.owner.as_ref().map_or("", |owner| owner.user.as_str());
                    format!("slurm-mesh/{cluster}/jobs/{user}/{}", job.name)
                }
                (Some(job), Incident::Job) => {
                    // A task has its own job id only after it started. Events of the array itself use the array's id.
                    let id = match job.array.as_ref() {
                        Some(array) => match array.task_id {
                            Some(task) => format!("{}_{task}", array.job_id),
                            None => array.job_id.to_string(),
                        },
                        None => job.job_id.to_string(),
                    };
                    format!("slurm-mesh/{cluster}/job/{id}")
                }
                (None, _) => format!("slurm-mesh/{cluster}/{}", event.entity_key()),
            },
            Some(Payload::Node(payload)) => {
                let node = payload.node.as_ref().map_or("", |node| node.name.as_str());
                format!("slurm-mesh/{cluster}/node/{node}")
            }
            Some(Payload::User(UserEvent {
                quota: Some(quota), ..
            })) => format!("slurm-mesh/{cluster}/quota/{}", quota.budget),
            Some(Payload::User(payload)) => {
                format!(
                    "slurm-mesh/{cluster}/quota/{}/{}",
                    payload.account, payload.user
                )
            }
            Some(Payload::Capture(payload)) => {
                // An unavailable source and a gap are separate incidents.
                let what = if event.r#type.contains("gap") {
                    "gap"
                } else {
                    "source"
                };
                format!("slurm-mesh/{cluster}/{what}/{}", payload.source)
            }
            _ => format!("slurm-mesh/{cluster}/{}", event.entity_key()),
        })
    }
}

/// `trigger` or `resolve`.
fn action(kind: EventType) -> Option<&'static str> {
    match kind {
        EventType::JobFailed
        | EventType::JobTimeout
        | EventType::JobOutOfMemory
        | EventType::JobNodeFail
        | EventType::JobBootFail
        | EventType::JobDeadline
        | EventType::NodeDown
        | EventType::NodePreempted
        | EventType::UserQuotaHigh
        | EventType::UserQuotaExceeded
        | EventType::CaptureSourceDown
        | EventType::CaptureGapOpened => Some("trigger"),
        EventType::JobCompleted
        | EventType::NodeRecovered
        | EventType::NodeActive
        | EventType::UserQuotaCleared
        | EventType::CaptureSourceUp
        | EventType::CaptureGapClosed => Some("resolve"),
        _ => None,
    }
}

fn payload(message: &Message, content: &Content<'_>) -> Value {
    let severity = match message.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Good | Severity::Info => "info",
    };
    let mut details: Map<String, Value> = message
        .facts
        .iter()
        .map(|fact| {
            (
                fact.name.to_owned(),
                fact.value.write(Dialect::Plain, 2_000).into(),
            )
        })
        .collect();
    if !message.sentence.is_empty() {
        details.insert(
            "About".to_owned(),
            message.sentence.write(Dialect::Plain, 2_000).into(),
        );
    }
    let heading = message
        .heading
        .clone()
        .plain(": ")
        .and(message.sentence.clone());
    let mut payload = json!({
        "summary": heading.write(Dialect::Plain, 1_000),
        "severity": severity,
        "source": source(content),
        "custom_details": details,
    });
    if let Content::Event { event, .. } = content {
        payload["custom_details"]
            .as_object_mut()
            .into_iter()
            .for_each(|details| details.extend(owner(event)));
        payload["class"] = event.r#type.as_str().into();
        payload["component"] = cut(event.entity_key(), 200).into();
        if let Some(at) = event.occurred_at.as_ref().and_then(from_timestamp) {
            payload["timestamp"] = at.to_rfc3339().into();
        }
    }
    payload
}

/// The owner's fields.
fn owner(event: &Event) -> impl Iterator<Item = (String, Value)> {
    let owner = event.owner.as_ref();
    let identity = owner.and_then(|owner| owner.identity.as_ref());
    let fields = [
        ("User", owner.map(|owner| &owner.user)),
        ("Account", owner.map(|owner| &owner.account)),
        ("Person", identity.map(|identity| &identity.name)),
        ("E-mail", identity.map(|identity| &identity.email)),
    ];
    let given = fields.into_iter().filter_map(|(name, value)| {
        value
            .filter(|value| !value.is_empty())
            .map(|value| (name, value))
    });
    let fields: Vec<_> = given
        .map(|(name, value)| (name.to_owned(), cut(value, 320).into()))
        .collect();
    fields.into_iter()
}

/// Where it happened: a node, or the cluster.
fn source(content: &Content<'_>) -> String {
    let Content::Event { event, .. } = content else {
        return "slurm-mesh".to_owned();
    };
    let node = match &event.payload {
        Some(Payload::Node(payload)) => payload.node.as_ref().map(|node| node.name.as_str()),
        Some(Payload::Job(_)) => event.job().map(|job| job.failed_node.as_str()),
        _ => None,
    };
    let node = node.filter(|node| !node.trim().is_empty());
    let source = node.unwrap_or(&event.cluster);
    if source.trim().is_empty() {
        "slurm-mesh".to_owned()
    } else {
        cut(source, 200)
    }
}

fn occurred(event: &Event) -> i64 {
    let occurred = event.occurred_at.as_ref().and_then(from_timestamp);
    occurred.map_or(0, |at| at.timestamp_millis())
}

fn kept_key(dedup_key: &str) -> String {
    format!("pagerduty/{dedup_key}")
}

/// At most 255 characters, and still distinct.
fn bounded(key: String) -> String {
    const MAX_DEDUP_KEY_CHARS: usize = 255;
    if key.chars().count() <= MAX_DEDUP_KEY_CHARS && !key.chars().any(char::is_control) {
        return key;
    }
    let digest = hex::encode(&Sha256::digest(key.as_bytes())[..16]);
    let start: String = key
        .chars()
        .map(crate::clean)
        .take(MAX_DEDUP_KEY_CHARS - 33)
        .collect();
    format!("{start}#{digest}")
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
    use mesh_events::proto::mesh::job::v1::ArrayInfo;
    use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
    use mesh_events::timestamp;
    use serde_json::Value;

    use super::*;

    fn settings(incident: Incident) -> PagerDuty {
        PagerDuty {
            routing_key: "key".into(),
            incident,
        }
    }

    fn node(kind: EventType, seconds: i64) -> Event {
        Event {
            cluster: "c".into(),
            r#type: kind.to_string(),
            occurred_at: Some(timestamp(
                DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds),
            )),
            payload: Some(Payload::Node(NodeEvent {
                node: Some(Node {
                    name: "n1".into(),
                    ..Node::default()
                }),
                ..NodeEvent::default()
            })),
            ..Event::default()
        }
    }

    fn incident(event: &Event, state: &mut ProviderState) -> Option<(String, String)> {
        let address = Url::parse("https://events.pagerduty.com/v2/enqueue").unwrap();
        let content = Content::Event {
            event: &event.clone().into(),
            cost: None,
            replay: None,
            spending: None,
            now: DateTime::UNIX_EPOCH,
        };
        let step = settings(Incident::Job)
            .begin(&address, &content, state)
            .unwrap();
        let Step::Send(request, exchange) = step else {
            return None;
        };
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let answer = Response {
            status: 202,
            ..Response::default()
        };
        let Step::Done(verdict) = exchange.answered(&answer) else {
            panic!("one request")
        };
        state.extend(
            verdict
                .keep
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        let word = |name: &str| body[name].as_str().unwrap().to_owned();
        Some((word("event_action"), word("dedup_key")))
    }

    #[test]
    fn a_node_opens_and_closes_the_same_incident_and_what_is_late_is_not_told() {
        let mut state = ProviderState::new();
        let sent = |action: &str| Some((action.to_owned(), "slurm-mesh/c/node/n1".to_owned()));
        assert_eq!(
            incident(&node(EventType::NodeDown, 10), &mut state),
            sent("trigger")
        );
        assert_eq!(
            incident(&node(EventType::NodeRecovered, 20), &mut state),
            sent("resolve")
        );
        assert_eq!(
            incident(&node(EventType::NodeDown, 10), &mut state),
            None,
            "a late retry"
        );
        assert_eq!(
            incident(&node(EventType::NodeDown, 30), &mut state),
            sent("trigger")
        );
    }

    #[test]
    fn jobs_of_one_name_are_one_incident_if_asked() {
        let event = |id: u32, kind: EventType| {
            let mut event = message::tests::job_event(kind, message::tests::ended(5));
            if let Some(Payload::Job(payload)) = &mut event.payload {
                payload.job.as_mut().unwrap().job_id = id;
            }
            event
        };
        let (failed, completed) = (
            event(1, EventType::JobFailed),
            event(2, EventType::JobCompleted),
        );
        let by_name = settings(Incident::Name);
        assert_eq!(by_name.dedup_key(&failed), by_name.dedup_key(&completed));
        let by_job = settings(Incident::Job);
        assert_ne!(by_job.dedup_key(&failed), by_job.dedup_key(&completed));
    }

    #[test]
    fn each_budget_has_an_incident_of_its_own() {
        let settings = settings(Incident::Job);
        let exceeded = event_filter::sample::event(EventType::UserQuotaExceeded);
        let mut other = exceeded.clone();
        let Some(Payload::User(payload)) = &mut other.payload else {
            panic!("a user event");
        };
        payload.quota.as_mut().unwrap().budget = "another".into();
        assert_ne!(settings.dedup_key(&exceeded), settings.dedup_key(&other));
        let cleared = event_filter::sample::event(EventType::UserQuotaCleared);
        assert_eq!(settings.dedup_key(&exceeded), settings.dedup_key(&cleared));
    }

    #[test]
    fn a_task_that_completes_does_not_close_the_incident_of_another() {
        let event = |task: Option<u32>, kind: EventType| {
            let mut event = message::tests::job_event(kind, message::tests::ended(5));
            if let Some(Payload::Job(payload)) = &mut event.payload {
                let job = payload.job.as_mut().unwrap();
                job.job_id = 500 + task.unwrap_or(0);
                job.array = Some(ArrayInfo {
                    job_id: 500,
                    task_id: task,
                    ..ArrayInfo::default()
                });
            }
            event
        };
        let keys = [
            (Some(1), EventType::JobFailed),
            (Some(2), EventType::JobCompleted),
            (Some(1), EventType::JobCompleted),
            (None, EventType::JobDeadline),
        ]
        .map(|(task, kind)| settings(Incident::Job).dedup_key(&event(task, kind)));
        assert_ne!(keys[0], keys[1]);
        assert_eq!(keys[0], keys[2]);
        assert!(keys[3].ends_with("/job/500"), "{}", keys[3]);
        assert!(keys[0].ends_with("/job/500_1"), "{}", keys[0]);
    }

    #[test]
    fn long_keys_stay_distinct() {
        let (a, b) = (bounded("a".repeat(300)), bounded("a".repeat(301)));
        assert_ne!(a, b);
        assert_eq!(a.chars().count(), 255);
    }
}
