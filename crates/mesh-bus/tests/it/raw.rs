//! A client that says exactly what a test says, and sees every answer of the server.

use mesh_testkit::NatsServer;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

pub(crate) struct Raw(BufReader<TcpStream>);

/// What the server sent.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) messages: Vec<RawMessage>,
    pub(crate) errors: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct RawMessage {
    pub(crate) subject: String,
    /// Without headers.
    pub(crate) body: String,
}

impl Raw {
    /// Connects as a user whose password is its name.
    pub(crate) async fn connect(nats: &NatsServer, user: &str) -> Self {
        let address = nats.url().replace("nats://", "");
        let mut client = Self(BufReader::new(TcpStream::connect(address).await.unwrap()));
        let hello = format!(
            "CONNECT {{\"user\":\"{user}\",\"pass\":\"{user}\",\"verbose\":false,\"headers\":true}}\r\n"
        );
        client.send(&hello).await;
        let refused = client.settled().await.errors;
        assert!(refused.is_empty(), "{user}: {refused:?}");
        client
    }

    async fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn subscribe(&mut self, subject: &str, id: usize) {
        self.send(&format!("SUB {subject} {id}\r\n")).await;
    }

    /// Publishes, with a subject for the answer unless that is empty.
    pub(crate) async fn publish(&mut self, subject: &str, answer: &str, body: &str) {
        let size = body.len();
        self.send(&format!("PUB {subject} {answer} {size}\r\n{body}\r\n"))
            .await;
    }

    /// Waits until the server has handled all that was sent, and this client has received all that was sent to it before.
    pub(crate) async fn settled(&mut self) -> Received {
        self.send("PING\r\n").await;
        let mut received = Received::default();
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).await.unwrap();
            assert_ne!(read, 0, "the server closed the connection");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["PONG"] => return received,
                ["PING"] => self.send("PONG\r\n").await,
                ["MSG", subject, .., size] => {
                    let message = self.message(subject, 0, size).await;
                    received.messages.push(message);
                }
                ["HMSG", subject, .., headers, size] => {
                    let headers = headers.parse().unwrap();
                    let message = self.message(subject, headers, size).await;
                    received.messages.push(message);
                }
                ["-ERR", ..] => received.errors.push(line),
                _ => assert!(line.starts_with("INFO"), "{line}"),
            }
        }
    }

    async fn message(&mut self, subject: &str, headers: usize, size: &str) -> RawMessage {
        let size: usize = size.parse().unwrap();
        let mut bytes = vec![0; size + 2];
        self.0.read_exact(&mut bytes).await.unwrap();
        RawMessage {
            subject: subject.to_owned(),
            body: String::from_utf8_lossy(&bytes[headers..size]).into_owned(),
        }
    }
}
