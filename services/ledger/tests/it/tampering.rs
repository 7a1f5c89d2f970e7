//! An attacker with all rights on the database changes it directly: verification reports the first
//! bad sequence.

mod campaign;
mod database;
mod pages;
mod records;

use std::path::PathBuf;

use ledger::adapters::SignedCheckpoint;
use ledger::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use ledger::domain::keys::StoredKey;
use ledger::domain::note::PrivateKey;
use ledger::domain::verify::{Fault, FirstFault, VerifiedLedger};
use ledger::{Location, Store, TrustAnchors, UnverifiedLedger, VerifyError, verify_database};
use ledger_format::merkle::Frontier;
use mesh_events::EventType;
use mesh_testkit::fixtures;

use crate::proof::ORIGIN;
use crate::support::{Database, Outsider, on_both, record};

on_both!(
    an_untouched_copy_is_verified,
    a_row_changed_by_hand_is_named,
    a_replaced_body_is_named,
    a_deleted_row_is_named,
    swapped_rows_are_named,
    a_tail_that_was_cut_off_is_named,
    rows_that_were_added_are_named,
    columns_for_queries_that_hide_or_hand_over_an_event_are_named,
    text_that_is_no_text_any_more_is_named,
    a_row_before_the_first_is_named,
    a_deleted_head_is_named,
);

const COUNT: i64 = 60;

const TABLES: [&str; 5] = ["entries", "payloads", "event_index", "event_nodes", "head"];
/// Small tables without a sequence.
const RECORDS: [&str; 4] = ["checkpoints", "checkpoint_keys", "archives", "subtrees"];

/// A ledger, and an attacker who may change all of it and has a copy of the original.
struct Victim {
    database: Database,
    ledger: UnverifiedLedger,
    outsider: Outsider,
    /// Statements that restore the triggers.
    guards: String,
    guarded: bool,
    /// The last checkpoint, known from outside the ledger.
    trust: TrustAnchors,
    /// Notes of the published checkpoints.
    published: Vec<String>,
    /// For a ledger that is attacked repeatedly: the executed statements, and those that undo them.
    done: Vec<String>,
    undo: Vec<String>,
    /// The archive file and its content.
    archive: Option<(PathBuf, Vec<u8>)>,
    /// The frontier of the tree after the archived entries.
    edge: Frontier,
    /// The original file, and the number of its copies.
    pristine: Option<Vec<u8>>,
    copies: u64,
}

impl Victim {
    async fn new(database: Database) -> Self {
        Self::of(database, COUNT).await
    }

    /// Creates a ledger of `count` entries. The first third is signed with one key, the second
    /// third with both keys, and the whole with another key.
    async fn of(database: Database, count: i64) -> Self {
        let store = database.store().await;
        let records = (1..=count).map(|id| {
            let job = fixtures::job(id.try_into().unwrap());
            record(&fixtures::job_event(EventType::JobSubmitted, job))
        });
        for batch in records.collect::<Vec<_>>().chunks(500) {
            store.append("S", 60, batch.to_vec()).await.unwrap();
        }
        let newest = sign_in_thirds(&store, count).await;
        store.close().await;
        let trust = TrustAnchors {
            newest: Some(newest),
            ..TrustAnchors::default()
        };
        Self::attacked(database, trust).await
    }

    async fn attacked(database: Database, trust: TrustAnchors) -> Self {
        let mut outsider = database.outsider().await;
        for table in TABLES.iter().chain(&RECORDS) {
            // A temporary table, visible only to this connection.
            let copy = format!("CREATE TEMP TABLE copy_of_{table} AS SELECT * FROM {table}");
            outsider.execute(&copy).await;
        }
        let guards = outsider.guards().await;
        if database.is_sqlite() {
            outsider.execute("PRAGMA synchronous = OFF").await;
        } else {
            outsider.drop_guards().await;
        }
        Self {
            ledger: UnverifiedLedger::open(&database.location()).unwrap(),
            database,
            outsider,
            guards,
            guarded: true,
            trust,
            published: Vec::new(),
            done: Vec::new(),
            undo: Vec::new(),
            archive: None,
            edge: Frontier::default(),
            pristine: None,
            copies: 0,
        }
    }

    async fn execute(&mut self, sql: &str) -> u64 {
        self.unguard().await;
        self.outsider.execute(sql).await
    }

    async fn unguard(&mut self) {
        if self.guarded && self.database.is_sqlite() {
            self.outsider.drop_guards().await;
        }
        self.guarded = false;
    }

    /// Restores the triggers, so that their absence is not noticed.
    async fn guard(&mut self) {
        if !self.guarded {
            self.outsider.put_guards(&self.guards).await;
        }
        self.guarded = true;
    }

    /// Restores everything that was changed.
    async fn restore(&mut self) {
        self.unguard().await;
        let mut sql = String::from("BEGIN;");
        for table in TABLES {
            sql.push_str(&format!(
                "DELETE FROM {table} WHERE seq IN (SELECT seq FROM (SELECT * FROM {table} EXCEPT SELECT * FROM copy_of_{table}) differing);
                 INSERT INTO {table} SELECT * FROM copy_of_{table} EXCEPT SELECT * FROM {table};"
            ));
        }
        for table in RECORDS {
            sql.push_str(&format!(
                "DELETE FROM {table}; INSERT INTO {table} SELECT * FROM copy_of_{table};"
            ));
        }
        sql.push_str("COMMIT");
        self.outsider.execute_all(&sql).await;
    }

    async fn verify(&mut self) -> Result<VerifiedLedger, VerifyError> {
        self.guard().await;
        let verified = self.ledger.verify(&self.trust, |_| ()).await?;
        self.ledger.check_published(self.published.clone()).await?;
        Ok(verified)
    }

    async fn first_bad(&mut self) -> FirstFault {
        match self.verify().await {
            Err(VerifyError::Invalid(bad)) => bad,
            other => panic!("expected a fault, got {other:?}"),
        }
    }

    /// Tampers, compares the reported fault, and undoes the change.
    async fn check(&mut self, statements: &[&str], seq: i64, what: Fault) {
        for sql in statements {
            self.execute(sql).await;
        }
        let found = self.first_bad().await;
        assert_eq!(found, FirstFault { seq, what }, "{statements:?}");
        self.restore().await;
        self.verify().await.unwrap();
    }
}

fn key(seed: u8) -> PrivateKey {
    PrivateKey::new(ORIGIN, &[seed; 32]).unwrap()
}

/// Signs after each third and returns the newest checkpoint.
async fn sign_in_thirds(store: &Store, count: i64) -> Checkpoint {
    let mut tree = Frontier::default();
    let mut newest = None;
    let all = count.unsigned_abs();
    for (number, size, keys, new) in [
        (1, all / 3, vec![key(1)], Some((1, 0))),
        (2, all * 2 / 3, vec![key(1), key(2)], Some((2, all * 2 / 3))),
        (3, all, vec![key(2)], None),
    ] {
        let subtrees = store.grow(&mut tree, size).await.unwrap();
        let checkpoint = Checkpoint {
            origin: ORIGIN.into(),
            size,
            root: tree.root(),
        };
        let signed = SignedCheckpoint {
            subtrees,
            subtrees_rebuilt: false,
            key: new.map(|(number, from_size): (u8, u64)| StoredKey {
                number: number.into(),
                vkey: key(number).public().to_string(),
                from_size: from_size.cast_signed(),
                made_at: 1,
                made_by: String::new(),
            }),
            checkpoint: Some(StoredCheckpoint {
                number,
                size: size.cast_signed(),
                root: checkpoint.root.to_vec(),
                note: checkpoint.sign(&keys.iter().collect::<Vec<_>>()).unwrap(),
                made_at: 1,
            }),
        };
        assert!(store.store_checkpoint(&signed).await.unwrap());
        newest = Some(checkpoint);
    }
    newest.unwrap()
}

async fn an_untouched_copy_is_verified(database: Database) {
    let victim = Victim::new(database).await;
    let mut last = None;
    let verified = verify_database(&victim.database.location(), |progress| {
        last = Some(progress)
    })
    .await
    .unwrap();
    assert_eq!(verified.count, COUNT.unsigned_abs());
    assert_eq!(last.unwrap().verified, last.unwrap().of);
}

async fn a_row_changed_by_hand_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    victim
        .check(
            &["UPDATE payloads SET subject = subject || 'x' WHERE seq = 17"],
            17,
            Fault::ContentChanged,
        )
        .await;
    victim
        .check(
            &["UPDATE entries SET leaf = zeroblob(32) WHERE seq = 17"],
            17,
            Fault::LeafChanged,
        )
        .await;
    victim
        .check(
            &["UPDATE entries SET chain = zeroblob(32) WHERE seq = 17"],
            17,
            Fault::ChainBroken,
        )
        .await;
}

async fn a_replaced_body_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    victim.check(
        &["UPDATE payloads SET body = (SELECT body FROM payloads WHERE seq = 3) WHERE seq = 17"],
        17,
        Fault::ContentChanged,
    )
    .await;
}

async fn a_deleted_row_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    victim
        .check(
            &[
                "DELETE FROM entries WHERE seq = 17",
                "DELETE FROM payloads WHERE seq = 17",
            ],
            17,
            Fault::Missing,
        )
        .await;
    victim
        .check(
            &["DELETE FROM payloads WHERE seq = 17"],
            17,
            Fault::PayloadMissing,
        )
        .await;
    victim
        .check(&["DELETE FROM entries"], 1, Fault::CutOff)
        .await;
}

async fn swapped_rows_are_named(database: Database) {
    let mut victim = Victim::new(database).await;
    let swap = |table: &str| {
        [
            format!("UPDATE {table} SET seq = -1 WHERE seq = 17"),
            format!("UPDATE {table} SET seq = 17 WHERE seq = 40"),
            format!("UPDATE {table} SET seq = 40 WHERE seq = -1"),
        ]
    };
    let (entries, payloads) = (swap("entries"), swap("payloads"));
    let both: Vec<&str> = entries
        .iter()
        .chain(&payloads)
        .map(String::as_str)
        .collect();
    victim.check(&both, 17, Fault::Replaced).await;
}

async fn a_tail_that_was_cut_off_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    victim
        .check(
            &[
                "DELETE FROM entries WHERE seq > 50",
                "DELETE FROM payloads WHERE seq > 50",
            ],
            51,
            Fault::CutOff,
        )
        .await;
}

async fn rows_that_were_added_are_named(database: Database) {
    let mut victim = Victim::new(database).await;
    victim.check(
        &[
            "INSERT INTO entries VALUES (61, 'x', zeroblob(32), zeroblob(32))",
            "INSERT INTO payloads (seq, cluster, subject, body, recorded_at) VALUES (61, 'c', 's', x'00', 1)",
        ],
        61,
        Fault::Replaced,
    )
    .await;
    victim.check(
        &["INSERT INTO payloads (seq, cluster, subject, body, recorded_at) VALUES (99, 'c', 's', x'00', 1)"],
        99,
        Fault::Extra,
    )
    .await;
    victim
        .check(
            &["UPDATE head SET chain = zeroblob(32)"],
            60,
            Fault::HeadChanged,
        )
        .await;
}

async fn columns_for_queries_that_hide_or_hand_over_an_event_are_named(database: Database) {
    let mut victim = Victim::new(database).await;
    for change in [
        "DELETE FROM event_index WHERE seq = 17",
        "UPDATE event_index SET user_name = 'mallory' WHERE seq >= 17",
        "UPDATE event_index SET user_name = NULL WHERE seq = 17",
        "UPDATE event_index SET user_name = CAST( x'ff41' AS TEXT) WHERE seq = 17",
        "UPDATE event_index SET job_id = 9999999999 WHERE seq = 17",
        "UPDATE event_index SET cluster = 'other' WHERE seq = 17",
        "UPDATE event_index SET occurred_at = occurred_at + 1 WHERE seq = 17",
        "UPDATE event_index SET occurred_at = 9223372036854775807 WHERE seq = 17",
        "UPDATE event_index SET recorded_at = recorded_at + 1 WHERE seq = 17",
        "DELETE FROM event_nodes WHERE seq = 17",
        "UPDATE event_nodes SET block = 'n2' WHERE seq = 17",
        "UPDATE event_nodes SET block = CAST( x'ff41' AS TEXT) WHERE seq = 17",
        "INSERT INTO event_nodes (seq, block) VALUES (17, 'n[2-3]')",
    ] {
        victim.check(&[change], 17, Fault::IndexDiffers).await;
    }
    for seq in [-1, 61] {
        let stray = format!("INSERT INTO event_nodes (seq, block) VALUES ({seq}, 'n1')");
        victim.check(&[&stray], seq, Fault::IndexDiffers).await;
    }
    let stray = "INSERT INTO event_index (seq, cluster, category, type, occurred_at, observed_at, recorded_at)
                 SELECT 61, cluster, category, type, occurred_at, observed_at, recorded_at FROM event_index WHERE seq = 17";
    victim.check(&[stray], 61, Fault::IndexDiffers).await;
    victim
        .check(
            &[
                "DELETE FROM event_index WHERE seq = 17",
                "UPDATE payloads SET body = x'00' WHERE seq = 40",
            ],
            40,
            Fault::ContentChanged,
        )
        .await;
}

async fn text_that_is_no_text_any_more_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    for change in [
        "UPDATE entries SET id = CAST( x'ff41' AS TEXT) WHERE seq = 17",
        "UPDATE payloads SET cluster = CAST( x'ff41' AS TEXT) WHERE seq = 17",
        "UPDATE payloads SET subject = CAST( x'ff41' AS TEXT) WHERE seq = 17",
    ] {
        victim.check(&[change], 17, Fault::ContentChanged).await;
    }
}

async fn a_row_before_the_first_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    for seq in [i64::MIN, 0] {
        let row = format!("INSERT INTO entries VALUES ({seq}, 'x', zeroblob(32), zeroblob(32))");
        victim.check(&[&row], seq, Fault::Extra).await;
    }
}

async fn a_deleted_head_is_named(database: Database) {
    let mut victim = Victim::new(database).await;
    victim.execute("DELETE FROM head").await;
    let result = victim.verify().await;
    assert!(matches!(result, Err(VerifyError::NoHead)), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no.db");
    let result = verify_database(&Location::Sqlite(path.clone()), |_| ()).await;
    assert!(
        matches!(result, Err(VerifyError::Read(ledger::Error::NotThere(_)))),
        "{result:?}"
    );
    assert!(!path.exists());
}
