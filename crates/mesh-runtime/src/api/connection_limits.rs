//! Connection limits: in total, per client, and by time without a request.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::forwarded_for::TrustedProxies;
use super::peer::Peer;

/// A listener may use one in this many of the process's file descriptors. The rest is for the other listener, Slurm commands, databases,
/// NATS and receivers.
const DESCRIPTORS_PER_CONNECTION: u64 = 4;

#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) max_connections: usize,
    pub(super) max_per_client: usize,
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) stall_timeout: Duration,
    pub(super) trusted_proxies: TrustedProxies,
}

/// The configured number of connections, limited by the process's file descriptors.
pub(super) fn within_descriptors(configured: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.map_or(u64::MAX, |limit| limit / DESCRIPTORS_PER_CONNECTION);
    configured
        .min(usize::try_from(share).unwrap_or(usize::MAX))
        .max(1)
}

/// The key by which clients are counted. An IPv6 client is a /64 network.
pub(super) fn client(peer: Peer) -> Peer {
    match peer {
        Peer::Tcp { ip } => Peer::Tcp {
            ip: match ip.to_canonical() {
                IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
                ip => ip,
            },
        },
        Peer::Unix { .. } => peer,
    }
}

/// Number of connections, or of requests through a proxy, by client.
#[derive(Clone, Debug, Default)]
pub(super) struct Clients(Arc<Mutex<ClientCounts>>);

#[derive(Debug, Default)]
struct ClientCounts {
    total: usize,
    of: HashMap<Peer, usize>,
}

impl Clients {
    /// Counts one more, or returns `None` at a limit.
    pub(super) fn take(&self, peer: Peer, limits: &Limits) -> Option<ClientSlot> {
        // A proxy's connections carry many clients, which are counted by request.
        let max_of_client = match limits.trusted_proxies.trusts(peer) {
            true => limits.max_connections,
            false => limits.max_per_client,
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let client = client(peer);
        let of_client = counts.of.get(&client).copied().unwrap_or_default();
        if counts.total >= limits.max_connections || of_client >= max_of_client {
            return None;
        }
        counts.total += 1;
        counts.of.insert(client, of_client + 1);
        drop(counts);
        Some(ClientSlot {
            client,
            clients: self.clone(),
        })
    }
}

/// One counted connection or request, until dropped.
#[derive(Debug)]
pub(super) struct ClientSlot {
    client: Peer,
    clients: Clients,
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let mut counts = self
            .clients
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Some(count) = counts.of.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.of.remove(&self.client);
            }
        }
    }
}

/// Activity of a connection: its deadline while it has no request, and since when its peer stalls one.
#[derive(Debug)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    requests: usize,
    deadline: Instant,
    /// A request head is being read, so `deadline` is that of the head.
    in_head: bool,
    header_timeout: Duration,
    idle_timeout: Duration,
    stall_timeout: Duration,
    /// Start of each stall, by number of the [`PeerWait`].
    stalls: HashMap<u64, Instant>,
    next_wait: u64,
}

impl Activity {
    fn new(limits: &Limits) -> Self {
        Self(Mutex::new(State {
            requests: 0,
            deadline: Instant::now() + limits.header_timeout,
            in_head: true,
            header_timeout: limits.header_timeout,
            idle_timeout: limits.idle_timeout,
            stall_timeout: limits.stall_timeout,
            stalls: HashMap::new(),
            next_wait: 0,
        }))
    }

    /// Begins a request; it ends when its response has been sent or dropped.
    pub(super) fn request(self: &Arc<Self>) -> ActiveRequest {
        self.state().requests += 1;
        ActiveRequest(Arc::clone(self))
    }

    fn received(&self) {
        let mut state = self.state();
        if state.requests == 0 && !state.in_head {
            state.in_head = true;
            state.deadline = state.deadline.min(Instant::now() + state.header_timeout);
        }
    }

    /// Bytes of a response were sent: a response that is complete here may still be in flight.
    fn sent(&self) {
        let mut state = self.state();
        if state.requests == 0 && !state.in_head {
            state.deadline = Instant::now() + state.idle_timeout;
        }
    }

    /// A part of a request that its peer may stall.
    pub(super) fn peer_wait(self: &Arc<Self>) -> PeerWait {
        let mut state = self.state();
        state.next_wait += 1;
        PeerWait {
            activity: Arc::clone(self),
            number: state.next_wait,
        }
    }

    /// Deadline of the connection, if it has no request or the peer stalls one.
    fn deadline(&self) -> Option<Instant> {
        let state = self.state();
        match state.requests {
            0 => Some(state.deadline),
            _ => {
                let first = state.stalls.values().min();
                first.map(|since| *since + state.stall_timeout)
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<Activity>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.requests -= 1;
        if state.requests == 0 {
            state.in_head = false;
            state.deadline = Instant::now() + state.idle_timeout;
        }
    }
}

/// A part of a request that its peer may stall: the rest of its body, or the response.
#[derive(Debug)]
pub(super) struct PeerWait {
    activity: Arc<Activity>,
    number: u64,
}

impl PeerWait {
    /// Starts the stall timer, unless it already runs.
    pub(super) fn begin(&self) {
        let mut state = self.activity.state();
        let now = Instant::now();
        state.stalls.entry(self.number).or_insert(now);
    }

    /// Stops the stall timer.
    pub(super) fn end(&self) {
        self.activity.state().stalls.remove(&self.number);
    }
}

impl Drop for PeerWait {
    fn drop(&mut self) {
        self.end();
    }
}

/// A listener that closes connections beyond the limits at once.
pub(super) struct Limited<L: Listener> {
    inner: L,
    peer: fn(&L::Io) -> Peer,
    limits: Limits,
    clients: Clients,
}

impl<L: Listener> Limited<L> {
    pub(super) fn new(inner: L, peer: fn(&L::Io) -> Peer, limits: Limits) -> Self {
        Self {
            inner,
            peer,
            limits,
            clients: Clients::default(),
        }
    }
}

impl<L: Listener> Listener for Limited<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (io, address) = self.inner.accept().await;
            let peer = (self.peer)(&io);
            let Some(slot) = self.clients.take(peer, &self.limits) else {
                tracing::debug!(?peer, "too many open connections, connection closed");
                continue;
            };
            let activity = Arc::new(Activity::new(&self.limits));
            let connection = Connection {
                io,
                peer,
                timer: Box::pin(tokio::time::sleep(self.limits.header_timeout)),
                activity,
                _slot: slot,
            };
            return (connection, address);
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A counted connection. It fails after too long a time without a request, or when its peer stalls one.
pub(super) struct Connection<I> {
    io: I,
    peer: Peer,
    timer: Pin<Box<Sleep>>,
    activity: Arc<Activity>,
    _slot: ClientSlot,
}

impl<I> Connection<I> {
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }

    /// Called before reads and writes: fails after the deadline, else arranges to wake the task at the deadline.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let idle_timeout = self.activity.state().idle_timeout;
        loop {
            let deadline = self.activity.deadline();
            match deadline {
                Some(deadline) if deadline <= Instant::now() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                // The deadline is now before the timer's: the timer must not fire after it.
                Some(deadline) if deadline < self.timer.deadline() => {
                    self.timer.as_mut().reset(deadline);
                }
                _ => {}
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return Ok(());
            }
            let next = deadline.unwrap_or_else(|| Instant::now() + idle_timeout);
            self.timer.as_mut().reset(next);
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Connection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Also when bytes arrive: a head may come a byte at a time.
        self.check(context)?;
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.io).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.received();
        }
        result
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Connection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            self.activity.sent();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        if matches!(written, Poll::Ready(Ok(_))) {
            self.activity.sent();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            max_connections: 6,
            max_per_client: 2,
            header_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
            stall_timeout: Duration::from_secs(1),
            trusted_proxies: TrustedProxies::new(&["10.0.0.0/8".parse().expect("a network")]),
        }
    }

    fn tcp(ip: &str) -> Peer {
        Peer::Tcp {
            ip: ip.parse().expect("an address"),
        }
    }

    #[test]
    fn one_client_cannot_take_the_connections_of_another() {
        let (clients, limits) = (Clients::default(), limits());
        let (alice, bob) = (Peer::Unix { uid: 1 }, Peer::Unix { uid: 2 });
        let mut held: Vec<_> = (0..2)
            .map(|_| clients.take(alice, &limits).expect("a slot"))
            .collect();
        assert!(clients.take(alice, &limits).is_none());
        assert!(clients.take(bob, &limits).is_some());
        held.pop();
        assert!(clients.take(alice, &limits).is_some());
        held.clear();
        assert!(clients.0.lock().expect("no panic").of.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_a_mapped_address_is_that_of_ipv4() {
        assert_eq!(client(tcp("2001:db8::1")), client(tcp("2001:db8::ffff:2")));
        assert_ne!(client(tcp("2001:db8::1")), client(tcp("2001:db8:0:1::1")));
        assert_eq!(client(tcp("::ffff:192.0.2.1")), tcp("192.0.2.1"));
        assert_ne!(client(tcp("192.0.2.1")), client(tcp("192.0.2.2")));
    }

    #[test]
    fn all_clients_together_and_a_proxy_have_the_total_limit() {
        let (clients, limits) = (Clients::default(), limits());
        let proxied: Vec<_> = (0..5)
            .map(|_| clients.take(tcp("10.0.0.1"), &limits).expect("a slot"))
            .collect();
        let other = clients.take(tcp("192.0.2.1"), &limits);
        assert!(other.is_some());
        assert!(clients.take(tcp("192.0.2.2"), &limits).is_none());
        drop(proxied);
        assert!(clients.take(tcp("192.0.2.2"), &limits).is_some());
    }
}
