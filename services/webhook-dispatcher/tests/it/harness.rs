//! A running dispatcher with its bus, and queries about them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::jetstream::consumer::{Info, pull};
use axum::http::{Method, StatusCode};
use futures_util::{StreamExt as _, TryStreamExt as _};
use mesh_bus::Bus;
use mesh_db::Location;
use mesh_events::Event;
use mesh_events::catalogue::legacy_endpoint_consumer;
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::service::TestService;
use mesh_testkit::{NatsServer, Postgres, fixtures, wait_until};
use serde_json::Value;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use webhook_dispatcher::WebhookDispatcherService;
use webhook_dispatcher::store::Store;
use webhook_dispatcher::store::ownership::preferred;

mod values;

pub use values::{Listener, alice, at, bytes, endpoint, event, ids, signed};

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// Allows endpoints created by the API to be on this host.
pub const FOR_API: &str = "allow_http = true\nallow_subnets = [\"127.0.0.0/8\"]";
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Runs a test on both SQLite and PostgreSQL.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            use crate::harness::Kind;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_sqlite() {
                super::$name(Kind::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_postgres() {
                super::$name(Kind::Postgres).await;
            }
        }
    )+};
}
pub(crate) use on_both;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

/// A dispatcher in this process, with its own server, database and folder.
pub struct Mesh {
    pub nats: NatsServer,
    /// The NATS lines of the configuration.
    pub nats_section: String,
    pub bus: Bus,
    pub folder: TempDir,
    /// URL of the database. Empty for the SQLite file in the folder.
    pub database: String,
    /// More lines of the dispatcher's section.
    pub settings: String,
    running: Option<TestService>,
}

impl Mesh {
    /// Starts a server and a dispatcher with these endpoints.
    pub async fn start(endpoints: &[String]) -> Self {
        Self::start_on(Kind::Sqlite, endpoints).await
    }

    /// Like [`Mesh::start`], on either database.
    pub async fn start_on(kind: Kind, endpoints: &[String]) -> Self {
        let mut mesh = Self::on(kind).await;
        mesh.run(endpoints).await;
        mesh
    }

    /// Starts a dispatcher for endpoints created by the API.
    pub async fn for_api(kind: Kind) -> Self {
        let mut mesh = Self::on(kind).await;
        mesh.settings = FOR_API.to_owned();
        if kind == Kind::Postgres {
            let key = format!("{}\n", "A".repeat(43) + "=");
            mesh_testkit::write_private(&mesh.folder.path().join("secrets.key"), key);
            mesh.settings += "\nsecrets_key_file = \"secrets.key\"";
        }
        mesh.run(&[]).await;
        mesh
    }

    /// Starts a server only.
    pub async fn without_dispatcher() -> Self {
        Self::on(Kind::Sqlite).await
    }

    /// Starts a server and creates a database.
    pub async fn on(kind: Kind) -> Self {
        Self::with(kind, NatsServer::start_cluster(1).await).await.0
    }

    /// Like [`Mesh::on`], on these servers, which all replicate every stream. Returns all servers but the first.
    pub async fn with(kind: Kind, mut servers: Vec<NatsServer>) -> (Self, Vec<NatsServer>) {
        let config = mesh_bus::Config {
            url: NatsServer::urls(&servers),
            replicas: servers.len(),
            ..mesh_bus::Config::default()
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        let mesh = Self {
            nats: servers.remove(0),
            nats_section: format!("url = {:?}\nreplicas = {}", config.url, config.replicas),
            bus,
            folder: tempfile::tempdir().unwrap(),
            database: match kind {
                Kind::Sqlite => String::new(),
                Kind::Postgres => Postgres::shared().await.create_database(),
            },
            settings: String::new(),
            running: None,
        };
        (mesh, servers)
    }

    /// Starts or restarts the dispatcher, and waits until every endpoint has a position.
    pub async fn run(&mut self, endpoints: &[String]) {
        self.start_dispatcher(endpoints).await;
        self.wait_for_positions(endpoints.iter().filter(|text| text.contains("[[")).count())
            .await;
    }

    pub async fn wait_for_positions(&self, count: usize) {
        wait_until("positions of all endpoints", DEADLINE, async || {
            self.positions().await.len() == count
        })
        .await;
    }

    /// The stored positions of the endpoints. Empty while the database is not prepared.
    pub async fn positions(&self) -> BTreeMap<String, i64> {
        let sql = "SELECT endpoint, settled FROM cursors WHERE stream = 'SLURM_EVENTS'";
        let query = sqlx::query_as(sql);
        let file = match self.database.as_str() {
            "" => Some(self.folder.path().join("webhook-dispatcher.db")),
            url => url.strip_prefix("sqlite:").map(PathBuf::from),
        };
        let rows: Result<Vec<(String, i64)>, _> = if let Some(file) = file {
            let file = SqliteConnectOptions::new().filename(file);
            match file.connect().await {
                Ok(mut connection) => query.fetch_all(&mut connection).await,
                Err(error) => Err(error),
            }
        } else {
            let options: PgConnectOptions = self.database.parse().unwrap();
            let mut connection = options.connect().await.unwrap();
            sqlx::query_as(sql).fetch_all(&mut connection).await
        };
        rows.unwrap_or_default().into_iter().collect()
    }

    /// Number of events on the bus behind the stored position of an endpoint.
    pub async fn behind(&self, endpoint: &str) -> i64 {
        let state = self.bus.stream_state("SLURM_EVENTS").await.unwrap();
        let last = i64::try_from(state.last_sequence).unwrap();
        last - self.positions().await[endpoint]
    }

    pub async fn start_dispatcher(&mut self, endpoints: &[String]) {
        let path = self.write_config(endpoints);
        let started = TestService::start::<WebhookDispatcherService>(&path).await;
        self.running = Some(started.unwrap());
    }

    /// Writes `mesh.toml` and returns its path.
    pub fn write_config(&self, endpoints: &[String]) -> PathBuf {
        let path = self.folder.path().join("mesh.toml");
        let text = format!(
            "[mesh]\ncluster = \"{}\"\ndata_dir = {:?}\n[mesh.nats]\n{}\n[webhook-dispatcher]\n{}\n\
             [webhook-dispatcher.db]\nurl = {:?}\n{}",
            fixtures::CLUSTER,
            self.folder.path(),
            self.nats_section,
            self.settings,
            self.database,
            endpoints.join("\n"),
        );
        mesh_testkit::write_private(&path, text);
        path
    }

    /// Why the database makes the dispatcher not ready. `None` if it does not.
    pub fn database_problem(&self) -> Option<String> {
        let problems = self.running.as_ref().unwrap().health.problems();
        problems.get("webhook-dispatcher.database").cloned()
    }

    /// A note of the dispatcher.
    pub fn note(&self, name: &str) -> Option<String> {
        self.running.as_ref().unwrap().health.notes().remove(name)
    }

    /// True if the dispatcher is ready.
    pub fn is_ready(&self) -> bool {
        let running = self.running.as_ref().unwrap();
        running.health.problems().is_empty()
    }

    /// Opens the SQLite file as another process would.
    pub async fn outsider(&self) -> SqliteConnection {
        SqliteConnectOptions::new()
            .filename(self.folder.path().join("webhook-dispatcher.db"))
            .connect()
            .await
            .unwrap()
    }

    /// Runs statements on the dispatcher's database.
    pub async fn change_database(&self, statements: String) {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(statements));
        if self.database.is_empty() {
            sql.execute(&mut self.outsider().await).await.unwrap();
        } else {
            let options: PgConnectOptions = self.database.parse().unwrap();
            let mut connection = options.connect().await.unwrap();
            sql.execute(&mut connection).await.unwrap();
        }
    }

    /// Makes a consumer as former versions did, which has acknowledged these many messages of the stream.
    pub async fn make_legacy_consumer(
        &self,
        stream: &str,
        endpoint: &str,
        owner: &str,
        acknowledged: usize,
    ) {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let name = legacy_endpoint_consumer(endpoint);
        let config = pull::Config {
            durable_name: Some(name.clone()),
            metadata: HashMap::from([
                ("mesh-endpoint".to_owned(), endpoint.to_owned()),
                ("mesh-owner".to_owned(), owner.to_owned()),
            ]),
            ..Default::default()
        };
        let jetstream = async_nats::jetstream::new(client);
        let consumer = jetstream
            .create_consumer_on_stream(config, stream)
            .await
            .unwrap();
        if acknowledged == 0 {
            return;
        }
        let mut messages = consumer
            .batch()
            .max_messages(acknowledged)
            .messages()
            .await
            .unwrap();
        while let Some(message) = messages.next().await {
            message.unwrap().double_ack().await.unwrap();
        }
    }

    /// True if the dispatcher has read every event on the bus.
    pub async fn is_read(&self) -> bool {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let mut stream = async_nats::jetstream::new(client)
            .get_stream("SLURM_EVENTS")
            .await
            .unwrap();
        let consumers: Vec<Info> = stream.consumers().try_collect().await.unwrap();
        let last = stream.info().await.unwrap().state.last_sequence;
        consumers.iter().any(|info| {
            info.name.starts_with("webhook-dispatcher-") && info.delivered.stream_sequence == last
        })
    }

    /// Names of the consumers on a stream.
    pub async fn consumers(&self, stream: &str) -> Vec<String> {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let stream = async_nats::jetstream::new(client)
            .get_stream(stream)
            .await
            .unwrap();
        stream.consumer_names().try_collect().await.unwrap()
    }

    /// Stops the dispatcher as SIGTERM does.
    pub async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        let stopped = tokio::time::timeout(DEADLINE, running.stop()).await;
        stopped.expect("drains in time");
    }

    pub async fn publish(&self, event: &Event) {
        self.bus
            .publish_until_done(event, &CancellationToken::new())
            .await
            .unwrap();
    }

    /// Calls the API as an administrator.
    pub async fn call(&self, method: Method, path: &str) -> (StatusCode, Value) {
        self.call_as(method, path, "root", Role::Admin).await
    }

    pub async fn call_as(
        &self,
        method: Method,
        path: &str,
        user: &str,
        role: Role,
    ) -> (StatusCode, Value) {
        self.ask(method, path, user, role, &Value::Null).await
    }

    /// Calls the API with a body, unless it is null.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        user: &str,
        role: Role,
        body: &Value,
    ) -> (StatusCode, Value) {
        let caller = Caller::peer(user, 1, role);
        let body = Some(body).filter(|body| !body.is_null());
        let running = self.running.as_ref().unwrap();
        running.ask(caller, method.as_str(), path, body).await
    }

    /// Serves the API over TCP for one caller, as the runtime does after authentication.
    pub async fn serve(&self, caller: Caller) -> String {
        let routes = self.running.as_ref().unwrap().router.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = routes.layer(axum::Extension(caller));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    /// The stored definition of an endpoint, plain and encrypted.
    pub async fn raw_endpoint(&self, name: &str) -> String {
        let (_, spec, secrets) = self.endpoint_row(name).await;
        format!("{spec} {}", String::from_utf8_lossy(&secrets))
    }

    /// An endpoint's id, its public definition, and its encrypted definition.
    pub async fn endpoint_row(&self, name: &str) -> (String, String, Vec<u8>) {
        let sql = "SELECT id, spec, secrets FROM endpoints WHERE name = $1";
        if self.database.is_empty() {
            let query = sqlx::query_as(sql).bind(name);
            query.fetch_one(&mut self.outsider().await).await.unwrap()
        } else {
            let options: PgConnectOptions = self.database.parse().unwrap();
            let query = sqlx::query_as(sql).bind(name);
            let mut connection = options.connect().await.unwrap();
            query.fetch_one(&mut connection).await.unwrap()
        }
    }

    /// Waits until this many dispatchers are live on PostgreSQL and each endpoint has its preferred owner.
    pub async fn wait_for_replicas(&self, count: usize, endpoints: usize) {
        let location = Location::parse(&self.database, Path::new("")).unwrap();
        let store = Store::connect(&location).unwrap();
        let what = format!("{count} dispatchers share {endpoints} endpoints");
        wait_until(&what, DEADLINE, async || {
            let replicas = store.replicas().await.unwrap();
            let leases = store.leases().await.unwrap();
            replicas.len() == count
                && leases.len() == endpoints
                && leases.iter().all(|(name, lease)| {
                    let ids = replicas.iter().map(|replica| replica.id.as_str());
                    preferred(name, ids) == Some(&lease.holder)
                })
        })
        .await;
        store.close().await;
    }

    /// Number of changes of owner of all endpoints, on PostgreSQL.
    pub async fn changes_of_hands(&self) -> usize {
        let location = Location::parse(&self.database, Path::new("")).unwrap();
        let store = Store::connect(&location).unwrap();
        let leases = store.leases().await.unwrap();
        store.close().await;
        let changes = leases.values().map(|lease| lease.epoch - 1).sum::<i64>();
        usize::try_from(changes).unwrap()
    }

    /// The API's count of an endpoint's deliveries in a state, e.g. `delivered`.
    pub async fn count(&self, name: &str, state: &str) -> u64 {
        self.call(Method::GET, &at(name)).await.1["counts"][state]
            .as_u64()
            .unwrap()
    }

    pub async fn wait_for_count(&self, name: &str, state: &str, count: u64) {
        wait_until(
            &format!("{count} {state} at {name}"),
            DEADLINE,
            async || self.count(name, state).await == count,
        )
        .await;
    }

    /// Subscribes to a subject.
    pub async fn listen<M: prost::Message + Default + 'static>(
        &self,
        subject: &str,
    ) -> Listener<M> {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        let mut messages = client.subscribe(subject.to_owned()).await.unwrap();
        client.flush().await.unwrap();
        let (sender, received) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                if sender.send(M::decode(message.payload).unwrap()).is_err() {
                    return;
                }
            }
        });
        Listener { messages: received }
    }
}
