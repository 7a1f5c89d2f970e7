//! Answers of the server to a message. An error concerns either that message or all messages.

use std::io;
use std::net::SocketAddr;

use serde::Deserialize;

/// JetStream error codes for a message that is too large (nats-server, `server/errors.json`: JSStreamMessageExceedsMaximumErr,
/// JSStreamHeaderExceedsMaximumErr).
const TOO_LARGE: &[u16] = &[10054, 10097];

/// Why a doorbell was not delivered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer in time.
    #[error("no answer from NATS within the deadline")]
    Deadline,
    /// The connection failed.
    #[error("NATS connection: {0}")]
    Io(#[source] io::Error),
    /// The server refused.
    #[error("NATS refused: {0}")]
    Refused(String),
    /// The message is larger than the server or its stream accepts.
    #[error(
        "NATS refused a doorbell of {size} bytes: {reason}; raise max_payload of nats-server or max_msg_size of the stream"
    )]
    TooLarge {
        /// Size of the body, in bytes.
        size: usize,
        /// Text of the server's error.
        reason: String,
    },
    /// The user may not publish to this subject.
    #[error(
        "this NATS user may not publish to {subject}: grant the permission, or correct `cluster` in hook.toml"
    )]
    Forbidden {
        /// The subject.
        subject: String,
    },
    /// The socket belongs to another user than the configured server's.
    #[error("the socket at {address} belongs to uid {uid}, not to server_uid: no password sent")]
    ForeignServer {
        /// Address of the server.
        address: SocketAddr,
        /// Uid of the socket's owner.
        uid: u32,
    },
    /// The peer does not speak the protocol.
    #[error("not a NATS server: {0}")]
    Protocol(&'static str),
}

impl Error {
    /// True if only this message is refused and others may be delivered. False if NATS accepts no message now.
    pub const fn is_of_one_message(&self) -> bool {
        match self {
            Self::TooLarge { .. } | Self::Forbidden { .. } => true,
            Self::Deadline
            | Self::Io(_)
            | Self::Refused(_)
            | Self::ForeignServer { .. }
            | Self::Protocol(_) => false,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Deadline,
            _ => Self::Io(error),
        }
    }
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
    err_code: u16,
    #[serde(default)]
    description: String,
}

/// Evaluates JetStream's answer to a message of `size` bytes.
pub(super) fn answer(status: Option<&str>, body: &[u8], size: usize) -> Result<u64, Error> {
    if let Some(status) = status {
        // 503: no responders, so no stream stores the subject.
        let reason = if status.starts_with("503") {
            "no stream stores doorbells yet; start slurm-mesh once"
        } else {
            status
        };
        return Err(Error::Refused(reason.to_owned()));
    }
    let ack: Ack =
        serde_json::from_slice(body).map_err(|_| Error::Protocol("no acknowledgement"))?;
    match ack.error {
        Some(error) if TOO_LARGE.contains(&error.err_code) => Err(Error::TooLarge {
            size,
            reason: error.description,
        }),
        Some(error) => Err(Error::Refused(error.description)),
        None if ack.stream.is_empty() => Err(Error::Protocol("no acknowledgement")),
        None => Ok(ack.seq),
    }
}

/// The subject for which the server denied publishing, if the `-ERR` line reports that. The connection stays open after it.
/// nats-server, `server/client.go`, pubPermissionViolation: `Permissions Violation for Publish to "SUBJECT"`.
pub(super) fn forbidden(reason: &str) -> Option<String> {
    let rest = reason.strip_prefix("Permissions Violation for Publish to ")?;
    Some(rest.trim_matches('"').to_owned())
}
