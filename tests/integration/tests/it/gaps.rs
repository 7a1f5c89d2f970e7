//! Messages disappear from the bus before the ledger has read them. Ledger and ingest fill the gap together, and report the
//! unrecoverable part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use integration::{Cluster, ClusterOptions, Fact, Mesh, Service, Slurm as _, lives, wait_for};
use mesh_bus::{Bus, StartPosition};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType};
use mesh_testkit::{NatsServer, Postgres};
use tokio_util::sync::CancellationToken;

use crate::accounting;
use crate::processes::start;
use crate::support::{PATIENCE, options};

type Ids = BTreeSet<String>;

/// A mesh of ingest and ledger with its own bus, and everything ever published on it.
struct Side {
    nats: NatsServer,
    mesh: Mesh,
    ingest: Service,
    ledger: Service,
    published: Arc<Mutex<BTreeMap<u64, Event>>>,
}

impl Side {
    async fn start(cluster: &Cluster, name: &str, more: &str) -> Self {
        let nats = NatsServer::start().await;
        let more = format!("{more}[mesh.nats]\nurl = \"{}\"\n", nats.url());
        let mesh = Mesh::set_up(cluster, name, &options(&more)).await.unwrap();
        let published = follow(&nats).await;
        let mut side = Self {
            ingest: start(&mesh, "ingest").await,
            ledger: start(&mesh, "ledger").await,
            nats,
            mesh,
            published,
        };
        side.ingest.wait_ready(200).await.unwrap();
        side.ledger.wait_ready(200).await.unwrap();
        side
    }

    /// Published events by stream sequence. Republished ones occur twice.
    fn published(&self) -> BTreeMap<u64, Event> {
        self.published.lock().unwrap().clone()
    }

    fn published_facts(&self) -> Vec<Fact> {
        let published = self.published().into_iter();
        published
            .filter_map(|(sequence, event)| Fact::of(sequence, event))
            .collect()
    }

    /// Waits until an event of a job is published.
    async fn wait_published(&self, kind: EventType, job: u32) -> Event {
        let description = format!("{kind} of job {job} is published");
        let is_expected = |event: &Event| {
            event.r#type == kind.to_string() && event.job().is_some_and(|of| of.job_id == job)
        };
        wait_for(&description, PATIENCE, async || {
            Ok(self.published().into_values().find(is_expected))
        })
        .await
        .unwrap()
    }

    /// All events in the ledger. `None` while it does not answer.
    async fn facts(&self) -> Option<Vec<Fact>> {
        let (mut facts, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/events?limit=1000{cursor}");
            let page = self.ledger.get(&path).await.json();
            facts.extend(page["entries"].as_array()?.iter().filter_map(Fact::read));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Some(facts),
            }
        }
    }

    /// Deletes messages from the stream, as limits or an operator may: all up to a sequence, and one more.
    async fn lose(&self, up_to: u64, another: u64) {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let context = async_nats::jetstream::new(client);
        let stream = context.get_stream(SLURM_EVENTS).await.unwrap();
        stream.purge().sequence(up_to + 1).await.unwrap();
        assert!(stream.delete_message(another).await.unwrap());
    }

    fn sequence(&self, id: &str) -> u64 {
        let published = self.published();
        let found = published.iter().find(|(_, event)| event.id == id);
        *found.unwrap().0
    }

    async fn restart(&mut self) {
        for service in [&mut self.ingest, &mut self.ledger] {
            service.kill().await.unwrap();
            *service = start(&self.mesh, service.name).await;
        }
    }
}

async fn follow(nats: &NatsServer) -> Arc<Mutex<BTreeMap<u64, Event>>> {
    let config = mesh_bus::Config {
        url: nats.url(),
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    let messages = bus.follow("slurm.>", StartPosition::Sequence(1));
    let messages = messages.await.unwrap();
    let published = Arc::new(Mutex::new(BTreeMap::new()));
    let seen = Arc::clone(&published);
    tokio::spawn(async move {
        let mut messages = std::pin::pin!(messages);
        while let Some(message) = messages.next().await {
            // The consumer continues by itself after an error.
            if let Ok(message) = message {
                let event = message.event().unwrap();
                seen.lock().unwrap().insert(message.stream_sequence, event);
            }
        }
    });
    published
}

fn capture(event: &Event) -> &CaptureEvent {
    match &event.payload {
        Some(Payload::Capture(description)) => description,
        other => panic!("an event of capture, not {other:?}"),
    }
}

fn is_gap(fact: &Fact, kind: EventType) -> bool {
    fact.kind == kind && capture(&fact.event).source == "stream"
}

impl Side {
    /// Waits until the ledger holds everything ever published, except lost events without a Slurm record, and reports the gap as
    /// filled.
    async fn filled(&self, lost: &[&Event], purged: u64, alone: u64) {
        let mut last = None;
        let filled = wait_for("the ledger holds what can be told", PATIENCE, async || {
            let Some(facts) = self.facts().await else {
                return Ok(None);
            };
            let gaps = |kind| facts.iter().filter(|fact| is_gap(fact, kind)).count();
            let gaps = [EventType::CaptureGapOpened, EventType::CaptureGapClosed].map(gaps);
            let stored_ids: Ids = facts.iter().map(|fact| fact.event.id.clone()).collect();
            let published: Ids = self
                .published()
                .into_values()
                .map(|event| event.id)
                .collect();
            let lost_events = published.difference(&stored_ids).cloned().collect::<Ids>();
            let is_unrecorded = |id: &String| {
                let lost = lost.iter().find(|event| event.id == *id);
                lost.is_some_and(|event| !is_recorded(event))
            };
            let done = gaps == [2, 2]
                && stored_ids.is_subset(&published)
                && lost_events.iter().all(is_unrecorded);
            let unknown: Vec<_> = stored_ids.difference(&published).cloned().collect();
            let published = self.published().into_values();
            let published = published.filter(|event| lost_events.contains(&event.id));
            let published =
                published.map(|event| (event.r#type.clone(), event.entity_key().to_owned()));
            last = Some((gaps, unknown, published.collect::<Vec<_>>()));
            Ok(done.then_some((facts, lost_events)))
        });
        let (facts, lost_events) = filled
            .await
            .unwrap_or_else(|error| panic!("{error}: {last:#?}"));
        assert!(
            lost.iter()
                .any(|event| event.r#type == "job.held" && lost_events.contains(&event.id)),
            "a hold cannot be told again: {lost_events:?}"
        );
        let recorded = lost.iter().filter(|event| is_recorded(event)).count();
        for part in [
            format!(" to {purged}) of the stream {SLURM_EVENTS}"),
            format!("1 messages ({alone} to {alone}) of the stream {SLURM_EVENTS}"),
        ] {
            let opened = facts.iter().find(|fact| {
                is_gap(fact, EventType::CaptureGapOpened)
                    && capture(&fact.event).message.contains(&part)
            });
            let opened = &opened.unwrap_or_else(|| panic!("no hole {part}")).event.id;
            let closed = facts.iter().find(|fact| {
                let cause = fact.event.correlation.as_ref();
                is_gap(fact, EventType::CaptureGapClosed)
                    && cause.is_some_and(|cause| cause.event_ids == [opened.clone()])
            });
            let closed = capture(&closed.expect("its end").event);
            // All facts of that time are published, several times if filling was restarted.
            assert!(closed.recovered >= recorded as u64, "{closed:?}");
            assert!(
                closed
                    .not_recoverable
                    .contains("does not record (reasons, holds"),
                "{closed:?}"
            );
        }
        self.mesh.verify().await.unwrap();
    }
}

/// Types with records in Slurm: the lives of jobs.
fn is_recorded(event: &Event) -> bool {
    Fact::of(0, event.clone()).is_some_and(|fact| fact.is_lifecycle())
}

fn recorded(published: &BTreeMap<u64, Event>) -> Ids {
    let recorded = published.values().filter(|event| is_recorded(event));
    recorded.map(|event| event.id.clone()).collect()
}

fn has_twice(published: &BTreeMap<u64, Event>, id: &str) -> bool {
    published.values().filter(|event| event.id == id).count() > 1
}

/// Waits until the events of these jobs on a bus or in a ledger match accounting, run by run and word by word.
async fn agrees(
    description: &str,
    cluster: &Cluster,
    jobs: &[u32],
    published_of: impl AsyncFn() -> Option<Vec<Fact>>,
) {
    let mut last = None;
    let agreed = wait_for(description, PATIENCE, async || {
        let accounting = accounting::complete(cluster, jobs).await;
        let mut published = lives(&published_of().await.unwrap_or_default());
        published.retain(|run, _| jobs.contains(&run.0));
        let agrees = accounting.as_ref() == Some(&published);
        last = Some((accounting, published));
        Ok(agrees.then_some(()))
    });
    if let Err(error) = agreed.await {
        panic!("{error}: {last:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_events_are_republished_from_slurm_and_the_rest_is_reported() {
    let cluster = Cluster::start(&ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("holes")
    })
    .await
    .unwrap();
    let postgres = Postgres::shared().await.create_database();
    let postgres = format!("[ledger.db]\nurl = {postgres:?}\n");
    let mut sides = [
        Side::start(&cluster, "sqlite", "").await,
        Side::start(&cluster, "postgres", &postgres).await,
    ];
    let submit =
        async |options: &[&str], script| cluster.submit("alice", options, script).await.unwrap();
    let ended = async |job: &str| {
        let states = ["COMPLETED", "FAILED"];
        cluster.wait_state(job, &states, PATIENCE).await.unwrap();
    };

    let first = submit(&[], "true").await;
    ended(&first.to_string()).await;
    for side in &mut sides {
        agrees("the ledger has it", &cluster, &[first], async || {
            side.facts().await
        })
        .await;
        side.ledger.kill().await.unwrap();
    }

    // While no ledger runs, there are events that Slurm records, and a hold, which it does not record.
    let completed = submit(&[], "true").await;
    let failed = submit(&[], "exit 3").await;
    let array = submit(&["--array=0-1"], "true").await;
    let runs = submit(&[], "sleep 900").await;
    let waits = submit(&["--begin=now+1hour"], "true").await;
    for side in &sides {
        side.wait_published(EventType::JobSubmitted, waits).await;
        side.wait_published(EventType::JobStarted, runs).await;
    }
    let hold = ["scontrol", "hold", &waits.to_string()];
    cluster.ask("root", &hold).await.unwrap();
    for job in [completed, failed] {
        ended(&job.to_string()).await;
    }
    for task in [0, 1] {
        ended(&format!("{array}_{task}")).await;
    }
    let over = [completed, failed, array];
    let mut purged = Vec::new();
    for side in &sides {
        side.wait_published(EventType::JobHeld, waits).await;
        agrees("it is published", &cluster, &over, async || {
            Some(side.published_facts())
        })
        .await;
        purged.push(side.published().into_keys().max().unwrap());
    }
    let next_job = submit(&[], "true").await;
    ended(&next_job.to_string()).await;
    for (side, purged) in sides.iter_mut().zip(purged) {
        let alone = side.wait_published(EventType::JobCompleted, next_job).await;
        let alone = side.sequence(&alone.id);
        let before = side.published();
        side.lose(purged, alone).await;
        side.ledger = start(&side.mesh, "ledger").await;
        // Both are killed as soon as a gap is reported, and continue with it after the restart.
        wait_for("a hole is told", PATIENCE, async || {
            let published = side.published_facts();
            let is_opened = |fact: &Fact| is_gap(fact, EventType::CaptureGapOpened);
            Ok(published.iter().any(is_opened).then_some(()))
        })
        .await
        .unwrap();
        side.restart().await;

        let lost = before
            .range(..=purged)
            .chain(before.range(alone..=alone))
            .map(|(_, event)| event)
            .collect::<Vec<_>>();
        side.filled(&lost, purged, alone).await;
        let now = side.published();
        let republished = |event: &&Event| is_recorded(event) && has_twice(&now, &event.id);
        assert!(
            lost.iter()
                .filter(|event| is_recorded(event))
                .all(republished)
        );
        assert_eq!(
            recorded(&before),
            recorded(&now),
            "the same facts, no others"
        );
        let jobs = [first, completed, failed, array, next_job];
        agrees("everything is in the ledger", &cluster, &jobs, async || {
            side.facts().await
        })
        .await;
    }
    for job in [runs, waits] {
        let cancel = ["scancel", &job.to_string()];
        cluster.ask("root", &cancel).await.unwrap();
    }
}
