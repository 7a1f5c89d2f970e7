//! Tables, triggers, views, rules, and settings.

use super::{Class, database};

pub const CLASSES: &[Class] = &[
    database(
        "a foreign key added",
        &["CREATE TABLE mine (seq INTEGER REFERENCES entries (seq) ON DELETE CASCADE)"],
        &[
            "ALTER TABLE event_index ADD CONSTRAINT mine FOREIGN KEY (seq) REFERENCES entries (seq) ON DELETE CASCADE",
        ],
        &["ALTER TABLE event_index DROP CONSTRAINT mine"],
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
        "an operator that denies a user",
        &[],
        &[
            "CREATE FUNCTION mine(TEXT, TEXT) RETURNS BOOLEAN LANGUAGE sql IMMUTABLE AS $$ SELECT $1 OPERATOR(pg_catalog.=) $2 AND $1 OPERATOR(pg_catalog.<>) 'alice' $$",
            "CREATE OPERATOR public.= (LEFTARG = TEXT, RIGHTARG = TEXT, FUNCTION = mine)",
        ],
        &[
            "DROP OPERATOR public.= (TEXT, TEXT)",
            "DROP FUNCTION mine(TEXT, TEXT)",
        ],
    ),
    database(
        "a function in the place of one of PostgreSQL",
        &[],
        &[
            "CREATE FUNCTION public.format(TEXT, NAME) RETURNS TEXT LANGUAGE sql IMMUTABLE AS $$ SELECT 'nothing' $$",
        ],
        &["DROP FUNCTION public.format(TEXT, NAME)"],
    ),
    database(
        "a search path of the database with others before PostgreSQL",
        &[],
        &[
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database()); END $$",
        ],
        &[
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET search_path', current_database()); END $$",
        ],
    ),
    database(
        "a search path of a role with others before PostgreSQL",
        &[],
        &[
            "DO $$ BEGIN EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = public, pg_catalog', current_user, current_database()); END $$",
        ],
        &[
            "DO $$ BEGIN EXECUTE format('ALTER ROLE %I IN DATABASE %I RESET search_path', current_user, current_database()); END $$",
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
