//! Databases configured as at a site, with durable commits.

use std::path::PathBuf;

use anyhow::bail;
use clap::ValueEnum;
use ledger::Location;
use mesh_testkit::Postgres;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;

/// PostgreSQL's defaults. The servers of the tests have lower settings and are not durable.
const DEFAULTS: &str = "shared_buffers = 128MB\nmax_wal_size = 1GB\nsynchronous_commit = on";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Sqlite,
    Postgres,
}

impl Kind {
    pub const BOTH: [Self; 2] = [Self::Sqlite, Self::Postgres];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        }
    }
}

/// Creates databases of one kind. They are deleted on drop.
pub struct Databases {
    folder: TempDir,
    server: Option<Postgres>,
    files: u32,
}

impl Databases {
    pub async fn of(kind: Kind) -> anyhow::Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            server: match kind {
                Kind::Sqlite => None,
                Kind::Postgres => Some(Postgres::start_with(DEFAULTS).await),
            },
            files: 0,
        })
    }

    /// URL of an empty database, as in `ledger.db.url`.
    pub fn create(&mut self) -> String {
        match &self.server {
            Some(server) => server.create_database(),
            None => {
                self.files += 1;
                let path = self.folder.path().join(format!("{}.db", self.files));
                format!("sqlite:{}", path.display())
            }
        }
    }
}

pub fn location(url: &str) -> anyhow::Result<Location> {
    Location::parse(url, &PathBuf::new()).map_err(anyhow::Error::msg)
}

/// Settings of the ledger's own writing connection to a file.
pub fn sqlite(location: &Location) -> anyhow::Result<SqliteConnectOptions> {
    let Location::Sqlite(path) = location else {
        bail!("a file");
    };
    Ok(mesh_db::sqlite::writer_options(path).create_if_missing(true))
}

/// Settings of its connection to a server, as far as they matter here.
pub fn postgres(location: &Location) -> anyhow::Result<PgConnectOptions> {
    let Location::Postgres(options) = location else {
        bail!("a server");
    };
    Ok(options.clone().options([("synchronous_commit", "on")]))
}
