//! Sample events for checking expressions, templates and endpoints.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{
    Actor, ActorKind, Confidence, Entity, IdSource, Identity, Owner, Source,
};
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, Job, JobEvent, Usage};
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
use mesh_events::proto::mesh::user::v1::{Notice, Quota, QuotaContributor, UserEvent};
use mesh_events::{Category, Event, EventId, EventType, SCHEMA_VERSION, timestamp};

const CLUSTER: &str = "example";

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(1_763_760_000 + seconds)
}

/// A job that failed after an hour.
pub fn job() -> Job {
    Job {
        job_id: 1234,
        display_id: "1230_4".into(),
        run: "job/1230_4/1763760000".into(),
        name: "train".into(),
        partition: "gpu".into(),
        qos: "normal".into(),
        state: "FAILED".into(),
        reason: "NonZeroExitCode".into(),
        submit_time: Some(timestamp(at(0))),
        eligible_time: Some(timestamp(at(0))),
        start_time: Some(timestamp(at(60))),
        end_time: Some(timestamp(at(3_660))),
        time_limit_minutes: Some(120),
        nodes: "n[1-2]".into(),
        node_count: 2,
        req_tres: "cpu=8,mem=32G,node=2,gres/gpu=2".into(),
        alloc_tres: "cpu=8,mem=32G,node=2,gres/gpu=2".into(),
        exit_code: Some(ExitCode { code: 1, signal: 0 }),
        array: Some(ArrayInfo {
            job_id: 1230,
            task_id: Some(4),
            ..ArrayInfo::default()
        }),
        work_dir: "/home/alice/train".into(),
        std_out: "/home/alice/train/slurm-1230_4.out".into(),
        std_err: "/home/alice/train/slurm-1230_4.err".into(),
        comment: "https://ci.example.org/runs/7".into(),
        batch: true,
        usage: Some(Usage {
            cpu_seconds: 28_000,
            max_rss_kib: 12_000_000,
            ..Usage::default()
        }),
        ..Job::default()
    }
}

/// A realistic event of a type, with a job in the matching state.
pub fn example(kind: EventType) -> Event {
    let mut event = event(kind);
    if let Some(Payload::Job(JobEvent { job: Some(job), .. })) = &mut event.payload {
        if kind.is_end() {
            job.state = kind.event().to_uppercase();
        } else {
            let waits = matches!(
                kind,
                EventType::JobSubmitted
                    | EventType::JobPending
                    | EventType::JobHeld
                    | EventType::JobReleased
            );
            job.state = if waits { "PENDING" } else { "RUNNING" }.into();
            (job.end_time, job.exit_code, job.usage) = (None, None, None);
            if waits {
                (job.start_time, job.nodes) = (None, String::new());
            }
        }
        if job.state != "FAILED" {
            job.reason = "None".into();
        }
        if kind == EventType::JobCompleted {
            job.exit_code = Some(ExitCode::default());
        }
    }
    event
}

fn money(micros: i64) -> Option<Money> {
    Some(Money {
        micros,
        currency: "EUR".into(),
    })
}

/// The cost of the sample job.
pub fn cost() -> CostEvent {
    CostEvent {
        job: Some(job()),
        burn_rate: money(4_200_000),
        estimated: money(8_400_000),
        total: money(4_200_000),
        accrued: money(2_100_000),
        ..CostEvent::default()
    }
}

const fn is_quota(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::UserQuotaHigh | EventType::UserQuotaExceeded | EventType::UserQuotaCleared
    )
}

fn quota() -> Quota {
    Quota {
        source: "budget".into(),
        budget: "physics-2025-11".into(),
        scope: vec!["account=physics".into()],
        period: "2025-11".into(),
        amount: money(3_000_000_000),
        settled: money(2_900_000_000),
        in_flight: money(112_000_000),
        committed: money(3_400_000_000),
        counts: "in_flight".into(),
        percent: Some(100),
        threshold: 100,
        contributors: vec![QuotaContributor {
            cluster: CLUSTER.into(),
            user: "alice".into(),
            amount: money(1_800_000_000),
        }],
        crossing: 1,
        ..Quota::default()
    }
}

/// What a rule tells or asks. `None` for other types.
fn notice(kind: EventType) -> Option<Notice> {
    let is_request = kind == EventType::UserApprovalRequested;
    let text = match kind {
        EventType::UserNotified => "The alignment of run 17 is done.",
        EventType::UserApprovalRequested => "alice/align: submit a job",
        _ => return None,
    };
    let data = [("sample".to_owned(), "s17".to_owned())];
    Some(Notice {
        rule: "alice/align".into(),
        run: "smesh:1:AAAAAAAAAAAAAAAAAAAAAA".into(),
        text: text.into(),
        data: data.into_iter().filter(|_| !is_request).collect(),
        expires: is_request.then(|| timestamp(at(90_060))),
        event_id: "in:minio:1".into(),
    })
}

/// What the SPANK plugin reports of a step.
pub fn step() -> Event {
    let mut event = event(EventType::UserNotified);
    let data = [
        ("moment", "exit"),
        ("step", "1234.batch"),
        ("host", "n1"),
        ("node", "0"),
        ("tasks", "4"),
        ("ended", "4"),
        ("failed", "1"),
        ("lost", "0"),
        ("task.2", "3:0"),
    ];
    event.payload = Some(Payload::User(UserEvent {
        user: "alice".into(),
        attribute: "Step".into(),
        after: "1234.batch".into(),
        notice: Some(Notice {
            run: job().run,
            text: "Step 1234.batch has ended on n1, 1 of 4 tasks failed, task 2 with exit code 3"
                .into(),
            data: data
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Notice::default()
        }),
        ..UserEvent::default()
    }));
    event
}

/// An event of a type, with every field that such an event may have.
pub fn event(kind: EventType) -> Event {
    let payload = match kind.category() {
        Category::Job => Payload::Job(JobEvent {
            job: Some(job()),
            ..JobEvent::default()
        }),
        Category::Node => Payload::Node(NodeEvent {
            node: Some(Node {
                name: "n1".into(),
                state: "DOWN".into(),
                lifecycle: "down".into(),
                reason: "Not responding".into(),
                partitions: vec!["gpu".into()],
                ..Node::default()
            }),
            previous_lifecycle: "active".into(),
            cause: "unreachable".into(),
            ..NodeEvent::default()
        }),
        Category::User => Payload::User(UserEvent {
            user: "alice".into(),
            account: "physics".into(),
            attribute: "Budget".into(),
            before: "80 %".into(),
            after: "100 %".into(),
            quota: is_quota(kind).then(quota),
            notice: notice(kind),
            ..UserEvent::default()
        }),
        Category::Cost => Payload::Cost(cost()),
        Category::Queue => Payload::Queue(QueueEvent {
            job: Some(job()),
            explanation: Some(Explanation {
                summary: "It waits for its turn: 12 jobs are before it.".into(),
                reason: "Priority".into(),
                reason_class: "waiting".into(),
                actor: "wait".into(),
                advice: "Nothing to do; a shorter `--time` lets it fit into gaps.".into(),
                expected_start: Some(timestamp(at(7_200))),
                ..Explanation::default()
            }),
        }),
        Category::Capture => Payload::Capture(CaptureEvent {
            source: "slurmctld".into(),
            message: "slurmctld does not answer".into(),
            ..CaptureEvent::default()
        }),
    };
    let owner = Owner {
        user: "alice".into(),
        uid: Some(20_001),
        account: "physics".into(),
        identity: Some(Identity {
            issuer: "https://id.example.org".into(),
            subject: "a1".into(),
            email: "alice@example.org".into(),
            name: "Alice".into(),
            provenance: "map-file".into(),
        }),
    };
    let key = match kind.category() {
        Category::Job | Category::Cost | Category::Queue => job().run,
        Category::Node => "node/n1".into(),
        Category::User => "user/alice".into(),
        Category::Capture => "cluster".into(),
    };
    Event {
        id: EventId::sampled(CLUSTER, &key, kind, 1).to_string(),
        id_source: IdSource::sampled(1),
        cluster: CLUSTER.into(),
        r#type: kind.to_string(),
        occurred_at: Some(timestamp(at(3_660))),
        observed_at: Some(timestamp(at(3_660))),
        source: Source::Sweep.into(),
        confidence: Confidence::Observed.into(),
        owner: (!matches!(kind.category(), Category::Node | Category::Capture)).then_some(owner),
        actor: Some(Actor {
            kind: ActorKind::System.into(),
            ..Actor::default()
        }),
        entity: Some(Entity {
            kind: key.split('/').next().unwrap_or_default().into(),
            key,
        }),
        run_seq: 3,
        schema_version: SCHEMA_VERSION,
        payload: Some(payload),
        ..Event::default()
    }
}
