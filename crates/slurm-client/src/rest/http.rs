//! One request: a deadline for connection, headers and body, a size limit of the body, and the current token from its file.

use std::{
    error::Error as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redactor::{Redactor, Values};
use reqwest::{Client, header::HeaderValue, redirect::Policy};
use secret_file::FileStamp;
use serde_json::Value;

use crate::{Config, Error, RestUrl, error::excerpt, request_limits::RequestLimits};

/// More than the response for 25,000 jobs at 8 kB each (26.05; 10,000 were 92 MB).
const MAX_BODY_BYTES: usize = 256 << 20;
/// Longer answers are no error pages.
const MAX_PAGE_BYTES: usize = 64 << 10;

/// Sends requests to one slurmrestd.
#[derive(Clone, Debug)]
pub(super) struct Http {
    config: Arc<Config>,
    /// The HTTP client, or why it could not be created.
    client: Result<Client, String>,
    token: Arc<Mutex<Option<Token>>>,
    limits: RequestLimits,
}

/// The content of the token file.
#[derive(Clone, Debug)]
struct Token {
    stamp: FileStamp,
    value: HeaderValue,
    /// Removes it from answers.
    redactor: Arc<Redactor>,
}

/// A response, whatever its status.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Http {
    pub(super) fn new(config: Config) -> Self {
        // Already installed by the process, except in tests.
        drop(rustls::crypto::ring::default_provider().install_default());
        let builder = Client::builder().no_proxy().redirect(Policy::none());
        let builder = match &config.rest_url {
            RestUrl::Unix(path) => builder.unix_socket(path.clone()),
            RestUrl::Tcp(_) => builder,
        };
        Self {
            limits: RequestLimits::new(&config),
            client: builder.build().map_err(|error| chain(&error)),
            config: Arc::new(config),
            token: Arc::default(),
        }
    }

    /// A client with another deadline and separate permits, within the same number of requests per second.
    pub(super) fn with_timeout(&self, command_timeout: Duration) -> Self {
        Self {
            limits: self.limits.with_timeout(command_timeout),
            ..self.clone()
        }
    }

    pub(super) fn has_token(&self) -> bool {
        self.config.token_file.is_some()
    }

    /// Sends a request; `target` is a path with its query.
    pub(super) async fn get(&self, command: &'static str, target: &str) -> Result<Reply, Error> {
        let question = Box::pin(self.send(command, target, None));
        self.limits.ask(command, question).await
    }

    /// Sends a document.
    pub(super) async fn post(
        &self,
        command: &'static str,
        target: &str,
        body: &Value,
    ) -> Result<Reply, Error> {
        let question = Box::pin(self.send(command, target, Some(body)));
        self.limits.ask(command, question).await
    }

    async fn send(
        &self,
        command: &'static str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Reply, Error> {
        let down = |problem| Error::RestDown {
            command,
            url: self.config.rest_url.to_string(),
            problem,
        };
        let client = self.client.as_ref().map_err(|error| down(error.clone()))?;
        let base = match &self.config.rest_url {
            RestUrl::Unix(_) => "http://localhost",
            RestUrl::Tcp(url) => url,
        };
        let target = format!("{base}{target}");
        let mut request = match body {
            None => client.get(target),
            Some(body) => client.post(target).json(body),
        };
        request = request.header("accept", "application/json");
        let token = self.config.token_file.as_deref();
        let token = token.map(|path| self.token(path)).transpose()?;
        if let Some(token) = &token {
            request = request.header("x-slurm-user-token", token.value.clone());
            if let Some(user) = &self.config.rest_user {
                request = request.header("x-slurm-user-name", user);
            }
        }
        let mut response = request.send().await.map_err(|error| down(chain(&error)))?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => {
                    let body = match &token {
                        Some(token) if status != 200 || body.len() <= MAX_PAGE_BYTES => {
                            without(token, &body)
                        }
                        _ => body,
                    };
                    return Ok(Reply { status, body });
                }
                Ok(Some(_)) if body.len() > MAX_BODY_BYTES => {
                    return Err(Error::TooLarge { command });
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Err(_) => {
                    return Err(Error::Suspicious {
                        command,
                        problem: "the connection was closed within the answer",
                    });
                }
            }
        }
    }

    /// The token, read again if its file has changed.
    fn token(&self, path: &Path) -> Result<Token, Error> {
        let problem = |problem: String| Error::TokenFile {
            path: path.to_owned(),
            problem,
        };
        let mut known = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = known.as_ref()
            && Some(token.stamp) == FileStamp::of(path)
        {
            return Ok(token.clone());
        }
        let (text, stamp) =
            secret_file::read_with_stamp(path).map_err(|error| problem(error.to_string()))?;
        let text = text.trim();
        let text = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
        let value = HeaderValue::from_str(text)
            .ok()
            .filter(|_| !text.is_empty() && !text.contains(char::is_whitespace));
        let mut value = value.ok_or_else(|| problem("it contains no token".to_owned()))?;
        value.set_sensitive(true);
        let mut secrets = Values::default();
        secrets.header("X-SLURM-USER-TOKEN", value.as_bytes());
        let token = Token {
            stamp,
            value,
            redactor: Arc::new(Redactor::new(secrets)),
        };
        *known = Some(token.clone());
        Ok(token)
    }
}

/// An answer without the token: a proxy before slurmrestd may answer with a page that repeats the request.
fn without(token: &Token, body: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(body);
    token.redactor.redact(&text).into_owned().into_bytes()
}

/// An error of the HTTP client with its causes, without the URL, which our own message has.
fn chain(error: &reqwest::Error) -> String {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    match texts.is_empty() {
        true => "the request could not be sent".to_owned(),
        false => excerpt(&texts.join(": ")),
    }
}
