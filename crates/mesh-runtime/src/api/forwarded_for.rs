//! Trusted proxies, whose `X-Forwarded-For` names the client. From other peers the header is ignored.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use hyper::body::{Frame, SizeHint};
use ipnet::IpNet;

use super::Problem;
use super::connection_limits::{ActiveRequest, ClientSlot, Clients, Limits, PeerWait};
use super::server::{ConnectionInfo, Peer};

/// The addresses of proxies.
#[derive(Clone, Debug, Default)]
pub(super) struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        Self(networks.into())
    }

    pub(super) fn trusts(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp { ip } => self.contains(ip),
            Peer::Unix { .. } => false,
        }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// The client of a proxy's request: the last address that is no trusted proxy's. The client may have forged those before it.
    fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        for value in values.into_iter().rev() {
            for address in value.to_str().ok()?.rsplit(',') {
                let ip: IpAddr = address.trim().parse().ok()?;
                if !self.contains(ip) {
                    return Some(ip);
                }
            }
        }
        None
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
    let sent = info.activity.peer_wait();
    let request = request.map(|body| Body::new(TimedBody { body, wait: sent }));
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
        Body::new(CountedBody {
            body,
            wait,
            _active: active,
            _slot: slot,
        })
    })
}

/// A request body, which must arrive as a whole within the stall timeout: bodies are short.
struct TimedBody {
    body: Body,
    wait: PeerWait,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.wait.begin();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if !matches!(frame, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
            self.wait.end();
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

/// A response body; its request counts as active until the body is sent.
struct CountedBody {
    body: Body,
    wait: PeerWait,
    _active: ActiveRequest,
    _slot: Option<ClientSlot>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // A poll for more means that the peer has taken everything so far.
        self.wait.end();
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(Some(Ok(_)))) {
            self.wait.begin();
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

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_client_is_the_last_address_that_is_no_proxy() {
        let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|text| text.parse().expect("a network"));
        let proxies = TrustedProxies::new(&networks);
        let client = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-forwarded-for", HeaderValue::from_static(value));
            }
            proxies.client(&headers).map(|ip| ip.to_string())
        };
        assert_eq!(client(&["192.0.2.1"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(
            client(&["1.2.3.4, 192.0.2.1,10.0.0.3"]).as_deref(),
            Some("192.0.2.1")
        );
        assert_eq!(
            client(&["1.2.3.4", "192.0.2.1", "10.1.1.1"]).as_deref(),
            Some("192.0.2.1")
        );
        for none in [&[][..], &["10.0.0.1"], &["unknown"], &["1.2.3.4, x"]] {
            assert_eq!(client(none), None, "{none:?}");
        }
        assert!(proxies.trusts(Peer::Tcp {
            ip: "::ffff:10.0.0.1".parse().expect("an address")
        }));
        assert!(!proxies.trusts(Peer::Unix { uid: 0 }));
    }
}
