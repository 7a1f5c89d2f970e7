//! The server does not check the subject to which a publisher wants the answer. Hooks and readers try all that matter to others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream;
use futures_util::TryStreamExt as _;
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::{BUCKETS, MESH_HOOKS, ROLES, STREAMS, permissions};
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, wait_until};

use crate::PATIENCE;
use crate::permissions::{async_nats_as, connect_as, users};
use crate::raw::Raw;

/// Body of every request: for a reader, the first message of the stream.
const REQUEST: &str = r#"{"seq":1}"#;

/// Prefix of the subjects of doorbells.
const DOORBELLS: &str = "mesh.testbed.hook.";

/// A subject that the pattern matches.
fn example(pattern: &str) -> String {
    let tokens = pattern.split('.').map(|token| match token {
        "*" => "testbed",
        ">" => "job.started.1",
        token => token,
    });
    tokens.collect::<Vec<_>>().join(".")
}

/// Subjects by which an answer would do harm in the account of the services.
fn targets(role: &str) -> BTreeSet<String> {
    let others = ROLES.iter().filter(|other| **other != role);
    let rights = others.flat_map(|other| {
        let rights = permissions(other, "testbed").unwrap();
        rights.publish.into_iter().chain(rights.subscribe)
    });
    let buckets = BUCKETS
        .iter()
        .map(|bucket| format!("$KV.{}.testbed.0", bucket.name));
    let named = [
        "$JS.API.STREAM.DELETE.SLURM_EVENTS",
        "$JS.API.STREAM.PURGE.SLURM_EVENTS",
        "mesh.elsewhere.hook.Epilog",
        "slurm.elsewhere.job.completed.1",
    ];
    rights
        .filter(|subject| subject != ">")
        .chain(buckets)
        .chain(named.map(str::to_owned))
        .map(|subject| example(&subject))
        .collect()
}

/// Last sequence, messages and consumers of a stream.
type State = (u64, u64, usize);

/// The states of all streams and buckets.
async fn states(context: &jetstream::Context) -> BTreeMap<String, State> {
    let streams: Vec<_> = context.streams().try_collect().await.unwrap();
    let state = |info: jetstream::stream::Info| {
        let state = info.state;
        let numbers = (state.last_sequence, state.messages, state.consumer_count);
        (info.config.name, numbers)
    };
    streams.into_iter().map(state).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_to_a_hook_or_a_reader_reaches_what_belongs_to_another() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let ingest = connect_as(&nats, "ingest").await;
    ingest
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    let context = jetstream::new(async_nats_as(&nats, "admin").await);
    let before = states(&context).await;
    assert_eq!(before.len(), STREAMS.len() + BUCKETS.len());
    let mut admin = Raw::connect(&nats, "admin").await;
    admin.subscribe(">", 1).await;
    for role in ["hook", "reader"] {
        let own = permissions(role, "testbed").unwrap().publish;
        let own: BTreeSet<String> = own.iter().map(|subject| example(subject)).collect();
        let targets = targets(role);
        assert!(own.len() > 5 && targets.len() > 100, "{role}");
        let mut client = Raw::connect(&nats, role).await;
        let mut seen = Vec::new();
        for subject in &own {
            for target in &targets {
                client.publish(subject, target, REQUEST).await;
            }
            client.settled().await;
            seen.extend(admin.settled().await.messages);
        }
        // A stream answers once it has stored, and a direct get when there is time.
        let rung = seen
            .iter()
            .filter(|seen| seen.subject.starts_with(DOORBELLS));
        let rung = rung.count() as u64;
        wait_until("all doorbells are stored", PATIENCE, async || {
            // The server cuts off who does not read.
            seen.extend(admin.settled().await.messages);
            role == "reader" || states(&context).await[MESH_HOOKS].1 >= rung
        })
        .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        seen.extend(admin.settled().await.messages);
        assert!(seen.len() > targets.len(), "{role}: {}", seen.len());
        seen.retain(|message| {
            // Answers on their way to the other account, the server's notes of requests, and what this test asks.
            let internal = [
                "_R_.",
                "$JS.EVENT.ADVISORY.",
                "$JS.API.STREAM.LIST",
                "_INBOX.",
            ];
            let is_other = internal
                .iter()
                .any(|prefix| message.subject.starts_with(prefix));
            // A reader may send any request there.
            let may = own.contains(&message.subject);
            !is_other && !(may && (role == "reader" || message.body == REQUEST))
        });
        assert!(seen.is_empty(), "{role}: {seen:?}");
    }
    let mut after = states(&context).await;
    // Doorbells are stored, and nothing else there.
    let (rung, stored, _) = after.remove(MESH_HOOKS).unwrap();
    assert!(rung > 0 && stored == rung);
    let hooks = context.get_stream(MESH_HOOKS).await.unwrap();
    for sequence in 1..=rung {
        let stored = hooks.get_raw_message(sequence).await.unwrap();
        assert_eq!(stored.payload, REQUEST, "{}", stored.subject);
        assert!(stored.subject.starts_with(DOORBELLS));
    }
    let before: BTreeMap<_, _> = before
        .into_iter()
        .filter(|(name, _)| name != MESH_HOOKS)
        .collect();
    assert_eq!(after, before);
}

/// An answer that comes in many messages, and the subjects of live messages, cross accounts.
#[tokio::test(flavor = "multi_thread")]
async fn readers_get_whole_batches_states_and_live_messages_once() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let ingest = connect_as(&nats, "ingest").await;
    for n in 1..=3 {
        let event = job_event(JobStarted, job(n));
        ingest.publish(&event).await.unwrap();
    }
    let mut reader = Raw::connect(&nats, "reader").await;
    reader.subscribe("_INBOX_reader.>", 1).await;
    reader.subscribe("slurm.>", 2).await;
    let mut received = Vec::new();
    for (request, answers, body) in [
        (
            "DIRECT.GET.SLURM_EVENTS",
            4,
            r#"{"batch":9,"seq":1,"next_by_subj":"slurm.>"}"#,
        ),
        ("STREAM.INFO.SLURM_EVENTS", 1, ""),
    ] {
        let (subject, inbox) = (
            format!("$JS.API.{request}"),
            format!("_INBOX_reader.{request}"),
        );
        reader.publish(&subject, &inbox, body).await;
        received.clear();
        wait_until(request, PATIENCE, async || {
            received.extend(reader.settled().await.messages);
            received.len() >= answers
        })
        .await;
        // Another account's API would have answered meanwhile, too.
        tokio::time::sleep(Duration::from_millis(200)).await;
        received.extend(reader.settled().await.messages);
        assert_eq!(received.len(), answers, "{received:?}");
    }
    let state = &received[0].body;
    assert!(state.contains("\"last_seq\":3"), "{state}");
    let event = job_event(JobStarted, job(4));
    ingest.publish(&event).await.unwrap();
    let live = reader.settled().await.messages;
    assert_eq!(live.len(), 1, "{live:?}");
    assert!(live[0].subject.starts_with("slurm.testbed.job.started"));
}
