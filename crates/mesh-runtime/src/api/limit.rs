//! Nobody may take all connections: each caller has a number of them.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::server::Peer;

/// How many connections a caller (a uid, or an address) may have open.
const MOST_PER_PEER: usize = 128;

/// A listener that closes at once what a caller opens beyond the limit.
pub(super) struct Limited<L: Listener> {
    inner: L,
    peer: fn(&L::Io) -> Peer,
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

impl<L: Listener> Limited<L> {
    pub(super) fn new(inner: L, peer: fn(&L::Io) -> Peer) -> Self {
        Self {
            inner,
            peer,
            open: Arc::default(),
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
            let slot = Slot::take(peer, &self.open);
            match slot {
                Some(slot) => return (Connection { io, slot }, address),
                None => tracing::debug!(?peer, "too many open connections, one more closed"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.inner.local_addr()
    }
}

/// A connection that gives its place back when it is closed.
pub(super) struct Connection<I> {
    io: I,
    slot: Slot,
}

impl<I> Connection<I> {
    pub(super) fn peer(&self) -> Peer {
        self.slot.peer
    }
}

struct Slot {
    peer: Peer,
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

impl Slot {
    fn take(peer: Peer, open: &Arc<Mutex<HashMap<Peer, usize>>>) -> Option<Self> {
        let mut counts = open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(peer).or_default();
        if *count >= MOST_PER_PEER {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Self {
            peer,
            open: Arc::clone(open),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Connection<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Connection<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
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
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_cannot_take_the_places_of_another() {
        let open = Arc::default();
        let (alice, bob) = (Peer::Unix { uid: 1 }, Peer::Unix { uid: 2 });
        let mut held: Vec<_> = (0..MOST_PER_PEER)
            .map(|_| Slot::take(alice, &open).expect("a place"))
            .collect();
        assert!(Slot::take(alice, &open).is_none());
        assert!(Slot::take(bob, &open).is_some());
        held.pop();
        assert!(Slot::take(alice, &open).is_some());
        held.clear();
        assert!(open.lock().expect("no panic while locked").is_empty());
    }
}
