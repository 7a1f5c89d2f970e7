//! The names and migrations of the ledger's tables.

use mesh_db::Tables;

pub(super) static TABLES: Tables = Tables {
    name: "ledger",
    sqlite: sqlx::migrate!("migrations/sqlite"),
    postgres: sqlx::migrate!("migrations/postgres"),
    first: "entries",
    remedy: "run `smesh ledger migrate` with the address of their owner",
};
