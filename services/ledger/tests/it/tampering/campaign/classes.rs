//! All classes of tampering.

use super::acts::Done;
use crate::tampering::Victim;

/// A class of tampering.
pub struct Class {
    /// Description of the act.
    pub name: &'static str,
    act: Act,
}

/// The act. In statements `{at}` is an entry with its content, `{other}` another one, `{cp}` one of
/// the checkpoints.
pub enum Act {
    /// Flips a random bit in a random column of a table.
    Flip(&'static str),
    /// Changes rows.
    Rows(&'static [&'static str]),
    /// Changes rows, and must be reported at that entry.
    RowsAt(&'static [&'static str]),
    /// Changes the database itself: in a file, or on a server with statements to undo it.
    Database {
        sqlite: &'static [&'static str],
        postgres: &'static [&'static str],
        undo: &'static [&'static str],
    },
    Swap {
        table: &'static str,
    },
    SwapBodies,
    ShiftBack,
    Rewrite {
        sign: bool,
    },
    CutWithCheckpoints,
    ForeignCheckpoint,
    ForgedKey,
    ForgedArchive(Note),
    ArchiveFile,
}

/// Signature of a forged archive record.
#[derive(Clone, Copy)]
pub enum Note {
    None,
    Foreign,
    OfReplacedKey,
    OfAnotherRange,
}

const fn class(name: &'static str, act: Act) -> Class {
    Class { name, act }
}

const fn database(
    name: &'static str,
    sqlite: &'static [&'static str],
    postgres: &'static [&'static str],
    undo: &'static [&'static str],
) -> Class {
    let act = Act::Database {
        sqlite,
        postgres,
        undo,
    };
    Class { name, act }
}

impl Class {
    /// True if the class applies to this kind of database.
    pub fn is_for(&self, sqlite: bool) -> bool {
        match &self.act {
            Act::Database {
                sqlite: in_file,
                postgres,
                ..
            } => !if sqlite { in_file } else { postgres }.is_empty(),
            _ => true,
        }
    }

    pub async fn perform(&self, victim: &mut Victim) -> Done {
        victim.perform(&self.act).await
    }
}

const USER_INDEX: &str =
    "CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL";

pub const CLASSES: &[Class] = &[
    // Bits.
    class("a bit of entries", Act::Flip("entries")),
    class("a bit of payloads", Act::Flip("payloads")),
    class("a bit of the head", Act::Flip("head")),
    class("a bit of event_index", Act::Flip("event_index")),
    class("a bit of event_nodes", Act::Flip("event_nodes")),
    class("a bit of checkpoints", Act::Flip("checkpoints")),
    class("a bit of checkpoint_keys", Act::Flip("checkpoint_keys")),
    class("a bit of subtrees", Act::Flip("subtrees")),
    class("a bit of archives", Act::Flip("archives")),
    class(
        "a body cut short",
        Act::RowsAt(&["UPDATE payloads SET body = substr(body, 2) WHERE seq = {at}"]),
    ),
    class(
        "an id made longer",
        Act::RowsAt(&["UPDATE entries SET id = id || 'x' WHERE seq = {at}"]),
    ),
    class(
        "a row for queries handed to another user",
        Act::Rows(&["UPDATE event_index SET user_name = 'mallory' WHERE seq = {at}"]),
    ),
    class(
        "a column for queries emptied",
        Act::Rows(&["UPDATE event_index SET account = NULL, run = 'x' WHERE seq = {at}"]),
    ),
    // Deletes.
    class(
        "an entry and its content deleted",
        Act::RowsAt(&[
            "DELETE FROM entries WHERE seq = {at}",
            "DELETE FROM payloads WHERE seq = {at}",
        ]),
    ),
    class(
        "an entry deleted, its content left",
        Act::RowsAt(&["DELETE FROM entries WHERE seq = {at}"]),
    ),
    class(
        "the content of an entry deleted",
        Act::RowsAt(&["DELETE FROM payloads WHERE seq = {at}"]),
    ),
    class(
        "content and columns of an entry deleted",
        Act::RowsAt(&[
            "DELETE FROM event_nodes WHERE seq = {at}",
            "DELETE FROM event_index WHERE seq = {at}",
            "DELETE FROM payloads WHERE seq = {at}",
        ]),
    ),
    class(
        "a row for queries deleted",
        Act::Rows(&["DELETE FROM event_index WHERE seq = {at}"]),
    ),
    class(
        "nodes of an entry deleted",
        Act::Rows(&["DELETE FROM event_nodes WHERE seq = (SELECT MAX(seq) FROM event_nodes)"]),
    ),
    class("the head deleted", Act::Rows(&["DELETE FROM head"])),
    class(
        "a checkpoint deleted",
        Act::Rows(&["DELETE FROM checkpoints WHERE number = {cp}"]),
    ),
    class(
        "a checkpoint deleted and the others numbered anew",
        Act::Rows(&[
            "DELETE FROM checkpoints WHERE number = 4",
            "UPDATE checkpoints SET number = 4 WHERE number = 5",
            "UPDATE checkpoints SET number = 5 WHERE number = 6",
        ]),
    ),
    class(
        "all checkpoints deleted",
        Act::Rows(&["DELETE FROM checkpoints"]),
    ),
    class(
        "all checkpoints and keys deleted",
        Act::Rows(&["DELETE FROM checkpoints", "DELETE FROM checkpoint_keys"]),
    ),
    class(
        "all checkpoints, keys and archives deleted",
        Act::Rows(&[
            "DELETE FROM checkpoints",
            "DELETE FROM checkpoint_keys",
            "DELETE FROM archives",
        ]),
    ),
    class(
        "a key deleted",
        Act::Rows(&["DELETE FROM checkpoint_keys WHERE number = 1 + {cp} % 2"]),
    ),
    class(
        "the row of an archive deleted",
        Act::Rows(&["DELETE FROM archives WHERE number = {archive}"]),
    ),
    class("a subtree deleted", Act::Rows(&["DELETE FROM subtrees"])),
    // Swaps.
    class("two entries swapped", Act::Swap { table: "entries" }),
    class("the content of two entries swapped", Act::SwapBodies),
    class(
        "the rows for queries of two entries swapped",
        Act::Swap {
            table: "event_index",
        },
    ),
    class(
        "the nodes of two entries moved",
        Act::Rows(&["UPDATE event_nodes SET seq = seq + 1000 WHERE seq = {job}"]),
    ),
    class(
        "notes of two checkpoints swapped",
        Act::Rows(&[
            "UPDATE checkpoints SET number = 100 WHERE number = 1",
            "UPDATE checkpoints SET number = 1 WHERE number = 2",
            "UPDATE checkpoints SET number = 2 WHERE number = 100",
        ]),
    ),
    // Inserts.
    class(
        "an entry added behind the last",
        Act::Rows(&["INSERT INTO entries VALUES ({end}, 'x', zeroblob(32), zeroblob(32))"]),
    ),
    class(
        "an entry added before the first",
        Act::Rows(&["INSERT INTO entries VALUES (0, 'x', zeroblob(32), zeroblob(32))"]),
    ),
    class(
        "content that no entry has",
        Act::Rows(&[
            "INSERT INTO payloads (seq, cluster, subject, body, recorded_at) VALUES (1000 + {at}, 'c', 's', x'00', 1)",
        ]),
    ),
    class(
        "a row for queries that no entry has",
        Act::Rows(&[
            "INSERT INTO event_index (seq, cluster, category, type, occurred_at, observed_at, recorded_at) VALUES (1000 + {at}, 'c', 'job', 'job.started', 1, 1, 1)",
        ]),
    ),
    class(
        "a node that an entry does not name",
        Act::Rows(&["INSERT INTO event_nodes (seq, block) VALUES ({at}, 'mine')"]),
    ),
    class(
        "nodes that no entry has",
        Act::Rows(&["INSERT INTO event_nodes (seq, block) VALUES (-{at}, 'mine')"]),
    ),
    class("a checkpoint by somebody else", Act::ForeignCheckpoint),
    class("a key that nobody handed over to", Act::ForgedKey),
    class(
        "a subtree of no level that is stored",
        Act::Rows(&["INSERT INTO subtrees (level, idx, hash) VALUES (3, {at}, zeroblob(32))"]),
    ),
    // Cuts and other histories.
    class(
        "the tail cut off",
        Act::RowsAt(&[
            "DELETE FROM entries WHERE seq >= {at}",
            "DELETE FROM payloads WHERE seq >= {at}",
        ]),
    ),
    class(
        "the tail cut off, with head, checkpoints and columns",
        Act::CutWithCheckpoints,
    ),
    class("an entry taken out and the others moved up", Act::ShiftBack),
    class(
        "leaves, chain and head computed again",
        Act::Rewrite { sign: false },
    ),
    class(
        "the same, with checkpoints by another key",
        Act::Rewrite { sign: true },
    ),
    // Archives.
    class(
        "content destroyed and noted as erased",
        Act::ForgedArchive(Note::None),
    ),
    class(
        "the same, signed by a stranger",
        Act::ForgedArchive(Note::Foreign),
    ),
    class(
        "the same, signed by a key that was replaced",
        Act::ForgedArchive(Note::OfReplacedKey),
    ),
    class(
        "the same, with the signed note of another range",
        Act::ForgedArchive(Note::OfAnotherRange),
    ),
    class(
        "a signed archive made one without a note",
        Act::Rows(&["UPDATE archives SET note = NULL, made_by = 'x' WHERE number = {archive}"]),
    ),
    class(
        "who archived, in a row made one of an earlier version",
        Act::Rows(&["UPDATE archives SET note = NULL, ids = NULL, made_by = 'mallory', made_at = 1 WHERE number = {archive}"]),
    ),
    class(
        "who archived, and its audit entry destroyed",
        Act::Rows(&[
            "UPDATE archives SET note = NULL, ids = NULL, made_by = 'mallory', made_at = 1 WHERE number = {audit} - 256",
            "DELETE FROM event_index WHERE seq = {audit}",
            "DELETE FROM payloads WHERE seq = {audit}",
        ]),
    ),
    class(
        "the row of an archive made one of an earlier version",
        Act::Rows(&["UPDATE archives SET note = NULL, ids = NULL WHERE number = 2 + {cp} % 2"]),
    ),
    class(
        "who replaced a key",
        Act::Rows(&["UPDATE checkpoint_keys SET made_by = 'mallory', made_at = 1 WHERE number = 2"]),
    ),
    class(
        "who replaced a key, and its audit entry destroyed",
        Act::Rows(&[
            "UPDATE checkpoint_keys SET made_by = 'mallory', made_at = 1 WHERE number = 2",
            "DELETE FROM event_index WHERE seq = 261",
            "DELETE FROM payloads WHERE seq = 261",
        ]),
    ),
    class(
        "content of a kept audit entry altered",
        Act::Rows(&["UPDATE payloads SET body = x'00' WHERE seq = {audit}"]),
    ),
    class("the file of an archive altered", Act::ArchiveFile),
    // The database itself.
    database(
        "a foreign key added",
        &["CREATE TABLE mine (seq INTEGER REFERENCES entries (seq) ON DELETE CASCADE)"],
        &[
            "ALTER TABLE event_index ADD CONSTRAINT mine FOREIGN KEY (seq) REFERENCES entries (seq) ON DELETE CASCADE",
        ],
        &["ALTER TABLE event_index DROP CONSTRAINT mine"],
    ),
    database(
        "an index dropped",
        &["DROP INDEX event_index_user"],
        &["DROP INDEX event_index_user"],
        &[USER_INDEX],
    ),
    database(
        "an index added",
        &["CREATE INDEX mine ON event_index (run)"],
        &["CREATE INDEX mine ON event_index (run)"],
        &["DROP INDEX mine"],
    ),
    database(
        "an index of other rows",
        &[
            "DROP INDEX event_index_user",
            "CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL AND seq <> {at}",
        ],
        &[
            "DROP INDEX event_index_user",
            "CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL AND seq <> {at}",
        ],
        &["DROP INDEX event_index_user", USER_INDEX],
    ),
    database(
        "an index whose text lies",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, 'IS NOT NULL', 'IS NOT NULL AND seq <> {job}') WHERE name = 'event_index_user'",
            "PRAGMA writable_schema = RESET",
            "REINDEX event_index_user",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, ' AND seq <> {job}', '') WHERE name = 'event_index_user'",
            "PRAGMA writable_schema = RESET",
        ],
        &[
            "UPDATE pg_index SET indisready = FALSE WHERE indexrelid = 'event_index_user'::regclass",
            "WITH gone AS (DELETE FROM event_index WHERE seq = {job} RETURNING *) INSERT INTO event_index SELECT * FROM gone",
            "UPDATE pg_index SET indisready = TRUE WHERE indexrelid = 'event_index_user'::regclass",
        ],
        &["REINDEX INDEX event_index_user"],
    ),
    database(
        "an index with entries too many",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '= ''audit''', '> ''''') WHERE name = 'event_index_category'",
            "PRAGMA writable_schema = RESET",
            "REINDEX event_index_category",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '> ''''', '= ''audit''') WHERE name = 'event_index_category'",
            "PRAGMA writable_schema = RESET",
        ],
        // The entry of another user leads to the row by its chain of versions, because the last one was written while the index
        // was not.
        &[
            "VACUUM event_index",
            "UPDATE event_index SET user_name = 'mallory' WHERE seq = 258",
            "UPDATE pg_index SET indislive = FALSE WHERE indexrelid = 'event_index_user'::regclass",
            "UPDATE pg_class SET relname = relname WHERE oid = 'event_index'::regclass",
            "UPDATE event_index SET user_name = NULL WHERE seq = 258",
            "UPDATE pg_index SET indislive = TRUE WHERE indexrelid = 'event_index_user'::regclass",
            "UPDATE pg_class SET relname = relname WHERE oid = 'event_index'::regclass",
        ],
        &["REINDEX INDEX event_index_user"],
    ),
    database(
        "an index with another sequence",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, 'name, seq)', 'name, iif(seq = {job}, seq + 1000, seq))') WHERE name = 'event_index_user'",
            "PRAGMA writable_schema = RESET",
            "REINDEX event_index_user",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, 'name, iif(seq = {job}, seq + 1000, seq))', 'name, seq)') WHERE name = 'event_index_user'",
            "PRAGMA writable_schema = RESET",
        ],
        &[],
        &[],
    ),
    database(
        "an index of bytes instead of texts",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '(block,', '(CAST(block AS BLOB),') WHERE name = 'event_nodes_block'",
            "PRAGMA writable_schema = RESET",
            "REINDEX event_nodes_block",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '(CAST(block AS BLOB),', '(block,') WHERE name = 'event_nodes_block'",
            "PRAGMA writable_schema = RESET",
        ],
        &[],
        &[],
    ),
    database(
        "an index in another order",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '(type,', '(type DESC,') WHERE name = 'event_index_type'",
            "PRAGMA writable_schema = RESET",
            "REINDEX event_index_type",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '(type DESC,', '(type,') WHERE name = 'event_index_type'",
            "PRAGMA writable_schema = RESET",
        ],
        &[],
        &[],
    ),
    database(
        "a second row for one sequence",
        &[
            "ALTER TABLE event_index RENAME TO other_index",
            "CREATE TABLE event_index AS SELECT * FROM other_index",
            "DROP TABLE other_index",
            "INSERT INTO event_index SELECT * FROM event_index WHERE seq = {at}",
        ],
        &[
            "ALTER TABLE event_index DROP CONSTRAINT event_index_pkey",
            "INSERT INTO event_index SELECT * FROM event_index WHERE seq = {at}",
        ],
        &[
            "DELETE FROM event_index a USING event_index b WHERE a.seq = b.seq AND a.ctid > b.ctid",
            "ALTER TABLE event_index ADD CONSTRAINT event_index_pkey PRIMARY KEY (seq)",
        ],
    ),
    database(
        "a trigger gone",
        &["DROP TRIGGER entries_no_delete"],
        &["ALTER TABLE entries DISABLE TRIGGER entries_append_only"],
        &["ALTER TABLE entries ENABLE TRIGGER entries_append_only"],
    ),
    database(
        "a trigger added",
        &[
            "CREATE TRIGGER mine AFTER INSERT ON entries BEGIN DELETE FROM payloads WHERE seq = NEW.seq; END",
        ],
        &[
            "CREATE TRIGGER mine BEFORE INSERT ON payloads_other FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
        ],
        &["DROP TRIGGER mine ON payloads_other"],
    ),
    database(
        "a trigger altered",
        &[
            "DROP TRIGGER payloads_no_update",
            "CREATE TRIGGER payloads_no_update BEFORE UPDATE ON payloads BEGIN SELECT 1; END",
        ],
        &["ALTER FUNCTION ledger_refuse() SECURITY DEFINER"],
        &["ALTER FUNCTION ledger_refuse() SECURITY INVOKER"],
    ),
    database(
        "a view added",
        &["CREATE VIEW mine AS SELECT * FROM entries"],
        &["CREATE VIEW mine AS SELECT * FROM entries"],
        &["DROP VIEW mine"],
    ),
    database(
        "a view in the place of a table",
        &[
            "ALTER TABLE event_nodes RENAME TO hidden",
            "CREATE VIEW event_nodes AS SELECT * FROM hidden",
        ],
        &[
            "ALTER TABLE event_nodes RENAME TO hidden",
            "CREATE VIEW event_nodes AS SELECT * FROM hidden",
        ],
        &[
            "DROP VIEW event_nodes",
            "ALTER TABLE hidden RENAME TO event_nodes",
        ],
    ),
    database(
        "a column of another type",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, 'size    INTEGER', 'size    ANY') WHERE name = 'checkpoints'",
        ],
        &["ALTER TABLE checkpoints ALTER COLUMN made_at TYPE NUMERIC"],
        &["ALTER TABLE checkpoints ALTER COLUMN made_at TYPE BIGINT"],
    ),
    database(
        "a column of another collation",
        &[
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, 'id    TEXT', 'id    TEXT COLLATE NOCASE') WHERE name = 'entries'",
        ],
        &["ALTER TABLE entries ALTER COLUMN id TYPE TEXT COLLATE \"POSIX\""],
        &["ALTER TABLE entries ALTER COLUMN id TYPE TEXT COLLATE \"C\""],
    ),
    database(
        "a column of another collation of the same name",
        &[],
        &[
            "CREATE COLLATION public.\"C\" (provider = icu, locale = 'und', deterministic = false)",
            "ALTER TABLE event_index ALTER COLUMN user_name TYPE TEXT COLLATE public.\"C\"",
        ],
        &[
            "ALTER TABLE event_index ALTER COLUMN user_name TYPE TEXT COLLATE pg_catalog.\"C\"",
            "DROP COLLATION public.\"C\"",
        ],
    ),
    database(
        "triggers switched off by a setting of the database",
        &[],
        &[
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database()); END $$",
        ],
        &[
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET session_replication_role', current_database()); END $$",
        ],
    ),
    database(
        "a setting of a function added",
        &[],
        &["ALTER FUNCTION ledger_refuse() SET search_path = pg_temp"],
        &["ALTER FUNCTION ledger_refuse() RESET search_path"],
    ),
    database(
        "a trigger named almost like tables of SQLite",
        &[
            "CREATE TRIGGER sqliteXstat AFTER INSERT ON entries BEGIN DELETE FROM payloads WHERE seq = NEW.seq; END",
        ],
        &[],
        &[],
    ),
    database(
        "an index named almost like tables of SQLite",
        &["CREATE INDEX sqliteXstat_u ON event_index (user_name, seq) WHERE user_name IS NOT NULL"],
        &[],
        &[],
    ),
    database(
        "a view named almost like tables of SQLite",
        &["CREATE VIEW sqliteXstat1 AS SELECT * FROM entries"],
        &[],
        &[],
    ),
    database(
        "a foreign key of a table named almost like tables of SQLite",
        &["CREATE TABLE sqliteXstat2 (seq INTEGER REFERENCES entries (seq) ON DELETE CASCADE)"],
        &[],
        &[],
    ),
    database(
        "a column added",
        &["ALTER TABLE holes ADD COLUMN mine INTEGER"],
        &["ALTER TABLE holes ADD COLUMN mine BIGINT"],
        &["ALTER TABLE holes DROP COLUMN mine"],
    ),
    database(
        "a rule added",
        &[],
        &["CREATE RULE mine AS ON INSERT TO event_nodes DO INSTEAD NOTHING"],
        &["DROP RULE mine ON event_nodes"],
    ),
    database(
        "rows hidden by row security",
        &[],
        &["ALTER TABLE event_index ENABLE ROW LEVEL SECURITY"],
        &["ALTER TABLE event_index DISABLE ROW LEVEL SECURITY"],
    ),
    database(
        "a table that inherits",
        &[],
        &["CREATE TABLE mine () INHERITS (event_nodes)"],
        &["DROP TABLE mine"],
    ),
];
