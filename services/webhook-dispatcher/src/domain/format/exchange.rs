//! Requests, answers, and what follows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::header::HeaderMap;
use serde_json::Value;
use url::Url;

use super::slack_api::SlackExchange;
use crate::domain::redactor::Redactor;
use crate::domain::retry::{Outcome, RetryAfter};

/// What was kept from earlier answers of an endpoint, by key.
pub type ProviderState = BTreeMap<String, String>;

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, without a body.
    Get,
    /// POST.
    Post,
}

/// A request, but for what the shell adds: user agent, trace context, signature.
#[derive(Clone, Debug)]
pub struct Request {
    /// How.
    pub method: Method,
    /// Where.
    pub url: Url,
    /// Headers beside the content type. May hold secrets.
    pub headers: Vec<(&'static str, String)>,
    /// Type of the body.
    pub content_type: String,
    /// The body.
    pub body: String,
    /// True if the status says too little: the body of the answer is waited for.
    pub answer_counts: bool,
}

impl Request {
    /// A POST of JSON.
    pub fn json(url: &Url, body: &Value) -> Self {
        Self::post(url, body.to_string())
    }

    /// A POST of what is JSON already.
    pub fn post(url: &Url, body: String) -> Self {
        Self {
            method: Method::Post,
            url: url.clone(),
            headers: Vec::new(),
            content_type: "application/json".to_owned(),
            body,
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

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The beginning of the body, with whatever secrets the receiver repeats: to judge by, never to be recorded.
    pub body: Vec<u8>,
    /// What takes those secrets out.
    pub redactors: Vec<Arc<Redactor>>,
}

impl Response {
    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// When the receiver wants to be asked again.
    pub fn retry_after(&self) -> Option<RetryAfter> {
        self.header("retry-after").and_then(RetryAfter::parse)
    }

    /// What the status alone says.
    pub fn by_status(&self) -> Outcome {
        Outcome::of_status(self.status, self.retry_after())
    }

    /// The beginning of the body as one line, for an error.
    pub fn excerpt(&self) -> String {
        self.line(200)
    }

    /// As much of the body as is kept of an attempt, as one line of printable characters: at most 1 KiB.
    pub fn snippet(&self) -> String {
        let mut line = self.line(1024);
        line.truncate(line.floor_char_boundary(1024));
        line
    }

    /// A text of the receiver without the secrets that it repeats.
    pub(super) fn redacted<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redactors
            .iter()
            .fold(Cow::Borrowed(text), |text, redactor| {
                Cow::Owned(redactor.redact(&text).into_owned())
            })
    }

    /// What is cut off could not be recognized any more: secrets go first.
    fn line(&self, most: usize) -> String {
        let text = String::from_utf8_lossy(&self.body);
        let text: String = self
            .redacted(&text)
            .chars()
            .take(most)
            .map(crate::domain::message::clean)
            .collect();
        text.trim().to_owned()
    }
}

/// Something to remember from an answer, or (`None`) to forget.
pub type StateUpdate = (String, Option<String>);

/// What came of an exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Delivered, to be retried, or not.
    pub outcome: Outcome,
    /// What went wrong; empty if nothing did.
    pub error: String,
    /// What to remember for the next time.
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

    /// Nothing had to be sent.
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

/// What is to be done now.
#[derive(Debug)]
pub enum Step {
    /// Send this, then give the answer to [`Exchange::answered`].
    Send(Box<Request>, Exchange),
    /// Nothing more.
    Done(Verdict),
}

impl Step {
    /// A request whose answer is all.
    pub(super) fn once(request: Request, judge: fn(&Response) -> Outcome) -> Self {
        Self::once_keeping(request, judge, Vec::new())
    }

    /// The same; something is remembered if it is delivered.
    pub(super) fn once_keeping(
        request: Request,
        judge: fn(&Response) -> Outcome,
        keep: Vec<StateUpdate>,
    ) -> Self {
        Self::Send(Box::new(request), Exchange(Waiting::Once { judge, keep }))
    }

    pub(super) fn talk(request: Request, talk: SlackExchange) -> Self {
        Self::Send(Box::new(request), Exchange(Waiting::Slack(Box::new(talk))))
    }
}

/// An exchange that waits for an answer.
#[derive(Debug)]
pub struct Exchange(Waiting);

#[derive(Debug)]
enum Waiting {
    Once {
        judge: fn(&Response) -> Outcome,
        keep: Vec<StateUpdate>,
    },
    Slack(Box<SlackExchange>),
}

impl Exchange {
    /// Takes the answer.
    pub fn answered(self, response: &Response) -> Step {
        match self.0 {
            Waiting::Once { judge, keep } => {
                let verdict = Verdict::of(judge(response), response);
                if verdict.outcome == Outcome::Delivered {
                    Step::Done(verdict.keeping(keep))
                } else {
                    Step::Done(verdict)
                }
            }
            Waiting::Slack(talk) => talk.answered(response),
        }
    }
}

/// Something that a format cannot say. Sending it again would not help.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// No such type in the catalogue.
    #[error("make message: {0}")]
    Type(#[from] mesh_events::UnknownEventType),
    /// No chat shows it.
    #[error("make message: nothing to show for this event")]
    Nothing,
    /// Only events have this form.
    #[error("make message: only events can be sent in this format")]
    NotAnEvent,
    /// A template or expression that fails on this event.
    #[error("make message: {0}")]
    Template(String),
    /// A direct message needs an address, and there is no channel to use instead.
    #[error("make message: no e-mail of {user} is known; the identity map gives it")]
    NoEmail {
        /// Unix user.
        user: String,
    },
    /// Settings that were checked, and yet make no address.
    #[error("make message: {0:?} makes no address")]
    Address(String),
}
