//! Connections of clients without a token leave room for everything else.

mod clients;
mod stalls;

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
