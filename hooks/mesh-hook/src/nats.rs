//! Just enough of the NATS client protocol to publish to JetStream and wait for the acknowledgement.
//!
//! A connection lives for one call of a hook: no reconnecting, no TLS yet, only user and password. Protocol: NATS documentation,
//! "Client Protocol". An acknowledgement is a JSON message on the reply subject.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use serde::Deserialize;
use uuid::Uuid;

use crate::listener;

mod answer;
#[cfg(test)]
mod tests;
mod wire;

pub use answer::Error;
use answer::{answer, forbidden};
use wire::{Frame, Wire, remaining};

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

/// An authenticated connection.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    inbox: String,
    sent: u64,
    /// Largest message the server accepts, in bytes.
    max_payload: usize,
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    headers: bool,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    max_payload: usize,
}

/// Answer of the server to a published message.
enum Reply {
    To {
        number: u64,
        status: Option<String>,
        body: Vec<u8>,
    },
    Forbidden(String),
}

impl Connection {
    /// Connects and logs in. If `server_uid` is given, a server on this machine must run as that user. All reads and writes of the
    /// connection end at the deadline.
    ///
    /// # Errors
    /// If the server is unreachable, refuses, or is not a NATS server.
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
            wire: Wire {
                stream,
                received: Vec::new(),
                deadline,
            },
            inbox,
            sent: 0,
            max_payload: usize::MAX,
        };
        let Frame::Other(line) = connection.wire.frame()? else {
            return Err(Error::Protocol("no INFO"));
        };
        let info: Info = line
            .strip_prefix("INFO ")
            .and_then(|json| serde_json::from_str(json).ok())
            .ok_or(Error::Protocol("no INFO"))?;
        if info.tls_required {
            return Err(Error::Refused(
                "the server requires TLS, which the hook does not support".into(),
            ));
        }
        if !info.headers {
            return Err(Error::Protocol(
                "it does not support headers; nats-server 2.12 or newer is required",
            ));
        }
        if info.max_payload > 0 {
            connection.max_payload = info.max_payload;
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
        connection.wire.write(greeting.as_bytes())?;
        Ok(connection)
    }

    /// Moves the deadline of the connection.
    pub const fn set_deadline(&mut self, deadline: Instant) {
        self.wire.deadline = deadline;
    }

    /// Publishes all messages at once and waits for every answer. Returns the stream sequence of each message, in the order given.
    ///
    /// # Errors
    /// If the connection fails or the deadline passes. The fate of all the messages is then unknown.
    pub fn publish(&mut self, messages: &[Outgoing<'_>]) -> Result<Vec<Result<u64, Error>>, Error> {
        let first = self.sent;
        let mut wire = Vec::new();
        let mut results: Vec<Option<Result<u64, Error>>> = Vec::new();
        for message in messages {
            let headers = headers(message.id);
            let (size, number) = (headers.len() + message.body.len(), self.sent);
            self.sent += 1;
            // The server would close the connection, and the answers to the other messages would be lost.
            if size > self.max_payload {
                results.push(Some(Err(Error::TooLarge {
                    size: message.body.len(),
                    reason: format!("its max_payload is {}", self.max_payload),
                })));
                continue;
            }
            let head = format!(
                "HPUB {} {}.{number} {} {size}\r\n{headers}",
                message.subject,
                self.inbox,
                headers.len(),
            );
            wire.extend_from_slice(head.as_bytes());
            wire.extend_from_slice(message.body);
            wire.extend_from_slice(b"\r\n");
            results.push(None);
        }
        self.wire.write(&wire)?;
        while results.iter().any(Option::is_none) {
            match self.reply()? {
                Reply::To {
                    number,
                    status,
                    body,
                } => {
                    let slot = number
                        .checked_sub(first)
                        .and_then(|slot| usize::try_from(slot).ok())
                        .filter(|slot| *slot < messages.len());
                    if let Some(slot) = slot {
                        let size = messages[slot].body.len();
                        results[slot] = Some(answer(status.as_deref(), &body, size));
                    }
                }
                Reply::Forbidden(subject) => {
                    for (result, message) in results.iter_mut().zip(messages) {
                        if message.subject == subject {
                            *result = Some(Err(Error::Forbidden {
                                subject: subject.clone(),
                            }));
                        }
                    }
                }
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// If the connection fails, the deadline passes, the user may not publish the request, or there is no responder.
    pub fn request(&mut self, subject: &str, body: &[u8]) -> Result<Vec<u8>, Error> {
        let sent = self.sent;
        self.sent += 1;
        let mut wire =
            format!("PUB {subject} {}.{sent} {}\r\n", self.inbox, body.len()).into_bytes();
        wire.extend_from_slice(body);
        wire.extend_from_slice(b"\r\n");
        self.wire.write(&wire)?;
        loop {
            match self.reply()? {
                Reply::To { number, .. } if number != sent => {}
                Reply::To {
                    status: Some(status),
                    ..
                } => return Err(Error::Refused(status)),
                Reply::To { body, .. } => return Ok(body),
                Reply::Forbidden(subject) => return Err(Error::Forbidden { subject }),
            }
        }
    }

    /// Reads the next answer.
    fn reply(&mut self) -> Result<Reply, Error> {
        loop {
            match self.wire.frame()? {
                Frame::Message {
                    subject,
                    status,
                    body,
                } => {
                    let number = subject.rsplit('.').next();
                    if let Some(number) = number.and_then(|number| number.parse().ok()) {
                        return Ok(Reply::To {
                            number,
                            status,
                            body,
                        });
                    }
                }
                Frame::Ping => self.wire.write(b"PONG\r\n")?,
                Frame::Error(reason) => {
                    return match forbidden(&reason) {
                        Some(subject) => Ok(Reply::Forbidden(subject)),
                        None => Err(Error::Refused(reason)),
                    };
                }
                Frame::Other(_) => {}
            }
        }
    }
}

/// Checks the owner of the socket after connecting, because only the current owner counts.
fn verify(address: SocketAddr, server_uid: u32) -> Result<(), Error> {
    match listener::owner(address)? {
        Some(uid) if uid == server_uid => Ok(()),
        Some(uid) => Err(Error::ForeignServer { address, uid }),
        None => Err(Error::Io(io::ErrorKind::ConnectionReset.into())),
    }
}

/// Headers of a message: its id for JetStream, and a W3C trace context derived from it, to which ingest links the trace of the event.
/// The hook's own span is not recorded, so the context is not flagged as sampled.
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
