//! One attempt: a POST with one deadline over name, connection, request and answer.
//!
//! No redirect is followed, no proxy is taken from the environment, and of the answer's body at most 16 KiB are read.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use chrono::Utc;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use url::Host;

use super::resolver::GuardedResolver;
use crate::config::Endpoint;
use crate::domain::address::{Subnet, check};
use crate::domain::retry::{Answer, RetryAfter};
use crate::error::Error;

/// Of an answer's body no more is read.
const MOST_BODY: usize = 16 * 1024;
/// Of that, this much may stand in an error.
const MOST_EXCERPT: usize = 200;
/// Once there is a status, the body is waited for no longer than this.
const FOR_BODY: Duration = Duration::from_secs(1);

/// What is sent.
pub struct Post {
    /// Id of the event, the same for every attempt.
    pub id: String,
    /// Content type of the body.
    pub content_type: &'static str,
    /// JSON.
    pub body: String,
    /// Trace context.
    pub traceparent: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub struct Attempted {
    /// The answer, for the decision.
    pub answer: Answer,
    /// HTTP status, 0 without an answer.
    pub status: u16,
    /// What went wrong; empty on success.
    pub error: String,
    /// How long it took.
    pub elapsed: Duration,
}

/// HTTP clients: one for each set of allowed subnets, since the check is in the client's resolver. Cheap to clone.
#[derive(Clone)]
pub struct Http {
    clients: HashMap<Vec<Subnet>, Client>,
}

impl Http {
    /// Clients for these endpoints.
    ///
    /// # Errors
    /// If a client cannot be made.
    pub fn new(endpoints: &[Endpoint]) -> Result<Self, Error> {
        mesh_runtime::install_tls();
        let mut clients = HashMap::new();
        for endpoint in endpoints {
            if !clients.contains_key(&endpoint.allowed) {
                clients.insert(endpoint.allowed.clone(), client(endpoint.allowed.clone())?);
            }
        }
        Ok(Self { clients })
    }

    /// Sends once, signed if the endpoint has a secret.
    pub async fn post(&self, endpoint: &Endpoint, post: &Post) -> Attempted {
        let start = Instant::now();
        let (answer, status, error) =
            match self.send(endpoint, post, start + endpoint.timeout).await {
                Ok(answered) => answered,
                Err(error) => (Answer::None, 0, error),
            };
        Attempted {
            answer,
            status,
            error,
            elapsed: start.elapsed(),
        }
    }

    async fn send(
        &self,
        endpoint: &Endpoint,
        post: &Post,
        deadline: Instant,
    ) -> Result<(Answer, u16, String), String> {
        // The connector does not ask the resolver about addresses.
        if let Some(address) = literal(endpoint) {
            check(address, &endpoint.allowed)
                .map_err(|why| format!("{address} may not be reached ({why})"))?;
        }
        let client = self
            .clients
            .get(&endpoint.allowed)
            .ok_or("no client for this endpoint")?;
        let request = client
            .post(endpoint.url.clone())
            .headers(headers(endpoint, post)?)
            .body(post.body.clone())
            .send();
        let response = tokio::time::timeout_at(deadline.into(), request)
            .await
            .map_err(|_| {
                format!(
                    "no answer within {}",
                    humantime::format_duration(endpoint.timeout)
                )
            })?
            // The address may hold a secret: never in an error.
            .map_err(|error| mesh_runtime::chain(&error.without_url()))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(RetryAfter::parse);
        let answer = Answer::Status {
            code: status.as_u16(),
            retry_after,
        };
        // The status decides. The body makes an error more telling and, read to its end, lets the connection be used again; a receiver
        // that drips or floods it must neither hold a place nor undo the status.
        let until = deadline.min(Instant::now() + FOR_BODY);
        let said = tokio::time::timeout_at(until.into(), read(response))
            .await
            .map_or_else(|_| String::new(), |body| excerpt(&body));
        let error = match (status.is_success(), said.as_str()) {
            (true, _) => String::new(),
            (false, "") => format!("status {}", status.as_u16()),
            (false, said) => format!("status {}: {said}", status.as_u16()),
        };
        Ok((answer, status.as_u16(), error))
    }
}

fn client(allowed: Vec<Subnet>) -> Result<Client, Error> {
    Client::builder()
        .dns_resolver(GuardedResolver::new(allowed))
        .redirect(Policy::none())
        .no_proxy()
        .referer(false)
        .pool_idle_timeout(Duration::from_secs(60))
        .user_agent(concat!("slurm-mesh/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(Error::Client)
}

fn literal(endpoint: &Endpoint) -> Option<IpAddr> {
    match endpoint.url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

fn headers(endpoint: &Endpoint, post: &Post) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        let value = HeaderValue::from_str(value)
            .map_err(|_| format!("header {name} cannot be {value:?}"))?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<_, String>(())
    };
    set("content-type", post.content_type)?;
    if let Some(signer) = &endpoint.signer {
        let now = Utc::now();
        set("webhook-id", &post.id)?;
        set("webhook-timestamp", &now.timestamp().to_string())?;
        set("webhook-signature", &signer.sign(&post.id, now, &post.body))?;
    }
    if let Some(traceparent) = &post.traceparent {
        set("traceparent", traceparent)?;
    }
    Ok(headers)
}

/// The body, or its beginning. A connection whose body was not read to its end is closed, not used again.
async fn read(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = MOST_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MOST_BODY {
            break;
        }
    }
    body
}

fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MOST_EXCERPT)
        .collect::<String>()
        .trim()
        .to_owned()
}
