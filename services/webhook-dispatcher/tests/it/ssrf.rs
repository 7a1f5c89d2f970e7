//! Forbidden addresses, through the HTTP client that deliveries use. A listener counts connections.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use event_message::format::Request;
use guarded_http::Failure;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use url::{Host, Url};
use webhook_dispatcher::attempt::cause::Cause;
use webhook_dispatcher::delivery::http::{Attributes, Http};
use webhook_dispatcher::{Config, Endpoint, Network};

use crate::harness::SECRET;

/// Forbidden IPv4 addresses.
const INSIDE: [[u8; 4]; 22] = [
    [0, 0, 0, 0],
    [0, 1, 2, 3],
    [10, 0, 0, 1],
    [10, 255, 255, 255],
    [100, 64, 0, 1],
    [100, 100, 100, 200],
    [127, 0, 0, 1],
    [127, 255, 255, 254],
    [168, 63, 129, 16],
    [169, 254, 169, 254],
    [169, 254, 170, 2],
    [172, 16, 0, 1],
    [172, 31, 255, 255],
    [192, 0, 0, 192],
    [192, 0, 2, 1],
    [192, 88, 99, 1],
    [192, 168, 0, 1],
    [198, 18, 0, 1],
    [203, 0, 113, 9],
    [224, 0, 0, 1],
    [240, 0, 0, 1],
    [255, 255, 255, 255],
];

/// Forbidden addresses that exist in IPv6 only.
const INSIDE_V6: [&str; 14] = [
    "::",
    "::1",
    "::2",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "5f00::1",
    "2001:20::1",
];

/// Wildcard addresses of this host, in both families if there are two.
const EVERYWHERE: [&str; 2] = ["[::]", "0.0.0.0"];

/// Spellings of hosts that the check and the connection might interpret differently.
const DISGUISED: [&str; 14] = [
    "localhost",
    "LOCALHOST",
    "localhost.",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "%31%32%37.0.0.1",
    "①②⑦.0.0.1",
    "127。0。0。1",
];

/// URLs that two parsers might read differently: a user, a path or nothing for the first is the host of the second.
/// `P` is the listener's port.
const HOSTILE: [&str; 58] = [
    "http://example.org@127.0.0.1:P/",
    "http://example.org:80@127.0.0.1:P/",
    "http://a@example.org:80@127.0.0.1:P/",
    "http://127.0.0.1:P#@example.org/",
    "http://127.0.0.1:P?@example.org/",
    "http://127.0.0.1:P\\@example.org/",
    "http://example.org%40127.0.0.1:P/",
    "http://example.org%00@127.0.0.1:P/",
    "http://localhost%00.example.org:P/",
    "http:\\\\127.0.0.1:P\\",
    "http:127.0.0.1:P/",
    "http:/127.0.0.1:P/",
    "http:////127.0.0.1:P/",
    "HTTP://127.0.0.1:P/",
    " http://127.0.0.1:P/ ",
    "ht\ntp://127.0.0.1:P/",
    "http://127.0.\t0.1:P/",
    "http://127.0.0.1:\rP/",
    "http://127.0.0.1:0/",
    "http://127.0.0.1:00000P/",
    "http://127.0.0.1:65536/",
    "http://[::1]:0/",
    "http://0:P/",
    "http://0x0:P/",
    "http://00:P/",
    "http://127.1.:P/",
    "http://127.0x0.01:P/",
    "http://00000177.0.0.1:P/",
    "http://0x7F.0x0.0x0.0x1:P/",
    "http://0x7f.0.1:P/",
    "http://127.65535:P/",
    "http://4294967296:P/",
    "http://256.0.0.1:P/",
    "http://127.0.0.1.1:P/",
    "http://3232235521:P/",
    "http://0300.0250.0.1:P/",
    "http://2852039166:P/",
    "http://0xA9FEA9FE:P/",
    "http://0251.0376.0251.0376:P/",
    "http://169.254.43518:P/",
    "http://[0:0:0:0:0:0:0:1]:P/",
    "http://[0000::0001]:P/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]:P/",
    "http://[::ffff:7f00:1]:P/",
    "http://[::FFFF:a9fe:a9fe]:P/",
    "http://[64:ff9b::169.254.169.254]:P/",
    "http://[::1%25lo]:P/",
    "http://[fe80::1%25lo]:P/",
    "http://[::1:P/",
    "http://ⓛocalhost:P/",
    "http://ｌｏｃａｌｈｏｓｔ:P/",
    "http://lo\u{ad}calhost:P/",
    "http://LocalHost:P/",
    "http://１２７.0.0.1:P/",
    "http://127｡0｡0｡1:P/",
    "http://127．0．0．1:P/",
    "http://①27.0.0.1:P/",
    "http://%6c%6f%63%61%6c%68%6f%73%74:P/",
];

/// Every IPv6 form of an IPv4 address: mapped, compatible, translated, NAT64 (both), 6to4, Teredo, ISATAP.
fn forms(v4: Ipv4Addr) -> Vec<String> {
    let (high, low) = ((v4.to_bits() >> 16) as u16, v4.to_bits() as u16);
    let v6 = |segments: [u16; 8]| format!("[{}]", Ipv6Addr::from(segments));
    vec![
        v4.to_string(),
        v6([0, 0, 0, 0, 0, 0xffff, high, low]),
        v6([0, 0, 0, 0, 0, 0, high, low]),
        v6([0, 0, 0, 0, 0xffff, 0, high, low]),
        v6([0x64, 0xff9b, 0, 0, 0, 0, high, low]),
        v6([0x64, 0xff9b, 1, 0, 0, 0, high, low]),
        v6([0x2002, high, low, 0, 0, 0, 0, 1]),
        v6([0x2001, 0, 0x4136, 0xe378, 0x8000, 0x63bf, !high, !low]),
        v6([0x2600, 0, 0, 0, 0, 0x5efe, high, low]),
    ]
}

/// Accepts and counts connections.
pub async fn judge(addresses: &[&str]) -> (u16, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let mut tried = addresses.iter();
    let listener = loop {
        let address = tried.next().expect("one of the addresses is here");
        if let Ok(listener) = TcpListener::bind(format!("{address}:0")).await {
            break listener;
        }
    };
    let port = listener.local_addr().unwrap().port();
    let counter = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 64 * 1024];
            if stream.read(&mut request).await.unwrap_or(0) > 0 {
                let answer = b"HTTP/1.1 204 No\r\nconnection: close\r\n\r\n";
                drop(stream.write_all(answer).await);
            }
        }
    });
    (port, connections)
}

pub fn endpoint(allow: &[&str]) -> Endpoint {
    let config = json!({"allow_http": true, "allow_subnets": allow, "endpoints": [
        {"name": "x", "url": "http://example.org/", "secret": SECRET, "timeout": "30s"}]});
    let config: Config = serde_json::from_value(config).unwrap();
    let nothing = |_: &Path| Err(std::io::Error::other("no files"));
    config.validate(nothing).unwrap().remove(0)
}

pub async fn send(http: &Http, endpoint: &Endpoint, url: &str) -> Result<u16, Failure> {
    let request = Request::json(&url.parse().unwrap(), &json!({}));
    let attributes = Attributes {
        id: "1",
        replay: None,
        traceparent: None,
        deadline: Instant::now() + endpoint.timeout,
    };
    let answer = http.send(endpoint, request, &attributes).await;
    answer.map(|answer| answer.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_form_of_an_inner_address_is_dialled() {
    mesh_runtime::install_crypto_provider();
    let (port, connections) = judge(&EVERYWHERE).await;
    let (http, closed) = (Http::new(Network::default()).unwrap(), endpoint(&[]));
    let mut hosts: Vec<String> = INSIDE
        .map(Ipv4Addr::from)
        .into_iter()
        .flat_map(forms)
        .collect();
    hosts.extend(INSIDE_V6.map(|address| format!("[{address}]")));
    hosts.extend(DISGUISED.map(str::to_owned));
    assert!(hosts.len() >= 200, "{}", hosts.len());
    for host in &hosts {
        let failure = send(&http, &closed, &format!("http://{host}:{port}/"))
            .await
            .expect_err(host);
        // The resolver may not know this name. If it does, the address is refused.
        let unknown = host == "localhost." && Cause::from(failure.kind) == Cause::Unreachable;
        assert!(
            Cause::from(failure.kind) == Cause::Address || unknown,
            "{host}: {failure:?}"
        );
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);

    // Control: permitted requests do reach the listener.
    let open = endpoint(&["127.0.0.0/8", "::1/128"]);
    for (n, host) in ["127.0.0.1", "2130706433", "localhost"]
        .into_iter()
        .enumerate()
    {
        let status = send(&http, &open, &format!("http://{host}:{port}/")).await;
        assert_eq!(status.unwrap(), 204, "{host}");
        assert_eq!(connections.load(Ordering::SeqCst), n + 1, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_readers_of_an_address_disagree() {
    mesh_runtime::install_crypto_provider();
    let (port, connections) = judge(&EVERYWHERE).await;
    let (http, closed) = (Http::new(Network::default()).unwrap(), endpoint(&[]));
    let (mut read, mut unread) = (0, 0);
    for hostile in HOSTILE {
        let text = hostile
            .replace('P', &port.to_string())
            .replace(&format!("HTT{port}"), "HTTP");
        // Parsed as the configuration and the API do.
        let Ok(url) = text.parse::<Url>() else {
            unread += 1;
            continue;
        };
        read += 1;
        let failure = send(&http, &closed, url.as_str()).await.expect_err(&text);
        assert_eq!(
            Cause::from(failure.kind),
            Cause::Address,
            "{text}: {failure:?}"
        );
        if !matches!(url.host(), Some(Host::Domain(_))) {
            let config = json!({"allow_http": true, "endpoints": [{"name": "x", "url": text, "secret": SECRET}]});
            let config: Config = serde_json::from_value(config).unwrap();
            let nothing = |_: &Path| Err(std::io::Error::other("no files"));
            let faults = config.validate(nothing).err().unwrap();
            assert!(
                faults[0].problem.contains("may not be reached"),
                "{text}: {faults:?}"
            );
        }
    }
    assert!(
        read >= 45 && unread >= 5,
        "{read} were read, {unread} refused"
    );
    assert_eq!(connections.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_have_different_names() {
    mesh_runtime::install_crypto_provider();
    let (port, _) = judge(&EVERYWHERE).await;
    let (http, open) = (
        Http::new(Network::default()).unwrap(),
        endpoint(&["127.0.0.0/8"]),
    );
    // The port does not speak TLS.
    let failure = send(&http, &open, &format!("https://127.0.0.1:{port}/"))
        .await
        .unwrap_err();
    assert_eq!(Cause::from(failure.kind), Cause::Tls, "{failure:?}");
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let failure = send(&http, &open, &format!("http://127.0.0.1:{free}/"))
        .await
        .unwrap_err();
    assert_eq!(Cause::from(failure.kind), Cause::Unreachable, "{failure:?}");
}
