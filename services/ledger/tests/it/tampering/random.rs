//! Somebody with every right tampers at random, thousands of times: each act is found at its first bad sequence.

use ledger::VerifyError;
use ledger_format::chain::{Entry, GENESIS, link};
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
    /// Everything behind it is computed again, so that it fits.
    Rewrite,
    /// A column of a record beside the entries, and what is put there.
    Alter {
        what: (&'static str, &'static str),
    },
}

/// Columns that readers rely on, and lies in them. `{at}` is the entry.
const LIES: [(&str, &str); 22] = [
    ("head", "UPDATE head SET seq = seq + 1"),
    ("head", "UPDATE head SET chain = zeroblob(32)"),
    ("head", "DELETE FROM head"),
    ("event_index", "DELETE FROM event_index WHERE seq = {at}"),
    (
        "event_index",
        "UPDATE event_index SET user_name = 'mallory' WHERE seq = {at}",
    ),
    (
        "event_index",
        "UPDATE event_index SET type = type || 'x' WHERE seq = {at}",
    ),
    (
        "event_index",
        "UPDATE event_index SET job_id = job_id + 1 WHERE seq = {at}",
    ),
    (
        "event_index",
        "UPDATE event_index SET occurred_at = occurred_at + 1 WHERE seq = {at}",
    ),
    (
        "event_index",
        "UPDATE event_index SET account = NULL WHERE seq = {at}",
    ),
    (
        "event_index",
        "UPDATE event_index SET seq = seq + 1000 WHERE seq = {at}",
    ),
    ("event_nodes", "DELETE FROM event_nodes WHERE seq = {at}"),
    (
        "event_nodes",
        "INSERT INTO event_nodes (seq, block) VALUES ({at}, 'mine')",
    ),
    (
        "checkpoints",
        "DELETE FROM checkpoints WHERE number = 1 + {at} % 3",
    ),
    ("checkpoints", "DELETE FROM checkpoints"),
    (
        "checkpoints",
        "UPDATE checkpoints SET size = size - 1 WHERE number = 1 + {at} % 3",
    ),
    (
        "checkpoints",
        "UPDATE checkpoints SET root = zeroblob(32) WHERE number = 1 + {at} % 3",
    ),
    (
        "checkpoints",
        "UPDATE checkpoints SET note = replace(note, substr(note, 25 + {at}, 1), '~') WHERE number = 1 + {at} % 3",
    ),
    (
        "checkpoints",
        "UPDATE checkpoints SET number = number + 3 WHERE number = 1 + {at} % 3",
    ),
    (
        "checkpoint_keys",
        "DELETE FROM checkpoint_keys WHERE number = 1 + {at} % 2",
    ),
    (
        "checkpoint_keys",
        "UPDATE checkpoint_keys SET from_size = from_size + {at} WHERE number = 1 + {at} % 2",
    ),
    (
        "checkpoint_keys",
        "UPDATE checkpoint_keys SET vkey = vkey || 'A' WHERE number = 1 + {at} % 2",
    ),
    (
        "archives",
        "INSERT INTO archives (number, first_seq, last_seq, signed_by, made_at, made_by) VALUES (1, 1, {at}, 'k', 1, '')",
    ),
];

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
        3 => prop::sample::select(vec![Act::CutTail, Act::ShiftBack, Act::Rewrite]),
        6 => prop::sample::select(LIES.to_vec()).prop_map(|what| Act::Alter { what }),
    ]
}

/// Gives an entry another body, and leaf and chain of everything from there on what follows from it.
async fn rewrite(victim: &mut Victim, at: i64) {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let mut before = match at {
        1 => GENESIS.to_vec(),
        _ => {
            let sql = format!("SELECT chain FROM entries WHERE seq = {}", at - 1);
            victim.outsider.bytes(&sql).await
        }
    };
    for seq in at..=FEW {
        let text =
            |column: &str, table: &str| format!("SELECT {column} FROM {table} WHERE seq = {seq}");
        let outsider = &mut victim.outsider;
        let cluster = outsider.texts(&text("cluster", "payloads")).await.remove(0);
        let subject = outsider.texts(&text("subject", "payloads")).await.remove(0);
        let id = outsider.texts(&text("id", "entries")).await.remove(0);
        let mut body = outsider.bytes(&text("body", "payloads")).await;
        if seq == at {
            // A field that nobody knows: the columns for queries are the same.
            body.extend([0xf8, 0x7f, 1]);
            assign(
                victim,
                "payloads",
                "body",
                &format!(" x'{}'", hex(&body)),
                seq,
            )
            .await;
        }
        let entry = Entry {
            cluster: &cluster,
            seq: seq.unsigned_abs(),
            id: &id,
            subject: &subject,
            body: &body,
        };
        let leaf = entry.leaf();
        before = link(&before.try_into().unwrap(), &leaf).to_vec();
        assign(
            victim,
            "entries",
            "leaf",
            &format!(" x'{}'", hex(&leaf)),
            seq,
        )
        .await;
        assign(
            victim,
            "entries",
            "chain",
            &format!(" x'{}'", hex(&before)),
            seq,
        )
        .await;
    }
    let head = format!("UPDATE head SET chain = x'{}'", hex(&before));
    victim.execute(&head).await;
}

async fn assign(victim: &mut Victim, table: &str, column: &str, value: &str, at: i64) {
    let sql = format!("UPDATE {table} SET {column} = {value} WHERE seq = {at}");
    victim.execute(&sql).await;
}

/// Where it has to be found.
enum Expected {
    At(i64),
    Anywhere,
    /// Nothing was changed after all.
    Nowhere,
}

impl Act {
    /// Does it, and says which sequence is the first bad one.
    async fn perform(&self, victim: &mut Victim, at: i64) -> Expected {
        match self {
            Self::Alter { what: (_, sql) } => {
                victim.execute(&sql.replace("{at}", &at.to_string())).await;
                Expected::Anywhere
            }
            Self::Rewrite => {
                rewrite(victim, at).await;
                Expected::Anywhere
            }
            _ => match self.change_entries(victim, at).await {
                Some(seq) => Expected::At(seq),
                None => Expected::Nowhere,
            },
        }
    }

    async fn change_entries(&self, victim: &mut Victim, at: i64) -> Option<i64> {
        let split = |column: &'static str| column.split_once('.').unwrap();
        match self {
            Self::Alter { .. } | Self::Rewrite => None,
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
    // More on request.
    let cases = match std::env::var("TAMPERINGS") {
        Ok(cases) => cases.parse().unwrap(),
        Err(_) => 400,
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
        let expected = act.perform(&mut victim, at).await;
        let found = victim.verify().await;
        match expected {
            Expected::At(seq) => {
                let is = matches!(&found, Err(VerifyError::Bad(bad)) if bad.seq == seq);
                assert!(is, "{act:?} at {at}, expected {seq}: {found:?}");
            }
            Expected::Anywhere => {
                let is = matches!(&found, Err(VerifyError::Bad(_) | VerifyError::NoHead));
                assert!(is, "{act:?} at {at}: {found:?}");
            }
            // Swapped with itself.
            Expected::Nowhere => drop(found.unwrap()),
        }
        victim.restore().await;
    }
    victim.verify().await.unwrap();
}
