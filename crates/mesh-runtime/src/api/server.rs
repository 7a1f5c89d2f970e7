//! The API server: a Unix socket, and TCP for callers with a token.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::ConnectInfo;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::get;
use axum::{Json, Router, middleware};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use super::auth::{authenticate, sees_everything};
use super::auth_state::AuthState;
use super::connection_limits::{Clients, Limited, Limits, within_descriptors};
use super::forwarded_for::TrustedProxies;
use super::metrics_format::{OPENMETRICS, PROMETHEUS_TEXT, accepts_openmetrics};
use super::peer::{Peer, unix_peer};
use super::requests::{ConnectionInfo, Requests, count};
use super::tls::{ApiStream, Certificate, TlsListener};
use super::{Caller, Problem, log_filter};
use crate::telemetry::{LogFilter, ProcessMetrics};
use crate::{ApiConfig, BoxError, Health};

/// The bound listeners.
pub(crate) struct Endpoints {
    unix: UnixListener,
    path: PathBuf,
    tcp: Option<TcpListener>,
    limits: Limits,
}

/// The limits of each listener. One client gets at most half of the connections.
fn limits(config: &ApiConfig) -> Limits {
    let max_connections = within_descriptors(config.max_connections);
    if max_connections < config.max_connections {
        tracing::info!(
            max_connections,
            configured = config.max_connections,
            "connection limit below mesh.api.max_connections: limit of open files too low"
        );
    }
    Limits {
        max_connections,
        max_per_client: config
            .max_connections_per_client
            .min(max_connections.div_ceil(2)),
        header_timeout: config.header_timeout,
        idle_timeout: config.idle_timeout,
        stall_timeout: config.stall_timeout,
        trusted_proxies: TrustedProxies::new(&config.trusted_proxies),
    }
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
                "mesh.api.socket {}: already served by another process",
                socket.display()
            )
            .into());
        }
        if socket.exists() {
            std::fs::remove_file(socket)
                .map_err(|error| format!("remove stale socket {}: {error}", socket.display()))?;
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
            limits: limits(config),
        })
    }
}

/// Serves until shutdown.
pub(crate) async fn serve(
    endpoints: Endpoints,
    auth: AuthState,
    routes: Router,
    health: Health,
    metrics: ProcessMetrics,
    log_filter: LogFilter,
    shutdown: CancellationToken,
) -> Result<(), BoxError> {
    let auth = Arc::new(auth);
    let asking = Arc::clone(&auth);
    Arc::clone(&auth).reload_periodically(&health, shutdown.clone());
    let ready = async move |ConnectInfo(peer): ConnectInfo<Peer>, headers: HeaderMap| {
        ready(&health, sees_everything(&asking, peer, &headers).await)
    };
    let open = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready));
    let acceptor = auth.certificate.clone().map(Certificate::acceptor);
    let acceptor = acceptor.transpose()?;
    let describing = Arc::clone(&auth);
    let guarded = routes
        .route(
            "/v1/whoami",
            get(async move |caller: Caller| Json(describing.describe(&caller))),
        )
        .route(
            "/metrics",
            get(async move |caller: Caller, headers: HeaderMap| render(&caller, &headers, &metrics)),
        )
        .route("/v1/log-filter", log_filter::routes(log_filter))
        .fallback(async || Problem::not_found("no such path here: the service that has it may not run (GET /readyz lists those that do)"))
        .layer(middleware::from_fn_with_state(auth, authenticate));
    let limits = endpoints.limits;
    let requests = Requests {
        limits: limits.clone(),
        clients: Clients::default(),
    };
    let app = open
        .merge(guarded)
        .layer(middleware::from_fn_with_state(requests, count))
        .into_make_service_with_connect_info::<ConnectionInfo>();
    let unix = Limited::new(endpoints.unix, unix_peer, limits.clone());
    let unix =
        axum::serve(unix, app.clone()).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    match endpoints.tcp {
        None => unix.await?,
        Some(tcp) => {
            let tcp = TlsListener::new(tcp, acceptor);
            let tcp = axum::serve(Limited::new(tcp, ApiStream::peer, limits), app)
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

fn render(
    caller: &Caller,
    headers: &HeaderMap,
    metrics: &ProcessMetrics,
) -> Result<axum::response::Response, Problem> {
    if !caller.may_read_metrics() {
        return Err(Problem::forbidden(
            "metrics require the role admin, auditor or metrics",
        ));
    }
    let (format, text) = match accepts_openmetrics(headers) {
        true => (OPENMETRICS, metrics.openmetrics()),
        false => (PROMETHEUS_TEXT, metrics.text()),
    };
    Ok(([(CONTENT_TYPE, format)], text).into_response())
}

/// Every caller sees which conditions fail. Reasons and notes name hosts, files and consumers, so only privileged callers see them.
fn ready(health: &Health, everything: bool) -> axum::response::Response {
    let (mut problems, mut notes) = (health.problems(), health.notes());
    if !everything {
        for text in problems.values_mut().chain(notes.values_mut()) {
            "details only for administrators".clone_into(text);
        }
    }
    let version = everything.then_some(env!("CARGO_PKG_VERSION"));
    let status = if problems.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        Json(serde_json::json!({ "ready": problems.is_empty(), "problems": problems, "notes": notes, "roles": health.leadership(), "version": version })),
    )
        .into_response()
}
