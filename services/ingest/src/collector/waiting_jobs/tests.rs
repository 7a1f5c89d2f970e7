use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::Bus;
use mesh_events::Event;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_runtime::Health;
use mesh_testkit::NatsServer;
use slurm_client::{AccountingRecord, ArrayTasks, JobRecord};
use slurm_types::{JobId, JobState, UnixTime};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::collector::{FollowUpLookups, TracedObservation};
use crate::domain::StoredLookup;
use crate::envelope::Cause;
use crate::identity::IdentityResolver;

fn deferred(job_id: u32, task: Option<u32>, cause: Cause) -> (RunKey, DeferredObservation) {
    let record = JobRecord {
        job_id: JobId::new(job_id),
        array_job_id: task.and_then(|_| JobId::new(70)),
        array_tasks: task.map(ArrayTasks::Task),
        submit: Some(UnixTime::from_secs(100)),
        start: Some(UnixTime::from_secs(900)),
        state: JobState::parse("PENDING"),
        reason: "JobHeldUser".to_owned(),
        priority: Some(0),
        restarts: 2,
        user: "alice".to_owned(),
        uid: Some(7),
        account: "physics".to_owned(),
        partition: "gpu".to_owned(),
        ..JobRecord::default()
    };
    let observation = Observation::from_controller("c", &record).unwrap();
    assert!(observation.waiting() && observation.held);
    let run = RunKey {
        attempt: u32::from(task.is_none()),
        ..observation.run.clone()
    };
    let at = Utc::now().timestamp_millis();
    let deferred = DeferredObservation {
        cause,
        at: DateTime::from_timestamp_millis(at).unwrap(),
        reading: TracedObservation {
            digest: Some(u64::MAX),
            ..TracedObservation::new(observation)
        },
    };
    (run, deferred)
}

#[test]
fn what_waits_survives_a_restart() {
    let mut waiting = WaitingJobs::default();
    for (run, deferred) in [
        deferred(7, None, Cause::Poll(3)),
        deferred(7, None, Cause::Hook("JobComp".to_owned())),
        deferred(71, Some(4), Cause::Lookup),
    ] {
        assert!(waiting.deferred.push(&run, deferred));
    }
    waiting.restarted.insert(7, 100);
    let lookup = StoredLookup {
        waited: 60,
        answers: 2,
        ..StoredLookup::default()
    };
    waiting.lookups.insert(9, lookup);
    let mut restored = WaitingJobs::default();
    for shard in 0..128 {
        let stored = serde_json::to_vec(&waiting.of_shard(shard)).unwrap();
        restored.restore("c", serde_json::from_slice(&stored).unwrap());
    }
    let shown = |jobs: &WaitingJobs| -> Vec<String> {
        let all = jobs.deferred.iter();
        all.map(|(run, one)| {
            let (observation, digest) = (&one.reading.observation, one.reading.digest);
            format!(
                "{run:?} {:?} {} {digest:?} {observation:?}",
                one.cause, one.at
            )
        })
        .collect()
    };
    assert_eq!(shown(&restored), shown(&waiting));
    assert_eq!(shown(&restored).len(), 3);
    assert_eq!(restored.restarted, waiting.restarted);
    assert_eq!(restored.lookups, waiting.lookups);
}

const CLUSTER: &str = "c";

/// A collector of its own server, which knows a running job 7.
struct Term {
    collector: Collector,
    jetstream: async_nats::jetstream::Context,
    _nats: NatsServer,
}

impl Term {
    async fn begin() -> Self {
        let nats = NatsServer::start().await;
        let config = mesh_bus::Config {
            url: nats.url(),
            ..mesh_bus::Config::default()
        };
        let shutdown = CancellationToken::new();
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&shutdown).await.unwrap();
        let config = Arc::new(Config::default());
        let identities = Arc::new(IdentityResolver::new(None, &config.identity));
        let condition = Health::default().condition("ingest.state");
        let collector =
            Collector::load(bus, CLUSTER, false, config, identities, condition, shutdown);
        let collector = collector.await.unwrap();
        let client = async_nats::connect(nats.url()).await.unwrap();
        let term = Self {
            collector,
            jetstream: async_nats::jetstream::new(client),
            _nats: nats,
        };
        let first = JobRecord {
            state: JobState::parse("RUNNING"),
            nodes: "n1".to_owned(),
            start: Some(UnixTime::from_secs(110)),
            restarts: 0,
            priority: Some(1),
            ..held_record(100)
        };
        let follow_ups = term.see(Cause::Poll(1), &first).await;
        assert!(follow_ups.accounting.is_empty());
        term.collector.flush().await.unwrap();
        term
    }

    async fn see(&self, cause: Cause, record: &JobRecord) -> FollowUpLookups {
        let observation = Observation::from_controller(CLUSTER, record).unwrap();
        let readings = vec![TracedObservation::new(observation)];
        self.collector.apply(&cause, readings).await.unwrap()
    }

    /// Sequence of the newest value of the job's shard.
    async fn stored(&self) -> u64 {
        let bucket = self.jetstream.get_key_value("mesh_ingest").await.unwrap();
        let shard = bucket.entry("c.7").await.unwrap();
        shard.unwrap().revision
    }

    async fn limit(&self, bytes: i64) {
        let stream = self.jetstream.get_stream("KV_mesh_ingest").await.unwrap();
        let mut config = stream.cached_info().config.clone();
        config.max_bytes = bytes;
        self.jetstream.update_stream(config).await.unwrap();
    }

    async fn deferred(&self) -> usize {
        self.collector.state().await.waiting.deferred.iter().count()
    }
}

/// Job 7 in its second run, which is held.
fn held_record(submit: i64) -> JobRecord {
    JobRecord {
        job_id: JobId::new(7),
        submit: Some(UnixTime::from_secs(submit)),
        state: JobState::parse("PENDING"),
        reason: "JobHeldUser".to_owned(),
        priority: Some(0),
        restarts: 1,
        user: "alice".to_owned(),
        uid: Some(7),
        account: "physics".to_owned(),
        partition: "gpu".to_owned(),
        ..JobRecord::default()
    }
}

#[tokio::test]
async fn what_is_deferred_again_is_not_written_again() {
    let term = Term::begin().await;
    let held = held_record(200);
    for poll in 2..4 {
        let before = term.stored().await;
        let follow_ups = term.see(Cause::Poll(poll), &held).await;
        assert!(follow_ups.accounting.contains(&7));
        // The second one confirms the first one.
        assert!(term.stored().await > before, "poll {poll}");
    }
    let before = term.stored().await;
    for poll in 4..7 {
        term.see(Cause::Poll(poll), &held).await;
        term.collector.flush().await.unwrap();
    }
    assert_eq!((term.stored().await, term.deferred().await), (before, 2));
    let released = JobRecord {
        reason: "Priority".to_owned(),
        priority: Some(5),
        ..held
    };
    term.see(Cause::Poll(7), &released).await;
    assert!(term.stored().await > before);
    assert_eq!(term.deferred().await, 3);
}

#[tokio::test]
async fn a_deferred_observation_that_cannot_be_stored_is_reported_until_it_is() {
    let term = Term::begin().await;
    term.limit(1).await;
    let hook = || Cause::Hook("PrologSlurmctld".to_owned());
    let held = held_record(200);
    for _ in 0..3 {
        // Also when nothing is added.
        let follow_ups = term.see(hook(), &held).await;
        assert_eq!(follow_ups.not_stored, BTreeSet::from([7]));
    }
    // Other jobs do not wait for it.
    let other = JobRecord {
        job_id: JobId::new(8),
        ..held_record(200)
    };
    let follow_ups = term.see(hook(), &other).await;
    assert!(!follow_ups.not_stored.contains(&7));
    term.limit(-1).await;
    let follow_ups = term.see(hook(), &held).await;
    assert_eq!(follow_ups.not_stored, BTreeSet::new());
}

#[tokio::test]
async fn deferred_observations_live_as_long_as_a_lookup_may_take() {
    let term = Term::begin().await;
    term.see(Cause::Poll(2), &held_record(200)).await;
    let config = Config {
        resolution_timeout: Duration::from_secs(3 * 3_600),
        ..Config::default()
    };
    let now = Utc::now().timestamp();
    let expire = async |hours: i64| {
        let mut state = term.collector.state().await;
        state.expire_waiting(now + hours * 3_600, &config);
        drop(state);
        term.deferred().await
    };
    assert_eq!(expire(2).await, 1);
    assert_eq!(expire(5).await, 1);
    assert_eq!(expire(7).await, 0);
    let unlimited = Config {
        resolution_timeout: Duration::MAX,
        ..Config::default()
    };
    assert_eq!(oldest_kept(Utc::now(), &unlimited), None);
}

#[tokio::test]
async fn what_is_dropped_to_make_room_is_removed_from_the_bucket() {
    let term = Term::begin().await;
    let mut state = term.collector.state().await;
    let config = Config::default();
    let mut job_id = 1_000;
    while !state.waiting.deferred.is_full() {
        let (run, mut old) = deferred(job_id, None, Cause::Poll(1));
        old.at -= chrono::TimeDelta::hours(2);
        state.defer(&run, old, &config);
        job_id += 1;
    }
    state.dirty.clear();
    let (run, new) = deferred(job_id, None, Cause::Poll(1));
    state.defer(&run, new, &config);
    let kept = state.waiting.deferred.iter().count();
    // Every shard has lost some.
    assert_eq!((kept, state.dirty.len()), (1, 128));
}

#[tokio::test]
async fn a_run_that_only_accounting_shows_continues_a_finished_one_that_was_requeued() {
    let term = Term::begin().await;
    let completed = JobRecord {
        state: JobState::parse("COMPLETED"),
        nodes: "n1".to_owned(),
        start: Some(UnixTime::from_secs(110)),
        end: Some(UnixTime::from_secs(120)),
        restarts: 0,
        ..held_record(100)
    };
    term.see(Cause::Poll(2), &completed).await;
    let row = AccountingRecord {
        job_id: JobId::new(7),
        state: JobState::parse("COMPLETED"),
        submit: Some(UnixTime::from_secs(200)),
        start: Some(UnixTime::from_secs(210)),
        end: Some(UnixTime::from_secs(220)),
        nodes: "n1".to_owned(),
        user: "alice".to_owned(),
        ..AccountingRecord::default()
    };
    let later = Observation::from_accounting(CLUSTER, &row).unwrap();
    let runs = std::slice::from_ref(&later);
    let asked = term.collector.may_be_requeued(runs).await;
    assert_eq!(asked, [JobId::new(7).unwrap()]);
    let counted = JobRecord {
        restarts: 1,
        ..completed
    };
    // Of its earlier run, and of the later one.
    for submit in [100, 200] {
        let record = JobRecord {
            submit: Some(UnixTime::from_secs(submit)),
            ..counted.clone()
        };
        term.collector.restarts_counted(&[record]).await;
        let left = term.collector.may_be_requeued(runs).await;
        assert_eq!(left.is_empty(), submit == 200);
    }
    let readings = vec![TracedObservation::new(later)];
    let applied = term.collector.apply(&Cause::Accounting, readings);
    applied.await.unwrap();
    let jobs = "slurm.c.job.>".to_owned();
    let mut stored = term.collector.bus.stored_messages(SLURM_EVENTS, jobs);
    let messages = stored.next().await.unwrap();
    let events = messages
        .iter()
        .map(|message| Event::from_bytes(&message.body).unwrap());
    let causes: Vec<String> = events
        .filter_map(|event| match event.payload {
            Some(Payload::Job(job)) => Some(job.continues?.cause),
            _ => None,
        })
        .collect();
    assert_eq!(causes, ["completed"]);
}
