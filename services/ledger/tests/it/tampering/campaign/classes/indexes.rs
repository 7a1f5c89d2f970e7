//! Indexes that lie.

use super::{Class, database};

const USER_INDEX: &str =
    "CREATE INDEX event_index_user ON event_index (user_name, seq) WHERE user_name IS NOT NULL";

pub const CLASSES: &[Class] = &[
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
        &[
            "VACUUM event_index",
            "UPDATE event_index SET seq = seq + 1000 WHERE seq = {job}",
            "UPDATE pg_index SET indislive = FALSE WHERE indrelid = 'event_index'::regclass",
            "UPDATE pg_class SET relname = relname WHERE oid = 'event_index'::regclass",
            "UPDATE event_index SET seq = {job} WHERE seq = {job} + 1000",
            "UPDATE pg_index SET indislive = TRUE WHERE indrelid = 'event_index'::regclass",
            "UPDATE pg_class SET relname = relname WHERE oid = 'event_index'::regclass",
        ],
        &["REINDEX TABLE event_index"],
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
        // PostgreSQL has the same bytes for both.
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
        &[
            "UPDATE pg_index SET indoption = '3 0' WHERE indexrelid = 'event_index_type'::regclass",
            "UPDATE pg_class SET relname = relname WHERE oid = 'event_index_type'::regclass",
            "REINDEX INDEX event_index_type",
            "UPDATE pg_index SET indoption = '0 0' WHERE indexrelid = 'event_index_type'::regclass",
            "UPDATE pg_class SET relname = relname WHERE oid = 'event_index_type'::regclass",
        ],
        &["REINDEX INDEX event_index_type"],
    ),
];
