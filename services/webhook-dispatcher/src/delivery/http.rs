//! Sends one request of an endpoint, signed if it has a secret.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use chrono::Utc;
use event_message::format::{Method, Request, Response as Answer};
use guarded_http::{Client, Failure, FailureKind, Network};
use redactor::{Redactor, Values};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret as _;

use crate::config::Endpoint;
use crate::error::Error;
use crate::stream::SERVICE;

/// Request attributes beyond those of the format.
pub struct Attributes<'a> {
    /// Id of the event, the same for every attempt.
    pub id: &'a str,
    /// Id of the replay that publishes the event.
    pub replay: Option<&'a str>,
    /// Trace context.
    pub traceparent: Option<&'a str>,
    /// When the response must be complete.
    pub deadline: Instant,
}

/// The HTTP client of all endpoints. Cheap to clone.
#[derive(Clone)]
pub struct Http {
    client: Client,
    /// Removes the proxy's credentials from its responses.
    proxy_redactor: Arc<Redactor>,
}

impl Http {
    /// A client for these network settings.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn new(network: Network) -> Result<Self, Error> {
        let mut secrets = Values::default();
        let proxy = network.proxy.as_ref();
        if let Some((user, password)) = proxy.and_then(|proxy| proxy.credentials.as_ref()) {
            secrets.credentials(user, password.expose_secret());
        }
        Ok(Self {
            client: Client::new(network, SERVICE)?,
            proxy_redactor: Arc::new(Redactor::new(secrets)),
        })
    }

    /// Sends one request, signed if the endpoint has a secret.
    ///
    /// # Errors
    /// Why there was no response.
    pub async fn send(
        &self,
        endpoint: &Endpoint,
        request: Request,
        attributes: &Attributes<'_>,
    ) -> Result<Answer, Failure> {
        let headers = headers(endpoint, &request, attributes);
        let headers = headers.map_err(|error| Failure::new(FailureKind::Internal, error))?;
        let (method, body) = match request.method {
            Method::Get => (reqwest::Method::GET, None),
            Method::Post => (reqwest::Method::POST, Some(request.body)),
        };
        let sent = guarded_http::Request {
            method,
            url: &request.url,
            headers,
            body,
            allowed: &endpoint.allowed,
            timeout: endpoint.timeout,
            deadline: attributes.deadline,
            body_counts: request.answer_counts,
        };
        let answer = self.client.send(sent).await?;
        let mut redactors = Vec::with_capacity(2);
        redactors.push(Arc::clone(&endpoint.redactor));
        // The response of an `http://` receiver may come from the proxy.
        redactors.extend(answer.by_proxy.then(|| Arc::clone(&self.proxy_redactor)));
        Ok(Answer {
            status: answer.status,
            headers: answer.headers,
            body: answer.body,
            redactors,
        })
    }
}

fn headers(
    endpoint: &Endpoint,
    request: &Request,
    attributes: &Attributes<'_>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(6 + request.headers.len() + endpoint.headers.len());
    if request.method == Method::Post {
        let value = match &request.content_type {
            Cow::Borrowed(kind) => HeaderValue::from_static(kind),
            Cow::Owned(kind) => value("content-type", kind.clone())?,
        };
        headers.insert(CONTENT_TYPE, value);
    }
    for (name, text) in &request.headers {
        headers.insert(HeaderName::from_static(name), value(name, text.clone())?);
    }
    let (signed, now) = (endpoint.signer.as_ref(), Utc::now());
    let time = now.timestamp().to_string();
    let signature = signed.map(|signer| signer.sign(attributes.id, now, &request.body));
    let ours = [
        ("webhook-id", signed.map(|_| attributes.id)),
        ("webhook-timestamp", signed.map(|_| time.as_str())),
        ("webhook-signature", signature.as_deref()),
        ("webhook-replay", attributes.replay),
        ("traceparent", attributes.traceparent),
    ];
    let given = || {
        ours.iter()
            .filter_map(|(name, text)| Some((*name, (*text)?)))
    };
    // One buffer for all: reqwest copies the headers several times, and its first copy of a buffer allocates.
    let mut shared = String::with_capacity(256);
    shared.extend(given().map(|(_, text)| text));
    let mut shared = Bytes::from(shared);
    for (name, text) in given() {
        let value = value(name, shared.split_to(text.len()))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    for (name, value) in &endpoint.headers {
        headers.entry(name).or_insert_with(|| value.clone());
    }
    Ok(headers)
}

/// The value may be a secret and must not appear in errors.
fn value(name: &str, text: impl Into<Bytes>) -> Result<HeaderValue, String> {
    let text = text.into();
    let value = text
        .is_ascii()
        .then(|| HeaderValue::from_maybe_shared(text));
    value
        .and_then(Result::ok)
        .ok_or_else(|| format!("header {name} cannot have its value"))
}
