//! Who is one client: a proxy that is trusted is not, a network of IPv6 is.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use mesh_testkit::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Limited, TOKEN, closed};
use crate::support::DEADLINE;

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_trusted_is_not_one_client_and_its_clients_are_counted() {
    let server = Limited::start(
        "trusted_proxies = ['127.0.0.9/32']\nmax_connections = 60\nmax_connections_per_client = 4",
    );
    let request = |client: &str| {
        format!("GET /livez HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\n\r\n")
    };
    // Each would be a fifth connection of its address.
    let mut proxied = Vec::new();
    for client in 0..10 {
        let mut stream = server.connect([127, 0, 0, 9]).await;
        let text = request(&format!("192.0.2.{client}"));
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        proxied.push(stream);
    }
    // The fifth request of one client is refused while four of it run, also by another connection of the proxy.
    let endless = |client: &str| {
        format!(
            "GET /v1/endless HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nx-forwarded-for: {client}\r\n\r\n"
        )
    };
    let mut running = Vec::new();
    for (client, status) in [
        ("203.0.113.1", "200"),
        ("203.0.113.1", "200"),
        ("203.0.113.1", "200"),
        ("203.0.113.1", "200"),
        ("203.0.113.1", "429"),
        ("203.0.113.2", "200"),
    ] {
        let mut stream = server.connect([127, 0, 0, 9]).await;
        stream.write_all(endless(client).as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(first, *format!("HTTP/1.1 {status}").as_bytes(), "{client}");
        running.push(stream);
    }
    drop(running);
    // An untrusted peer stays one client, whatever its header claims.
    let mut others = Vec::new();
    for client in 0..4 {
        let mut stream = server.connect([127, 0, 0, 8]).await;
        let text = request(&format!("198.51.100.{client}"));
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        others.push(stream);
    }
    let fifth = server.connect([127, 0, 0, 8]).await;
    assert!(closed(fifth).await < Duration::from_secs(5));
    drop((proxied, others));
}

/// Addresses of two networks, in a network namespace of their own.
const NETWORK: &str = "ip link set lo up && for at in 1::1 1::2 1:0:ffff::1 2::1; do ip -6 addr add 2001:db8:0:$at/64 dev lo nodad || exit 1; done; \
    exec \"$0\" --exact connections::clients::in_a_network_of_ipv6 --ignored --nocapture";

#[test]
fn a_network_of_ipv6_is_one_client_and_another_is_not_affected() {
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", NETWORK])
        .arg(std::env::current_exe().unwrap())
        .output()
        .expect("unshare, of the package util-linux");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process that another test starts in a network namespace"]
async fn in_a_network_of_ipv6() {
    let server = Limited::start_on("2001:db8:0:2::1", "max_connections_per_client = 3");
    let answers = async |from: &str| {
        let from: IpAddr = from.parse().unwrap();
        let mut stream = server.connect(from).await;
        let request = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
        // A connection beyond the limit is closed at once.
        drop(stream.write_all(request).await);
        let mut first = [0; 12];
        let answered = stream.read_exact(&mut first).await.is_ok();
        (answered && &first == b"HTTP/1.1 200").then_some(stream)
    };
    let mut held = Vec::new();
    for from in [
        "2001:db8:0:1::1",
        "2001:db8:0:1::2",
        "2001:db8:0:1:0:ffff::1",
    ] {
        held.push(answers(from).await.expect("a connection of its own"));
    }
    for from in ["2001:db8:0:1::1", "2001:db8:0:1:0:ffff::1"] {
        assert!(answers(from).await.is_none(), "{from}");
    }
    assert!(answers("2001:db8:0:2::1").await.is_some());
    drop(held);
    wait_until("there is room again", DEADLINE, async || {
        answers("2001:db8:0:1::2").await.is_some()
    })
    .await;
}
