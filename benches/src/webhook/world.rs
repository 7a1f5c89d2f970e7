//! A dispatcher as a separate process with its own server, and receivers that answer, hang, drip or refuse.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Segment, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use futures_util::{StreamExt as _, stream};
use mesh_bus::Bus;
use mesh_testkit::{NatsServer, Port, fixtures};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::load::{SECRET, servers};
use crate::process::{Memory, Running, cpu_time, program, wait_until};

/// Behaviour of a receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answers at once.
    Healthy,
    /// Accepts the request and never answers.
    Hung,
    /// Answers at once, with an endless body.
    Dripping,
    /// Refuses connections.
    Refusing,
}

/// First arrival and number of requests, by number of the receiver and `webhook-id`.
pub type Arrivals = HashMap<(usize, String), (Instant, u32)>;

/// Listening ports at most. Beyond that, receivers share them, each with a path of its own: ten thousand need more
/// descriptors than a process may have.
const MAX_PORTS: usize = 1_000;

/// HTTP receivers. Those that hang, drip or refuse record nothing.
pub struct Receivers {
    arrivals: Arc<Mutex<Arrivals>>,
    ports: Vec<Port>,
    count: usize,
    // Aborted on drop.
    _serving: JoinSet<()>,
}

impl Receivers {
    pub async fn start(kinds: &[Kind]) -> anyhow::Result<Self> {
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        let mut serving = JoinSet::new();
        let mut ports = Vec::new();
        for kind in kinds.iter().take(MAX_PORTS) {
            let port = Port::take();
            let app = match kind {
                Kind::Healthy => Some(
                    Router::new()
                        .route("/{n}", post(note))
                        .with_state(Arc::clone(&arrivals)),
                ),
                Kind::Hung => Some(Router::new().fallback(std::future::pending::<StatusCode>)),
                Kind::Dripping => Some(Router::new().fallback(drip)),
                Kind::Refusing => None,
            };
            if let Some(app) = app {
                let listener = TcpListener::bind(port.address()).await?;
                serving.spawn(async move {
                    // Ends with the measurement.
                    axum::serve(listener, app).await.ok();
                });
            }
            ports.push(port);
        }
        Ok(Self {
            arrivals,
            ports,
            count: kinds.len(),
            _serving: serving,
        })
    }

    /// URLs, by number.
    pub fn urls(&self) -> Vec<String> {
        let ports = self.ports.iter().cycle().take(self.count);
        let ports = ports.enumerate();
        ports
            .map(|(n, port)| format!("http://{}/{n}", port.address()))
            .collect()
    }

    pub fn count(&self) -> usize {
        self.arrivals().len()
    }

    /// Takes all arrivals so far and resets the receivers.
    ///
    /// # Errors
    /// If a request is duplicated. The times then mean nothing.
    pub fn take(&self) -> anyhow::Result<Arrivals> {
        let arrivals = std::mem::take(&mut *self.arrivals());
        let twice = arrivals.values().filter(|(_, times)| *times > 1).count();
        if twice > 0 {
            bail!("of {} deliveries {twice} came twice", arrivals.len());
        }
        Ok(arrivals)
    }

    /// Waits until this many requests have arrived.
    ///
    /// # Errors
    /// If they have not arrived in time. They count as lost.
    pub async fn wait_for(&self, count: usize, patience: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + patience;
        while self.count() < count {
            if Instant::now() > until {
                bail!("of {count} deliveries {} came", self.count());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn note(
    State(arrivals): State<Arc<Mutex<Arrivals>>>,
    Segment(n): Segment<usize>,
    headers: HeaderMap,
    _body: Bytes,
) -> StatusCode {
    let id = headers.get("webhook-id").and_then(|id| id.to_str().ok());
    let key = (n, id.unwrap_or_default().to_owned());
    let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    arrivals.entry(key).or_insert((Instant::now(), 0)).1 += 1;
    StatusCode::NO_CONTENT
}

async fn drip() -> Body {
    let drops = stream::repeat(()).then(|()| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok::<_, std::convert::Infallible>(Bytes::from_static(b"."))
    });
    Body::from_stream(drops)
}

/// Number of endpoints that have a position, by the dispatcher's database; 0 before it is there.
pub async fn positions(folder: &Path) -> usize {
    let count = async {
        let file = SqliteConnectOptions::new().filename(folder.join("webhook-dispatcher.db"));
        let mut file = file.connect().await?;
        let sql = "SELECT COUNT(*) FROM cursors WHERE stream = 'SLURM_EVENTS'";
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut file).await
    };
    usize::try_from(count.await.unwrap_or_default()).unwrap_or_default()
}

/// A dispatcher with one endpoint per receiver.
pub struct World {
    /// A single server or a cluster.
    pub nats: Vec<NatsServer>,
    pub bus: Bus,
    pub receivers: Receivers,
    pub dispatcher: Running,
    folder: TempDir,
}

impl World {
    /// Starts the dispatcher. Endpoints are numbered, and `settings` are the configuration lines of each.
    pub async fn start(
        kinds: &[Kind],
        settings: impl Fn(Kind) -> &'static str,
    ) -> anyhow::Result<Self> {
        Self::start_on(1, kinds, settings).await
    }

    /// The same with several nats-servers, each with all streams.
    pub async fn start_on(
        count: usize,
        kinds: &[Kind],
        settings: impl Fn(Kind) -> &'static str,
    ) -> anyhow::Result<Self> {
        let receivers = Receivers::start(kinds).await?;
        let (nats, bus) = servers(count).await?;
        let folder = tempfile::tempdir()?;
        let mut text = format!(
            "[mesh]\ncluster = \"{}\"\ndata_dir = {:?}\n[mesh.nats]\nurl = {:?}\nreplicas = {count}\n",
            fixtures::CLUSTER,
            folder.path(),
            NatsServer::urls(&nats)
        );
        for (n, (url, kind)) in receivers.urls().iter().zip(kinds).enumerate() {
            text.push_str(&format!(
                "[[webhook-dispatcher.endpoints]]\nname = \"bench-{n}\"\nurl = \"{url}\"\nsecret = \"{SECRET}\"\n\
                 allow_http = true\nallow_private = [\"127.0.0.0/8\"]\n{}\n",
                settings(*kind)
            ));
        }
        mesh_testkit::write_private(&folder.path().join("mesh.toml"), text);
        let dispatcher = spawn(&folder)?;
        let mut world = Self {
            nats,
            bus,
            receivers,
            dispatcher,
            folder,
        };
        world.wait_for_positions().await?;
        Ok(world)
    }

    /// Total memory of the nats-servers, in MiB.
    pub fn nats_memory(&self) -> anyhow::Result<f64> {
        let memory = |pid| Ok(Memory::of(pid)?.resident);
        self.nats
            .iter()
            .filter_map(NatsServer::pid)
            .map(memory)
            .sum()
    }

    /// Total CPU time of the nats-servers so far.
    pub fn nats_cpu(&self) -> anyhow::Result<Duration> {
        self.nats
            .iter()
            .filter_map(NatsServer::pid)
            .map(cpu_time)
            .sum()
    }

    /// Waits until all endpoints have a position on the bus, so that no event is missed.
    async fn wait_for_positions(&mut self) -> anyhow::Result<()> {
        let count = self.receivers.count;
        wait_until(
            "the positions of all endpoints",
            Duration::from_secs(300),
            async || {
                self.dispatcher.check()?;
                Ok(positions(self.folder.path()).await == count)
            },
        )
        .await
    }

    /// Stops the dispatcher in order.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        self.dispatcher.stop()
    }

    /// Restarts the dispatcher.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.dispatcher = spawn(&self.folder)?;
        Ok(())
    }

    /// Path of its database.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("webhook-dispatcher.db")
    }

    /// Waits until this many outcomes are published.
    pub async fn wait_outcomes(&mut self, count: u64) -> anyhow::Result<()> {
        let client = async_nats::connect(self.nats[0].url()).await?;
        let mut audit = async_nats::jetstream::new(client)
            .get_stream("MESH_AUDIT")
            .await?;
        wait_until(
            "every outcome on the bus",
            Duration::from_secs(300),
            async || {
                self.dispatcher.check()?;
                Ok(audit.info().await?.state.messages >= count)
            },
        )
        .await
    }
}

fn spawn(folder: &TempDir) -> anyhow::Result<Running> {
    Running::start(
        Command::new(program("webhook-dispatcher")?)
            .arg("--config")
            .arg(folder.path().join("mesh.toml")),
        &folder.path().join("log"),
    )
    .context("start the dispatcher")
}
