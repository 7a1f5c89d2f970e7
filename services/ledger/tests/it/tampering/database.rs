//! Tampering with the database itself: all rows are unchanged, but an object hides a row or deletes
//! it later.

use ledger::adapters::schema;
use ledger::{UnverifiedLedger, VerifyError, verify_everything};
use mesh_db::pool::Pool;

use super::Victim;
use crate::support::{Database, Outsider, on_both};

on_both!(
    additions_to_the_tables_are_found,
    an_altered_index_is_found,
    comparisons_are_reported,
);

async fn additions_to_the_tables_are_found(database: Database) {
    let mut victim = Victim::new(database).await;
    let both = [
        (
            "DROP INDEX event_index_user",
            "CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL",
        ),
        ("CREATE INDEX mine ON event_index (run)", "DROP INDEX mine"),
        (
            "CREATE VIEW mine AS SELECT * FROM entries",
            "DROP VIEW mine",
        ),
        (
            "ALTER TABLE holes ADD COLUMN mine BIGINT",
            "ALTER TABLE holes DROP COLUMN mine",
        ),
    ];
    let sqlite = [
        (
            "DROP TRIGGER entries_no_delete",
            "CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries\nBEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries cannot be deleted'); END",
        ),
        (
            "CREATE TRIGGER mine AFTER INSERT ON entries BEGIN DELETE FROM payloads WHERE seq = NEW.seq; END",
            "DROP TRIGGER mine",
        ),
        (
            "CREATE TABLE mine (seq INTEGER REFERENCES entries (seq) ON DELETE CASCADE)",
            "DROP TABLE mine",
        ),
    ];
    let postgres = [
        (
            "ALTER TABLE entries DISABLE TRIGGER entries_append_only",
            "ALTER TABLE entries ENABLE TRIGGER entries_append_only",
        ),
        (
            "ALTER TABLE event_index ADD CONSTRAINT mine FOREIGN KEY (seq) REFERENCES entries (seq) ON DELETE CASCADE",
            "ALTER TABLE event_index DROP CONSTRAINT mine",
        ),
        (
            "CREATE RULE mine AS ON INSERT TO event_nodes DO INSTEAD NOTHING",
            "DROP RULE mine ON event_nodes",
        ),
        (
            "ALTER TABLE event_index ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE event_index DISABLE ROW LEVEL SECURITY",
        ),
        (
            "CREATE TABLE mine () INHERITS (event_nodes)",
            "DROP TABLE mine",
        ),
        (
            "CREATE TRIGGER mine BEFORE INSERT ON payloads_other FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
            "DROP TRIGGER mine ON payloads_other",
        ),
        (
            "ALTER FUNCTION ledger_refuse() SECURITY DEFINER",
            "ALTER FUNCTION ledger_refuse() SECURITY INVOKER",
        ),
    ];
    let more = match victim.database.is_sqlite() {
        true => &sqlite[..],
        false => &postgres,
    };
    for (change, undo) in both.iter().chain(more) {
        // The text of the altered table never returns to the original.
        if change.contains("ADD COLUMN") && victim.database.is_sqlite() {
            continue;
        }
        victim.guard().await;
        victim.outsider.execute(change).await;
        let found = victim.verify().await;
        assert!(
            matches!(found, Err(VerifyError::Schema(_))),
            "{change}: {found:?}"
        );
        victim.outsider.execute(undo).await;
        victim.verify().await.unwrap();
    }
}

async fn an_altered_index_is_found(database: Database) {
    find_an_altered_index(database, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_index_is_found_with_amcheck() {
    find_an_altered_index(Database::postgres().await, true).await;
}

/// The event is in its table, but not in the index by user.
async fn find_an_altered_index(database: Database, amcheck: bool) {
    let mut victim = Victim::new(database).await;
    let outsider = &mut victim.outsider;
    if let Outsider::Sqlite(_) = outsider {
        let lie = "UPDATE sqlite_schema SET sql = replace(sql, 'IS NOT NULL', 'IS NOT NULL AND seq <> 17') WHERE name = 'event_index_user'";
        for sql in [
            "PRAGMA writable_schema = ON",
            lie,
            "PRAGMA writable_schema = RESET",
            "REINDEX event_index_user",
            "PRAGMA writable_schema = ON",
        ] {
            outsider.execute(sql).await;
        }
        let found = victim.verify().await.unwrap_err();
        assert!(matches!(found, VerifyError::Schema(_)), "{found}");
        // Restores the text of the index: the schema matches then, but the index content does not.
        let truth = "UPDATE sqlite_schema SET sql = replace(sql, ' AND seq <> 17', '') WHERE name = 'event_index_user'";
        victim.outsider.execute(truth).await;
        victim
            .outsider
            .execute("PRAGMA writable_schema = RESET")
            .await;
        // An open connection would keep the manipulated schema.
        victim.ledger = UnverifiedLedger::open(&victim.database.location()).unwrap();
    } else {
        if amcheck {
            outsider.execute("CREATE EXTENSION amcheck").await;
        }
        victim.ledger.verify(&victim.trust, |_| ()).await.unwrap();
        let outsider = &mut victim.outsider;
        let ready = |ready: bool| {
            format!(
                "UPDATE pg_index SET indisready = {ready} WHERE indexrelid = 'event_index_user'::regclass"
            )
        };
        for sql in [
            &ready(false),
            "DELETE FROM event_index WHERE seq = 17",
            "INSERT INTO event_index SELECT * FROM copy_of_event_index WHERE seq = 17",
            &ready(true),
        ] {
            outsider.execute(sql).await;
        }
    }
    let found = victim.verify().await.unwrap_err();
    assert!(matches!(found, VerifyError::Damaged(_)), "{found}");
}

/// A reader finds nothing of a user, and the comparison of the tables would be reported what the attacker likes.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_denies_a_user_is_found() {
    let mut victim = Victim::new(Database::postgres().await).await;
    let user = victim
        .outsider
        .texts("SELECT MIN(user_name) FROM event_index");
    let user = user.await.remove(0);
    for sql in [
        &*format!(
            "CREATE FUNCTION mine(TEXT, TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$ SELECT $1 OPERATOR(pg_catalog.=) $2 AND $2 OPERATOR(pg_catalog.<>) '{user}' $$"
        ),
        "CREATE OPERATOR public.= (LEFTARG = TEXT, RIGHTARG = TEXT, FUNCTION = mine)",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$",
    ] {
        victim.outsider.execute(sql).await;
    }
    let mut reader = victim.database.outsider().await;
    let count = format!("SELECT COUNT(*) FROM event_index WHERE user_name = '{user}'");
    assert_eq!(reader.numbers(&count).await, [0], "the act has an effect");
    victim.ledger = UnverifiedLedger::open(&victim.database.location()).unwrap();
    let found = victim.verify().await.unwrap_err();
    assert!(
        matches!(&found, VerifyError::Schema(what) if what.contains("search_path")),
        "{found}"
    );
    let reset = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET search_path', current_database()); END $$";
    victim.outsider.execute(reset).await;
    victim.ledger = UnverifiedLedger::open(&victim.database.location()).unwrap();
    let found = victim.verify().await.unwrap_err();
    assert!(
        matches!(&found, VerifyError::Schema(what) if what.contains("operator public.=(text,text)")),
        "{found}"
    );
}

/// Others share the database: their functions, and those of extensions in the same schema.
#[tokio::test(flavor = "multi_thread")]
async fn functions_of_others_in_the_schema_are_no_tampering() {
    let mut victim = Victim::new(Database::postgres().await).await;
    for sql in [
        "CREATE EXTENSION citext",
        "CREATE EXTENSION amcheck",
        "CREATE FUNCTION of_another_program(TEXT) RETURNS TEXT LANGUAGE sql AS 'SELECT $1'",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public', current_database()); END $$",
    ] {
        victim.outsider.execute(sql).await;
    }
    victim.ledger = UnverifiedLedger::open(&victim.database.location()).unwrap();
    victim.verify().await.unwrap();
}

/// SQLite's own check of 3.51 finds no entry too many in a partial index.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_hands_an_event_to_another_user_is_found() {
    let mut victim = Victim::new(Database::sqlite()).await;
    let owner = "(SELECT user_name FROM copy_of_event_index WHERE seq = 17)";
    let to_owner = format!("UPDATE event_index SET user_name = {owner} WHERE seq = 17");
    let lie = "UPDATE sqlite_schema SET sql = replace(sql, 'IS NOT NULL', 'IS NOT NULL AND seq <> 17') WHERE name = 'event_index_user'";
    let truth = "UPDATE sqlite_schema SET sql = replace(sql, ' AND seq <> 17', '') WHERE name = 'event_index_user'";
    let (on, reset) = (
        "PRAGMA writable_schema = ON",
        "PRAGMA writable_schema = RESET",
    );
    let to_mallory = "UPDATE event_index SET user_name = 'mallory' WHERE seq = 17";
    // The entry of mallory remains when the index has no rows of that sequence; that of the owner comes afterwards.
    for sql in [
        to_mallory, on, lie, reset, &to_owner, on, truth, reset, on, &to_owner, reset,
    ] {
        victim.execute(sql).await;
    }
    victim.guard().await;
    victim.ledger = UnverifiedLedger::open(&victim.database.location()).unwrap();
    let found = victim.verify().await.unwrap_err();
    assert!(
        matches!(&found, VerifyError::Damaged(what) if what.contains("event_index_user")),
        "{found}"
    );
}

async fn comparisons_are_reported(database: Database) {
    let mut victim = Victim::new(database).await;
    victim.guard().await;
    let location = victim.database.location();
    let report = verify_everything(&location, &victim.trust, |_| ()).await;
    let unchecked: Vec<_> = report
        .unwrap()
        .classes
        .into_iter()
        .filter(|class| class.unchecked.is_some())
        .map(|class| class.name)
        .collect();
    assert!(unchecked.is_empty(), "{unchecked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_ledger_on_postgres_has_the_tables_that_are_compared() {
    let database = Database::postgres().await;
    database.store().await.close().await;
    let ledger::Location::Postgres(options) = database.location() else {
        panic!("PostgreSQL")
    };
    let pool = Pool::Postgres(sqlx::PgPool::connect_lazy_with(*options));
    let lines = schema::lines_of(&pool).await.unwrap();
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/adapters/verify/schema/postgres.txt"
    );
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(file, &lines).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap();
    assert!(
        lines == expected,
        "a migration changed the tables: run this test with UPDATE_SCHEMA=1\n{lines}"
    );
}
