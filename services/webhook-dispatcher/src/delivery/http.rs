//! Sends one request, with one deadline for name resolution, connection, request and response.
//!
//! Redirects are not followed, proxy settings of the environment are ignored, and at most 16 KiB of a response body
//! are read.
//!
//! With a proxy, the proxy connects and may resolve the name again. Addresses, and all addresses that the name
//! resolves to locally, are checked before.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::Utc;
use event_message::format::{Method, Request, Response as Answer};
use ipnet::IpNet;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Proxy as ReqwestProxy, Response};
use secrecy::ExposeSecret as _;
use url::{Host, Url};

use crate::address::check;
use crate::address::resolver::{GuardedResolver, Names};
use crate::attempt::cause::Cause;
use crate::config::{Endpoint, Network, Proxy};
pub use crate::delivery::failure::Failure;
use crate::error::Error;

/// Maximum bytes read of a response body.
const MAX_BODY: usize = 16 * 1024;
/// Maximum wait for the body once the status is known.
const FOR_BODY: Duration = Duration::from_secs(1);

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

/// HTTP clients. Cheap to clone.
#[derive(Clone)]
pub struct Http {
    network: Arc<Network>,
    names: Names,
    /// Clients that connect directly. The address check is in the client's resolver, so there is one per set of allowed
    /// subnets.
    direct: Arc<Mutex<HashMap<Vec<IpNet>, Client>>>,
    /// The client that connects through the proxy.
    proxied: Option<Client>,
}

impl Http {
    /// Clients for these network settings.
    ///
    /// # Errors
    /// If the resolver or a client cannot be created.
    pub fn new(network: Network) -> Result<Self, Error> {
        let names = Names::new(&network.dns_servers)?;
        let proxied = network.proxy.as_ref();
        let proxied = proxied.map(|proxy| proxied_client(&network, proxy, names.clone()));
        Ok(Self {
            proxied: proxied.transpose().map_err(Error::Client)?,
            names,
            network: Arc::new(network),
            direct: Arc::default(),
        })
    }

    fn direct_client(&self, allowed: &[IpNet]) -> Result<Client, Error> {
        let mut clients = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(allowed) {
            return Ok(client.clone());
        }
        let resolver = GuardedResolver::new(self.names.clone(), allowed.to_vec());
        let client = builder(&self.network).dns_resolver(resolver).build();
        let client = client.map_err(Error::Client)?;
        clients.insert(allowed.to_vec(), client.clone());
        Ok(client)
    }

    /// The client for a URL, if its address may be reached.
    async fn reach(
        &self,
        url: &Url,
        allowed: &[IpNet],
        proxy: Option<&Proxy>,
    ) -> Result<Client, Failure> {
        // The connector does not call the resolver for IP literals.
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::from(address)),
            Some(Host::Ipv6(address)) => Some(address.into()),
            _ => None,
        };
        if let Some(address) = address {
            check(address, allowed).map_err(|why| {
                Failure::new(
                    Cause::Address,
                    format!("{address} may not be reached ({why})"),
                )
            })?;
        }
        if let (Some(_), Some(client)) = (proxy, &self.proxied) {
            if let Some(Host::Domain(name)) = url.host() {
                let checked = self.names.check(name, allowed).await;
                checked.map_err(|error| Failure::new(Cause::Address, error.to_string()))?;
            }
            return Ok(client.clone());
        }
        self.direct_client(allowed)
            .map_err(|error| Failure::new(Cause::Internal, mesh_runtime::error_chain(&error)))
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
        let headers = headers(endpoint, &request, attributes)
            .map_err(|error| Failure::new(Cause::Internal, error))?;
        let Request {
            method,
            url,
            body,
            answer_counts,
            ..
        } = request;
        let proxy = self.network.proxy.as_ref();
        let proxy = proxy.filter(|proxy| {
            let host = url.host();
            !host.is_some_and(|host| proxy.bypass.has(&host))
        });
        let sending = async {
            let client = self.reach(&url, &endpoint.allowed, proxy).await?;
            let sending = match method {
                Method::Get => client.get(url.clone()),
                Method::Post => client.post(url.clone()).body(body),
            };
            let sent = sending.headers(headers).send().await;
            sent.map_err(|error| Failure::of(&error, &named(&url), proxy))
        };
        let deadline = attributes.deadline;
        // Keep the future on timeout, to find out what it was waiting for.
        let mut sending = pin!(sending);
        let mut response = tokio::time::timeout_at(deadline.into(), &mut sending)
            .await
            .map_err(|_| {
                let timeout = humantime::format_duration(endpoint.timeout);
                let host = named(&url);
                let by = url.domain().and_then(|name| self.names.unanswered(name));
                if let Some(by) = by {
                    let error = format!("look up {host}: no answer from {by} within {timeout}; no request was sent");
                    return Failure::new(Cause::Timeout, error);
                }
                let by = proxy.map_or_else(String::new, |proxy| format!(" by the proxy {proxy}"));
                Failure::new(
                    Cause::Timeout,
                    format!("no answer within {timeout} from {host}{by}; it should respond before it processes the event"),
                )
            })??;
        // Without TLS, responses of the proxy look like the receiver's. Status 407 can only come from the proxy.
        if let (Some(proxy), 407) = (proxy, response.status().as_u16()) {
            return Err(Failure::of_credentials(proxy));
        }
        // If the status decides, the body only adds detail to an error, and reading it to the end allows the
        // connection to be reused. A receiver that sends the body slowly or without end must not hold a permit or
        // change the result.
        let until = if answer_counts {
            deadline
        } else {
            deadline.min(Instant::now() + FOR_BODY)
        };
        let mut answer = Answer {
            status: response.status().as_u16(),
            headers: std::mem::take(response.headers_mut()),
            body: Vec::new(),
            redactors: Vec::with_capacity(2),
        };
        answer.redactors.push(Arc::clone(&endpoint.redactor));
        // The response of an `http://` receiver may come from the proxy.
        answer
            .redactors
            .extend(proxy.map(|proxy| Arc::clone(&proxy.redactor)));
        let reading = read(response, &mut answer.body);
        // A partial body is sufficient.
        drop(tokio::time::timeout_at(until.into(), reading).await);
        Ok(answer)
    }
}

fn builder(network: &Network) -> ClientBuilder {
    Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .referer(false)
        .pool_idle_timeout(Duration::from_secs(60))
        .tls_certs_merge(network.authorities.iter().cloned())
        .user_agent(concat!("slurm-mesh/", env!("CARGO_PKG_VERSION")))
}

fn proxied_client(network: &Network, proxy: &Proxy, names: Names) -> reqwest::Result<Client> {
    let mut through = ReqwestProxy::all(proxy.url.clone())?;
    if let Some((user, password)) = &proxy.credentials {
        through = through.basic_auth(user, password.expose_secret());
    }
    builder(network).dns_resolver(names).proxy(through).build()
}

/// The receiver's name in errors.
fn named(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
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

/// Reads the body up to its limit. A connection with unread data is closed, not reused.
async fn read(mut response: Response, body: &mut Vec<u8>) {
    while let Ok(Some(chunk)) = response.chunk().await {
        let free = MAX_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(free)]);
        if body.len() == MAX_BODY {
            break;
        }
    }
}
