//! Trusted proxies, whose `X-Forwarded-For` names the client. From other peers the header is ignored.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use ipnet::IpNet;

use super::peer::Peer;

/// The addresses of proxies.
#[derive(Clone, Debug, Default)]
pub(super) struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        Self(networks.into())
    }

    pub(super) fn trusts(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp { ip } => self.contains(ip),
            Peer::Unix { .. } => false,
        }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// The client of a proxy's request: the last address that is no trusted proxy's. The client may have forged those before it.
    pub(super) fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let values: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        for value in values.into_iter().rev() {
            for address in value.to_str().ok()?.rsplit(',') {
                let ip: IpAddr = address.trim().parse().ok()?;
                if !self.contains(ip) {
                    return Some(ip);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_client_is_the_last_address_that_is_no_proxy() {
        let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|text| text.parse().expect("a network"));
        let proxies = TrustedProxies::new(&networks);
        let client = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-forwarded-for", HeaderValue::from_static(value));
            }
            proxies.client(&headers).map(|ip| ip.to_string())
        };
        assert_eq!(client(&["192.0.2.1"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(
            client(&["1.2.3.4, 192.0.2.1,10.0.0.3"]).as_deref(),
            Some("192.0.2.1")
        );
        assert_eq!(
            client(&["1.2.3.4", "192.0.2.1", "10.1.1.1"]).as_deref(),
            Some("192.0.2.1")
        );
        for none in [&[][..], &["10.0.0.1"], &["unknown"], &["1.2.3.4, x"]] {
            assert_eq!(client(none), None, "{none:?}");
        }
        assert!(proxies.trusts(Peer::Tcp {
            ip: "::ffff:10.0.0.1".parse().expect("an address")
        }));
        assert!(!proxies.trusts(Peer::Unix { uid: 0 }));
    }
}
