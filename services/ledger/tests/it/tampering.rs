//! Somebody with every right on the file changes it behind the ledger's back: verification names the first bad sequence.

use ledger::domain::verify::{Fault, FirstBad, Verified};
use ledger::{Location, Trust, Unverified, VerifyError, verify_database};
use mesh_events::EventType;
use mesh_testkit::build;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

use crate::support::{Database, Outsider, fact, on_both};

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
    any_tampering_is_found_at_its_first_sequence,
);

const COUNT: i64 = 60;

const TABLES: [&str; 5] = ["entries", "payloads", "event_index", "event_nodes", "head"];

/// A ledger, and somebody who may change all of it and has a copy of what it was.
struct Victim {
    database: Database,
    ledger: Unverified,
    outsider: Outsider,
}

impl Victim {
    async fn new(database: Database) -> Self {
        Self::of(database, COUNT).await
    }

    /// Of so many entries.
    async fn of(database: Database, count: i64) -> Self {
        let store = database.store().await;
        let facts = (1..=count).map(|id| {
            let job = build::job(id.try_into().unwrap());
            fact(&build::job_event(EventType::JobSubmitted, job))
        });
        store.append("S", 60, facts.collect()).await.unwrap();
        store.close().await;
        let mut outsider = database.outsider().await;
        outsider.drop_guards().await;
        for table in TABLES {
            let copy = format!("CREATE TABLE copy_of_{table} AS SELECT * FROM {table}");
            outsider.execute(&copy).await;
        }
        Self {
            ledger: Unverified::open(&database.location()).unwrap(),
            database,
            outsider,
        }
    }

    async fn execute(&mut self, sql: &str) {
        self.outsider.execute(sql).await;
    }

    /// Puts back what is not as it was.
    async fn restore(&mut self) {
        let mut sql = String::from("BEGIN;");
        for table in TABLES {
            sql.push_str(&format!(
                "DELETE FROM {table} WHERE seq IN (SELECT seq FROM (SELECT * FROM {table} EXCEPT SELECT * FROM copy_of_{table}) differing);
                 INSERT INTO {table} SELECT * FROM copy_of_{table} EXCEPT SELECT * FROM {table};"
            ));
        }
        sql.push_str("COMMIT");
        self.outsider.execute_all(&sql).await;
    }

    async fn verify(&self) -> Result<Verified, VerifyError> {
        self.ledger.verify(&Trust::default(), |_| ()).await
    }

    async fn first_bad(&self) -> FirstBad {
        match self.verify().await {
            Err(VerifyError::Bad(bad)) => bad,
            other => panic!("expected a fault, got {other:?}"),
        }
    }

    /// Tampers with it, compares what is found, and undoes it.
    async fn check(&mut self, statements: &[&str], seq: i64, what: Fault) {
        for sql in statements {
            self.execute(sql).await;
        }
        let found = self.first_bad().await;
        assert_eq!(found, FirstBad { seq, what }, "{statements:?}");
        self.restore().await;
        assert!(self.verify().await.is_ok());
    }
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

/// One act of tampering with the entry at a place.
#[derive(Clone, Debug)]
enum Act {
    FlipBit {
        column: &'static str,
        byte: prop::sample::Index,
        bit: u8,
    },
    Shorten {
        column: &'static str,
    },
    Rename {
        column: &'static str,
    },
    Delete {
        entry: bool,
        payload: bool,
    },
    SwapBodies {
        with: i64,
    },
    SwapRows {
        with: i64,
    },
    CutTail,
    ShiftBack,
}

/// Entries of a ledger that is tampered with at random: few, as each is verified every time.
const FEW: i64 = 20;
/// Ledgers that are tampered with at the same time.
const AT_ONCE: u32 = 4;

fn acts() -> impl Strategy<Value = Act> {
    let column = prop::sample::select(vec!["entries.leaf", "entries.chain", "payloads.body"]);
    let text = prop::sample::select(vec!["entries.id", "payloads.cluster", "payloads.subject"]);
    prop_oneof![
        4 => (column, any::<prop::sample::Index>(), 0u8..8)
            .prop_map(|(column, byte, bit)| Act::FlipBit { column, byte, bit }),
        1 => Just(Act::Shorten { column: "payloads.body" }),
        2 => text.prop_map(|column| Act::Rename { column }),
        1 => Just(Act::Delete { entry: true, payload: true }),
        1 => Just(Act::Delete { entry: true, payload: false }),
        1 => Just(Act::Delete { entry: false, payload: true }),
        2 => (1..=FEW).prop_map(|with| Act::SwapBodies { with }),
        2 => (1..=FEW).prop_map(|with| Act::SwapRows { with }),
        1 => Just(Act::CutTail),
        1 => Just(Act::ShiftBack),
    ]
}

impl Act {
    /// Does it, and says which sequence is the first bad one.
    async fn perform(&self, victim: &mut Victim, at: i64) -> Option<i64> {
        let split = |column: &'static str| column.split_once('.').unwrap();
        match self {
            Self::FlipBit { column, byte, bit } => {
                let (table, column) = split(column);
                let sql = format!("SELECT {column} FROM {table} WHERE seq = {at}");
                let mut bytes = victim.outsider.bytes(&sql).await;
                let index = byte.index(bytes.len());
                bytes[index] ^= 1 << bit;
                let bytes = bytes
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>();
                victim
                    .execute(&format!(
                        "UPDATE {table} SET {column} = x'{bytes}' WHERE seq = {at}"
                    ))
                    .await;
                Some(at)
            }
            Self::Shorten { column } => {
                let (table, column) = split(column);
                victim
                    .execute(&format!(
                        "UPDATE {table} SET {column} = substr({column}, 2) WHERE seq = {at}"
                    ))
                    .await;
                Some(at)
            }
            Self::Rename { column } => {
                let (table, column) = split(column);
                victim
                    .execute(&format!(
                        "UPDATE {table} SET {column} = {column} || 'x' WHERE seq = {at}"
                    ))
                    .await;
                Some(at)
            }
            Self::Delete { entry, payload } => {
                for (table, delete) in [("entries", entry), ("payloads", payload)] {
                    if *delete {
                        victim
                            .execute(&format!("DELETE FROM {table} WHERE seq = {at}"))
                            .await;
                    }
                }
                Some(at)
            }
            Self::SwapBodies { with } => {
                let sql = format!(
                    "UPDATE payloads SET body = (SELECT body FROM copy_of_payloads other WHERE other.seq = {at} + {with} - payloads.seq)
                     WHERE seq IN ({at}, {with})"
                );
                victim.execute(&sql).await;
                (at != *with).then_some(at.min(*with))
            }
            Self::SwapRows { with } => {
                for table in ["entries", "payloads"] {
                    victim
                        .execute(&format!("UPDATE {table} SET seq = -1 WHERE seq = {at}"))
                        .await;
                    victim
                        .execute(&format!("UPDATE {table} SET seq = {at} WHERE seq = {with}"))
                        .await;
                    victim
                        .execute(&format!("UPDATE {table} SET seq = {with} WHERE seq = -1"))
                        .await;
                }
                (at != *with).then_some(at.min(*with))
            }
            Self::CutTail => {
                victim
                    .execute(&format!("DELETE FROM entries WHERE seq >= {at}"))
                    .await;
                victim
                    .execute(&format!("DELETE FROM payloads WHERE seq >= {at}"))
                    .await;
                Some(at)
            }
            // Deletes a row and moves those behind it up, head included, so that the sequence is dense again.
            Self::ShiftBack => {
                for table in ["entries", "payloads"] {
                    victim
                        .execute(&format!("DELETE FROM {table} WHERE seq = {at}"))
                        .await;
                    for seq in at + 1..=FEW {
                        victim
                            .execute(&format!(
                                "UPDATE {table} SET seq = {seq} - 1 WHERE seq = {seq}"
                            ))
                            .await;
                    }
                }
                victim.execute("UPDATE head SET seq = seq - 1").await;
                // Of the last row nothing is left behind: only the head's chain value shows it.
                Some(at.min(FEW - 1))
            }
        }
    }
}

async fn any_tampering_is_found_at_its_first_sequence(database: Database) {
    // What is found does not depend on the database. More on request.
    let cases = match std::env::var("TAMPERINGS") {
        Ok(cases) => cases.parse().unwrap(),
        Err(_) if database.is_sqlite() => 1_000,
        Err(_) => 10_000,
    };
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let database = match database.is_sqlite() {
            true => Database::sqlite(),
            false => Database::postgres().await,
        };
        others.spawn(tamper(database, u32::div_ceil(cases, AT_ONCE)));
    }
    while let Some(done) = others.join_next().await {
        done.unwrap();
    }
}

/// So many times on a ledger of its own.
async fn tamper(database: Database, cases: u32) {
    let mut victim = Victim::of(database, FEW).await;
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::default()
    });
    let strategy = (acts(), 1..=FEW);
    for _ in 0..cases {
        let (act, at) = strategy.new_tree(&mut runner).unwrap().current();
        match act.perform(&mut victim, at).await {
            Some(expected) => {
                assert_eq!(victim.first_bad().await.seq, expected, "{act:?} at {at}");
            }
            // Swapped with itself.
            None => drop(victim.verify().await.unwrap()),
        }
        victim.restore().await;
    }
    victim.verify().await.unwrap();
}
