//! Helpers: databases of both kinds, a ledger process, a store filled directly, and an API served
//! to a caller.

mod process;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use bytes::Bytes;
use ledger::api::{Events, router};
use ledger::domain::record::Record;
use ledger::{Location, Store};
use mesh_bus::Bus;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Delivery, audit_entry::Act};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Entity, Event};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::node::v1::{Node, NodeEvent};
use mesh_events::{EventId, EventType, subject, timestamp};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, Postgres, wait_until};
use prost::Message as _;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub use process::Process;

pub const DEADLINE: Duration = Duration::from_secs(120);

/// Runs a test twice: on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            use crate::support::Database;

            #[tokio::test(flavor = "multi_thread")]
            async fn on_sqlite() {
                super::$name(Database::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_postgres() {
                super::$name(Database::postgres().await).await;
            }
        }
    )+};
}
pub(crate) use on_both;

/// An empty database for one test.
pub struct Database {
    pub folder: TempDir,
    pub url: String,
}

impl Database {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        Self { folder, url }
    }

    pub async fn postgres() -> Self {
        Self::of(Postgres::shared().await)
    }

    /// Creates a database on a server that the test may kill.
    pub fn of(server: &Postgres) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            url: server.create_database(),
        }
    }

    /// Copies the database while it is not in use.
    pub async fn backup(&self) -> Self {
        match self.location() {
            Location::Sqlite(path) => {
                let backup = Self::sqlite();
                std::fs::copy(path, backup.folder.path().join("ledger.db")).unwrap();
                backup
            }
            Location::Postgres(options) => {
                let name = options.get_database().unwrap().to_owned();
                let copy = format!("{name}_backup");
                let mut server = options.database("postgres").connect().await.unwrap();
                let sessions =
                    format!("SELECT COUNT(*) FROM pg_stat_activity WHERE datname = '{name}'");
                wait_until(
                    "the sessions of the database have ended",
                    DEADLINE,
                    async || {
                        let sql = AssertSqlSafe(sessions.clone());
                        let open = sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut server);
                        open.await.unwrap() == 0
                    },
                )
                .await;
                let sql = format!("CREATE DATABASE {copy} TEMPLATE {name}");
                sqlx::query(AssertSqlSafe(sql))
                    .execute(&mut server)
                    .await
                    .unwrap();
                Self {
                    folder: tempfile::tempdir().unwrap(),
                    url: self.url.replace(&name, &copy),
                }
            }
        }
    }

    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }

    pub fn location(&self) -> Location {
        Location::parse(&self.url, Path::new("")).unwrap()
    }

    pub async fn store(&self) -> Store {
        Store::open(&self.location(), 2).await.unwrap()
    }

    /// Opens a connection with all rights.
    pub async fn outsider(&self) -> Outsider {
        match self.location() {
            Location::Sqlite(path) => {
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .foreign_keys(false);
                Outsider::Sqlite(options.connect().await.unwrap())
            }
            Location::Postgres(options) => Outsider::Postgres(options.connect().await.unwrap()),
        }
    }
}

/// Runs statements on a database without the ledger. They are written for SQLite, and translated
/// for PostgreSQL.
pub enum Outsider {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Outsider {
    /// Returns the number of changed rows.
    pub async fn try_execute(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(connection) => {
                let query = sqlx::query(AssertSqlSafe(sql));
                query.execute(connection).await?.rows_affected()
            }
            Self::Postgres(connection) => {
                let query = sqlx::query(AssertSqlSafe(postgres(sql)));
                query.execute(connection).await?.rows_affected()
            }
        })
    }

    pub async fn execute(&mut self, sql: &str) -> u64 {
        let result = self.try_execute(sql).await;
        result.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Executes several statements that both dialects accept.
    pub async fn execute_all(&mut self, sql: &str) {
        let statements = sqlx::raw_sql(AssertSqlSafe(sql));
        let result = match self {
            Self::Sqlite(connection) => statements.execute(connection).await.map(drop),
            Self::Postgres(connection) => statements.execute(connection).await.map(drop),
        };
        result.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub async fn numbers(&mut self, sql: &str) -> Vec<i64> {
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_all(connection)
                .await
                .unwrap(),
            Self::Postgres(connection) => sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_all(connection)
                .await
                .unwrap(),
        }
    }

    pub async fn texts(&mut self, sql: &str) -> Vec<String> {
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_all(connection)
                .await
                .unwrap(),
            Self::Postgres(connection) => sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_all(connection)
                .await
                .unwrap(),
        }
    }

    pub async fn bytes(&mut self, sql: &str) -> Vec<u8> {
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(connection)
                .await
                .unwrap(),
            Self::Postgres(connection) => sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(connection)
                .await
                .unwrap(),
        }
    }

    /// Removes the triggers that refuse changes, at least for this connection.
    pub async fn drop_guards(&mut self) {
        match self {
            Self::Sqlite(_) => {
                let triggers = "SELECT name FROM sqlite_schema WHERE type = 'trigger'";
                for trigger in self.texts(triggers).await {
                    self.execute(&format!("DROP TRIGGER {trigger}")).await;
                }
            }
            Self::Postgres(_) => {
                self.execute("SET session_replication_role = replica").await;
            }
        }
    }
}

impl Outsider {
    /// Returns the triggers that refuse changes, to restore them later: verification reports
    /// missing ones. On PostgreSQL they are not removed.
    pub async fn guards(&mut self) -> String {
        match self {
            Self::Sqlite(_) => {
                let triggers =
                    self.texts("SELECT sql || ';' FROM sqlite_schema WHERE type = 'trigger'");
                triggers.await.join("\n")
            }
            Self::Postgres(_) => String::new(),
        }
    }

    /// Restores the result of [`Self::guards`].
    pub async fn put_guards(&mut self, guards: &str) {
        if !guards.is_empty() {
            self.drop_guards().await;
            self.execute_all(&format!("BEGIN;{guards}COMMIT")).await;
        }
    }
}

/// Translates literals: x'00ff' to '\x00ff', and zeroblob(32) to 32 zero bytes.
fn postgres(sql: &str) -> String {
    let zeros = format!(" x'{}'", "00".repeat(32));
    let text = sql.replace(" zeroblob(32)", &zeros);
    let mut parts = text.split(" x'");
    let mut translated = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        translated.push_str(&format!(" '\\x{part}"));
    }
    translated
}

/// Connects to a bus whose streams exist.
pub async fn bus(nats: &NatsServer, role: &str) -> Bus {
    let config = mesh_bus::Config {
        url: nats.url(),
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&config, role).await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    bus
}

/// Creates a file that only its owner may read.
pub fn secret(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

/// Creates an event of a user's job.
pub fn of_user(user: &str, kind: EventType, job: Job) -> Event {
    let mut event = fixtures::job_event(kind, job);
    if let Some(owner) = &mut event.owner {
        owner.user = user.into();
    }
    event
}

pub fn node_event(name: &str, n: u64) -> Event {
    let key = format!("node/{name}");
    let kind = EventType::NodeDown;
    Event {
        id: EventId::sampled(CLUSTER, &key, kind, n).to_string(),
        cluster: CLUSTER.into(),
        r#type: kind.to_string(),
        occurred_at: Some(timestamp(fixtures::submit_time())),
        observed_at: Some(timestamp(fixtures::submit_time())),
        entity: Some(Entity {
            kind: "node".into(),
            key,
        }),
        payload: Some(Payload::Node(NodeEvent {
            node: Some(Node {
                name: name.into(),
                ..Node::default()
            }),
            ..NodeEvent::default()
        })),
        ..Event::default()
    }
}

pub fn audit_entry(n: u32) -> AuditEntry {
    AuditEntry {
        id: format!("00000000-0000-4000-8000-{n:012}"),
        cluster: CLUSTER.into(),
        kind: "delivery".into(),
        at: Some(timestamp(fixtures::submit_time())),
        service: "webhook-dispatcher".into(),
        act: Some(Act::Delivery(Delivery {
            endpoint: "chat".into(),
            outcome: "delivered".into(),
            attempts: 1,
            status: 200,
            ..Delivery::default()
        })),
    }
}

pub fn record(event: &Event) -> Record {
    let subject = subject::of(event).unwrap();
    Record::event(&subject, Bytes::from(event.encode_to_vec())).unwrap()
}

pub fn audit_fact(entry: &AuditEntry) -> Record {
    let subject = subject::audit(&entry.cluster, &entry.kind);
    Record::audit(&subject, Bytes::from(entry.encode_to_vec())).unwrap()
}

pub fn admin() -> Caller {
    Caller::peer("root", 0, Role::Admin)
}

pub fn user(name: &str) -> Caller {
    Caller::peer(name, 20_001, Role::User)
}

/// Serves the API to one caller over TCP, as the runtime does after authentication. Returns the
/// address.
pub async fn serve(
    store: &Store,
    caller: Caller,
    max_page_size: u32,
    max_history_events: u32,
) -> String {
    let api = Arc::new(Events::new(
        store.clone(),
        max_page_size,
        max_history_events,
    ));
    let routes = router(api).layer(Extension(caller));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    format!("http://{address}")
}
