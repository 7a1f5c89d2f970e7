//! Reads protocol lines and payloads from a socket until a deadline.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::Error;

/// Longest protocol line or payload accepted from the server, in bytes. INFO of a large cluster is a few KiB.
const MAX_FRAME: usize = 1 << 20;

/// A protocol message from the server.
pub(super) enum Frame {
    Message {
        subject: String,
        status: Option<String>,
        body: Vec<u8>,
    },
    Ping,
    Error(String),
    Other(String),
}

/// A socket, its unread input, and its deadline.
#[derive(Debug)]
pub(super) struct Wire {
    pub stream: TcpStream,
    pub received: Vec<u8>,
    pub deadline: Instant,
}

impl Wire {
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream
            .set_write_timeout(Some(remaining(self.deadline)?))?;
        Ok(self.stream.write_all(bytes)?)
    }

    /// Reads the next frame.
    pub fn frame(&mut self) -> Result<Frame, Error> {
        let line = self.line()?;
        let mut fields = line.split(' ').filter(|field| !field.is_empty());
        let size = |field: Option<&str>| {
            field
                .and_then(|field| field.parse::<usize>().ok())
                .filter(|size| *size <= MAX_FRAME)
                .ok_or(Error::Protocol("bad size"))
        };
        match fields.next().unwrap_or_default() {
            "PING" => Ok(Frame::Ping),
            "-ERR" => Ok(Frame::Error(
                line.trim_start_matches("-ERR")
                    .trim()
                    .trim_matches('\'')
                    .to_owned(),
            )),
            "MSG" => {
                let subject = fields.next().unwrap_or_default().to_owned();
                let total = size(fields.next_back())?;
                let body = self.exactly(total)?;
                Ok(Frame::Message {
                    subject,
                    status: None,
                    body,
                })
            }
            "HMSG" => {
                let subject = fields.next().unwrap_or_default().to_owned();
                let total = size(fields.next_back())?;
                let headers = size(fields.next_back())?.min(total);
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

/// Time left until the deadline.
pub(super) fn remaining(deadline: Instant) -> Result<Duration, Error> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The system takes a timeout of zero for no timeout.
    if left.is_zero() {
        Err(Error::Deadline)
    } else {
        Ok(left)
    }
}
