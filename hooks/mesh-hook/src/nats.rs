//! Just enough of the NATS client protocol to publish to JetStream and wait for the acknowledgement.
//!
//! A connection lives for one call of a hook: no reconnecting, no TLS yet, user and password only. Protocol: NATS documentation,
//! "Client Protocol"; an acknowledgement is a JSON answer on the message's reply subject.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Deserialize;
use uuid::Uuid;

use crate::listener;

/// Longest protocol line or payload that is accepted from the server. INFO of a large cluster is a few KiB.
const MAX_FRAME: usize = 1 << 20;

/// Why a doorbell was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time.
    #[error("no answer from nats within the deadline")]
    Deadline,
    /// The connection failed.
    #[error("talk to nats: {0}")]
    Io(#[source] io::Error),
    /// The server said no.
    #[error("nats refused: {0}")]
    Refused(String),
    /// Somebody else listens where our server should.
    #[error(
        "the socket at {address} belongs to uid {uid}, not to server_uid: no password goes there"
    )]
    Stranger {
        /// Where.
        address: SocketAddr,
        /// Whose it is.
        uid: u32,
    },
    /// The peer does not speak the protocol.
    #[error("not a nats server: {0}")]
    Protocol(&'static str),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Deadline,
            _ => Self::Io(error),
        }
    }
}

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Subject.
    pub subject: &'a str,
    /// `Nats-Msg-Id`, for JetStream's deduplication.
    pub id: &'a str,
    /// Body.
    pub body: &'a [u8],
}

/// A connection that is logged in.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    deadline: Instant,
    inbox: String,
    sent: u64,
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    headers: bool,
    #[serde(default)]
    tls_required: bool,
}

#[derive(Deserialize)]
struct Ack {
    error: Option<AckError>,
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
}

#[derive(Deserialize)]
struct AckError {
    #[serde(default)]
    description: String,
}

enum Frame {
    Message {
        subject: String,
        status: Option<String>,
        body: Vec<u8>,
    },
    Ping,
    Error(String),
    Other(String),
}

impl Connection {
    /// Connects and logs in; on this machine only to a server of `server_uid`, if that is given. All reads and writes of the
    /// connection end at the deadline.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, or is none.
    pub fn open(
        address: SocketAddr,
        login: Option<(&str, &str)>,
        server_uid: Option<u32>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let stream = TcpStream::connect_timeout(&address, remaining(deadline)?)?;
        if let Some(server_uid) = server_uid.filter(|_| address.ip().to_canonical().is_loopback()) {
            verify(address, server_uid)?;
        }
        stream.set_nodelay(true)?;
        let inbox = format!(
            "{}.{}",
            mesh_events::catalogue::inbox_prefix("hook"),
            Uuid::now_v7().simple()
        );
        let mut connection = Self {
            stream,
            received: Vec::new(),
            deadline,
            inbox,
            sent: 0,
        };
        let Frame::Other(line) = connection.frame()? else {
            return Err(Error::Protocol("no INFO"));
        };
        let info: Info = line
            .strip_prefix("INFO ")
            .and_then(|json| serde_json::from_str(json).ok())
            .ok_or(Error::Protocol("no INFO"))?;
        if info.tls_required {
            return Err(Error::Refused(
                "the server demands tls, which the hook does not speak yet".into(),
            ));
        }
        if !info.headers {
            return Err(Error::Protocol(
                "it knows no headers; 2.12 or newer is needed",
            ));
        }
        let mut hello = serde_json::json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "protocol": 1,
            "lang": "rust", "version": env!("CARGO_PKG_VERSION"), "name": "mesh-hook",
        });
        if let Some((user, password)) = login {
            hello["user"] = user.into();
            hello["pass"] = password.into();
        }
        let inbox = &connection.inbox;
        let greeting = format!("CONNECT {hello}\r\nSUB {inbox}.* 1\r\n");
        connection.write(greeting.as_bytes())?;
        Ok(connection)
    }

    /// Moves the deadline of the connection.
    pub const fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Publishes all messages at once and waits until every one is answered: per message its number in the stream, in their order.
    ///
    /// # Errors
    /// If the connection fails or the deadline passes; then nothing is known of any of them.
    pub fn publish(&mut self, messages: &[Outgoing<'_>]) -> Result<Vec<Result<u64, Error>>, Error> {
        let first = self.sent;
        let mut wire = Vec::new();
        for message in messages {
            let headers = headers(message.id);
            let (subject, reply) = (message.subject, format!("{}.{}", self.inbox, self.sent));
            let head = format!(
                "HPUB {subject} {reply} {} {}\r\n{headers}",
                headers.len(),
                headers.len() + message.body.len()
            );
            wire.extend_from_slice(head.as_bytes());
            wire.extend_from_slice(message.body);
            wire.extend_from_slice(b"\r\n");
            self.sent += 1;
        }
        self.write(&wire)?;
        let mut results: Vec<Option<Result<u64, Error>>> = messages.iter().map(|_| None).collect();
        while results.iter().any(Option::is_none) {
            let (number, status, body) = self.reply()?;
            let slot = number
                .checked_sub(first)
                .and_then(|slot| results.get_mut(usize::try_from(slot).ok()?));
            if let Some(slot) = slot {
                *slot = Some(answer(status.as_deref(), &body));
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Asks something, and waits for the answer.
    ///
    /// # Errors
    /// If the connection fails, the deadline passes, the user may not ask, or nobody answers.
    pub fn request(&mut self, subject: &str, body: &[u8]) -> Result<Vec<u8>, Error> {
        let sent = self.sent;
        self.sent += 1;
        let mut wire =
            format!("PUB {subject} {}.{sent} {}\r\n", self.inbox, body.len()).into_bytes();
        wire.extend_from_slice(body);
        wire.extend_from_slice(b"\r\n");
        self.write(&wire)?;
        loop {
            let (number, status, body) = self.reply()?;
            match status {
                _ if number != sent => {}
                Some(status) => return Err(Error::Refused(status)),
                None => return Ok(body),
            }
        }
    }

    /// The next answer: to which message, with which status, what it says.
    fn reply(&mut self) -> Result<(u64, Option<String>, Vec<u8>), Error> {
        loop {
            match self.frame()? {
                Frame::Message {
                    subject,
                    status,
                    body,
                } => {
                    let number = subject.rsplit('.').next();
                    if let Some(number) = number.and_then(|number| number.parse().ok()) {
                        return Ok((number, status, body));
                    }
                }
                Frame::Ping => self.write(b"PONG\r\n")?,
                Frame::Error(reason) => return Err(Error::Refused(reason)),
                Frame::Other(_) => {}
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream
            .set_write_timeout(Some(remaining(self.deadline)?))?;
        Ok(self.stream.write_all(bytes)?)
    }

    fn frame(&mut self) -> Result<Frame, Error> {
        let line = self.line()?;
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let size = |word: Option<&str>| {
            word.and_then(|word| word.parse::<usize>().ok())
                .filter(|size| *size <= MAX_FRAME)
                .ok_or(Error::Protocol("bad size"))
        };
        match words.next().unwrap_or_default() {
            "PING" => Ok(Frame::Ping),
            "-ERR" => Ok(Frame::Error(
                line.trim_start_matches("-ERR")
                    .trim()
                    .trim_matches('\'')
                    .to_owned(),
            )),
            "MSG" => {
                let subject = words.next().unwrap_or_default().to_owned();
                let total = size(words.next_back())?;
                let body = self.exactly(total)?;
                Ok(Frame::Message {
                    subject,
                    status: None,
                    body,
                })
            }
            "HMSG" => {
                let subject = words.next().unwrap_or_default().to_owned();
                let total = size(words.next_back())?;
                let headers = size(words.next_back())?.min(total);
                let mut body = self.exactly(total)?;
                let rest = body.split_off(headers);
                let head = String::from_utf8_lossy(&body);
                let status = head
                    .strip_prefix("NATS/1.0 ")
                    .and_then(|text| text.lines().next())
                    .map(str::to_owned);
                Ok(Frame::Message {
                    subject,
                    status,
                    body: rest,
                })
            }
            _ => Ok(Frame::Other(line)),
        }
    }

    fn line(&mut self) -> Result<String, Error> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.received[..end]).into_owned();
                self.received.drain(..end + 2);
                return Ok(line);
            }
            self.fill()?;
        }
    }

    fn exactly(&mut self, size: usize) -> Result<Vec<u8>, Error> {
        while self.received.len() < size + 2 {
            self.fill()?;
        }
        let body = self.received[..size].to_vec();
        self.received.drain(..size + 2);
        Ok(body)
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.received.len() > 2 * MAX_FRAME {
            return Err(Error::Protocol("line too long"));
        }
        let mut chunk = [0; 4096];
        self.stream
            .set_read_timeout(Some(remaining(self.deadline)?))?;
        match self.stream.read(&mut chunk)? {
            0 => Err(Error::Io(io::ErrorKind::UnexpectedEof.into())),
            read => {
                self.received.extend_from_slice(&chunk[..read]);
                Ok(())
            }
        }
    }
}

/// Looks at the socket once it has taken the connection: whose it is now, decides.
fn verify(address: SocketAddr, server_uid: u32) -> Result<(), Error> {
    match listener::owner(address)? {
        Some(uid) if uid == server_uid => Ok(()),
        Some(uid) => Err(Error::Stranger { address, uid }),
        None => Err(Error::Io(io::ErrorKind::ConnectionReset.into())),
    }
}

/// Headers of a message: its id for JetStream, and a trace context (W3C) made from it, to which ingest's trace of the fact is linked.
/// Nobody records the hook's own span, so it is not flagged as sampled.
fn headers(id: &str) -> String {
    let trace = Uuid::parse_str(id).map_or_else(
        |_| String::new(),
        |id| {
            let (trace, span) = (id.as_u128(), id.as_u64_pair().1);
            format!("traceparent: 00-{trace:032x}-{span:016x}-00\r\n")
        },
    );
    format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n{trace}\r\n")
}

/// What JetStream says to a message.
fn answer(status: Option<&str>, body: &[u8]) -> Result<u64, Error> {
    if let Some(status) = status {
        // 503: nobody listens, so no stream keeps the subject.
        let reason = if status.starts_with("503") {
            "no stream keeps doorbells yet; start slurm-mesh once"
        } else {
            status
        };
        return Err(Error::Refused(reason.to_owned()));
    }
    let ack: Ack =
        serde_json::from_slice(body).map_err(|_| Error::Protocol("no acknowledgement"))?;
    match ack.error {
        Some(error) => Err(Error::Refused(error.description)),
        None if ack.stream.is_empty() => Err(Error::Protocol("no acknowledgement")),
        None => Ok(ack.seq),
    }
}

fn remaining(deadline: Instant) -> Result<Duration, Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A time-out of zero means none to the system.
    if left.is_zero() {
        Err(Error::Deadline)
    } else {
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that says something and then nothing.
    fn says(text: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(text).unwrap();
            thread::sleep(Duration::from_secs(2));
        });
        address
    }

    fn deliver(address: SocketAddr) -> (Error, Duration) {
        let start = Instant::now();
        let deadline = start + Duration::from_millis(80);
        let outcome = Connection::open(address, None, None, deadline).and_then(|mut connection| {
            connection.publish(&[Outgoing {
                subject: "s",
                id: "i",
                body: b"b",
            }])
        });
        (outcome.unwrap_err(), start.elapsed())
    }

    #[test]
    fn a_server_that_is_silent_costs_the_deadline_and_no_more() {
        for text in [&b""[..], b"INFO {\"headers\":true}\r\n", b"INFO {"] {
            let (error, took) = deliver(says(text));
            assert!(matches!(error, Error::Deadline), "{error}");
            assert!(took < Duration::from_secs(5), "{took:?}");
        }
    }

    #[test]
    fn what_is_no_nats_server_is_recognised() {
        for text in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"INFO nonsense\r\n",
            b"\xff\xfe\r\n",
            b"INFO {}\r\n",
        ] {
            let (error, _) = deliver(says(text));
            assert!(matches!(error, Error::Protocol(_)), "{error}");
        }
        let (error, _) = deliver(says(
            b"INFO {\"headers\":true}\r\nHMSG a 1 99999999999 99999999999\r\n",
        ));
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        let (error, _) = deliver(says(
            b"INFO {\"headers\":true}\r\n-ERR 'Authorization Violation'\r\n",
        ));
        assert!(matches!(error, Error::Refused(reason) if reason == "Authorization Violation"));
    }

    #[test]
    fn a_trace_context_is_the_doorbells_id() {
        let id = "01934d5e-8a00-7abc-8def-0123456789ab";
        assert_eq!(
            headers(id),
            format!(
                "NATS/1.0\r\nNats-Msg-Id: {id}\r\ntraceparent: 00-01934d5e8a007abc8def0123456789ab-8def0123456789ab-00\r\n\r\n"
            )
        );
        assert_eq!(headers("x"), "NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n");
    }

    #[test]
    fn an_acknowledgement_is_an_answer_that_names_the_stream() {
        assert_eq!(
            answer(None, br#"{"stream":"MESH_HOOKS","seq":7}"#).unwrap(),
            7
        );
        assert!(answer(None, br#"{"stream":"MESH_HOOKS","seq":1,"duplicate":true}"#).is_ok());
        assert!(
            answer(
                None,
                br#"{"error":{"code":503,"description":"insufficient resources"}}"#
            )
            .is_err()
        );
        assert!(answer(None, b"{}").is_err());
        assert!(answer(Some("503"), b"").is_err());
    }
}
