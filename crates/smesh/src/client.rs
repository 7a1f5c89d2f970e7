//! Client of the API over a Unix socket (the caller is identified by uid) or TCP (with a token).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;

use futures_util::Stream;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};

use crate::error::Error;

/// Address of the API.
#[derive(Clone, Debug)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP, with a token.
    Tcp {
        /// `host:port`.
        authority: String,
        /// Bearer token.
        token: SecretString,
    },
}

impl Address {
    /// Parses an `http://` address.
    ///
    /// # Errors
    /// If it is not one.
    pub fn tcp(url: &str, token: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::Usage(format!(
                "--url {url}: not an address such as http://login1:8686"
            ))
        };
        let parsed = url::Url::parse(url).map_err(|_| wrong())?;
        if parsed.scheme() == "https" {
            return Err(Error::Usage(format!(
                "--url {url}: https is not spoken yet; use a Unix socket, or http over an ssh tunnel"
            )));
        }
        let host = parsed
            .host_str()
            .filter(|_| parsed.scheme() == "http")
            .ok_or_else(wrong)?;
        Ok(Self::Tcp {
            authority: format!("{host}:{}", parsed.port_or_known_default().unwrap_or(80)),
            token: token.into(),
        })
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { authority, .. } => write!(f, "http://{authority}"),
        }
    }
}

/// Client of the API. Opens one connection per request, because commands make few.
#[derive(Clone, Debug)]
pub struct Client {
    address: Address,
}

/// Query parameters: names and values, encoded when the request is sent.
pub type Query = Vec<(&'static str, String)>;

/// Readiness of the services, by name.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// Conditions that keep services from being ready. Empty if all are ready.
    pub problems: BTreeMap<String, String>,
    /// Notes for the operator.
    pub notes: BTreeMap<String, String>,
}

/// A document received in parts.
#[derive(Debug)]
pub struct Download {
    client: Client,
    body: Incoming,
}

impl Download {
    /// Receives the next part. `None` at the proper end.
    ///
    /// # Errors
    /// If the connection ends early.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.client.unreachable(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

/// Stream of ledger entries as they are appended.
pub type Entries = Pin<Box<dyn Stream<Item = Result<Value, Error>> + Send>>;

trait Io: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> Io for T {}

impl Client {
    /// Creates a client for an address. Connects with the first request.
    ///
    /// # Errors
    /// None at present.
    pub const fn new(address: Address) -> Result<Self, Error> {
        Ok(Self { address })
    }

    /// Address of the API.
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Gets a JSON document.
    ///
    /// # Errors
    /// If the API is unreachable, refuses, or its answer is not JSON.
    pub async fn get(&self, path: &str, query: &Query) -> Result<Value, Error> {
        self.ask(Method::GET, path, query).await
    }

    /// Sends a POST without a body.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post(&self, path: &str) -> Result<Value, Error> {
        self.ask(Method::POST, path, &Query::new()).await
    }

    /// Sends an optional JSON document with additional headers.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&'static str, String)],
    ) -> Result<Value, Error> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let none = Query::new();
        let response = self.send_with(method, path, &none, body, headers).await?;
        self.document(response).await
    }

    /// Gets the readiness of the services.
    ///
    /// # Errors
    /// If the API is unreachable or its answer has another form.
    pub async fn readiness(&self) -> Result<Readiness, Error> {
        // A 503 with the list is also a valid answer.
        let response = self.send(Method::GET, "/readyz", &Query::new()).await?;
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| self.unreachable(&error))?
            .to_bytes();
        let answer: Value =
            serde_json::from_slice(&body).map_err(|error| Error::Answer(error.to_string()))?;
        let texts = |of: &str| {
            let texts = answer[of].as_object()?;
            let text = |(name, text): (&String, &Value)| {
                (name.clone(), text.as_str().unwrap_or_default().to_owned())
            };
            Some(texts.iter().map(text).collect())
        };
        let none = || Error::Answer("no list of problems".into());
        Ok(Readiness {
            problems: texts("problems").ok_or_else(none)?,
            notes: texts("notes").unwrap_or_default(),
        })
    }

    async fn ask(&self, method: Method, path: &str, query: &Query) -> Result<Value, Error> {
        let response = self.send(method, path, query).await?;
        self.document(response).await
    }

    async fn document(&self, response: Response<Incoming>) -> Result<Value, Error> {
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| self.unreachable(&error))?
            .to_bytes();
        if !status.is_success() {
            return Err(refusal(status.as_u16(), &body));
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).map_err(|error| Error::Answer(error.to_string()))
    }

    /// Gets a document of any type, which may be long.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn download(&self, path: &str, query: &Query) -> Result<Download, Error> {
        let response = self.send(Method::GET, path, query).await?;
        let status = response.status();
        let body = response.into_body();
        if status.is_success() {
            let client = self.clone();
            return Ok(Download { client, body });
        }
        let body = body
            .collect()
            .await
            .map_err(|error| self.unreachable(&error))?
            .to_bytes();
        Err(refusal(status.as_u16(), &body))
    }

    /// Follows `/v1/events/stream`: entries after a sequence, as they are appended.
    ///
    /// # Errors
    /// As [`Client::get`]. The stream ends when the connection does.
    pub async fn follow(&self, query: &Query) -> Result<Entries, Error> {
        let download = self.download("/v1/events/stream", query).await?;
        let state = (download, Vec::new());
        Ok(Box::pin(futures_util::stream::try_unfold(
            state,
            async |(mut download, mut text)| {
                loop {
                    if let Some(value) = next_entry(&mut text)? {
                        return Ok(Some((value, (download, text))));
                    }
                    match download.next().await? {
                        None => return Ok(None),
                        Some(data) => text.extend_from_slice(&data),
                    }
                }
            },
        )))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &Query,
    ) -> Result<Response<Incoming>, Error> {
        self.send_with(method, path, query, String::new(), &[])
            .await
    }

    async fn send_with(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: String,
        headers: &[(&'static str, String)],
    ) -> Result<Response<Incoming>, Error> {
        let (io, host): (Box<dyn Io>, &str) = match &self.address {
            Address::Unix(socket) => (
                Box::new(
                    UnixStream::connect(socket)
                        .await
                        .map_err(|error| self.unreachable(&error))?,
                ),
                "localhost",
            ),
            Address::Tcp { authority, .. } => (
                Box::new(
                    TcpStream::connect(authority)
                        .await
                        .map_err(|error| self.unreachable(&error))?,
                ),
                authority,
            ),
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(|error| self.unreachable(&error))?;
        // Ends with the response. An error of the connection shows up in the request.
        tokio::spawn(connection);
        let mut uri = path.to_owned();
        if !query.is_empty() {
            uri.push('?');
            uri.push_str(
                &url::form_urlencoded::Serializer::new(String::new())
                    .extend_pairs(query)
                    .finish(),
            );
        }
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, host)
            .header(ACCEPT, "application/json, text/event-stream");
        if let Address::Tcp { token, .. } = &self.address {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.expose_secret()));
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Error::Usage(error.to_string()))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        Error::Unreachable {
            address: self.address.to_string(),
            reason: mesh_runtime::error_chain(error),
        }
    }
}

/// Encodes a path segment that may hold any byte, such as the `+` of `123+1`.
pub fn segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn refusal(status: u16, body: &[u8]) -> Error {
    let problem: Option<Value> = serde_json::from_slice(body).ok();
    let detail = problem
        .as_ref()
        .and_then(|problem| problem["detail"].as_str())
        .map(str::to_owned);
    Error::Refused {
        status,
        detail: detail.unwrap_or_else(|| {
            format!(
                "slurm-mesh answers HTTP {status}: {:.200}",
                String::from_utf8_lossy(body)
            )
        }),
    }
}

/// Takes the next event from a text/event-stream. `None` if no complete event has arrived. Comments only keep the connection alive.
fn next_entry(received: &mut Vec<u8>) -> Result<Option<Value>, Error> {
    while let Some(end) = received.windows(2).position(|pair| pair == b"\n\n") {
        // Complete blocks only: the network may split a character, but never in a blank line.
        let block: Vec<u8> = received.drain(..end + 2).collect();
        let block = String::from_utf8_lossy(&block);
        let data: String = block
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .map(str::trim_start)
            .collect();
        if !data.is_empty() {
            return serde_json::from_str(&data)
                .map(Some)
                .map_err(|error| Error::Answer(error.to_string()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_out_of_a_stream_at_any_point() {
        let mut text = Vec::new();
        let mut found = Vec::new();
        for piece in [
            ": hello\n",
            "\nid: 1\ndata: {\"seq\"",
            ":1}\n\nid: 2\nda",
            "ta: {\"seq\":2}\n\n: k\n\n",
        ] {
            text.extend_from_slice(piece.as_bytes());
            while let Some(value) = next_entry(&mut text).unwrap() {
                found.push(value["seq"].as_u64().unwrap());
            }
        }
        assert_eq!(found, [1, 2]);
    }

    #[test]
    fn ids_survive_in_paths() {
        assert_eq!(segment("123+1"), "123%2B1");
        assert_eq!(segment("a/../b"), "a%2F..%2Fb");
    }
}
