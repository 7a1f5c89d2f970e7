//! Requests of a connection: they keep it alive, and those of a proxy's clients are limited by client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::serve::IncomingStream;
use hyper::body::{Frame, SizeHint};
use tokio::net::UnixListener;

use super::Problem;
use super::connection_limits::{
    ActiveRequest, Activity, ClientSlot, Clients, Limited, Limits, PeerWait,
};
use super::peer::Peer;
use super::tls::TlsListener;

/// Connection data that each request carries.
#[derive(Clone, Debug)]
pub(super) struct ConnectionInfo {
    peer: Peer,
    activity: Arc<Activity>,
}

impl Connected<IncomingStream<'_, Limited<UnixListener>>> for ConnectionInfo {
    fn connect_info(stream: IncomingStream<'_, Limited<UnixListener>>) -> Self {
        Self {
            peer: stream.io().peer(),
            activity: stream.io().activity(),
        }
    }
}

impl Connected<IncomingStream<'_, Limited<TlsListener>>> for ConnectionInfo {
    fn connect_info(stream: IncomingStream<'_, Limited<TlsListener>>) -> Self {
        Self {
            peer: stream.io().peer(),
            activity: stream.io().activity(),
        }
    }
}

#[derive(Clone)]
pub(super) struct Requests {
    pub(super) limits: Limits,
    pub(super) clients: Clients,
}

/// Middleware that keeps the connection alive until the response is sent, and limits the requests of a proxy's clients.
pub(super) async fn count(
    State(requests): State<Requests>,
    ConnectInfo(info): ConnectInfo<ConnectionInfo>,
    mut request: Request,
    next: Next,
) -> Response {
    let active = info.activity.request();
    request.extensions_mut().insert(ConnectInfo(info.peer));
    let wait = info.activity.peer_wait();
    let request = request.map(|body| {
        Body::new(TimedBody {
            body,
            wait,
            kind: BodyKind::Request,
        })
    });
    let proxies = &requests.limits.trusted_proxies;
    let client = match proxies.trusts(info.peer) {
        true => proxies.client(request.headers()),
        false => None,
    };
    let slot = match client {
        None => None,
        Some(ip) => match requests.clients.take(Peer::Tcp { ip }, &requests.limits) {
            Some(slot) => Some(slot),
            None => {
                let detail = "too many concurrent requests of this client";
                return Problem::new(StatusCode::TOO_MANY_REQUESTS, detail).into_response();
            }
        },
    };
    next.run(request).await.map(|body| {
        let wait = info.activity.peer_wait();
        // Over HTTP/2 the peer decides whether the first byte may be sent.
        wait.begin();
        let kind = BodyKind::Response {
            _active: active,
            _slot: slot,
        };
        Body::new(TimedBody { body, wait, kind })
    })
}

/// A body with the stall timer of its peer.
struct TimedBody {
    body: Body,
    wait: PeerWait,
    kind: BodyKind,
}

enum BodyKind {
    /// It must arrive as a whole within the stall timeout: bodies of requests are short.
    Request,
    /// Its request counts as active until it is sent.
    Response {
        _active: ActiveRequest,
        _slot: Option<ClientSlot>,
    },
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.kind {
            BodyKind::Request => self.wait.begin(),
            // A poll for more means that the peer has taken everything so far.
            BodyKind::Response { .. } => self.wait.end(),
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match (&self.kind, &frame) {
            (BodyKind::Request, Poll::Pending | Poll::Ready(Some(Ok(_)))) => {}
            (BodyKind::Request, Poll::Ready(_)) => self.wait.end(),
            (BodyKind::Response { .. }, Poll::Ready(Some(Ok(_)))) => self.wait.begin(),
            (BodyKind::Response { .. }, _) => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
