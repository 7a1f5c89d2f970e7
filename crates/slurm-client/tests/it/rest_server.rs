//! A scripted slurmrestd: it answers as a test defines.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use slurm_client::{Config, RestUrl, Slurm, Source};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UnixListener,
};

/// Computes the reply from a request's head, in lower case.
pub type Answer = Arc<dyn Fn(&str) -> Reply + Send + Sync>;

/// The server's reaction to a request.
pub enum Reply {
    /// An answer.
    Status(u16, Vec<u8>),
    /// Closes the connection before the announced length is sent.
    Cut(Vec<u8>),
    /// Headers and half the body, then silence.
    Hang(Vec<u8>),
}

/// Requests that arrived.
#[derive(Clone, Default)]
pub struct Seen(pub Arc<Mutex<Vec<String>>>);

impl Seen {
    pub fn count(&self, path: &str) -> usize {
        let seen = self.0.lock().unwrap();
        seen.iter().filter(|head| head.contains(path)).count()
    }
}

pub fn capture(path: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/captures", path]
        .iter()
        .collect();
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn ok(path: &str) -> Reply {
    Reply::Status(200, capture(path))
}

/// Makes a reply.
pub type Make = fn() -> Reply;

pub fn text(status: u16, body: &str) -> Reply {
    Reply::Status(status, body.as_bytes().to_vec())
}

/// The path in the first line.
pub fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

pub async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Answer, seen: Seen) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        seen.0.lock().unwrap().push(head.clone());
        let (status, body, keep_alive) = match answer(&head) {
            Reply::Status(status, body) => (status, body, None),
            Reply::Cut(body) | Reply::Hang(body) if body.is_empty() => return,
            Reply::Cut(body) => (200, body, Some(false)),
            Reply::Hang(body) => (200, body, Some(true)),
        };
        let header = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let sent = if keep_alive.is_some() {
            body.len() / 2
        } else {
            body.len()
        };
        let message = [header.as_bytes(), &body[..sent]].concat();
        if stream.write_all(&message).await.is_err() {
            return;
        }
        match keep_alive {
            None => {}
            Some(false) => return,
            Some(true) => std::future::pending().await,
        }
    }
}

/// A server on a Unix socket, and a client of it.
pub fn server(
    dir: &Path,
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> (Slurm, Seen, Config) {
    let socket = dir.join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let (seen, answer): (Seen, Answer) = (Seen::default(), Arc::new(answer));
    let of_server = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, Arc::clone(&answer), of_server.clone()));
        }
    });
    let config = Config {
        source: Source::Rest,
        rest_url: RestUrl::Unix(socket),
        command_timeout: Duration::from_secs(20),
        ..Config::default()
    };
    (Slurm::new(config.clone()), seen, config)
}
