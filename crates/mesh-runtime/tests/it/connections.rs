//! Connections of clients without a token leave room for everything else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures_util::future::join_all;
use futures_util::stream;
use mesh_runtime::install_crypto_provider;
use mesh_testkit::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{DEADLINE, Server};
use crate::tls::{issue, trusting};

const TOKEN: &str = "a token of enough characters";
const CONFIG: &str = "MESH_TEST_CONNECTIONS_API";
const IP: &str = "MESH_TEST_CONNECTIONS_IP";
/// More than the system buffers for a client that reads nothing.
const LARGE: usize = 32 << 20;

/// A server in a process of its own, limited to 512 open files.
struct Limited {
    child: Child,
    address: SocketAddr,
    socket: String,
}

impl Limited {
    fn start(api: &str) -> Self {
        Self::start_on("127.0.0.1", api)
    }

    fn start_on(ip: &str, api: &str) -> Self {
        let mut child = Command::new("prlimit")
            .arg("--nofile=512:512")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "connections::serves", "--ignored", "--nocapture"])
            .env(CONFIG, api)
            .env(IP, ip)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("prlimit, of the package util-linux");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .map(|line| line.unwrap())
            .find(|line| line.contains("serving "))
            .expect("the server says where it serves");
        let mut tokens = line.split("serving ").nth(1).unwrap().split(' ');
        Self {
            child,
            address: tokens.next().unwrap().parse().unwrap(),
            socket: tokens.next().unwrap().to_owned(),
        }
    }

    /// The response over the Unix socket, and the output of a command that the server spawned.
    fn run_over_unix(&self) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
            .write_all(b"GET /v1/run HTTP/1.1\r\nhost: mesh\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    async fn connect(&self, from: impl Into<IpAddr>) -> TcpStream {
        let from = from.into();
        let socket = match from {
            IpAddr::V4(_) => TcpSocket::new_v4().unwrap(),
            IpAddr::V6(_) => TcpSocket::new_v6().unwrap(),
        };
        socket.bind(SocketAddr::new(from, 0)).unwrap();
        socket.connect(self.address).await.unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Its standard input closes as well, which also ends it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The server of [`Limited`]; serves until its standard input ends.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process that other tests start"]
#[allow(clippy::print_stdout, reason = "tells its address")]
async fn serves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let routes = Router::new()
        .route("/v1/run", get(run))
        .route("/v1/large", get(async || vec![b'x'; LARGE]))
        .route("/v1/endless", get(endless))
        .route("/v1/read", post(async |body: String| body));
    let api = std::env::var(CONFIG).unwrap_or_default();
    let ip = std::env::var(IP).unwrap_or_else(|_| "127.0.0.1".to_owned());
    let api = format!("token_file = {file:?}\n{api}");
    let scheme = match api.contains("cert_file") {
        true => "https",
        false => "http",
    };
    let server = Server::start_at(scheme, &ip, &api, "", routes).await;
    println!(
        "serving {} {} ",
        server.address(),
        server.path("api.sock").display()
    );
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()))
        .await
        .unwrap()
        .unwrap();
}

/// An endless response, as fast as it is read.
async fn endless() -> Body {
    let chunk = Bytes::from(vec![b'x'; 65_536]);
    Body::from_stream(stream::repeat_with(move || {
        Ok::<_, std::io::Error>(chunk.clone())
    }))
}

/// Runs a command with pipes, as the Slurm collectors do.
async fn run() -> String {
    let output = tokio::process::Command::new("echo")
        .arg("ran")
        .stdin(Stdio::piped())
        .output()
        .await;
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("not run: {error}"),
    }
}

/// Waits until the server has closed the connection; returns the elapsed time.
async fn closed(mut stream: TcpStream) -> Duration {
    let start = Instant::now();
    let mut bytes = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes))
        .await
        .expect("it is closed")
        .ok();
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_and_slow_clients_without_a_token_leave_descriptors_for_commands_and_the_socket() {
    let server = Limited::start("");
    let mut held = Vec::new();
    for client in 0..520_u32 {
        let mut stream = server.connect([127, 0, 0, 1 + (client % 5) as u8]).await;
        if client % 2 == 0 {
            // Connections beyond a limit are closed at once.
            drop(stream.write_all(b"GET /v1/whoami HTTP/1.1\r\nx: ").await);
        }
        held.push(stream);
    }
    let answer = server.run_over_unix();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.trim_end().ends_with("ran"), "{answer}");
    // All are closed after the header timeout, then TCP answers again.
    join_all(held.into_iter().map(closed)).await;
    install_crypto_provider();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/livez", server.address);
    wait_until("TCP answers", DEADLINE, async || {
        let answer = http.get(&url).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_tls_handshake_is_counted_and_ends_in_its_time() {
    /// The head of a ClientHello of 512 bytes, of which nothing follows.
    const BEGIN: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01";
    install_crypto_provider();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (cert, key) = (at("api.pem"), at("api.key"));
    let certificate = issue(&cert, &key);
    let tls = format!("cert_file = {cert:?}\nkey_file = {key:?}\n");
    let begun = async |server: &Limited, client: u8| {
        let mut stream = server.connect([127, 0, 0, client]).await;
        // Connections beyond a limit are closed at once.
        drop(stream.write_all(BEGIN).await);
        stream
    };

    let few = format!("{tls}max_connections_per_client = 4\nheader_timeout = '6s'");
    let server = Limited::start(&few);
    let mut held = Vec::new();
    // 127.0.0.1 asked whether the server is ready; those connections may still count.
    for _ in 0..4 {
        held.push(begun(&server, 2).await);
    }
    let waited = closed(begun(&server, 2).await).await;
    assert!(waited < Duration::from_secs(4), "the fifth: {waited:?}");
    let other = begun(&server, 3).await;
    let ends = join_all(held.into_iter().chain([other]).map(closed)).await;
    let early = ends.iter().filter(|end| **end < Duration::from_secs(1));
    assert_eq!(early.count(), 0, "{ends:?}");
    drop(server);

    let server = Limited::start(&tls);
    let mut held = Vec::new();
    for client in 0..520_u32 {
        held.push(begun(&server, 1 + (client % 5) as u8).await);
    }
    let answer = server.run_over_unix();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.trim_end().ends_with("ran"), "{answer}");
    join_all(held.into_iter().map(closed)).await;
    let (http, url) = (
        trusting(&certificate),
        format!("https://{}/livez", server.address),
    );
    wait_until("TLS answers", DEADLINE, async || {
        let answer = http.get(&url).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_and_slow_headers_are_closed_in_their_time() {
    let server = Limited::start("header_timeout = '2s'\nidle_timeout = '4s'");
    // Nothing is sent.
    let silent = server.connect([127, 0, 0, 1]).await;
    // A header that never ends, a byte at a time.
    let (mut read, mut write) = server.connect([127, 0, 0, 1]).await.into_split();
    let slow = tokio::spawn(async move {
        drop(write.write_all(b"GET /livez HTTP/1.1\r\nx: ").await);
        let mut every = tokio::time::interval(Duration::from_millis(100));
        loop {
            every.tick().await;
            if write.write_all(b"x").await.is_err() {
                return;
            }
        }
    });
    let end = async {
        let mut bytes = Vec::new();
        drop(read.read_to_end(&mut bytes).await);
        slow.abort();
    };
    tokio::time::timeout(DEADLINE, end)
        .await
        .expect("slow header");
    closed(silent).await;
    // One response, then nothing.
    let mut idle = server.connect([127, 0, 0, 1]).await;
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let waited = closed(idle).await;
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
}

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

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Opening of an HTTP/2 connection with a flow-control window of this size.
fn preface(window: u32) -> Vec<u8> {
    let settings = [&4_u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
    [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(4, 0, 0, &settings),
    ]
    .concat()
}

/// `GET` of a path, without a token.
fn get_headers(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    [&[0x82, 0x86, 0x01, 1, b'x', 0x04, length], path.as_bytes()].concat()
}

/// Holds a connection open: sends `first`, then `more` every 200 ms, and reads responses or not. Returns after how long the
/// server closed it.
async fn held(
    server: &Limited,
    first: Vec<u8>,
    more: Vec<u8>,
    reads: bool,
) -> Result<Duration, &'static str> {
    let start = Instant::now();
    let (mut read, mut write) = server.connect([127, 0, 0, 1]).await.into_split();
    let mut writer = tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(200));
        drop(write.write_all(&first).await);
        loop {
            every.tick().await;
            if write.write_all(&more).await.is_err() {
                return;
            }
        }
    });
    if !reads {
        // Without a read only a write notices it.
        let ended = tokio::time::timeout(DEADLINE, &mut writer).await;
        writer.abort();
        return ended
            .map(|_| start.elapsed())
            .map_err(|_| "it is still open");
    }
    let mut bytes = vec![0; 65_536];
    let end = async {
        while let Ok(1..) = read.read(&mut bytes).await {}
        start.elapsed()
    };
    let ended = tokio::time::timeout(DEADLINE, end).await;
    writer.abort();
    ended.map_err(|_| "it is still open")
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_requests_and_responses_are_closed() {
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let server = Limited::start("header_timeout = '2s'\nidle_timeout = '4s'\nstall_timeout = '3s'");
    let with_token = |method: &str, path: &str, more: &str| {
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{more}\r\n"
        );
        text.into_bytes()
    };
    let http2 = |window: u32, flags: u8, path: &str| {
        [preface(window), frame(1, flags, 1, &get_headers(path))].concat()
    };
    let ping = frame(6, 0, 0, &[0; 8]);
    let cases = [
        (
            "HTTP/2, no room for the answer",
            http2(0, END_STREAM | END_HEADERS, "/v1/whoami"),
            ping.clone(),
            true,
        ),
        (
            "HTTP/2, headers that never end",
            http2(65_535, END_STREAM, "/livez"),
            frame(9, 0, 1, &[0x00, 1, b'a', 1, b'b']),
            true,
        ),
        ("HTTP/2, pings and no request", preface(65_535), ping, true),
        (
            "a body a byte at a time",
            with_token("POST", "/v1/read", "content-length: 100000\r\n"),
            b"x".to_vec(),
            true,
        ),
        (
            "a body that nobody will read",
            b"POST /v1/read HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n".to_vec(),
            b"x".to_vec(),
            true,
        ),
        (
            "an answer that is not taken",
            with_token("GET", "/v1/endless", ""),
            b"x".to_vec(),
            false,
        ),
    ];
    let clients = cases.map(|(name, first, more, reads)| {
        let server = &server;
        async move { (name, held(server, first, more, reads).await) }
    });
    for (name, ended) in join_all(clients).await {
        println!("{name}: {ended:?}");
        assert!(ended.is_ok(), "{name}: {ended:?}");
    }
    assert!(server.run_over_unix().contains("ran"));
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_receive_the_whole_response() {
    let server = Limited::start("idle_timeout = '2s'\nstall_timeout = '8s'");
    let mut stream = server.connect([127, 0, 0, 1]).await;
    let request = format!(
        "GET /v1/large HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = vec![0; 1 << 20];
    let mut taken = 0;
    let mut every = tokio::time::interval(Duration::from_millis(300));
    loop {
        every.tick().await;
        match stream.read(&mut bytes).await.unwrap() {
            0 => break,
            some => taken += some,
        }
    }
    assert!(taken > LARGE, "{taken}");
}

/// Addresses of two networks, in a network namespace of their own.
const NETWORK: &str = "ip link set lo up && for at in 1::1 1::2 1:0:ffff::1 2::1; do ip -6 addr add 2001:db8:0:$at/64 dev lo nodad || exit 1; done; \
    exec \"$0\" --exact connections::in_a_network_of_ipv6 --ignored --nocapture";

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
