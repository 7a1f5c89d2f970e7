//! Somebody with every right tampers at random, thousands of times: each act is found at its first bad sequence.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

use super::Victim;
use crate::support::{Database, on_both};

on_both!(any_tampering_is_found_at_its_first_sequence,);

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

async fn assign(victim: &mut Victim, table: &str, column: &str, value: &str, at: i64) {
    let sql = format!("UPDATE {table} SET {column} = {value} WHERE seq = {at}");
    victim.execute(&sql).await;
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
                assign(victim, table, column, &format!("x'{bytes}'"), at).await;
                Some(at)
            }
            Self::Shorten { column } => {
                let (table, column) = split(column);
                let rest = format!("substr({column}, 2)");
                assign(victim, table, column, &rest, at).await;
                Some(at)
            }
            Self::Rename { column } => {
                let (table, column) = split(column);
                let longer = format!("{column} || 'x'");
                assign(victim, table, column, &longer, at).await;
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
