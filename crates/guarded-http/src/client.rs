//! Sends one request.
//!
//! With a proxy, the proxy connects and may resolve the name again. Addresses, and all addresses that the name
//! resolves to locally, are checked before.

use std::collections::HashMap;
use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hickory_resolver::net::NetError;
use ipnet::IpNet;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, Method, Proxy as ReqwestProxy, Response};
use secrecy::ExposeSecret as _;
use url::{Host, Url};

use crate::address::check_literal;
use crate::failure::{Failure, FailureKind};
use crate::network::{Network, Proxy};
use crate::resolver::{GuardedResolver, Names};

/// Maximum bytes read of a response body.
const MAX_BODY: usize = 16 * 1024;
/// Maximum wait for the body once the status is known.
const FOR_BODY: Duration = Duration::from_secs(1);

/// A client that cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A TLS or proxy setting.
    #[error("create HTTP client")]
    Client(#[source] reqwest::Error),
    /// The DNS servers.
    #[error("use {key}")]
    Resolver {
        /// The key that configures them.
        key: String,
        /// The cause.
        #[source]
        source: NetError,
    },
}

/// A request, and how it may be sent.
pub struct Request<'a> {
    /// HTTP method.
    pub method: Method,
    /// URL to send to.
    pub url: &'a Url,
    /// All headers.
    pub headers: HeaderMap,
    /// Body. `None` for a GET.
    pub body: Option<Bytes>,
    /// Subnets that the receiver may be in, besides public addresses.
    pub allowed: &'a [IpNet],
    /// Time for everything, for errors.
    pub timeout: Duration,
    /// When the response must be complete.
    pub deadline: Instant,
    /// True if the status alone is not sufficient: wait for the response body.
    pub body_counts: bool,
}

/// A response.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The body, up to 16 KiB, or a part of it.
    pub body: Vec<u8>,
    /// True if the request went through the proxy. A response without TLS may be the proxy's own.
    pub by_proxy: bool,
}

/// HTTP clients. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    network: Arc<Network>,
    names: Names,
    /// Clients that connect directly. The address check is in the client's resolver, so there is one per set of allowed
    /// subnets.
    direct: Arc<Mutex<HashMap<Vec<IpNet>, reqwest::Client>>>,
    /// The client that connects through the proxy.
    proxied: Option<reqwest::Client>,
    section: &'static str,
}

impl Client {
    /// Clients for these network settings. `section` is the section of the configuration that errors name.
    ///
    /// # Errors
    /// If the resolver or a client cannot be created.
    pub fn new(network: Network, section: &'static str) -> Result<Self, ClientError> {
        let key = format!("{section}.dns_servers");
        let names = Names::new(&network.dns_servers, key.clone())
            .map_err(|source| ClientError::Resolver { key, source })?;
        let proxied = network.proxy.as_ref();
        let proxied = proxied.map(|proxy| proxied_client(&network, proxy, names.clone()));
        Ok(Self {
            proxied: proxied.transpose().map_err(ClientError::Client)?,
            names,
            network: Arc::new(network),
            direct: Arc::default(),
            section,
        })
    }

    fn direct_client(&self, allowed: &[IpNet]) -> reqwest::Result<reqwest::Client> {
        let mut clients = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(allowed) {
            return Ok(client.clone());
        }
        let resolver = GuardedResolver::new(self.names.clone(), allowed.to_vec());
        let client = builder(&self.network).dns_resolver(resolver).build()?;
        clients.insert(allowed.to_vec(), client.clone());
        Ok(client)
    }

    /// The client for a URL, if its address may be reached.
    async fn reach(
        &self,
        url: &Url,
        allowed: &[IpNet],
        proxy: Option<&Proxy>,
    ) -> Result<reqwest::Client, Failure> {
        // The connector does not call the resolver for IP literals.
        check_literal(url, allowed).map_err(|(address, why)| {
            let error = format!("{address} may not be reached ({why})");
            Failure::new(FailureKind::Address, error)
        })?;
        if let (Some(_), Some(client)) = (proxy, &self.proxied) {
            if let Some(Host::Domain(name)) = url.host() {
                let checked = self.names.check(name, allowed).await;
                checked.map_err(|error| Failure::new(FailureKind::Address, error.to_string()))?;
            }
            return Ok(client.clone());
        }
        self.direct_client(allowed).map_err(|error| {
            let error = ClientError::Client(error);
            let first: &(dyn Error + 'static) = &error;
            let chain = std::iter::successors(Some(first), |&error| error.source());
            let chain: Vec<String> = chain.map(ToString::to_string).collect();
            Failure::new(FailureKind::Internal, chain.join(": "))
        })
    }

    /// Sends one request.
    ///
    /// # Errors
    /// Why there was no response.
    pub async fn send(&self, request: Request<'_>) -> Result<Answer, Failure> {
        let Request {
            method,
            url,
            headers,
            body,
            allowed,
            timeout,
            deadline,
            body_counts,
        } = request;
        let proxy = self.network.proxy.as_ref();
        let proxy = proxy.filter(|proxy| {
            let host = url.host();
            !host.is_some_and(|host| proxy.bypass.has(&host))
        });
        let sending = async {
            let client = self.reach(url, allowed, proxy).await?;
            let mut sending = client.request(method, url.clone()).headers(headers);
            if let Some(body) = body {
                sending = sending.body(body);
            }
            let sent = sending.send().await;
            sent.map_err(|error| Failure::of(&error, &named(url), proxy, self.section))
        };
        // Keep the future on timeout, to find out what it was waiting for.
        let mut sending = pin!(sending);
        let mut response = tokio::time::timeout_at(deadline.into(), &mut sending)
            .await
            .map_err(|_| self.unanswered(url, proxy, timeout))??;
        // Without TLS, responses of the proxy look like the receiver's. Status 407 can only come from the proxy.
        if let (Some(proxy), 407) = (proxy, response.status().as_u16()) {
            return Err(Failure::of_credentials(proxy, self.section));
        }
        // If the status decides, the body only adds detail to an error, and reading it to the end allows the
        // connection to be reused. A receiver that sends the body slowly or without end must not hold a permit or
        // change the result.
        let until = if body_counts {
            deadline
        } else {
            deadline.min(Instant::now() + FOR_BODY)
        };
        let mut answer = Answer {
            status: response.status().as_u16(),
            headers: std::mem::take(response.headers_mut()),
            body: Vec::new(),
            by_proxy: proxy.is_some(),
        };
        let reading = read(response, &mut answer.body);
        // A partial body is sufficient.
        drop(tokio::time::timeout_at(until.into(), reading).await);
        Ok(answer)
    }

    /// Nobody answered in time.
    fn unanswered(&self, url: &Url, proxy: Option<&Proxy>, timeout: Duration) -> Failure {
        let (timeout, host) = (humantime::format_duration(timeout), named(url));
        let by = url.domain().and_then(|name| self.names.unanswered(name));
        let error = match (by, proxy) {
            (Some(by), _) => {
                format!("look up {host}: no answer from {by} within {timeout}; no request was sent")
            }
            (None, proxy) => {
                let by = proxy.map_or("", |_| " by the site's proxy");
                format!(
                    "no answer within {timeout} from {host}{by}; it should respond before it processes the event"
                )
            }
        };
        Failure::new(FailureKind::Timeout, error)
    }
}

fn builder(network: &Network) -> ClientBuilder {
    reqwest::Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .referer(false)
        .pool_idle_timeout(Duration::from_secs(60))
        .tls_certs_merge(network.authorities.iter().cloned())
        .user_agent(concat!("slurm-mesh/", env!("CARGO_PKG_VERSION")))
}

fn proxied_client(
    network: &Network,
    proxy: &Proxy,
    names: Names,
) -> reqwest::Result<reqwest::Client> {
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
