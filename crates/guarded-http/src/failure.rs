//! Explains a missing response: its kind, and a sentence that names the host and the remedy.

use std::error::Error;

use rustls::{AlertDescription, CertificateError};

use crate::network::Proxy;
use crate::resolver::{Forbidden, Unresolved};

/// Maximum certificate names in an error.
const MAX_NAMES: usize = 5;

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The address is forbidden, or the name does not exist.
    Address,
    /// TLS: often the certificate.
    Tls,
    /// No connection, or it broke.
    Unreachable,
    /// No response before the deadline.
    Timeout,
    /// The egress proxy.
    Proxy,
    /// The request could not be made.
    Internal,
}

/// Why there was no response.
#[derive(Debug)]
pub struct Failure {
    /// What failed.
    pub kind: FailureKind,
    /// The problem and the remedy.
    pub error: String,
}

impl Failure {
    /// A failure of this kind.
    pub const fn new(kind: FailureKind, error: String) -> Self {
        Self { kind, error }
    }

    /// Explains why a request to `host` got no response. The remedies are keys of the configuration's `section`.
    pub(super) fn of(
        error: &reqwest::Error,
        host: &str,
        proxy: Option<&Proxy>,
        section: &str,
    ) -> Self {
        let mut innermost = String::new();
        let mut tunnel = None;
        for error in sources(error) {
            if let Some(forbidden) = error.downcast_ref::<Forbidden>() {
                return Self::new(FailureKind::Address, forbidden.to_string());
            }
            if let Some(error) = error.downcast_ref::<rustls::Error>() {
                return Self::new(
                    FailureKind::Tls,
                    format!("TLS with {host}: {}", distrust(error, section)),
                );
            }
            if let (Some(unresolved), None) = (error.downcast_ref::<Unresolved>(), proxy) {
                return Self::of_name(unresolved);
            }
            innermost = error.to_string();
            if let Some(reason) = innermost.strip_prefix(TUNNEL) {
                tunnel = Some(reason.to_owned());
            }
        }
        match (proxy, tunnel) {
            (Some(proxy), Some(reason)) => {
                Self::of_proxy(proxy, host, &reason, &innermost, section)
            }
            (Some(proxy), None) if error.is_connect() => {
                Self::of_proxy(proxy, host, NOT_CONNECTED, &innermost, section)
            }
            _ if error.is_connect() => Self::new(
                FailureKind::Unreachable,
                format!("connect to {host}: {innermost}"),
            ),
            _ => Self::new(
                FailureKind::Unreachable,
                format!("{host} broke the connection: {innermost}"),
            ),
        }
    }

    fn of_name(unresolved: &Unresolved) -> Self {
        if unresolved.unknown {
            let error = format!("{unresolved}; is the address of the webhook right?");
            Self::new(FailureKind::Address, error)
        } else {
            Self::new(FailureKind::Unreachable, unresolved.to_string())
        }
    }

    /// The owner of an endpoint, who reads the error, need not know the hosts of the site. The operator finds the proxy in the log.
    fn of_proxy(proxy: &Proxy, host: &str, reason: &str, innermost: &str, section: &str) -> Self {
        let error = match reason {
            NOT_CONNECTED => "connect to the site's proxy: it does not answer".to_owned(),
            "proxy authorization required" => return Self::of_credentials(proxy, section),
            "unsuccessful" => format!(
                "the site's proxy refused the connection to {host}, or cannot reach it; see its log"
            ),
            _ => format!("the site's proxy broke the connection to {host}"),
        };
        tracing::warn!(%proxy, error = innermost, "{error}");
        Self::new(FailureKind::Proxy, error)
    }

    /// The proxy answered 407.
    pub(super) fn of_credentials(proxy: &Proxy, section: &str) -> Self {
        let error = format!(
            "the site's proxy rejected the credentials (407): the operator sets {section}.proxy.credentials_file"
        );
        tracing::warn!(%proxy, "{error}");
        Self::new(FailureKind::Proxy, error)
    }
}

/// Prefix of hyper-util's proxy errors, whose type is private.
const TUNNEL: &str = "tunnel error: ";
const NOT_CONNECTED: &str = "failed to create underlying connection";

/// The sources of an error, without the error itself: it may contain the full URL, which may be a secret.
fn sources<'a>(error: &'a reqwest::Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error: &&'a (dyn Error + 'static)| {
        let error = *error;
        // An I/O error's `source` skips the error that it wraps.
        let held = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        match held {
            Some(held) => Some(held),
            None => error.source(),
        }
    })
}

/// Explains why a certificate is not trusted, and who can fix that.
fn distrust(error: &rustls::Error, section: &str) -> String {
    let certificate = match error {
        rustls::Error::InvalidCertificate(certificate) => certificate,
        rustls::Error::InvalidMessage(_) => {
            return "no TLS on this port; check the port, or use http://".to_owned();
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired | AlertDescription::BadCertificate,
        ) => {
            return "it wants a certificate of the client, which webhooks do not have".to_owned();
        }
        rustls::Error::AlertReceived(
            AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion,
        )
        | rustls::Error::PeerIncompatible(_) => {
            return format!("TLS 1.2 or 1.3 with a modern cipher is required ({error})");
        }
        error => return error.to_string(),
    };
    match certificate {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; the receiver has to renew it".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; compare the clocks of both sides".to_owned()
        }
        CertificateError::NotValidForName => {
            "its certificate is for another name; the address has to be one that it is for"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            // Format of rustls: `DnsName("example.org")`.
            let name = |text: &str| {
                let inner = text.split_once('(').map_or(text, |(_, inner)| inner);
                inner.trim_end_matches(')').trim_matches('"').to_owned()
            };
            let names: Vec<String> = presented
                .iter()
                .take(MAX_NAMES)
                .map(|text| name(text))
                .collect();
            let more = if presented.len() > MAX_NAMES {
                ", …"
            } else {
                ""
            };
            let names = names.join(", ") + more;
            format!("its certificate is for {names}; the address has to be one that it is for")
        }
        // webpki reports this for a CA certificate used as a server certificate, as created by `openssl req -x509`.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            format!(
                "its certificate is self-signed; it needs one of a certificate authority (for your own: {section}.ca_file)"
            )
        }
        CertificateError::UnknownIssuer => {
            format!(
                "its certificate is self-signed or of an untrusted authority; the operator adds authorities in {section}.ca_file"
            )
        }
        other => format!("its certificate is invalid: {other}"),
    }
}
