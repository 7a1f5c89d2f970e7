//! Finds the owner of the listening socket on an address of this machine.
//!
//! While the server is down, any local user may listen on its port. Before the password is sent there, the socket's owner is read from
//! the kernel's tables, `/proc/net/tcp` and `tcp6`.
//! The tables list listening sockets first, so a controller with many connections costs no more (Linux,
//! Documentation/networking/proc_net_tcp.rst).

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// State of a listening socket, as the tables print it (TCP_LISTEN).
const LISTENING: &str = "0A";

/// Uid of the socket that would accept a connection to an address of this machine. `None` if no socket listens.
///
/// # Errors
/// If the kernel's tables cannot be read.
pub fn owner(address: SocketAddr) -> io::Result<Option<u32>> {
    let port = address.port();
    let (exact, wildcard) = match address.ip() {
        IpAddr::V4(ip) => {
            // Not /proc/net: a hardened unit (ProcSubset=pid) has processes in /proc and nothing else.
            let table = listening("/proc/self/net/tcp")?;
            let find = |ip: Ipv4Addr| owner_in(&table, &table_format_v4(ip), port);
            if let Some(uid) = find(ip).or_else(|| find(Ipv4Addr::UNSPECIFIED)) {
                return Ok(Some(uid));
            }
            // An IPv6 socket also accepts IPv4 if no IPv4 socket listens.
            (ip.to_ipv6_mapped(), Ipv6Addr::UNSPECIFIED)
        }
        IpAddr::V6(ip) => (ip, Ipv6Addr::UNSPECIFIED),
    };
    let table = match listening("/proc/self/net/tcp6") {
        // A kernel without IPv6 does not have this table.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        table => table?,
    };
    let find = |ip: Ipv6Addr| owner_in(&table, &table_format_v6(ip), port);
    Ok(find(exact).or_else(|| find(wildcard)))
}

/// The rows of listening sockets.
fn listening(path: &str) -> io::Result<String> {
    let mut table = String::new();
    for line in BufReader::new(File::open(path)?).lines().skip(1) {
        let line = line?;
        if line.split_whitespace().nth(3) != Some(LISTENING) {
            break;
        }
        table.push_str(&line);
        table.push('\n');
    }
    Ok(table)
}

/// Owner of the socket that listens on exactly this address, from the text of a table.
fn owner_in(table: &str, address: &str, port: u16) -> Option<u32> {
    let local_address = format!("{address}:{port:04X}");
    table.lines().find_map(|line| {
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid …
        let mut fields = line.split_whitespace().skip(1);
        let matches = fields.next()? == local_address && fields.nth(1)? == LISTENING;
        matches.then(|| fields.nth(3)?.parse().ok())?
    })
}

/// An address as the tables print it: 32-bit words in the machine's byte order.
fn table_format_v4(ip: Ipv4Addr) -> String {
    format!("{:08X}", u32::from_ne_bytes(ip.octets()))
}

fn table_format_v6(ip: Ipv6Addr) -> String {
    let octets = ip.octets();
    let (fields, _) = octets.as_chunks::<4>();
    fields
        .iter()
        .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Rows of Linux 6.1 on a little-endian machine.
    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 20415 1 0000000000000000 100 0 0 10 0
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 18123 1 0000000000000000 100 0 0 10 0
   2: 0100007F:A2B4 0100007F:1F90 01 00000000:00000000 00:00000000 00000000   990        0 20511 1 0000000000000000 20 4 30 10 -1
";

    #[test]
    fn the_owner_is_that_of_the_listening_row_of_exactly_this_address() {
        let find = |address: &str, port| owner_in(TABLE, address, port);
        assert_eq!(find("0100007F", 8080), Some(1000));
        assert_eq!(find("00000000", 22), Some(0));
        assert_eq!(find("0100007F", 22), None, "another address");
        assert_eq!(find("0100007F", 8081), None, "another port");
        assert_eq!(find("0100007F", 0xA2B4), None, "a connection, no listener");
    }

    #[test]
    fn a_damaged_table_has_no_owner() {
        for text in [
            "",
            "\n\n",
            "0:",
            "0: 0100007F:1F90",
            "0: 0100007F:1F90 x 0A a b c root",
        ] {
            assert_eq!(owner_in(text, "0100007F", 8080), None, "{text:?}");
        }
    }

    #[test]
    fn our_own_sockets_are_ours_however_they_are_bound() {
        let own = rustix::process::geteuid().as_raw();
        for bound in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(bound) else {
                assert!(bound.starts_with('['), "only IPv6 may be missing");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            assert_eq!(owner(address).unwrap(), Some(own), "{bound}");
            drop(listener);
            assert_eq!(owner(address).unwrap(), None, "{bound}: closed");
        }
    }
}
