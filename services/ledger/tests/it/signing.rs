//! Who signs, and when signing is refused: new keys, replicas, changed entries, kills.

use std::time::Duration;

use futures_util::StreamExt as _;
use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::export::ExportVerifier;
use ledger::domain::note::{PrivateKey, PublicKey};
use ledger::{Error, Fault, FirstFault, TrustAnchors, VerifyError, verify_database_with};
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::{EventType, subject};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use prost::Message as _;
use serde_json::Value;

use crate::proof::{Ledger, ORIGIN, json, their_checkpoint};
use crate::support::{Database, Process, admin, bus, of_user, on_both, record, user};

on_both!(
    a_new_key_takes_over_with_a_checkpoint_of_both,
    nothing_is_signed_that_contradicts_a_checkpoint,
    a_backup_restored_with_its_note_is_detected_on_the_bus,
    only_its_own_keys_are_trusted_on_the_bus,
    messages_that_hide_the_checkpoints_on_the_bus_stop_signing,
    two_replicas_sign_one_history,
    killed_between_entries_and_checkpoint_it_continues,
);

async fn a_new_key_takes_over_with_a_checkpoint_of_both(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(&database).await;
    let client = async_nats::connect(ledger.nats.url()).await.unwrap();
    let mut published = client.subscribe(subject::checkpoint(ORIGIN)).await.unwrap();
    let mut audited = client
        .subscribe(subject::audit(CLUSTER, "key"))
        .await
        .unwrap();
    let checkpointer = ledger.checkpointer().await;
    ledger.append(10).await;
    checkpointer.sign_if_new().await.unwrap();
    let first = ledger.keys().await.remove(0);
    let secret = std::fs::read_to_string(ledger.key_file()).unwrap();

    ledger.append(5).await;
    let url = ledger.serve(admin()).await;
    let post = |url: String| async move {
        let answer = reqwest::Client::new().post(url).send().await.unwrap();
        (
            answer.status().as_u16(),
            answer.json::<Value>().await.unwrap(),
        )
    };
    let bob = ledger.serve(user("bob")).await;
    assert_eq!(post(format!("{bob}/v1/ledger/keys")).await.0, 403);
    let (status, made) = post(format!("{url}/v1/ledger/keys")).await;
    assert_eq!(status, 200, "{made}");
    let second: PublicKey = made["key"]["vkey"].as_str().unwrap().parse().unwrap();
    let note = made["checkpoint"]["note"].as_str().unwrap();
    for key in [&first, &second] {
        assert_eq!(their_checkpoint(note, &key.to_string()).0, 15);
    }
    let new_secret = std::fs::read_to_string(ledger.key_file()).unwrap();
    assert!(new_secret != secret && !new_secret.contains(&secret));

    // The replica that signed until now has noticed, and signs only with the new key.
    ledger.append(5).await;
    checkpointer.sign_if_new().await.unwrap();
    let newest = ledger.store.last_checkpoint().await.unwrap().unwrap();
    their_checkpoint(&newest.note, &second.to_string());
    assert!(Checkpoint::open(&newest.note, std::slice::from_ref(&first)).is_err());
    let keys = json(&format!("{url}/v1/ledger/keys")).await;
    let sizes: Vec<_> = keys["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| (key["from_size"].as_u64(), key["to_size"].as_u64()))
        .collect();
    assert_eq!(sizes, [(Some(0), Some(15)), (Some(15), Some(20))]);

    for size in [10, 15, 20] {
        let message = published.next().await.unwrap();
        let note = str::from_utf8(&message.payload).unwrap();
        assert_eq!(
            Checkpoint::open(note, &[first.clone(), second.clone()])
                .unwrap()
                .0
                .size,
            size
        );
    }
    let entry = AuditEntry::decode(audited.next().await.unwrap().payload).unwrap();
    let Some(Act::Key(key)) = entry.act else {
        panic!("a key")
    };
    assert_eq!(
        (key.vkey, key.before, key.size),
        (second.to_string(), first.to_string(), 15)
    );
    assert_eq!(key.made_by, "root");

    // With both keys the whole history verifies. With one key, checkpoints of the other are not
    // accepted.
    let verify = async |keys: &[&PublicKey]| {
        let trust = TrustAnchors {
            keys: keys.iter().copied().cloned().collect(),
            ..TrustAnchors::default()
        };
        verify_database_with(&database.location(), &trust, |_| ()).await
    };
    assert_eq!(verify(&[&first, &second]).await.unwrap().signed, 20);
    let forged = |seq| FirstFault {
        seq,
        what: Fault::CheckpointForged,
    };
    assert!(matches!(verify(&[&first]).await, Err(VerifyError::Invalid(bad)) if bad == forged(20)));
    assert!(
        matches!(verify(&[&second]).await, Err(VerifyError::Invalid(bad)) if bad == forged(10))
    );

    // Killed after the key was stored in the database and before its file was renamed: the next
    // start completes it.
    let file = ledger.key_file();
    std::fs::rename(&file, file.with_extension("key.next")).unwrap();
    ledger.append(1).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    assert_eq!(ledger.newest().await.size, 21);
    // A replaced key cannot sign any more.
    std::fs::write(&file, secret).unwrap();
    ledger.append(1).await;
    let refused = ledger.checkpointer().await.sign_if_new().await;
    assert!(matches!(refused, Err(Error::NoKey(reason)) if reason.contains("was replaced by")));
}

async fn nothing_is_signed_that_contradicts_a_checkpoint(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    ledger.append(600).await;
    let checkpointer = ledger.checkpointer().await;
    checkpointer.sign_if_new().await.unwrap();
    ledger.append(10).await;
    let mut outsider = database.outsider().await;
    outsider.drop_guards().await;

    // Missing subtrees are rebuilt.
    outsider.execute("DELETE FROM subtrees").await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    assert_eq!(ledger.newest().await.size, 610);
    assert_eq!(outsider.numbers("SELECT count(*) FROM subtrees").await, [2]);

    let refused = async |ledger: &Ledger, why: &str| {
        let before = ledger.newest().await;
        let result = ledger.checkpointer().await.sign_if_new().await;
        assert!(
            matches!(&result, Err(Error::Inconsistent(reason)) if reason.contains(why)),
            "{why}: {result:?}"
        );
        assert_eq!(ledger.newest().await, before);
    };
    // The last 256 leaves are read at every start.
    let leaf = hex::encode(ledger.store.leaf(600).await.unwrap().unwrap());
    ledger.append(1).await;
    outsider
        .execute("UPDATE entries SET leaf = zeroblob(32) WHERE seq = 600")
        .await;
    refused(&ledger, "do not match the root").await;
    // After the correction, signing continues.
    outsider
        .execute(&format!(
            "UPDATE entries SET leaf = x'{leaf}' WHERE seq = 600"
        ))
        .await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    assert_eq!(ledger.newest().await.size, 611);

    // A forged note.
    outsider.execute("UPDATE checkpoints SET note = replace(note, '611', '612'), size = 612 WHERE size = 611").await;
    let result = ledger.checkpointer().await.sign_if_new().await;
    assert!(matches!(&result, Err(Error::Inconsistent(_))), "{result:?}");
    // An old backup, with fewer entries than were signed.
    outsider
        .execute("DELETE FROM checkpoints WHERE size > 600")
        .await;
    ledger.set_back(&database, 605).await;
    refused(&ledger, "an old backup was restored").await;
    // Grown again with another history, through a store that knows none of the later checkpoints.
    ledger.store = database.store().await;
    ledger.append(100).await;
    refused(&ledger, "do not match the root").await;
    // The note next to the key was restored together with the database, but the bus still has the
    // checkpoint.
    std::fs::remove_file(ledger.key_file().with_extension("key.last")).unwrap();
    refused(&ledger, "do not match the root").await;
    // Where nothing of it is left, only the database counts, and it is consistent.
    let client = async_nats::connect(ledger.nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_CHECKPOINTS").await.unwrap();
    stream.purge().await.unwrap();
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    assert_eq!(ledger.newest().await.size, 705);
}

/// An earlier copy of database, key file and last note.
async fn a_backup_restored_with_its_note_is_detected_on_the_bus(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    ledger.append(20).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    let last = ledger.key_file().with_extension("key.last");
    let earlier = std::fs::read(&last).unwrap();
    ledger.append(20).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();

    ledger.set_back(&database, 20).await;
    std::fs::write(&last, earlier).unwrap();
    let checkpointer = ledger.checkpointer().await;
    let found = checkpointer.check_published_checkpoints().await;
    assert!(
        matches!(
            found,
            Err(Error::SetBack {
                entries: 20,
                signed: 40
            })
        ),
        "{found:?}"
    );
    let refused = checkpointer.sign_if_new().await;
    let Err(Error::Inconsistent(why)) = &refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("MESH_CHECKPOINTS) count 40"), "{why}");
    // No other entries may replace the missing ones.
    let other = record(&of_user(
        "bob",
        EventType::JobSubmitted,
        fixtures::job(9_999),
    ));
    let appended = ledger.store.append("S", 1, vec![other]).await;
    assert!(
        matches!(appended, Err(Error::SetBack { .. })),
        "{appended:?}"
    );
    assert_eq!(ledger.store.head().await.unwrap().seq, 20);
}

/// A published note is not a checkpoint unless a key of the ledger has signed it.
async fn only_its_own_keys_are_trusted_on_the_bus(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    ledger.append(5).await;
    let checkpointer = ledger.checkpointer().await;
    checkpointer.sign_if_new().await.unwrap();
    let publisher = bus(&ledger.nats, "admin").await;
    let publish = async |id: &str, note: String| {
        let sent = publisher.publish_raw(subject::checkpoint(ORIGIN), id, note.into_bytes());
        sent.await.unwrap();
    };
    let genuine = ledger.store.last_checkpoint().await.unwrap().unwrap().note;
    publish("garbage", "no note".into()).await;
    publish("changed", genuine.replace("\n5\n", "\n6\n")).await;
    ledger.append(1).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    // Another party signs as this ledger. It may be the original, of which this is a copy without
    // its key.
    let foreign = PrivateKey::new(ORIGIN, &[9; 32]).unwrap();
    let forged = Checkpoint {
        origin: ORIGIN.into(),
        size: 3,
        root: [0; 32],
    };
    publish("stranger", forged.sign(&[&foreign]).unwrap()).await;
    ledger.append(1).await;
    let refused = checkpointer.sign_if_new().await;
    assert!(
        matches!(&refused, Err(Error::Inconsistent(why)) if why.contains("not a key of this ledger")),
        "{refused:?}"
    );
}

/// Whoever may publish there could otherwise make the ledger sign what contradicts an earlier checkpoint.
async fn messages_that_hide_the_checkpoints_on_the_bus_stop_signing(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    ledger.append(5).await;
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    let publisher = bus(&ledger.nats, "admin").await;
    let client = async_nats::connect(ledger.nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_CHECKPOINTS").await.unwrap();
    let genuine = stream.cached_info().state.last_sequence;
    for number in 0..100 {
        let (subject, id) = (subject::checkpoint(ORIGIN), format!("n{number}"));
        let sent = publisher.publish_raw(subject, &id, b"no note".to_vec());
        sent.await.unwrap();
    }
    ledger.append(1).await;
    for is_there in [true, false] {
        if !is_there {
            // With nothing but such messages, either.
            stream.delete_message(genuine).await.unwrap();
            for sequence in genuine + 2..=genuine + 100 {
                stream.delete_message(sequence).await.unwrap();
            }
        }
        let checkpointer = ledger.checkpointer().await;
        for refused in [
            checkpointer.check_published_checkpoints().await,
            checkpointer.sign_if_new().await,
        ] {
            assert!(
                matches!(&refused, Err(Error::Inconsistent(why)) if why.contains("none of those read")),
                "{refused:?}"
            );
        }
    }
    assert_eq!(ledger.newest().await.size, 5);
    stream.delete_message(genuine + 1).await.unwrap();
    ledger.checkpointer().await.sign_if_new().await.unwrap();
    assert_eq!(ledger.newest().await.size, 6);
}

async fn two_replicas_sign_one_history(database: Database) {
    let mut ledger = Ledger::new(&database).await;
    let one = ledger.checkpointer().await;
    ledger.append(1).await;
    one.sign_if_new().await.unwrap();
    // A replica without the key leaves signing to the other.
    let elsewhere = ledger.folder.path().join("elsewhere.key");
    let other = ledger.checkpointer_with(&elsewhere).await;
    assert!(matches!(other.sign_if_new().await, Err(Error::NoKey(_))));
    std::fs::copy(ledger.key_file(), &elsewhere).unwrap();
    for round in 0..10 {
        ledger.append(30).await;
        let (a, b) = tokio::join!(one.sign_if_new(), other.sign_if_new());
        a.unwrap();
        b.unwrap();
        assert_eq!(ledger.newest().await.size, 1 + 30 * (round + 1));
    }
    let trust = TrustAnchors {
        keys: ledger.keys().await,
        ..TrustAnchors::default()
    };
    let verified = verify_database_with(&database.location(), &trust, |_| ())
        .await
        .unwrap();
    assert_eq!((verified.count, verified.signed), (301, 301));
    assert_eq!(ledger.keys().await.len(), 1);
}

async fn killed_between_entries_and_checkpoint_it_continues(database: Database) {
    let nats = NatsServer::start().await;
    let fast = "[ledger.checkpoint]\ninterval = \"100ms\"";
    let mut process = Process::spawn(&nats, &database.url, fast);
    process
        .until("ready", async |process| {
            process.get("/readyz").await.is_some()
        })
        .await;
    let publisher = bus(&nats, "admin").await;
    let mut notes = Vec::new();
    for round in 1..=4u32 {
        for id in round * 100..round * 100 + 40 {
            publisher
                .publish(&fixtures::job_event(
                    EventType::JobSubmitted,
                    fixtures::job(id),
                ))
                .await
                .unwrap();
        }
        process
            .until("some are signed", async |process| {
                let note = process
                    .get("/v1/ledger/checkpoint")
                    .await
                    .unwrap_or_default();
                Checkpoint::unverified(&note).is_ok_and(|c| c.size > u64::from(round - 1) * 40)
            })
            .await;
        notes.extend(process.get("/v1/ledger/checkpoint").await);
        process.restart();
    }
    process
        .until("all are signed", async |process| {
            let note = process
                .get("/v1/ledger/checkpoint")
                .await
                .unwrap_or_default();
            Checkpoint::unverified(&note).is_ok_and(|c| c.size >= 160)
        })
        .await;
    let export = process.get("/v1/ledger/export?from=33").await.unwrap();
    let keys = process.json("/v1/ledger/keys").await.unwrap();
    process.kill();

    let keys = [keys["keys"][0]["vkey"]
        .as_str()
        .unwrap()
        .parse::<PublicKey>()
        .unwrap()];
    let notes: Vec<_> = notes
        .iter()
        .map(|note| Checkpoint::open(note, &keys).unwrap().0)
        .collect();
    let trust = TrustAnchors {
        keys: keys.to_vec(),
        checkpoints: notes.clone(),
        ..TrustAnchors::default()
    };
    let verified = verify_database_with(&database.location(), &trust, |_| ())
        .await
        .unwrap();
    // The export itself is recorded in the audit; that entry may not be signed yet.
    assert!(verified.signed >= 160);
    let mut lines = export.lines();
    let mut verifier =
        ExportVerifier::new(lines.next().unwrap().as_bytes(), &keys, &notes).unwrap();
    for line in lines {
        verifier.next(line.as_bytes()).unwrap();
    }
    assert!(verifier.finish().unwrap().count >= 160);
    tokio::time::timeout(Duration::from_secs(30), nats_has_checkpoints(&nats))
        .await
        .unwrap();
}

/// Checks that the stream stores the checkpoints for others.
async fn nats_has_checkpoints(nats: &NatsServer) {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let stream = context.get_stream("MESH_CHECKPOINTS").await.unwrap();
    assert!(stream.cached_info().state.messages > 0);
}
