//! Requests, their responses, and the verdict on them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use redactor::Redactor;
use serde_json::Value;
use url::Url;

use crate::attempt_outcome::{Outcome, RetryAfter};

/// Values stored from earlier responses of an endpoint, by key.
pub type ProviderState = BTreeMap<String, String>;

/// HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, without a body.
    Get,
    /// POST.
    Post,
}

/// A request, without the parts that the HTTP adapter adds: user agent, trace context, signature.
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method.
    pub method: Method,
    /// URL to send to.
    pub url: Url,
    /// Headers in addition to the content type. May contain secrets.
    pub headers: Vec<(&'static str, String)>,
    /// Value of `Content-Type`.
    pub content_type: Cow<'static, str>,
    /// Body of the request.
    pub body: Bytes,
    /// True if the status alone is not sufficient: wait for the response body.
    pub answer_counts: bool,
}

impl Request {
    /// A POST of JSON.
    pub fn json(url: &Url, body: &Value) -> Self {
        Self::post(url, body.to_string())
    }

    /// A POST of serialized JSON.
    pub fn post(url: &Url, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::Post,
            url: url.clone(),
            headers: Vec::new(),
            content_type: "application/json".into(),
            body: body.into(),
            answer_counts: false,
        }
    }

    pub(super) fn bearing(mut self, token: &str) -> Self {
        self.headers
            .push(("authorization", format!("Bearer {token}")));
        self
    }

    pub(super) fn with_answer(mut self) -> Self {
        self.answer_counts = true;
        self
    }
}

/// A response.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Response headers.
    pub headers: HeaderMap,
    /// Beginning of the body, which may echo secrets: for evaluation only, never to be recorded.
    pub body: Vec<u8>,
    /// Remove those secrets.
    pub redactors: Vec<Arc<Redactor>>,
}

impl Response {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The wait requested by the receiver.
    pub fn retry_after(&self) -> Option<RetryAfter> {
        self.header("retry-after").and_then(RetryAfter::parse)
    }

    /// The outcome by the status alone.
    pub fn by_status(&self) -> Outcome {
        Outcome::of_status(self.status, self.retry_after())
    }

    /// Beginning of the body as one line, for an error.
    pub fn excerpt(&self) -> String {
        self.line(200)
    }

    /// The part of the body stored with an attempt: one line of printable characters, at most 1 KiB.
    pub fn snippet(&self) -> String {
        let mut line = self.line(1024);
        line.truncate(line.floor_char_boundary(1024));
        line
    }

    /// A text of the receiver without echoed secrets.
    pub(super) fn redacted<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redactors
            .iter()
            .fold(Cow::Borrowed(text), |text, redactor| {
                Cow::Owned(redactor.redact(&text).into_owned())
            })
    }

    /// Redact before truncating: a truncated secret would not be recognised.
    fn line(&self, max: usize) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let text: String = self
            .redacted(&text)
            .chars()
            .take(max)
            .map(crate::clean)
            .collect();
        text.trim().to_owned()
    }
}

/// A change of provider state. `None` removes the key.
pub type StateUpdate = (String, Option<String>);

/// Result of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Delivered, to be retried, or failed.
    pub outcome: Outcome,
    /// Error text, empty on success.
    pub error: String,
    /// Provider state to store.
    pub keep: Vec<StateUpdate>,
}

impl Verdict {
    pub(super) fn of(outcome: Outcome, response: &Response) -> Self {
        let error = if outcome == Outcome::Delivered {
            String::new()
        } else {
            match response.excerpt() {
                said if said.is_empty() => format!("status {}", response.status),
                said => format!("status {}: {said}", response.status),
            }
        };
        Self {
            outcome,
            error,
            keep: Vec::new(),
        }
    }

    /// No request was necessary.
    pub(super) const fn needless() -> Self {
        Self {
            outcome: Outcome::Delivered,
            error: String::new(),
            keep: Vec::new(),
        }
    }

    pub(super) fn keeping(mut self, keep: impl IntoIterator<Item = StateUpdate>) -> Self {
        self.keep.extend(keep);
        self
    }
}

/// Content that a format cannot express. Retrying would not help.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// The type is not in the catalogue.
    #[error("make message: {0}")]
    Type(#[from] mesh_events::UnknownEventType),
    /// Chats do not show this event.
    #[error("make message: nothing to show for this event")]
    Nothing,
    /// The format supports events only.
    #[error("make message: only events can be sent in this format")]
    NotAnEvent,
    /// A template or expression failed on this event.
    #[error("make message: {0}")]
    Template(String),
    /// A direct message requires an e-mail address, and no fallback channel is configured.
    #[error("make message: no e-mail of {user} is known; the identity map gives it")]
    NoEmail {
        /// Unix user.
        user: String,
    },
    /// Valid settings that do not form a valid URL.
    #[error("make message: {0:?} makes no address")]
    Address(String),
}

/// Appends a path to the API's URL, which may have a path itself (`https://github.example.org/api/v3`).
pub(super) fn join(address: &Url, path: &str) -> Result<Url, Unsendable> {
    let mut base = address.clone();
    if !base.path().ends_with('/') {
        base.set_path(&format!("{}/", base.path()));
    }
    base.join(path)
        .map_err(|_| Unsendable::Address(path.to_owned()))
}
