//! Connections of clients without a token leave room for everything else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use futures_util::future::join_all;
use mesh_runtime::install_tls;
use mesh_testkit::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{DEADLINE, Server};

const TOKEN: &str = "a token of enough characters";
const CONFIG: &str = "MESH_TEST_CONNECTIONS_API";

/// A server in a process of its own, which may open 512 files.
struct Limited {
    child: Child,
    address: SocketAddr,
    socket: String,
}

impl Limited {
    fn start(api: &str) -> Self {
        let mut child = Command::new("prlimit")
            .arg("--nofile=512:512")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "connections::serves", "--ignored", "--nocapture"])
            .env(CONFIG, api)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("prlimit, of the package util-linux");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .map(|line| line.unwrap())
            .find(|line| line.contains("serving "))
            .expect("the server says where it serves");
        let mut words = line.split("serving ").nth(1).unwrap().split(' ');
        Self {
            child,
            address: words.next().unwrap().parse().unwrap(),
            socket: words.next().unwrap().to_owned(),
        }
    }

    /// What the Unix socket answers, and how it spawned a process.
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

    async fn connect(&self, from: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(IpAddr::from(from), 0)).unwrap();
        socket.connect(self.address).await.unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Its standard input ends with it, so it also ends by itself.
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
    let routes = Router::new().route("/v1/run", get(run));
    let api = std::env::var(CONFIG).unwrap_or_default();
    let server = Server::start_with(&format!("token_file = {file:?}\n{api}"), "", routes).await;
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

/// Runs a command as the collectors of Slurm's do, with pipes.
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

/// Waits until the server has closed it; how long that took.
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
    install_tls();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/livez", server.address);
    wait_until("TCP answers", DEADLINE, async || {
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
    // An answer, then nothing.
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
    // Who is not trusted stays one client, whatever they say.
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
