//! A cost engine per test, and its published events.

use std::path::PathBuf;
use std::time::Duration;

use cost_engine::{CostEngineService, PriceBook};
use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, Message, StartPosition};
use mesh_db::Location;
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, subject};
use mesh_runtime::BoxError;
use mesh_testkit::NatsServer;
use mesh_testkit::service::TestService;
use prost::Message as _;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio_util::sync::CancellationToken;

pub const DEADLINE: Duration = Duration::from_secs(120);
pub const EXAMPLE: &str = include_str!("../../examples/price-book.toml");

/// Label of a price book in cost events.
pub fn label(book: &str) -> String {
    PriceBook::parse(book, "prices.toml").unwrap().label()
}

/// Runs a test on SQLite and on PostgreSQL.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[tokio::test(flavor = "multi_thread")]
            async fn on_sqlite() {
                super::$name(crate::support::Site::new(crate::support::EXAMPLE)).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_postgres() {
                let url = mesh_testkit::Postgres::shared().await.create_database();
                super::$name(crate::support::Site::at(crate::support::EXAMPLE, url)).await;
            }
        }
    )+};
}
pub(crate) use on_both;

/// A folder with a configuration, a price book and, later, a database.
pub struct Site {
    folder: TempDir,
    /// Empty for a file in the folder.
    database_url: String,
    /// Keys about accrued costs. Without them nothing is published of running jobs.
    accruals: &'static str,
}

impl Site {
    pub fn new(book: &str) -> Self {
        Self::at(book, String::new())
    }

    /// With its own database on a server.
    pub fn at(book: &str, database_url: String) -> Self {
        let site = Self {
            folder: tempfile::tempdir().unwrap(),
            database_url,
            accruals: "accrue_at = []\n",
        };
        site.write_book(book);
        site
    }

    /// With the defaults of `accrue_at` and `accrue_every`.
    pub fn with_accruals(self) -> Self {
        self.with_accrual_keys("")
    }

    /// With keys about accrued costs.
    pub fn with_accrual_keys(self, accruals: &'static str) -> Self {
        Self { accruals, ..self }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write_book(&self, book: &str) {
        // As editors do: a new file replaces the old one.
        std::fs::write(self.path("new"), book).unwrap();
        std::fs::rename(self.path("new"), self.path("prices.toml")).unwrap();
    }

    /// Budgets are used if the folder exists at the start.
    pub fn write_budgets(&self, budgets: &str) {
        let folder = self.path("budgets.d");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(".new"), budgets).unwrap();
        std::fs::rename(folder.join(".new"), folder.join("budgets.toml")).unwrap();
    }

    pub async fn start(&self, nats: &str) -> Result<TestService, BoxError> {
        let budgets = match self.path("budgets.d").exists() {
            true => "budgets = \"budgets.d\"\n",
            false => "",
        };
        let text = format!(
            "[mesh]\ncluster = \"testbed\"\ndata_dir = {:?}\n[mesh.nats]\n{nats}\n[cost-engine]\nprice_book = \"prices.toml\"\nreload_interval = \"100ms\"\n{budgets}{}[cost-engine.db]\nurl = {:?}\n",
            self.folder.path(),
            self.accruals,
            self.database_url
        );
        mesh_testkit::write_private(&self.path("mesh.toml"), text);
        TestService::start::<CostEngineService>(&self.path("mesh.toml")).await
    }

    /// The database, for use without the engine.
    pub fn location(&self) -> Location {
        match self.database_url.as_str() {
            "" => Location::Sqlite(self.path("cost-engine.db")),
            url => Location::parse(url, self.folder.path()).unwrap(),
        }
    }

    /// Rows of the database, read from disk.
    pub async fn rows(&self, query: &'static str) -> Vec<(String, Vec<u8>)> {
        if !self.database_url.is_empty() {
            let pool = sqlx::PgPool::connect(&self.database_url).await.unwrap();
            let rows = sqlx::query_as(query).fetch_all(&pool).await.unwrap();
            pool.close().await;
            return rows;
        }
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(self.path("cost-engine.db"))
            .read_only(true);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let rows = sqlx::query_as(query).fetch_all(&pool).await.unwrap();
        pool.close().await;
        rows
    }
}

/// The other participants on the bus.
pub struct Outside {
    pub bus: Bus,
}

impl Outside {
    pub async fn connect(nats: &NatsServer, user: Option<&str>) -> Self {
        let config = Config {
            url: nats.url(),
            user: user.map(str::to_owned),
            password: user.map(|_| "x".into()),
            ..Config::default()
        };
        let bus = Bus::connect(&config, "admin").await.unwrap();
        bus.ready(&CancellationToken::new()).await.unwrap();
        Self { bus }
    }

    pub async fn publish(&self, event: &Event) {
        self.bus.publish(event).await.unwrap();
    }

    /// Publishes an event a second time, as if its id had left JetStream's window.
    pub async fn republish(&self, event: &Event, message_id: &str) {
        let published = self
            .bus
            .publish_raw(
                subject::of(event).unwrap(),
                message_id,
                event.encode_to_vec(),
            )
            .await
            .unwrap();
        assert!(!published.duplicate);
    }

    /// The first messages on a subject, from the start of the stream.
    pub async fn messages(&self, filter: &str, count: usize) -> Vec<Message> {
        let stream = self
            .bus
            .follow(filter, StartPosition::Sequence(1))
            .await
            .unwrap();
        let messages = stream.take(count).map(Result::unwrap).collect();
        let found = tokio::time::timeout(DEADLINE, messages).await;
        found.unwrap_or_else(|_| panic!("not {count} messages on {filter} within {DEADLINE:?}"))
    }

    /// All costs up to that of a job whose start was published last.
    pub async fn costs_until(&self, job_id: u32) -> Vec<(Event, CostEvent)> {
        let stream = self
            .bus
            .follow("slurm.*.cost.>", StartPosition::Sequence(1))
            .await
            .unwrap();
        let mut stream = std::pin::pin!(stream);
        let mut costs = Vec::new();
        let all = async {
            while let Some(message) = stream.next().await {
                let event = message.unwrap().event().unwrap();
                let cost = payload(event.clone());
                let is_last = cost.job.as_ref().unwrap().job_id == job_id;
                costs.push((event, cost));
                if is_last {
                    break;
                }
            }
        };
        tokio::time::timeout(DEADLINE, all)
            .await
            .expect("the costs in time");
        costs
    }

    pub async fn costs(&self, count: usize) -> Vec<(Event, CostEvent)> {
        let messages = self.messages("slurm.*.cost.>", count).await;
        messages
            .iter()
            .map(|message| message.event().unwrap())
            .map(|event| (event.clone(), payload(event)))
            .collect()
    }
}

/// Subscribes to dead letters of the engine. Created before the cause, awaited afterwards.
pub async fn dead_letter(nats: &NatsServer) -> impl Future<Output = ()> {
    let mut connection = tokio::net::TcpStream::connect(nats.url().trim_start_matches("nats://"))
        .await
        .unwrap();
    connection
        .write_all(b"CONNECT {\"verbose\":false}\r\nSUB mesh.dead.> 1\r\nPING\r\n")
        .await
        .unwrap();
    let mut lines = BufReader::new(connection).lines();
    // The server answered our ping, so the subscription is active.
    while lines.next_line().await.unwrap().unwrap() != "PONG" {}
    async move {
        let letter = async {
            while !lines
                .next_line()
                .await
                .unwrap()
                .unwrap()
                .starts_with("MSG mesh.dead.cost-engine ")
            {}
        };
        tokio::time::timeout(DEADLINE, letter)
            .await
            .expect("a dead letter in time");
    }
}

fn payload(event: Event) -> CostEvent {
    match event.payload {
        Some(Payload::Cost(payload)) => payload,
        other => panic!("no cost: {other:?}"),
    }
}

/// Amounts of a payload: burn rate, estimate, total.
pub fn amounts(cost: &CostEvent) -> (Option<i64>, Option<i64>, Option<i64>) {
    let micros = |money: &Option<mesh_events::proto::mesh::cost::v1::Money>| {
        money.as_ref().map(|money| money.micros)
    };
    (
        micros(&cost.burn_rate),
        micros(&cost.estimated),
        micros(&cost.total),
    )
}

/// Cost of a run by all its events: the final cost and all adjustments.
pub fn sum(costs: &[(Event, CostEvent)], job_id: u32) -> i64 {
    let of_run = costs
        .iter()
        .filter(|(_, cost)| cost.job.as_ref().unwrap().job_id == job_id);
    let amount = |(event, cost): &(Event, CostEvent)| match event.r#type.as_str() {
        "cost.finalized" => cost.total.as_ref().unwrap().micros,
        "cost.adjusted" => cost.delta.as_ref().unwrap().micros,
        _ => 0,
    };
    of_run.map(amount).sum()
}
