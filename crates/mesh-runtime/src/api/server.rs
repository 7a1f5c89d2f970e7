//! The API server: a Unix socket, and TCP for those who have the token.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::connect_info::Connected;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::get;
use axum::serve::IncomingStream;
use axum::{Json, Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use super::auth::authenticate;
use super::limit::Limited;
use super::{Caller, Problem};
use crate::{ApiConfig, BoxError, Health};

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// A process of this host, known by its uid.
    Unix { uid: u32 },
    /// Somebody who has to show a token.
    Tcp,
}

fn unix_peer(stream: &UnixStream) -> Peer {
    // The kernel knows who connected; if it does not say, nobody is nobody.
    stream
        .peer_cred()
        .map_or(Peer::Tcp, |credentials| Peer::Unix {
            uid: credentials.uid(),
        })
}

fn tcp_peer(_stream: &TcpStream) -> Peer {
    Peer::Tcp
}

impl Connected<IncomingStream<'_, Limited<UnixListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Limited<UnixListener>>) -> Self {
        stream.io().peer()
    }
}

impl Connected<IncomingStream<'_, Limited<TcpListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Limited<TcpListener>>) -> Self {
        stream.io().peer()
    }
}

/// What decides about callers.
pub(crate) struct Access {
    pub(super) admins: Vec<String>,
    token: Option<SecretString>,
}

impl Access {
    /// Reads the token file, if there is one.
    pub(crate) fn new(config: &ApiConfig) -> Result<Self, BoxError> {
        let token = if config.token_file.as_os_str().is_empty() {
            None
        } else {
            let path = &config.token_file;
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("read mesh.api.token_file {}: {error}", path.display()))?;
            let text = text.trim();
            if text.len() < 16 {
                return Err(format!(
                    "mesh.api.token_file {}: a token has at least 16 characters",
                    path.display()
                )
                .into());
            }
            Some(SecretString::from(text))
        };
        Ok(Self {
            admins: config.admins.clone(),
            token,
        })
    }

    /// Compares in constant time.
    pub(super) fn is_token(&self, shown: &str) -> bool {
        let Some(token) = &self.token else {
            return false;
        };
        let token = token.expose_secret().as_bytes();
        let difference = token
            .iter()
            .zip(shown.as_bytes())
            .fold(0, |all, (a, b)| all | (a ^ b));
        token.len() == shown.len() && difference == 0
    }
}

/// Where to listen.
pub(crate) struct Endpoints {
    unix: UnixListener,
    path: PathBuf,
    tcp: Option<TcpListener>,
}

impl Endpoints {
    /// Binds the Unix socket (replacing a dead one) and, if configured, the TCP address.
    pub(crate) async fn bind(config: &ApiConfig, socket: &Path) -> Result<Self, BoxError> {
        if let Some(folder) = socket.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("create {}: {error}", folder.display()))?;
        }
        let in_use = UnixStream::connect(socket).await.is_ok();
        if in_use {
            return Err(format!(
                "mesh.api.socket {}: another process serves it",
                socket.display()
            )
            .into());
        }
        if socket.exists() {
            std::fs::remove_file(socket)
                .map_err(|error| format!("remove dead socket {}: {error}", socket.display()))?;
        }
        let unix = UnixListener::bind(socket)
            .map_err(|error| format!("mesh.api.socket {}: {error}", socket.display()))?;
        let mode = u32::from_str_radix(&config.socket_mode, 8)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(mode))?;
        let tcp = match config.listen.as_str() {
            "" => None,
            address => Some(
                TcpListener::bind(address)
                    .await
                    .map_err(|error| format!("mesh.api.listen {address}: {error}"))?,
            ),
        };
        Ok(Self {
            unix,
            path: socket.to_owned(),
            tcp,
        })
    }
}

/// Serves until told to stop.
pub(crate) async fn serve(
    endpoints: Endpoints,
    access: Access,
    routes: Router,
    health: Health,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), BoxError> {
    let open = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(async move || ready(&health)));
    let guarded = routes
        .route(
            "/metrics",
            get(async move |caller: Caller| render(&caller, &metrics)),
        )
        .fallback(async || Problem::not_found("no such path; see the README for the API"))
        .layer(middleware::from_fn_with_state(
            Arc::new(access),
            authenticate,
        ));
    let app = open
        .merge(guarded)
        .into_make_service_with_connect_info::<Peer>();
    let unix = axum::serve(Limited::new(endpoints.unix, unix_peer), app.clone())
        .with_graceful_shutdown(shutdown.clone().cancelled_owned());
    match endpoints.tcp {
        None => unix.await?,
        Some(tcp) => {
            let tcp = axum::serve(Limited::new(tcp, tcp_peer), app)
                .with_graceful_shutdown(shutdown.cancelled_owned());
            let (unix, tcp) = tokio::join!(unix.into_future(), tcp.into_future());
            unix.and(tcp)?;
        }
    }
    if let Err(error) = std::fs::remove_file(&endpoints.path) {
        tracing::debug!(%error, "remove socket");
    }
    Ok(())
}

/// Labels name endpoints and the like: nothing for everybody.
fn render(caller: &Caller, metrics: &PrometheusHandle) -> Result<String, Problem> {
    if caller.sees_everything() {
        Ok(metrics.render())
    } else {
        Err(Problem::forbidden(
            "metrics are for administrators and auditors",
        ))
    }
}

fn ready(health: &Health) -> axum::response::Response {
    let problems = health.problems();
    let status = if problems.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        Json(serde_json::json!({ "ready": problems.is_empty(), "problems": problems, "roles": health.roles() })),
    )
        .into_response()
}
