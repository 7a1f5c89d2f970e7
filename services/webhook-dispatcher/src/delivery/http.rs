//! Sends one request, with one deadline for name resolution, connection, request and response.
//!
//! Redirects are not followed, proxy settings of the environment are ignored, and at most 16 KiB of a response body
//! are read.
//!
//! With a proxy, the proxy connects and may resolve the name again. Addresses, and all addresses that the name
//! resolves to locally, are checked before.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::Utc;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Proxy as ReqwestProxy, Response};
use secrecy::ExposeSecret as _;
use url::{Host, Url};

use crate::address::resolver::{GuardedResolver, Names};
use crate::address::{Subnet, check};
use crate::attempt::cause::Cause;
use crate::config::{Endpoint, Network, Proxy};
pub use crate::delivery::failure::Failure;
use crate::error::Error;
use crate::message::format::{Method, Request, Response as Answer};

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

/// How a receiver is reached.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Route {
    /// Connected directly. The address check is in the client's resolver, so there is one client per set of allowed
    /// subnets.
    Direct(Vec<Subnet>),
    /// Through the proxy.
    Proxied,
}

/// HTTP clients. Cheap to clone.
#[derive(Clone)]
pub struct Http {
    network: Arc<Network>,
    names: Names,
    clients: Arc<Mutex<HashMap<Route, Client>>>,
}

impl Http {
    /// Clients for these network settings.
    ///
    /// # Errors
    /// If the resolver or a client cannot be created.
    pub fn new(network: Network) -> Result<Self, Error> {
        Ok(Self {
            names: Names::new(&network.dns_servers)?,
            network: Arc::new(network),
            clients: Arc::default(),
        })
    }

    fn client(&self, route: Route) -> Result<Client, Error> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&route) {
            return Ok(client.clone());
        }
        let client = self.make(&route).map_err(Error::Client)?;
        clients.insert(route, client.clone());
        Ok(client)
    }

    fn make(&self, route: &Route) -> reqwest::Result<Client> {
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .referer(false)
            .pool_idle_timeout(Duration::from_secs(60))
            .tls_certs_merge(self.network.authorities.iter().cloned())
            .user_agent(concat!("slurm-mesh/", env!("CARGO_PKG_VERSION")));
        let client = match (route, &self.network.proxy) {
            (Route::Proxied, Some(proxy)) => {
                let mut through = ReqwestProxy::all(proxy.url.clone())?;
                if let Some((user, password)) = &proxy.credentials {
                    through = through.basic_auth(user, password.expose_secret());
                }
                client.dns_resolver(self.names.clone()).proxy(through)
            }
            (route, _) => {
                let allowed = match route {
                    Route::Direct(allowed) => allowed.clone(),
                    Route::Proxied => Vec::new(),
                };
                client.dns_resolver(GuardedResolver::new(self.names.clone(), allowed))
            }
        };
        client.build()
    }

    /// The client for a URL, if its address may be reached.
    async fn reach(
        &self,
        url: &Url,
        allowed: &[Subnet],
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
        let route = match proxy {
            None => Route::Direct(allowed.to_vec()),
            Some(_) => {
                if let Some(Host::Domain(name)) = url.host() {
                    let checked = self.names.check(name, allowed).await;
                    checked.map_err(|error| Failure::new(Cause::Address, error.to_string()))?;
                }
                Route::Proxied
            }
        };
        self.client(route)
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
        let host = named(&request.url);
        let domain = request.url.domain().map(str::to_owned);
        let proxy = self.network.proxy.as_ref();
        let proxy = proxy.filter(|proxy| {
            let host = request.url.host();
            !host.is_some_and(|host| proxy.bypass.has(&host))
        });
        let sending = async {
            let client = self.reach(&request.url, &endpoint.allowed, proxy).await?;
            let sending = match request.method {
                Method::Get => client.get(request.url),
                Method::Post => client.post(request.url).body(request.body),
            };
            let sent = sending.headers(headers).send().await;
            sent.map_err(|error| Failure::of(&error, &host, proxy))
        };
        let deadline = attributes.deadline;
        // Keep the future on timeout, to find out what it was waiting for.
        let mut sending = pin!(sending);
        let response = tokio::time::timeout_at(deadline.into(), &mut sending)
            .await
            .map_err(|_| {
                let timeout = humantime::format_duration(endpoint.timeout);
                if let Some(by) = domain.as_deref().and_then(|name| self.names.unanswered(name)) {
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
        let until = if request.answer_counts {
            deadline
        } else {
            deadline.min(Instant::now() + FOR_BODY)
        };
        let mut answer = Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
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
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        // The value may be a secret and must not appear in errors.
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
