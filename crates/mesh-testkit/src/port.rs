//! A port reserved for a test, also while no server listens on it.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port of 127.0.0.1 that is bound without listening: connections are refused, and the kernel assigns it to no process that asks for any
/// free port. A server that binds this port with `SO_REUSEADDR`, as servers do, gets it.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    // Held open to reserve the port.
    _socket: TcpSocket,
}

impl Port {
    /// Reserves a free port.
    ///
    /// # Panics
    /// If there is none.
    pub fn take() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("a port to be shared");
        socket
            .bind((Ipv4Addr::LOCALHOST, 0).into())
            .expect("bind a port");
        Self {
            address: socket.local_addr().expect("an address"),
            _socket: socket,
        }
    }

    /// Address for a server to listen on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_port_stays_reserved_across_refused_and_served_connections() {
        let port = Port::take();
        for _ in 0..2 {
            assert!(TcpStream::connect(port.address()).await.is_err());
            let server = TcpListener::bind(port.address()).await.unwrap();
            TcpStream::connect(port.address()).await.unwrap();
            drop(server);
        }
    }
}
