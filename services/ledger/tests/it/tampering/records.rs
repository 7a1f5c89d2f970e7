//! Tampering with records other than entries: checkpoints, keys, archives, subtrees.

use ledger::checkpointer::repair_subtrees;
use ledger::domain::verify::Fault;
use ledger::{TrustAnchors, VerifyError};

use super::{COUNT, Victim};
use crate::support::{Database, on_both};

on_both!(
    a_checkpoint_that_was_deleted_is_missed,
    an_altered_key_is_found,
    an_unsigned_archive_is_found,
    an_altered_subtree_is_found,
    altered_subtrees_are_rebuilt,
    a_key_without_a_hand_over_is_found,
    two_rows_for_one_sequence_are_found,
);

const GONE: &str = "DELETE FROM checkpoints";

async fn a_checkpoint_that_was_deleted_is_missed(database: Database) {
    let mut victim = Victim::new(database).await;
    for (number, seq) in [(1, 40), (2, 60)] {
        let delete = format!("{GONE} WHERE number = {number}");
        victim.check(&[&delete], seq, Fault::CheckpointOrder).await;
    }
    for gone in [
        &[GONE][..],
        &["DELETE FROM checkpoints WHERE number = 3"],
        &[GONE, "DELETE FROM checkpoint_keys"],
    ] {
        victim
            .check(gone, COUNT, Fault::CheckpointMissing(COUNT as u64))
            .await;
    }
    // Without trust anchors, the keys reveal it.
    victim.execute(GONE).await;
    victim.trust = TrustAnchors::default();
    assert_eq!(victim.first_bad().await.what, Fault::KeysChanged);
    victim.restore().await;
    // A published checkpoint must be stored, even if the numbers are consistent again.
    let note = "SELECT note FROM copy_of_checkpoints WHERE number = 1";
    let note = victim.outsider.texts(note).await.remove(0);
    for sql in [
        "DELETE FROM checkpoints WHERE number = 1",
        "UPDATE checkpoints SET number = 1 WHERE number = 2",
        "UPDATE checkpoints SET number = 2 WHERE number = 3",
    ] {
        victim.execute(sql).await;
    }
    victim.verify().await.unwrap();
    let found = victim.ledger.check_published(vec![note.clone()]).await;
    assert!(
        matches!(&found, Err(VerifyError::Invalid(bad)) if bad.what == Fault::CheckpointMissing(COUNT as u64 / 3)),
        "{found:?}"
    );
    victim.restore().await;
    victim.ledger.check_published(vec![note]).await.unwrap();
    victim.verify().await.unwrap();
}

async fn an_altered_key_is_found(database: Database) {
    let mut victim = Victim::new(database).await;
    let (one, two) = (COUNT / 3, COUNT * 2 / 3);
    for (number, from_size, seq) in [(2, 0, one), (2, 39, two), (2, 41, two), (1, 1, 1)] {
        let sql =
            format!("UPDATE checkpoint_keys SET from_size = {from_size} WHERE number = {number}");
        victim.check(&[&sql], seq, Fault::KeysChanged).await;
    }
    let renumbered = "UPDATE checkpoint_keys SET number = 5 WHERE number = 2";
    victim.check(&[renumbered], two, Fault::KeysChanged).await;
    let deleted = "DELETE FROM checkpoint_keys WHERE number = 2";
    victim
        .check(&[deleted], COUNT, Fault::CheckpointForged)
        .await;
}

async fn an_unsigned_archive_is_found(database: Database) {
    let mut victim = Victim::new(database).await;
    let archive = |last: i64, key: &str| {
        format!(
            "INSERT INTO archives (number, first_seq, last_seq, signed_by, made_at, made_by) VALUES (1, 1, {last}, '{key}', 1, '')"
        )
    };
    let vkey = super::key(1).public().to_string();
    for forged in [
        archive(COUNT / 3, &vkey),
        archive(COUNT / 3 + 1, &vkey),
        archive(COUNT / 3, "k"),
    ] {
        victim.check(&[&forged], 1, Fault::ArchiveUnsigned).await;
        // Content that is not archived is missing, whatever the table claims.
        victim
            .check(
                &[
                    &forged,
                    "DELETE FROM event_nodes WHERE seq = 3",
                    "DELETE FROM event_index WHERE seq = 3",
                    "DELETE FROM payloads WHERE seq = 3",
                ],
                3,
                Fault::PayloadMissing,
            )
            .await;
    }
}

async fn an_altered_subtree_is_found(database: Database) {
    let mut victim = Victim::of(database, 600).await;
    for change in [
        "UPDATE subtrees SET hash = zeroblob(32) WHERE idx = 1",
        "DELETE FROM subtrees WHERE idx = 1",
    ] {
        victim.check(&[change], 512, Fault::SubtreeDiffers).await;
    }
    let stray = "INSERT INTO subtrees (level, idx, hash) VALUES (3, 0, zeroblob(32))";
    victim.check(&[stray], 8, Fault::SubtreeDiffers).await;
}

/// The tree does not depend on them, so rebuilding them loses nothing.
async fn altered_subtrees_are_rebuilt(database: Database) {
    let mut victim = Victim::of(database, 600).await;
    for change in [
        "UPDATE subtrees SET hash = zeroblob(32) WHERE idx = 0",
        "DELETE FROM subtrees WHERE idx = 1",
        "INSERT INTO subtrees (level, idx, hash) VALUES (3, 0, zeroblob(32))",
    ] {
        victim.execute(change).await;
        assert_eq!(victim.first_bad().await.what, Fault::SubtreeDiffers);
        let store = victim.database.store().await;
        repair_subtrees(&store).await.unwrap();
        store.close().await;
        victim.verify().await.unwrap();
    }
    // A rebuild does not repair wrong entries.
    victim
        .execute("UPDATE entries SET leaf = zeroblob(32) WHERE seq = 300")
        .await;
    victim.guard().await;
    let store = victim.database.store().await;
    let refused = repair_subtrees(&store).await;
    store.close().await;
    assert!(
        matches!(refused, Err(ledger::Error::Inconsistent(_))),
        "{refused:?}"
    );
}

async fn a_key_without_a_hand_over_is_found(database: Database) {
    let mut victim = Victim::new(database).await;
    let foreign = super::key(9).public();
    // As if the key had been replaced before the first entry: no checkpoint contradicts that.
    for sql in [
        "UPDATE checkpoint_keys SET number = number + 10".to_owned(),
        format!(
            "INSERT INTO checkpoint_keys (number, vkey, from_size, made_at, made_by) VALUES (1, '{foreign}', 0, 1, '')"
        ),
        "UPDATE checkpoint_keys SET number = number - 9 WHERE number > 10".to_owned(),
    ] {
        victim.execute(&sql).await;
    }
    assert_eq!(victim.first_bad().await.what, Fault::KeysChanged);
    victim.restore().await;
    victim.verify().await.unwrap();
}

async fn two_rows_for_one_sequence_are_found(database: Database) {
    let mut victim = Victim::new(database).await;
    let another = "INSERT INTO event_index SELECT * FROM copy_of_event_index WHERE seq = 17";
    if victim.database.is_sqlite() {
        for sql in [
            "ALTER TABLE event_index RENAME TO other_index",
            "CREATE TABLE event_index AS SELECT * FROM other_index",
            "DROP TABLE other_index",
        ] {
            victim.execute(sql).await;
        }
    } else {
        victim
            .execute("ALTER TABLE event_index DROP CONSTRAINT event_index_pkey")
            .await;
    }
    victim.execute(another).await;
    let found = victim.first_bad().await;
    assert_eq!((found.seq, found.what), (17, Fault::IndexDiffers));
    let delete = "DELETE FROM event_index WHERE seq = 17";
    for sql in [delete, another] {
        victim.execute(sql).await;
    }
    let found = victim.verify().await.unwrap_err();
    assert!(matches!(found, VerifyError::Schema(_)), "{found}");
}
