//! The other end of a connection to the API.

use std::net::{IpAddr, Ipv4Addr};

use tokio::net::{TcpStream, UnixStream};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// A process of this host, known by its uid.
    Unix { uid: u32 },
    /// A client that has to show a token.
    Tcp { ip: IpAddr },
}

pub(super) fn unix_peer(stream: &UnixStream) -> Peer {
    // The kernel knows the peer's uid; if it does not report it, the client needs a token.
    stream
        .peer_cred()
        .map_or(UNKNOWN_PEER, |credentials| Peer::Unix {
            uid: credentials.uid(),
        })
}

pub(super) fn tcp_peer(stream: &TcpStream) -> Peer {
    stream
        .peer_addr()
        .map_or(UNKNOWN_PEER, |address| Peer::Tcp { ip: address.ip() })
}

const UNKNOWN_PEER: Peer = Peer::Tcp {
    ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
};
