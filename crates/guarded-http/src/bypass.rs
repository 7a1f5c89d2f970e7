//! Receivers that are reached without the egress proxy.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use url::Host;

use crate::address::is_in;

/// The rules of `no_proxy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bypass(Vec<Rule>);

/// One entry of `no_proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Every receiver.
    All,
    /// A subnet, for URLs with an IP address. Names are not resolved for it.
    Subnet(IpNet),
    /// A name and its subdomains.
    Name(String),
}

/// A text that is not a rule.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no host (write a name, which has those below it, an address, a subnet, or *)")]
pub struct InvalidRule(String);

impl Bypass {
    /// A set of rules.
    pub const fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// True if the proxy is not used for this host.
    pub fn has(&self, host: &Host<&str>) -> bool {
        self.0.iter().any(|rule| match (rule, host) {
            (Rule::All, _) => true,
            (Rule::Subnet(subnet), Host::Ipv4(address)) => is_in(subnet, (*address).into()),
            (Rule::Subnet(subnet), Host::Ipv6(address)) => is_in(subnet, (*address).into()),
            (Rule::Name(name), Host::Domain(host)) => {
                let host = host.strip_suffix('.').unwrap_or(host);
                host.strip_suffix(name.as_str())
                    .is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
            _ => false,
        })
    }
}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidRule(text.to_owned());
        if text == "*" {
            return Ok(Self::All);
        }
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        if let Ok(subnet) = text.parse().or_else(|_| address()) {
            return Ok(Self::Subnet(subnet));
        }
        // Normalize as URLs are: lower case, IDN in its DNS form.
        match Host::parse(text.strip_prefix('.').unwrap_or(text)) {
            Ok(Host::Domain(name)) => Ok(Self::Name(name.trim_end_matches('.').to_owned())),
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(rules: &[&str], host: &str) -> bool {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let url: url::Url = format!("https://{host}/").parse().unwrap();
        Bypass::new(rules).has(&url.host().unwrap())
    }

    #[test]
    fn names_have_those_below_them_and_addresses_their_subnets() {
        let rules = [".example.org", "bücher.example", "10.0.0.0/8", "fd00::1"];
        for host in [
            "example.org",
            "ci.example.org",
            "EXAMPLE.org.",
            "a.Bücher.example",
            "10.1.2.3",
            "[fd00::1]",
        ] {
            assert!(has(&rules, host), "{host}");
        }
        for host in [
            "badexample.org",
            "example.org.evil.example",
            "example.com",
            "11.0.0.1",
            "[fd00::2]",
            "10.example.com",
        ] {
            assert!(!has(&rules, host), "{host}");
        }
        assert!(has(&["*"], "anything.example") && !has(&[], "anything.example"));
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in ["", "a b", "10.0.0.0/33", "http://example.org", "host:8080"] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }
}
