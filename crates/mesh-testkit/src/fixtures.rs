//! Builders of events that look like those of a small cluster.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, IdSource, Owner, Source};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::proto::mesh::queue::v1::QueueEvent;
use mesh_events::{Event, EventId, EventType, RunKey, SCHEMA_VERSION, Slot, timestamp};

/// The cluster of built events.
pub const CLUSTER: &str = "testbed";

/// When the jobs of built events were submitted.
pub fn submit_time() -> DateTime<Utc> {
    DateTime::from_timestamp(1_763_760_000, 0).expect("a valid time")
}

/// Run key of a job.
pub fn run(job_id: u32) -> RunKey {
    RunKey {
        cluster: CLUSTER.into(),
        job_id,
        task_id: None,
        submit_time: submit_time().timestamp(),
        attempt: 0,
    }
}

/// A running job of alice: 4 CPUs and 8 GiB on n1, started 10 s after its submission.
pub fn job(job_id: u32) -> Job {
    let submitted = submit_time();
    Job {
        job_id,
        display_id: job_id.to_string(),
        run: run(job_id).entity_key(),
        name: format!("train-{job_id}"),
        partition: "cpu".into(),
        qos: "normal".into(),
        state: "RUNNING".into(),
        submit_time: Some(timestamp(submitted)),
        eligible_time: Some(timestamp(submitted)),
        start_time: Some(timestamp(submitted + TimeDelta::seconds(10))),
        time_limit_minutes: Some(60),
        nodes: "n1".into(),
        node_count: 1,
        batch_host: "n1".into(),
        req_tres: "cpu=4,mem=8G,node=1,billing=4".into(),
        alloc_tres: "cpu=4,mem=8G,node=1,billing=4".into(),
        work_dir: "/home/alice".into(),
        std_out: format!("/home/alice/slurm-{job_id}.out"),
        priority: 1000,
        batch: true,
        ..Job::default()
    }
}

/// An event of a type about a job.
///
/// # Panics
/// For types that are not about jobs.
pub fn job_event(kind: EventType, job: Job) -> Event {
    let slot = match kind {
        EventType::JobSubmitted => Some(Slot::Submitted),
        EventType::JobStarted => Some(Slot::Started),
        EventType::JobBaseline => Some(Slot::Baseline),
        EventType::CostEstimated => Some(Slot::CostEstimated),
        EventType::CostFinalized => Some(Slot::CostFinalized),
        end if end.is_end() => Some(Slot::End),
        _ => None,
    };
    let run = RunKey::parse(CLUSTER, &job.run).expect("a run");
    let id = match slot {
        Some(slot) => EventId::recorded(&run, slot),
        None => EventId::sampled(CLUSTER, &job.run, kind, 1),
    };
    let occurred = if kind.is_end() {
        job.end_time
    } else {
        job.start_time.or(job.submit_time)
    };
    let entity = Entity {
        kind: "job".into(),
        key: job.run.clone(),
    };
    let payload = match kind.category() {
        mesh_events::Category::Cost => Payload::Cost(CostEvent {
            job: Some(job),
            ..CostEvent::default()
        }),
        mesh_events::Category::Job => Payload::Job(JobEvent {
            job: Some(job),
            ..JobEvent::default()
        }),
        mesh_events::Category::Queue => Payload::Queue(QueueEvent {
            job: Some(job),
            ..QueueEvent::default()
        }),
        other => panic!("{other:?} events are not about jobs"),
    };
    Event {
        id: id.to_string(),
        id_source: match slot {
            Some(slot) => IdSource::recorded(kind, slot),
            None => IdSource::sampled(1),
        },
        cluster: CLUSTER.into(),
        r#type: kind.to_string(),
        occurred_at: occurred.or_else(|| Some(timestamp(submit_time()))),
        observed_at: Some(timestamp(Utc::now())),
        source: Source::Hook.into(),
        confidence: Confidence::Observed.into(),
        owner: Some(Owner {
            user: "alice".into(),
            uid: Some(20_001),
            account: "physics".into(),
            identity: None,
        }),
        entity: Some(entity),
        run_seq: 1,
        schema_version: SCHEMA_VERSION,
        payload: Some(payload),
        ..Event::default()
    }
}

/// The job, ended `seconds` after its start in a state such as `COMPLETED`.
pub fn ended(mut job: Job, state: &str, seconds: i64) -> Job {
    let start = job
        .start_time
        .as_ref()
        .and_then(mesh_events::from_timestamp)
        .unwrap_or_else(submit_time);
    job.end_time = Some(timestamp(start + TimeDelta::seconds(seconds)));
    job.state = state.into();
    job
}
