//! A backup was restored: the lost history is recovered from the bus in its original order, or the
//! ledger continues under another origin.

mod signed_after_the_copy;

use ledger::adapters::KeyFile;
use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::note::PublicKey;
use ledger::{TrustAnchors, VerifyError, verify_database_with, verify_everything};
use mesh_api::ledger::proof_service_client::ProofServiceClient;
use mesh_bus::Bus;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::proto::mesh::ledger::v1::{
    ReportContradictionRequest, ReportContradictionResponse, ResumeLedgerRequest,
};
use mesh_events::{EventType, subject};
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::{Value, json};
use tonic::Code;

use crate::ids::{computed, exported};
use crate::support::{DEADLINE, Database, Process, audit_entry, bus, on_both};

on_both!(
    a_ledger_that_was_set_back_is_resumed_in_its_order,
    a_key_that_was_rotated_at_the_size_of_the_backup_is_there_again,
    where_no_order_is_known_time_is_tried_and_proven,
    entries_lost_from_the_bus_end_under_another_origin,
);

const FAST: &str = "[ledger.checkpoint]\ninterval = \"100ms\"";

/// Alternates events and audit entries, so that their order in the ledger is random.
async fn publish(bus: &Bus, jobs: std::ops::RangeInclusive<u32>) {
    for job in jobs {
        let event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(job));
        let entry = audit_entry(job);
        let subject = subject::audit(&entry.cluster, &entry.kind);
        let body = entry.encode_to_vec();
        let (event, audit) = tokio::join!(
            bus.publish(&event),
            bus.publish_raw(subject, &entry.id, body)
        );
        event.unwrap();
        audit.unwrap();
    }
}

/// Waits for a checkpoint of at least this number of entries.
async fn signed(process: &Process, entries: u64) -> String {
    let newest = async |process: &Process| {
        let note = process.get("/v1/ledger/checkpoint").await;
        note.unwrap_or_default()
    };
    process
        .until("it is signed", async |process| {
            let checkpoint = Checkpoint::unverified(&newest(process).await);
            checkpoint.is_ok_and(|checkpoint| checkpoint.size >= entries)
        })
        .await;
    newest(process).await
}

/// Waits until the bus has this checkpoint, or a larger one.
async fn published(nats: &NatsServer, note: &str) {
    let checkpoint = Checkpoint::unverified(note).unwrap();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_CHECKPOINTS").await.unwrap();
    let subject = subject::checkpoint(&checkpoint.origin);
    wait_until("it is published", DEADLINE, async || {
        let Ok(message) = stream.get_last_raw_message_by_subject(&subject).await else {
            return false;
        };
        let newest = Checkpoint::unverified(str::from_utf8(&message.payload).unwrap());
        newest.unwrap().size >= checkpoint.size
    })
    .await;
}

async fn problem(process: &Process) -> String {
    let answer = process.request("/readyz").send().await;
    let Ok(answer) = answer else {
        return String::new();
    };
    let answer: Value = answer.json().await.unwrap_or_default();
    let problem = answer["problems"]["ledger.checkpoints"].as_str();
    problem.unwrap_or_default().to_owned()
}

async fn until_ready(process: &Process) {
    process
        .until("ready", async |process| {
            process.get("/readyz").await.is_some()
        })
        .await;
}

async fn ids(database: &Database) -> Vec<String> {
    let mut outsider = database.outsider().await;
    outsider.texts("SELECT id FROM entries ORDER BY seq").await
}

/// A ledger restored from a backup, and its last checkpoint before that.
struct Lost {
    process: Process,
    backup: Database,
    database: Database,
    checkpoint_note: String,
    before: u64,
}

/// When the key was rotated after the backup.
#[derive(PartialEq, Eq)]
enum Rotation {
    Never,
    /// Before any new entry: at the size of the backup.
    AtOnce,
    /// After new entries.
    Later,
}

impl Lost {
    async fn new(nats: &NatsServer, database: Database, rotation: Rotation) -> Self {
        let mut process = Process::spawn(nats, &database.url, FAST);
        until_ready(&process).await;
        let bus = bus(nats, "admin").await;
        publish(&bus, 1..=20).await;
        signed(&process, 40).await;
        process.stop().await;
        let backup = database.backup().await;
        let last = process.data_dir().join("ledger-checkpoint.key.last");
        let earlier = std::fs::read(&last).unwrap();
        let before = ids(&backup).await.len() as u64;

        process.restart();
        if rotation == Rotation::Later {
            publish(&bus, 21..=120).await;
            process
                .until("it has new entries", async |process| {
                    process.head().await > Some(before)
                })
                .await;
        }
        if rotation != Rotation::Never {
            until_ready(&process).await;
            let made = process.post("/v1/ledger/keys", &json!({})).await.unwrap();
            assert!(made["key"]["vkey"].is_string(), "{made}");
        }
        if rotation != Rotation::Later {
            publish(&bus, 21..=120).await;
        }
        // Messages delivered but not acknowledged are redelivered after their successors.
        process.restart();
        publish(&bus, 121..=200).await;
        let checkpoint_note = signed(&process, 400).await;
        published(nats, &checkpoint_note).await;
        process.kill();
        process.restore_backup(&database, &backup);
        std::fs::write(last, earlier).unwrap();
        Self {
            process,
            backup,
            database,
            checkpoint_note,
            before,
        }
    }

    async fn keys(&self) -> Vec<PublicKey> {
        let keys = self.process.json("/v1/ledger/keys").await.unwrap();
        let keys = keys["keys"].as_array().unwrap().iter();
        keys.map(|key| key["vkey"].as_str().unwrap().parse().unwrap())
            .collect()
    }
}

async fn a_ledger_that_was_set_back_is_resumed_in_its_order(database: Database) {
    is_resumed(database, Rotation::Later).await;
}

async fn a_key_that_was_rotated_at_the_size_of_the_backup_is_there_again(database: Database) {
    is_resumed(database, Rotation::AtOnce).await;
}

async fn is_resumed(database: Database, rotation: Rotation) {
    let nats = NatsServer::start().await;
    let mut lost = Lost::new(&nats, database, rotation).await;
    lost.process.restart();
    lost.process
        .until("it says that it was set back", async |process| {
            problem(process).await.contains("smesh ledger resume")
        })
        .await;
    // New messages wait during the recovery.
    publish(&bus(&nats, "admin").await, 201..=210).await;
    let head = lost.process.head().await;
    assert_eq!(head, Some(lost.before));
    let resumed = lost.process.post("/v1/ledger/resume", &json!({})).await;
    let resumed = resumed.unwrap();
    let size = Checkpoint::unverified(&lost.checkpoint_note).unwrap().size;
    assert_eq!(
        resumed["from"],
        lost.before,
        "{resumed}\n{}",
        lost.process.log()
    );
    assert!(resumed["to"].as_u64() >= Some(size), "{resumed}");
    until_ready(&lost.process).await;
    // It continues with the same key, and the audit records the recovery.
    let newest = signed(&lost.process, 421).await;
    let keys = lost.keys().await;
    assert_eq!(keys.len(), 2, "the hand-over is there again");
    Checkpoint::open(&newest, &keys[1..]).unwrap();
    let restored = lost
        .process
        .post("/v1/ledger/resume", &json!({}))
        .await
        .unwrap();
    // Nothing is missing. Entries of the recovery itself may have come after the newest checkpoint.
    let (from, to) = (restored["from"].as_u64(), restored["to"].as_u64());
    assert!(from >= to && to >= Some(421), "{restored}");
    lost.process.kill();

    let (before, after) = (ids(&lost.database).await, ids(&lost.backup).await);
    let whole = usize::try_from(size).unwrap();
    assert_eq!(after[..whole], before[..whole]);
    let trust = TrustAnchors {
        checkpoints: vec![Checkpoint::unverified(&lost.checkpoint_note).unwrap()],
        keys,
        ..TrustAnchors::default()
    };
    let location = lost.backup.location();
    let verified = verify_everything(&location, &trust, |_| ()).await;
    assert!(verified.unwrap().verified.signed >= 421);
    let found = history(&nats).await;
    let [.., last] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (last.0.as_str(), last.1),
        ("resumed", lost.before),
        "{found:?}"
    );
}

async fn where_no_order_is_known_time_is_tried_and_proven(database: Database) {
    let nats = NatsServer::start().await;
    let mut process = Process::spawn(&nats, &database.url, FAST);
    until_ready(&process).await;
    let bus = bus(&nats, "admin").await;
    publish(&bus, 1..=5).await;
    signed(&process, 10).await;
    process.stop().await;
    let backup = database.backup().await;
    process.restart();
    for job in 6..=60 {
        let event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(job));
        bus.publish(&event).await.unwrap();
    }
    let checkpoint_note = signed(&process, 65).await;
    process.kill();
    process.restore_backup(&database, &backup);
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_ORDER").await.unwrap();
    stream.purge().await.unwrap();
    process.restart();
    process
        .until("it says that it was set back", async |process| {
            problem(process).await.contains("smesh ledger resume")
        })
        .await;
    // A checkpoint of another history, of which these entries are no prefix: nothing on the bus gives its root.
    let key = KeyFile::new(process.data_dir().join("ledger-checkpoint.key"));
    let key = key.read().unwrap().unwrap();
    let fork = Checkpoint {
        root: [9; 32],
        ..Checkpoint::unverified(&checkpoint_note).unwrap()
    };
    let body = json!({ "checkpoint": fork.sign(&[&key]).unwrap() });
    let refused = process.post("/v1/ledger/resume", &body).await.unwrap();
    assert_eq!(refused["status"], 409, "{refused}");
    assert_eq!(process.head().await, Some(10), "nothing was written");
    let mut grpc = ProofServiceClient::new(process.channel().await);
    let request = ResumeLedgerRequest {
        checkpoint: checkpoint_note.clone(),
        ..ResumeLedgerRequest::default()
    };
    let resumed = grpc.resume_ledger(request).await.unwrap().into_inner();
    assert_eq!((resumed.from_size, resumed.to_size), (10, 65));
    assert!(
        Checkpoint::unverified(&resumed.checkpoint).unwrap().size >= 65,
        "{resumed:?}"
    );
    let request = ReportContradictionRequest {
        checkpoint: checkpoint_note,
    };
    let seen = grpc.report_contradiction(request).await.unwrap();
    assert_eq!(seen.into_inner(), ReportContradictionResponse::default());
    until_ready(&process).await;
}

async fn entries_lost_from_the_bus_end_under_another_origin(database: Database) {
    let nats = NatsServer::start().await;
    let mut lost = Lost::new(&nats, database, Rotation::Never).await;
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("SLURM_EVENTS").await.unwrap();
    stream.purge().sequence(100).await.unwrap();
    lost.process.restart();
    lost.process
        .until("it says that it was set back", async |process| {
            problem(process).await.contains("smesh ledger resume")
        })
        .await;
    let post =
        async |process: &Process, path: &str, body: Value| process.post(path, &body).await.unwrap();
    let refused = post(&lost.process, "/v1/ledger/resume", json!({})).await;
    let why = refused["detail"].as_str().unwrap_or_default();
    assert!(why.contains("no longer on SLURM_EVENTS"), "{refused}");
    assert_eq!(
        lost.process.head().await,
        Some(lost.before),
        "nothing was written"
    );
    // Anyone who stored the checkpoint can present it.
    let seen = json!({ "checkpoint": lost.checkpoint_note });
    let seen = post(&lost.process, "/v1/ledger/contradictions", seen).await;
    assert_eq!(seen["contradicted"], true, "{seen}");
    let mut grpc = ProofServiceClient::new(lost.process.channel().await);
    let request = ReportContradictionRequest {
        checkpoint: lost.checkpoint_note.clone(),
    };
    let by_grpc = grpc.report_contradiction(request).await.unwrap();
    let by_grpc = by_grpc.into_inner();
    assert!(by_grpc.contradicted);
    assert_eq!(by_grpc.reason, seen["reason"]);
    let metrics = lost.process.get("/metrics").await.unwrap();
    assert!(
        metrics.contains("ledger_contradictions_total "),
        "{metrics}"
    );

    let former = Checkpoint::unverified(&lost.checkpoint_note)
        .unwrap()
        .origin;
    let body = json!({ "new_origin": former, "reason": "the disk" });
    let refused = post(&lost.process, "/v1/ledger/resume", body).await;
    assert_eq!(refused["status"], 409, "{refused}");
    let request = ResumeLedgerRequest {
        new_origin: former.clone(),
        reason: "the disk".into(),
        ..ResumeLedgerRequest::default()
    };
    let by_grpc = grpc.resume_ledger(request).await.unwrap_err();
    assert_eq!(by_grpc.code(), Code::FailedPrecondition);
    assert_eq!(refused["detail"], by_grpc.message());
    let body = json!({ "new_origin": "example.org/second", "reason": "the disk" });
    let begun = post(&lost.process, "/v1/ledger/resume", body).await;
    assert_eq!(begun["to"], lost.before + 1, "{begun}");
    until_ready(&lost.process).await;
    signed(&lost.process, lost.before + 2).await;
    lost.process.restart();
    publish(&bus(&nats, "admin").await, 201..=210).await;
    let newest = signed(&lost.process, lost.before + 20).await;
    assert!(newest.starts_with("example.org/second\n"), "{newest}");
    // Nothing contradicts the ledger any more, so its origin stays.
    let body = json!({ "new_origin": "example.org/third" });
    let refused = post(&lost.process, "/v1/ledger/resume", body).await;
    assert_eq!(refused["status"], 409, "{refused}");
    let keys = lost.keys().await;
    let names: Vec<&str> = keys.iter().map(PublicKey::name).collect();
    assert_eq!(names, [former.as_str(), "example.org/second"]);
    lost.process.kill();

    let trust = |checkpoint_note: Vec<Checkpoint>| TrustAnchors {
        keys: keys.clone(),
        checkpoints: checkpoint_note,
        ..TrustAnchors::default()
    };
    let location = lost.backup.location();
    let verified = verify_database_with(&location, &trust(Vec::new()), |_| ()).await;
    assert!(verified.unwrap().signed >= lost.before + 20);
    // A verifier with a checkpoint of the former origin sees that it is not continued here.
    let checkpoint_note = vec![Checkpoint::unverified(&lost.checkpoint_note).unwrap()];
    let found = verify_database_with(&location, &trust(checkpoint_note), |_| ()).await;
    assert!(matches!(found, Err(VerifyError::Invalid(_))), "{found:?}");
    let mut outsider = lost.backup.outsider().await;
    let bodies = outsider
        .bytes(&format!(
            "SELECT body FROM payloads WHERE seq = {}",
            lost.before + 1
        ))
        .await;
    let Some(Act::History(act)) = AuditEntry::decode(&bodies[..]).unwrap().act else {
        panic!("an entry about the history")
    };
    assert_eq!(
        (act.what.as_str(), &act.former_origin),
        ("new_origin", &former)
    );
    let named = Checkpoint::open(&act.checkpoint, &keys).unwrap().0;
    assert!(named.size >= 400 && named.origin == act.former_origin);
    assert_eq!(act.reason, "the disk");
    let found = history(&nats).await;
    let found: Vec<&str> = found.iter().map(|(what, _)| what.as_str()).collect();
    assert!(
        found.contains(&"contradicted") && found.contains(&"new_origin"),
        "{found:?}"
    );
    lost.process.restart();
    let (export, keys) = exported(&lost.process, lost.before as usize + 20).await;
    // Other audit entries of this test have ids that no service would give them.
    let (_, printed) = computed(&export, &keys);
    assert!(printed.contains("audit: history"), "{printed}");
    let differs = printed.lines().any(|line| line.contains("audit.history"));
    assert!(!differs, "{printed}");
}

/// Returns the audit entries about the history: kind and number of entries.
async fn history(nats: &NatsServer) -> Vec<(String, u64)> {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_AUDIT").await.unwrap();
    let subject = subject::audit(CLUSTER, "history");
    let mut next = 1;
    let mut all = Vec::new();
    while let Ok(message) = stream
        .get_first_raw_message_by_subject(&subject, next)
        .await
    {
        next = message.sequence + 1;
        let Some(Act::History(act)) = AuditEntry::decode(message.payload).unwrap().act else {
            panic!("an entry about the history")
        };
        all.push((act.what, act.entries));
    }
    all
}
