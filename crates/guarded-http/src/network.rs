//! How receivers are reached: name resolution, certificates, proxy.

use std::fmt;
use std::net::SocketAddr;

use reqwest::Certificate;
use secrecy::SecretString;
use url::Url;

use crate::bypass::Bypass;

/// Validated network settings.
#[derive(Clone, Default)]
pub struct Network {
    /// Trusted authorities in addition to the system's.
    pub authorities: Vec<Certificate>,
    /// DNS servers. Empty: the system's resolver.
    pub dns_servers: Vec<SocketAddr>,
    /// The egress proxy.
    pub proxy: Option<Proxy>,
}

/// An egress proxy for HTTP requests.
#[derive(Clone)]
pub struct Proxy {
    /// Its URL without credentials.
    pub url: Url,
    /// User and password.
    pub credentials: Option<(String, SecretString)>,
    /// Receivers that are reached without it.
    pub bypass: Bypass,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.url.host_str().unwrap_or_default();
        write!(
            f,
            "{host}:{}",
            self.url.port_or_known_default().unwrap_or(80)
        )
    }
}
