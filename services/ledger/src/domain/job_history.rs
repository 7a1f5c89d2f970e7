//! A job's history: its runs, oldest first, with the events of each.

mod nodes;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, RunKey, cloudevents, from_timestamp};
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

pub use nodes::{NodeWindow, add_node_events, node_windows};

/// An entry of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Entry)]
pub struct RecordedEvent {
    /// Ledger sequence, from 1 without gaps.
    pub seq: u64,
    /// The event or audit entry as structured CloudEvents JSON; `data` is the protobuf message in proto3 JSON.
    #[serde(serialize_with = "cloudevent")]
    #[schema(value_type = Object)]
    pub event: Event,
}

/// One run of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = JobRun)]
pub struct Run {
    /// Entity key of the run.
    #[serde(rename = "run")]
    pub key: String,
    /// State of the run.
    pub summary: Summary,
    /// Nodes and time of its allocation, once it has started.
    #[serde(skip)]
    pub window: Option<NodeWindow>,
    /// Events of the run, in chronological order.
    pub timeline: Vec<RecordedEvent>,
}

/// Summary of a run.
// It is from the newest snapshot of the job and its newest cost event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = RunSummary)]
pub struct Summary {
    /// Job id as Slurm displays it.
    pub display_id: String,
    /// Job name.
    pub name: String,
    /// Unix user who owns the job.
    pub user: String,
    /// Slurm account.
    pub account: String,
    /// Slurm partition.
    pub partition: String,
    /// Slurm's job state, such as `RUNNING`.
    pub state: String,
    /// Submit time, RFC 3339; null if unknown.
    #[schema(value_type = Option<String>)]
    pub submitted: Option<DateTime<Utc>>,
    /// Start time of the allocation, RFC 3339; null if it has not started.
    #[schema(value_type = Option<String>)]
    pub started: Option<DateTime<Utc>>,
    /// End time, RFC 3339; null if it has not ended.
    #[schema(value_type = Option<String>)]
    pub ended: Option<DateTime<Utc>>,
    /// Exit code of the batch script; null if unknown.
    pub exit_code: Option<ExitCode>,
    /// Cost of the run; null if unknown.
    pub cost: Option<Cost>,
}

/// Exit code of a batch script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ExitCode {
    /// Exit status.
    pub code: u32,
    /// Number of the signal that ended it; 0 if none.
    pub signal: u32,
}

/// Cost of a run.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = RunCost)]
pub struct Cost {
    /// `final`; `accrued`: so far; `estimated`: up to the time limit.
    #[schema(value_type = String)]
    pub kind: CostKind,
    /// Amount in millionths of the currency unit, as a decimal string.
    #[serde(serialize_with = "decimal")]
    #[schema(value_type = String)]
    pub micros: i64,
    /// Currency, ISO 4217 code.
    pub currency: String,
}

/// Certainty of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CostKind {
    /// Final cost of the run.
    Final,
    /// Cost accrued so far.
    Accrued,
    /// Estimate for a run up to its time limit.
    Estimated,
}

impl CostKind {
    /// Returns the keyword in responses.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Final => "final",
            Self::Accrued => "accrued",
            Self::Estimated => "estimated",
        }
    }
}

/// State of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct NodeState {
    /// Slurm's base state, such as `IDLE`.
    pub state: String,
    /// Slurm's state flags, such as `DRAIN`.
    pub flags: Vec<String>,
    /// Life-cycle class: `provisioning`, `active`, `draining`, `drained`, `down`, `terminating`, `terminated` or `unknown`.
    pub lifecycle: String,
    /// Slurm's reason text; empty if none.
    pub reason: String,
    /// When the node entered this state, RFC 3339; null if unknown.
    #[schema(value_type = Option<String>)]
    pub since: Option<DateTime<Utc>>,
}

/// Returns the state of a node after these events, which are in chronological order.
pub fn node_state(timeline: &[RecordedEvent]) -> NodeState {
    let newest = timeline.iter().rev().find_map(|recorded| {
        let Some(Payload::Node(payload)) = &recorded.event.payload else {
            return None;
        };
        Some((payload.node.as_ref()?, &recorded.event))
    });
    newest.map_or_else(NodeState::default, |(node, event)| NodeState {
        state: node.state.clone(),
        flags: node.state_flags.clone(),
        lifecycle: node.lifecycle.clone(),
        reason: node.reason.clone(),
        since: occurred_at(event),
    })
}

/// Sorts events chronologically.
///
/// Slurm's times are whole seconds. Within a second, the sequence decides.
pub fn in_order(events: &mut [RecordedEvent]) {
    events.sort_by_key(|recorded| (occurred_at(&recorded.event), recorded.seq));
}

/// Groups events into runs, as of the time `at` if given. The events must not be later than that.
pub fn job_runs(events: Vec<RecordedEvent>, at: Option<DateTime<Utc>>) -> Vec<Run> {
    let mut runs: BTreeMap<String, Vec<RecordedEvent>> = BTreeMap::new();
    for recorded in events {
        let key = recorded.event.entity_key().to_owned();
        runs.entry(key).or_default().push(recorded);
    }
    let mut runs: Vec<Run> = runs
        .into_iter()
        .map(|(key, mut timeline)| {
            in_order(&mut timeline);
            let summary = match at {
                None => summary(&timeline),
                Some(at) => summary(&timeline).before(at, is_suspended(&timeline)),
            };
            Run {
                key,
                window: NodeWindow::of(nodes_of(&timeline), summary.started, summary.ended),
                summary,
                timeline,
            }
        })
        .collect();
    runs.sort_by_key(age);
    runs
}

/// Returns the nodes of a run, from the newest snapshot that has some.
fn nodes_of(timeline: &[RecordedEvent]) -> &str {
    let jobs = timeline.iter().rev().filter_map(|one| one.event.job());
    let mut nodes = jobs.map(|job| job.nodes.as_str());
    nodes.find(|nodes| !nodes.is_empty()).unwrap_or_default()
}

/// Sort key for the oldest run first: submit time, attempt, array task.
fn age(run: &Run) -> (i64, u32, Option<u32>, u32) {
    match RunKey::parse("", &run.key) {
        Ok(key) => (key.submit_time, key.attempt, key.task_id, key.job_id),
        Err(_) => (i64::MAX, 0, None, 0),
    }
}

pub(super) fn occurred_at(event: &Event) -> Option<DateTime<Utc>> {
    event.occurred_at.as_ref().and_then(from_timestamp)
}

fn summary(timeline: &[RecordedEvent]) -> Summary {
    let events = || timeline.iter().rev().map(|recorded| &recorded.event);
    let snapshot = events()
        .filter(|event| matches!(event.payload, Some(Payload::Job(_))))
        .chain(events())
        .find(|event| event.job().is_some());
    let mut summary = Summary::default();
    if let Some(event) = snapshot {
        if let Some(job) = event.job() {
            describe(&mut summary, job);
        }
        if let Some(owner) = &event.owner {
            summary.user.clone_from(&owner.user);
            summary.account.clone_from(&owner.account);
        }
    }
    summary.cost = events().find_map(|event| match &event.payload {
        Some(Payload::Cost(cost)) => amount(cost),
        Some(
            Payload::Job(_)
            | Payload::Node(_)
            | Payload::User(_)
            | Payload::Queue(_)
            | Payload::Capture(_),
        )
        | None => None,
    });
    summary
}

impl Summary {
    /// Removes everything later than `at`. An event contains Slurm's record at the time of reading.
    /// For a job whose start was not observed, that record may already contain the end.
    fn before(mut self, at: DateTime<Utc>, suspended: bool) -> Self {
        let is_after = |time: Option<DateTime<Utc>>| time.is_some_and(|time| time > at);
        if is_after(self.ended) {
            (self.ended, self.exit_code) = (None, None);
            self.state = match (self.started, suspended) {
                (None, _) => "PENDING",
                (Some(_), false) => "RUNNING",
                (Some(_), true) => "SUSPENDED",
            }
            .to_owned();
        }
        if is_after(self.started) {
            self.started = None;
            self.state = "PENDING".to_owned();
        }
        self
    }
}

/// True if the newest event about it is its suspension.
fn is_suspended(timeline: &[RecordedEvent]) -> bool {
    let kinds = timeline
        .iter()
        .rev()
        .map(|recorded| &*recorded.event.r#type);
    let suspended = EventType::JobSuspended.to_string();
    let resumed = EventType::JobResumed.to_string();
    let mut names = kinds.filter(|kind| [&*suspended, &*resumed].contains(kind));
    names.next() == Some(&*suspended)
}

fn describe(summary: &mut Summary, job: &Job) {
    let moment = |time: &Option<_>| time.as_ref().and_then(from_timestamp);
    summary.display_id.clone_from(&job.display_id);
    summary.name.clone_from(&job.name);
    summary.partition.clone_from(&job.partition);
    summary.state.clone_from(&job.state);
    summary.submitted = moment(&job.submit_time);
    summary.started = moment(&job.start_time);
    summary.ended = moment(&job.end_time);
    summary.exit_code = job.exit_code.map(|exit| ExitCode {
        code: exit.code,
        signal: exit.signal,
    });
}

fn amount(cost: &CostEvent) -> Option<Cost> {
    [
        (CostKind::Final, &cost.total),
        (CostKind::Accrued, &cost.accrued),
        (CostKind::Estimated, &cost.estimated),
    ]
    .into_iter()
    .find_map(|(kind, amount)| {
        amount.as_ref().map(|amount| Cost {
            kind,
            micros: amount.micros,
            currency: amount.currency.clone(),
        })
    })
}

fn cloudevent<S: Serializer>(event: &Event, serializer: S) -> Result<S::Ok, S::Error> {
    let event = cloudevents::to_json(event).map_err(S::Error::custom)?;
    event.serialize(serializer)
}

fn decimal<S: Serializer>(micros: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(micros)
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::cost::v1::Money;
    use mesh_events::proto::mesh::event::v1::Entity;
    use mesh_events::proto::mesh::job::v1::{self, JobEvent};
    use mesh_events::timestamp;

    use super::*;

    fn event(seq: u64, run: &str, state: &str, at: i64) -> RecordedEvent {
        let job = Job {
            state: state.to_owned(),
            ..Job::default()
        };
        RecordedEvent {
            seq,
            event: Event {
                entity: Some(Entity {
                    kind: "job".into(),
                    key: run.into(),
                }),
                occurred_at: DateTime::from_timestamp(at, 0).map(timestamp),
                payload: Some(Payload::Job(JobEvent {
                    job: Some(job),
                    ..JobEvent::default()
                })),
                ..Event::default()
            },
        }
    }

    fn cost(
        seq: u64,
        run: &str,
        at: i64,
        total: Option<i64>,
        estimated: Option<i64>,
    ) -> RecordedEvent {
        let money = |micros: Option<i64>| {
            micros.map(|micros| Money {
                micros,
                currency: "EUR".into(),
            })
        };
        let mut recorded = event(seq, run, "", at);
        recorded.event.payload = Some(Payload::Cost(CostEvent {
            total: money(total),
            estimated: money(estimated),
            ..CostEvent::default()
        }));
        recorded
    }

    #[test]
    fn runs_are_sorted_by_age_and_events_by_time() {
        let runs = job_runs(
            vec![
                event(1, "job/5/200", "PENDING", 200),
                event(2, "job/5/100", "COMPLETED", 190),
                event(3, "job/5/100", "RUNNING", 150),
                event(4, "job/5/100", "PENDING", 100),
                event(5, "job/5/100/1", "PENDING", 100),
            ],
            None,
        );
        let keys: Vec<&str> = runs.iter().map(|run| run.key.as_str()).collect();
        assert_eq!(keys, ["job/5/100", "job/5/100/1", "job/5/200"]);
        let order: Vec<u64> = runs[0].timeline.iter().map(|event| event.seq).collect();
        assert_eq!(order, [4, 3, 2]);
        assert_eq!(runs[0].summary.state, "COMPLETED");
    }

    #[test]
    fn the_final_cost_outdoes_the_estimate() {
        let estimate = cost(1, "job/5/100", 100, None, Some(5));
        let both = vec![cost(2, "job/5/100", 190, Some(3), None), estimate.clone()];
        let kind = |events| job_runs(events, None)[0].summary.cost.clone().unwrap().kind;
        assert_eq!(kind(both), CostKind::Final);
        assert_eq!(kind(vec![estimate]), CostKind::Estimated);
    }

    #[test]
    fn later_events_are_not_part_of_an_earlier_state() {
        // The record was read after the job had ended.
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
        let read_late = |seq, kind: EventType, seconds| {
            let mut recorded = event(seq, "job/5/100", "FAILED", seconds);
            recorded.event.r#type = kind.to_string();
            if let Some(Payload::Job(JobEvent { job: Some(job), .. })) = &mut recorded.event.payload
            {
                job.submit_time = Some(timestamp(at(100)));
                job.start_time = Some(timestamp(at(110)));
                job.end_time = Some(timestamp(at(190)));
                job.exit_code = Some(v1::ExitCode { code: 3, signal: 0 });
            }
            recorded
        };
        let events = [
            read_late(1, EventType::JobSubmitted, 100),
            read_late(2, EventType::JobStarted, 110),
            read_late(3, EventType::JobSuspended, 120),
            read_late(4, EventType::JobResumed, 130),
            read_late(5, EventType::JobFailed, 190),
        ];
        for (time, count, state) in [
            (100, 1, "PENDING"),
            (110, 2, "RUNNING"),
            (125, 3, "SUSPENDED"),
            (189, 4, "RUNNING"),
            (190, 5, "FAILED"),
        ] {
            let known = events[..count].to_vec();
            let summary = job_runs(known, Some(at(time)))[0].summary.clone();
            assert_eq!(summary.state, state, "{time}");
            assert_eq!(summary.started.is_some(), time >= 110);
            assert_eq!(summary.ended.is_some(), time >= 190);
            assert_eq!(summary.exit_code.is_some(), time >= 190);
        }
    }
}
