//! A synthetic history: a year of jobs of 500 users on three clusters, with events of nodes, users and capture. All facts about a job
//! follow from its number, so queries know the expected results.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Identity, Owner, Source};
use mesh_events::proto::mesh::job::v1::{ArrayInfo, ExitCode, HetInfo, Job, JobEvent};
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
use mesh_events::proto::mesh::user::v1::UserEvent;
use mesh_events::{Category, Event, EventId, EventType, RunKey, SCHEMA_VERSION, Slot, timestamp};
use mesh_testkit::fixtures;

const USERS: u64 = 500;
const ACCOUNTS: u64 = 40;
const NODES: u64 = 600;
const YEAR: i64 = 365 * 86_400;
/// Average number of events per job, including its share of node and user events.
const EVENTS_PER_JOB: f64 = 7.1;

/// Deterministic random numbers.
#[derive(Clone, Copy)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// `SplitMix64`.
    pub const fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    /// Small numbers often, large ones rarely.
    const fn skewed(&mut self, below: u64) -> u64 {
        let one = self.below(1 << 20);
        let cubed = (((one * one) >> 20) * one) >> 20;
        (cubed * below) >> 20
    }

    fn seconds(&mut self, max: i64) -> i64 {
        self.skewed(max.unsigned_abs()).cast_signed()
    }
}

/// A history with this many events.
#[derive(Clone, Copy)]
pub struct History {
    jobs: u64,
}

/// The facts of a job.
pub struct JobFacts {
    pub cluster: &'static str,
    pub id: u32,
    pub array: Option<(u32, u32)>,
    het: bool,
    pub user: String,
    pub account: String,
    pub partition: &'static str,
    pub name: String,
    pub submitted: DateTime<Utc>,
    waited: i64,
    ran: i64,
    end: EventType,
}

impl History {
    pub fn of(events: u32) -> Self {
        Self {
            jobs: (f64::from(events) / EVENTS_PER_JOB).ceil() as u64 + 1,
        }
    }

    pub const fn jobs(self) -> u64 {
        self.jobs
    }

    pub fn job(self, job: u64) -> JobFacts {
        // Every tenth group of ten jobs is an array, whose tasks share the facts of the first one.
        let is_array = job / 10 % 10 == 3;
        let first = if is_array { job / 10 * 10 } else { job };
        let id = |job: u64| u32::try_from(1_000 + job).unwrap_or(u32::MAX);
        let (mut shared, mut random) = (Random::new(first + 1), Random::new(!job));
        let user = shared.skewed(USERS);
        let family = shared.skewed(200);
        JobFacts {
            cluster: match shared.below(100) {
                0 => "gamma",
                1..=9 => "beta",
                _ => "alpha",
            },
            id: id(job),
            array: is_array.then(|| (id(first), id(job) - id(first))),
            het: !is_array && shared.below(200) == 0,
            user: person(user),
            account: format!("account{:02}", user % ACCOUNTS),
            partition: match shared.below(100) {
                0 => "bigmem",
                1..=4 => "debug",
                5..=14 => "long",
                15..=39 => "gpu",
                _ => "cpu",
            },
            name: format!("step{family:03}-{}", shared.below(1_000)),
            submitted: fixtures::submit_time()
                + TimeDelta::seconds(YEAR * first.cast_signed() / self.jobs.cast_signed()),
            waited: random.seconds(20_000),
            ran: 1 + random.seconds(80_000),
            end: match random.below(1_000) {
                0 => EventType::JobNodeFail,
                1..=7 => EventType::JobOutOfMemory,
                8..=17 => EventType::JobTimeout,
                18..=49 => EventType::JobCancelled,
                50..=149 => EventType::JobFailed,
                _ => EventType::JobCompleted,
            },
        }
    }

    /// Name of a node with events.
    pub fn node(random: &mut Random) -> String {
        format!("n{:03}", random.below(NODES))
    }
}

fn person(user: u64) -> String {
    format!("user{user:03}")
}

/// Subject of a user at the OIDC provider.
pub fn subject_of(user: &str) -> String {
    format!("subject-of-{user}")
}

/// This many events in a plausible order of arrival: by time, but a few are late.
pub fn events(count: u32) -> impl Iterator<Item = Event> {
    let history = History::of(count);
    let mut waiting: BinaryHeap<Reverse<ArrivedEvent>> = BinaryHeap::new();
    let mut next = 0;
    std::iter::from_fn(move || {
        loop {
            let submitted = history.job(next).submitted;
            // No event of a later job may precede this one.
            if waiting.peek().is_some_and(|known| known.0.at <= submitted) {
                return waiting.pop().map(|known| known.0.event);
            }
            waiting.extend(history.around(next).into_iter().map(Reverse));
            next += 1;
        }
    })
    .take(count as usize)
}

/// An event with its time of arrival.
struct ArrivedEvent {
    at: DateTime<Utc>,
    event: Event,
}

impl Ord for ArrivedEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, &self.event.id).cmp(&(other.at, &other.event.id))
    }
}

impl PartialOrd for ArrivedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ArrivedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ArrivedEvent {}

impl History {
    /// Events caused by a job, and unrelated ones around it.
    fn around(self, number: u64) -> Vec<ArrivedEvent> {
        let facts = self.job(number);
        let mut random = Random::new(number ^ 0xffff_0000);
        let mut events = facts.events();
        if number.is_multiple_of(10) {
            let login = Payload::User(UserEvent {
                user: facts.user.clone(),
                ..UserEvent::default()
            });
            let key = format!("login/{}/{number}", facts.user);
            events.push(facts.beside(EventType::UserLogin, "login", key, login, number));
        }
        if number.is_multiple_of(50) {
            let name = Self::node(&mut random);
            let kind = match random.below(2) {
                0 => EventType::NodeDown,
                _ => EventType::NodeRecovered,
            };
            let key = format!("node/{name}");
            let node = Node {
                name,
                state: "DOWN".into(),
                cpus: 64,
                memory_mib: 256_000,
                partitions: vec!["cpu".into()],
                ..Node::default()
            };
            let payload = Payload::Node(NodeEvent {
                node: Some(node),
                ..NodeEvent::default()
            });
            events.push(facts.beside(kind, "node", key, payload, number));
        }
        if number.is_multiple_of(5_000) {
            let payload = Payload::Capture(CaptureEvent {
                source: "sacct".into(),
                ..CaptureEvent::default()
            });
            let kind = EventType::CaptureSourceDown;
            events.push(facts.beside(kind, "cluster", "capture/sacct".into(), payload, number));
        }
        let known = |mut event: Event| {
            let occurred = event
                .occurred_at
                .as_ref()
                .and_then(mesh_events::from_timestamp)
                .unwrap_or_else(fixtures::submit_time);
            let mut at = occurred + TimeDelta::milliseconds(150);
            if random.below(100) == 0 {
                event.late = true;
                at += TimeDelta::seconds(random.seconds(7_200));
            }
            event.observed_at = Some(timestamp(at));
            ArrivedEvent { at, event }
        };
        events.into_iter().map(known).collect()
    }
}

impl JobFacts {
    pub fn run(&self) -> RunKey {
        RunKey {
            cluster: self.cluster.into(),
            job_id: self.array.map_or(self.id, |(array, _)| array),
            task_id: self.array.map(|(_, task)| task),
            submit_time: self.submitted.timestamp(),
            attempt: 0,
        }
    }

    /// Events from submission to final cost.
    fn events(&self) -> Vec<Event> {
        let started = self.submitted + TimeDelta::seconds(self.waited);
        let ended = started + TimeDelta::seconds(self.ran);
        let mut job = self.job();
        job.state = "PENDING".into();
        let mut events = vec![self.event(EventType::JobSubmitted, self.submitted, job.clone())];
        if self.waited > 60 {
            let at = self.submitted + TimeDelta::seconds(20);
            job.reason = "Priority".into();
            events.push(self.event(EventType::JobPending, at, job.clone()));
            events.push(self.event(EventType::QueueExplained, at, job.clone()));
        }
        job.reason.clear();
        job.state = "RUNNING".into();
        job.start_time = Some(timestamp(started));
        job.nodes = format!("n[{:03}-{:03}]", self.id % 590, self.id % 590 + 1);
        job.node_count = 2;
        job.alloc_tres = "cpu=64,mem=256G,node=2,billing=64".into();
        events.push(self.event(EventType::JobStarted, started, job.clone()));
        events.push(self.event(EventType::CostEstimated, started, job.clone()));
        job.end_time = Some(timestamp(ended));
        job.state = self.end.event().to_ascii_uppercase();
        job.exit_code = Some(ExitCode {
            code: u32::from(self.end != EventType::JobCompleted),
            signal: 0,
        });
        events.push(self.event(self.end, ended, job.clone()));
        events.push(self.event(EventType::CostFinalized, ended, job));
        events
    }

    fn job(&self) -> Job {
        let home = format!("/home/{}/experiments/{}", self.user, self.name);
        Job {
            name: self.name.clone(),
            run: self.run().entity_key(),
            partition: self.partition.into(),
            array: self.array.map(|(job_id, task)| ArrayInfo {
                job_id,
                task_id: Some(task),
                ..ArrayInfo::default()
            }),
            het: self.het.then_some(HetInfo {
                job_id: self.id,
                offset: 0,
            }),
            submit_time: Some(timestamp(self.submitted)),
            eligible_time: Some(timestamp(self.submitted)),
            start_time: None,
            nodes: String::new(),
            std_out: format!("{home}/slurm-{}.out", self.id),
            work_dir: home,
            ..fixtures::job(self.id)
        }
    }

    fn event(&self, kind: EventType, at: DateTime<Utc>, job: Job) -> Event {
        let slot = match kind {
            EventType::JobSubmitted => Some(Slot::Submitted),
            EventType::JobStarted => Some(Slot::Started),
            EventType::CostEstimated => Some(Slot::CostEstimated),
            EventType::CostFinalized => Some(Slot::CostFinalized),
            end if end.is_end() => Some(Slot::End),
            _ => None,
        };
        let id = match slot {
            Some(slot) => EventId::recorded(&self.run(), slot),
            None => EventId::sampled(self.cluster, &job.run, kind, 1),
        };
        let money = |micros: i64| {
            Some(Money {
                micros,
                currency: "EUR".into(),
            })
        };
        let key = job.run.clone();
        let job = Some(job);
        let payload = match kind.category() {
            Category::Cost => {
                let total = (kind == EventType::CostFinalized).then(|| money(self.ran * 1_700));
                Payload::Cost(CostEvent {
                    job,
                    burn_rate: money(6_120_000),
                    total: total.flatten(),
                    mode: "node".into(),
                    ..CostEvent::default()
                })
            }
            Category::Queue => Payload::Queue(QueueEvent {
                job,
                explanation: Some(Explanation {
                    summary: "It waits its turn: 312 jobs of the partition are before it.".into(),
                    reason_class: "turn".into(),
                    reason: "Priority".into(),
                    ..Explanation::default()
                }),
            }),
            _ => Payload::Job(JobEvent {
                job,
                ..JobEvent::default()
            }),
        };
        self.envelope(id, kind, at, ("job", key), payload)
    }

    /// An unrelated event at the time of the submission.
    fn beside(
        &self,
        kind: EventType,
        entity: &'static str,
        key: String,
        payload: Payload,
        n: u64,
    ) -> Event {
        let id = EventId::sampled(self.cluster, &key, kind, n);
        let mut event = self.envelope(id, kind, self.submitted, (entity, key), payload);
        if kind != EventType::UserLogin {
            event.owner = None;
        }
        event
    }

    fn envelope(
        &self,
        id: EventId,
        kind: EventType,
        at: DateTime<Utc>,
        (entity, key): (&str, String),
        payload: Payload,
    ) -> Event {
        Event {
            id: id.to_string(),
            cluster: self.cluster.into(),
            r#type: kind.to_string(),
            occurred_at: Some(timestamp(at)),
            observed_at: Some(timestamp(at)),
            source: Source::Hook.into(),
            confidence: Confidence::Observed.into(),
            owner: Some(Owner {
                user: self.user.clone(),
                uid: Some(20_001),
                account: self.account.clone(),
                identity: Some(Identity {
                    issuer: "https://id.example.org".into(),
                    subject: subject_of(&self.user),
                    email: format!("{}@example.org", self.user),
                    ..Identity::default()
                }),
            }),
            entity: Some(Entity {
                kind: entity.into(),
                key,
            }),
            run_seq: 1,
            schema_version: SCHEMA_VERSION,
            payload: Some(payload),
            ..Event::default()
        }
    }
}
