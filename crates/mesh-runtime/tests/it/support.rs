//! The API of a process without any service.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt as _;
use mesh_runtime::telemetry::{self, Telemetry};
use mesh_runtime::{ConfigFile, Context, Health, MeshConfig, install_crypto_provider, run_api};
use mesh_testkit::wait_until;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct Server {
    pub health: Health,
    folder: TempDir,
    address: String,
    http: reqwest::Client,
    shutdown: CancellationToken,
}

/// Status, `WWW-Authenticate`, body.
pub type Answer = (u16, String, Value);

impl Server {
    /// Serves with these lines in and after `[mesh.api]`, and this identity map.
    pub async fn start(api: &str, map: &str) -> Self {
        Self::start_with(api, map, Router::new()).await
    }

    /// Serves over TLS, as these lines configure it.
    pub async fn start_tls(api: &str) -> Self {
        Self::start_at("https", "127.0.0.1", api, "", Router::new()).await
    }

    /// Also serves these routes.
    pub async fn start_with(api: &str, map: &str, routes: Router) -> Self {
        Self::start_on("127.0.0.1", api, map, routes).await
    }

    /// Also listens on another address than 127.0.0.1.
    pub async fn start_on(ip: &str, api: &str, map: &str, routes: Router) -> Self {
        Self::start_at("http", ip, api, map, routes).await
    }

    /// Over http or https.
    pub async fn start_at(scheme: &str, ip: &str, api: &str, map: &str, routes: Router) -> Self {
        install_crypto_provider();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("identity.toml"), map).unwrap();
        let listener = std::net::TcpListener::bind((ip, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let config = format!(
            "[mesh]\ncluster = 'c'\ndata_dir = '.'\nidentity_map = 'identity.toml'\n\
             [mesh.api]\nsocket = 'api.sock'\nlisten = {address:?}\n{api}"
        );
        let path = folder.path().join("mesh.toml");
        std::fs::write(&path, config).unwrap();
        let shutdown = CancellationToken::new();
        let file = ConfigFile::load(&[], Some(&path)).unwrap();
        let context = Context::new(file, shutdown.clone()).unwrap();
        let (socket, until) = (context.mesh.api.socket.clone(), shutdown.clone());
        let mesh: MeshConfig = context.mesh.clone();
        let health = context.health.clone();
        tokio::spawn(async move {
            let work = async move {
                until.cancelled().await;
                Ok(())
            };
            let telemetry = telemetry(&mesh);
            run_api(&context, &socket, routes, telemetry, work.boxed())
                .await
                .unwrap();
        });
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(DEADLINE)
            .build()
            .unwrap();
        let server = Self {
            health,
            folder,
            address,
            http,
            shutdown,
        };
        wait_until("it listens", DEADLINE, async || {
            let url = format!("{scheme}://{}/livez", server.address);
            let asked = server.http.get(url).send().await;
            // Its certificate is unknown to this client, which is an answer, too.
            asked.is_ok() || scheme == "https" && server.path("api.sock").exists()
        })
        .await;
        server
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The response over TCP to a client without credentials.
    pub async fn get(&self, path: &str) -> Answer {
        read(self.http.get(format!("http://{}{path}", self.address))).await
    }

    /// `/v1/whoami` for a token.
    pub async fn whoami(&self, token: Option<&str>) -> Answer {
        let mut request = self.http.get(format!("http://{}/v1/whoami", self.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        read(request).await
    }
}

/// Sends a request and reads the response.
pub async fn read(request: reqwest::RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    let header = answer.headers().get("www-authenticate");
    let challenge = header
        .map_or("", |value| value.to_str().unwrap())
        .to_owned();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (
        status,
        challenge,
        serde_json::from_str(&text).unwrap_or_default(),
    )
}

/// One for the process: it installs a recorder and a subscriber.
fn telemetry(mesh: &MeshConfig) -> &'static Telemetry {
    static TELEMETRY: OnceLock<Telemetry> = OnceLock::new();
    TELEMETRY.get_or_init(|| telemetry::init("test", &mesh.telemetry).unwrap())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
