//! One request, with one deadline over name, connection, request and answer.
//!
//! No redirect is followed, no proxy is taken from the environment, and of the answer's body at most 16 KiB are read.

use std::collections::HashMap;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::Utc;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use url::{Host, Url};

use super::resolver::{Forbidden, GuardedResolver};
use crate::config::Endpoint;
use crate::domain::address::{Subnet, check};
use crate::domain::cause::Cause;
use crate::domain::format::{Method, Request, Response as Answer};
use crate::error::Error;

/// Of an answer's body no more is read.
const MOST_BODY: usize = 16 * 1024;
/// Once there is a status, the body is waited for no longer than this.
const FOR_BODY: Duration = Duration::from_secs(1);

/// What a request has beside what its format says.
pub struct Attributes<'a> {
    /// Id of the event, the same for every attempt.
    pub id: &'a str,
    /// The replay that tells the event once more.
    pub replay: Option<&'a str>,
    /// Trace context.
    pub traceparent: Option<&'a str>,
    /// When everything must be over.
    pub deadline: Instant,
}

/// Why there was no answer.
#[derive(Debug)]
pub struct Failure {
    /// In one word.
    pub cause: Cause,
    /// What went wrong.
    pub error: String,
}

impl Failure {
    const fn new(cause: Cause, error: String) -> Self {
        Self { cause, error }
    }
}

/// HTTP clients: one for each set of allowed subnets, since the check is in the client's resolver. Cheap to clone.
#[derive(Clone, Default)]
pub struct Http {
    clients: Arc<Mutex<HashMap<Vec<Subnet>, Client>>>,
}

impl Http {
    fn client(&self, allowed: &[Subnet]) -> Result<Client, Error> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(allowed) {
            return Ok(client.clone());
        }
        let client = client(allowed.to_vec())?;
        clients.insert(allowed.to_vec(), client.clone());
        Ok(client)
    }

    /// Sends once, signed if the endpoint has a secret.
    ///
    /// # Errors
    /// Why there was no answer.
    pub async fn send(
        &self,
        endpoint: &Endpoint,
        request: &Request,
        attributes: &Attributes<'_>,
    ) -> Result<Answer, Failure> {
        // The connector does not ask the resolver about addresses.
        if let Some(address) = literal(&request.url) {
            check(address, &endpoint.allowed).map_err(|why| {
                Failure::new(
                    Cause::Address,
                    format!("{address} may not be reached ({why})"),
                )
            })?;
        }
        let client = self
            .client(&endpoint.allowed)
            .map_err(|error| Failure::new(Cause::Content, mesh_runtime::chain(&error)))?;
        let sending = match request.method {
            Method::Get => client.get(request.url.clone()),
            Method::Post => client.post(request.url.clone()).body(request.body.clone()),
        };
        let headers = headers(endpoint, request, attributes)
            .map_err(|error| Failure::new(Cause::Content, error))?;
        let sending = sending.headers(headers).send();
        let deadline = attributes.deadline;
        let response = tokio::time::timeout_at(deadline.into(), sending)
            .await
            .map_err(|_| {
                let timeout = humantime::format_duration(endpoint.timeout);
                Failure::new(Cause::Timeout, format!("no answer within {timeout}"))
            })?
            // The address may hold a secret: never in an error.
            .map_err(|error| {
                Failure::new(cause(&error), mesh_runtime::chain(&error.without_url()))
            })?;
        // Where the status decides, the body makes an error more telling and, read to its end, lets the connection be used again; a
        // receiver that drips or floods it must neither hold a place nor undo the status.
        let until = if request.answer_counts {
            deadline
        } else {
            deadline.min(Instant::now() + FOR_BODY)
        };
        let mut answer = Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: Vec::new(),
        };
        let reading = read(response, &mut answer.body);
        // What came in time is enough.
        drop(tokio::time::timeout_at(until.into(), reading).await);
        Ok(answer)
    }
}

/// What kept a request from being answered.
fn cause(error: &reqwest::Error) -> Cause {
    let mut next = error.source();
    while let Some(error) = next {
        if error.is::<Forbidden>() {
            return Cause::Address;
        }
        if error.is::<rustls::Error>() {
            return Cause::Tls;
        }
        // The source of an I/O error is that of what it holds, and skips that.
        let held = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        next = match held {
            Some(held) => Some(held),
            None => error.source(),
        };
    }
    Cause::Unreachable
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

fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

fn headers(
    endpoint: &Endpoint,
    request: &Request,
    attributes: &Attributes<'_>,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        // The value may be a secret: never in an error.
        let value = HeaderValue::from_str(value)
            .map_err(|_| format!("header {name} cannot have its value"))?;
        headers.insert(HeaderName::from_static(name), value);
        Ok::<_, String>(())
    };
    if request.method == Method::Post {
        set("content-type", &request.content_type)?;
    }
    for (name, value) in &request.headers {
        set(name, value)?;
    }
    if let Some(signer) = &endpoint.signer {
        let now = Utc::now();
        set("webhook-id", attributes.id)?;
        set("webhook-timestamp", &now.timestamp().to_string())?;
        set(
            "webhook-signature",
            &signer.sign(attributes.id, now, &request.body),
        )?;
    }
    if let Some(replay) = attributes.replay {
        set("webhook-replay", replay)?;
    }
    if let Some(traceparent) = attributes.traceparent {
        set("traceparent", traceparent)?;
    }
    for (name, value) in &endpoint.headers {
        headers.entry(name).or_insert_with(|| value.clone());
    }
    Ok(headers)
}

/// The body, or its beginning. A connection whose body was not read to its end is closed, not used again.
async fn read(mut response: Response, body: &mut Vec<u8>) {
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = MOST_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MOST_BODY {
            break;
        }
    }
}
