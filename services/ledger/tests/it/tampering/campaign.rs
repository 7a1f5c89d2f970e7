//! An attacker with all rights tampers at random, in all classes, hundreds of times. Every act must
//! be found. Set `TAMPERINGS=10000` for more.

mod acts;
mod classes;
mod ledger_to_attack;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use ledger::VerifyError;

use self::acts::Done;
use self::classes::Class;
use super::Victim;
use crate::support::{Database, on_both};

on_both!(
    every_class_of_tampering_is_found,
    every_column_is_altered_or_proves_nothing,
);

/// Ledgers that are attacked concurrently.
const AT_ONCE: usize = 4;
/// Number of acts without `TAMPERINGS`.
const FEW: usize = 400;

#[expect(
    clippy::print_stderr,
    reason = "whoever asks for more wants the numbers"
)]
async fn every_class_of_tampering_is_found(database: Database) {
    let cases = match std::env::var("TAMPERINGS") {
        Ok(cases) => cases.parse().unwrap(),
        Err(_) => FEW,
    };
    let sqlite = database.is_sqlite();
    let all = classes::all();
    let classes: Vec<&'static Class> = all.filter(|class| class.is_for(sqlite)).collect();
    assert!(classes.len() >= 75, "{}", classes.len());
    // Classes in turn, so that none is omitted.
    let next = std::sync::Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..AT_ONCE {
        let database = match sqlite {
            true => Database::sqlite(),
            false => Database::postgres().await,
        };
        let (next, classes) = (std::sync::Arc::clone(&next), classes.clone());
        workers.spawn(async move {
            let mut found = BTreeMap::new();
            let amcheck = worker % 2 == 0;
            let mut victim = Victim::with_everything(database, amcheck).await;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= cases {
                    victim.verify().await.unwrap();
                    return found;
                }
                let class = classes[index % classes.len()];
                attack(&mut victim, class).await;
                *found.entry(class.name).or_insert(0) += 1;
            }
        });
    }
    let mut found: BTreeMap<&str, u32> = BTreeMap::new();
    while let Some(of_worker) = workers.join_next().await {
        for (class, times) in of_worker.unwrap() {
            *found.entry(class).or_default() += times;
        }
    }
    assert_eq!(found.len(), classes.len(), "each class was tried");
    assert_eq!(found.values().sum::<u32>() as usize, cases);
    if std::env::var_os("TAMPERINGS").is_some() {
        let which = if sqlite { "SQLite" } else { "PostgreSQL" };
        eprintln!(
            "{cases} of {} classes found on {which}: {found:?}",
            found.len()
        );
    }
}

/// The rights of a managed server do not include the extension.
#[tokio::test(flavor = "multi_thread")]
async fn every_class_is_found_without_amcheck() {
    let mut victim = Victim::with_everything(Database::postgres().await, false).await;
    for class in classes::all().filter(|class| class.is_for(false)) {
        attack(&mut victim, class).await;
    }
    victim.verify().await.unwrap();
}

/// Repeats until the database accepts an act: constraints refuse some.
async fn attack(victim: &mut Victim, class: &Class) {
    for _ in 0..1000 {
        let expected = match class.perform(victim).await {
            Done::Refused => {
                victim.undo().await;
                continue;
            }
            Done::At(seq) => Some(seq),
            Done::Somewhere => None,
        };
        let found = victim.verify().await;
        let is = match (&found, expected) {
            (
                Err(VerifyError::Invalid(bad) | VerifyError::FilesMissing { first: bad, .. }),
                Some(seq),
            ) => bad.seq == seq,
            (Err(error), None) => error.class().is_some(),
            _ => false,
        };
        if !is {
            let again = victim.verify().await;
            panic!(
                "{}, expected at {expected:?}: {found:?}\n{:#?}\nverified again: {again:?}",
                class.name, victim.done
            );
        }
        victim.undo().await;
        return;
    }
    panic!("{} is always refused", class.name);
}

/// Columns that nothing proves. Nobody should rely on them; the API says so where it answers from them.
const UNPROVED: &[(&str, &str)] = &[
    ("head.only_row", "a constant"),
    ("checkpoints.made_at", "no part of the note"),
    // Progress and work of the service. The results are in the entries.
    ("streams", "how far streams were taken in"),
    ("streams_ahead", "the same"),
    ("holes", "told as capture.gap_opened, which is an entry"),
    ("replays", "work in progress, told in the audit"),
];

#[test]
fn the_api_says_what_nothing_proves() {
    let document = serde_json::to_value(ledger::api::openapi::document()).unwrap();
    let schemas = &document["components"]["schemas"];
    for described in [
        &schemas["Checkpoint"]["properties"]["made_at"],
        &schemas["SigningKey"]["properties"]["made_at"],
        &schemas["Replay"],
    ] {
        let text = described["description"].as_str().unwrap_or_default();
        assert!(text.contains("either signed nor verified"), "{described}");
    }
}

async fn every_column_is_altered_or_proves_nothing(database: Database) {
    database.store().await.close().await;
    let mut outsider = database.outsider().await;
    let columns = match database.is_sqlite() {
        true => {
            "SELECT s.name || '.' || c.name FROM sqlite_schema s, pragma_table_info(s.name) c WHERE s.type = 'table'
             AND s.name NOT LIKE '\\_sqlx%' ESCAPE '\\' AND s.name NOT LIKE 'sqlite%'"
        }
        false => {
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = current_schema()
             AND table_name NOT LIKE '\\_sqlx%' AND table_name NOT LIKE 'payloads\\_%'"
        }
    };
    let columns = outsider.texts(columns).await;
    assert!(columns.len() > 40, "{columns:?}");
    for column in columns {
        let (table, _) = column.split_once('.').unwrap();
        let unproved = UNPROVED
            .iter()
            .any(|(name, _)| *name == column || *name == table);
        assert!(
            unproved
                ^ acts::COLUMNS
                    .iter()
                    .any(|(of, name, _)| format!("{of}.{name}") == column),
            "{column}"
        );
    }
}
