//! A table `[[mesh.api.oidc]]`: a trusted issuer, and the mapping of its subjects to users and roles.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// Settings of an issuer; `config/default.toml` explains each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcConfig {
    /// The claim `iss` of its tokens, compared byte for byte.
    pub issuer: String,
    /// Accepted audiences. The claim `aud` must contain one of them.
    pub audience: Vec<String>,
    /// Tolerated clock difference.
    #[serde(with = "humantime_serde", default = "half_a_minute")]
    pub clock_skew: Duration,
    /// How long cached keys are accepted while the issuer is unavailable.
    #[serde(with = "humantime_serde", default = "a_day")]
    pub keys_max_age: Duration,
    /// Claim that is looked up in the identity map.
    #[serde(default)]
    pub users_by: UserClaim,
    /// Claim with the Unix user of people missing from the identity map. Empty: only the identity map is used.
    #[serde(default)]
    pub user_claim: String,
    /// Claim with groups or roles, a string or a list. `a.b` is the member `b` of the object `a`.
    #[serde(default = "groups")]
    pub group_claim: String,
    /// Groups whose members are administrators.
    #[serde(default)]
    pub admin_groups: Vec<String>,
    /// Groups whose members are auditors.
    #[serde(default)]
    pub auditor_groups: Vec<String>,
    /// Administrators by `sub`.
    #[serde(default)]
    pub admins: Vec<String>,
    /// Auditors by `sub`.
    #[serde(default)]
    pub auditors: Vec<String>,
    /// Whether to accept an `http://` issuer on another host.
    #[serde(default)]
    pub allow_http: bool,
}

/// Claim that is looked up in the identity map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserClaim {
    /// `sub`.
    #[default]
    Subject,
    /// `email`, if the issuer reports it as verified.
    Email,
}

const fn half_a_minute() -> Duration {
    Duration::from_secs(30)
}

const fn a_day() -> Duration {
    Duration::from_secs(24 * 60 * 60)
}

fn groups() -> String {
    "groups".to_owned()
}

impl OidcConfig {
    /// All faults, each with its key.
    pub(crate) fn faults(&self, others: &[Self]) -> Vec<String> {
        let key = |key: &str| format!("mesh.api.oidc {:?} {key}", self.issuer);
        let mut faults = Vec::new();
        if let Err(reason) = self.allows(&self.issuer) {
            faults.push(format!("{}: {reason}", key("issuer")));
        }
        let same = others.iter().filter(|other| other.issuer == self.issuer);
        if same.count() > 1 {
            faults.push(format!("{}: given twice", key("issuer")));
        }
        if self.audience.is_empty() || self.audience.iter().any(String::is_empty) {
            faults.push(format!(
                "{}: set it to the `aud` of tokens for slurm-mesh",
                key("audience")
            ));
        }
        if self.clock_skew > Duration::from_secs(300) {
            faults.push(format!("{}: at most 5m", key("clock_skew")));
        }
        if self.keys_max_age < Duration::from_secs(60) {
            faults.push(format!("{}: at least 1m", key("keys_max_age")));
        }
        let lists = [
            &self.admin_groups,
            &self.auditor_groups,
            &self.admins,
            &self.auditors,
        ];
        if lists.into_iter().flatten().any(String::is_empty) {
            faults.push(format!(
                "{}: empty names are not allowed",
                key("admins, auditors")
            ));
        }
        faults
    }

    /// Checks that keys may be fetched from an address: https, this machine, or `allow_http`.
    pub(super) fn allows(&self, address: &str) -> Result<Url, String> {
        let url = Url::parse(address).map_err(|error| format!("not a URL: {error}"))?;
        let loopback = match url.host() {
            Some(Host::Ipv4(ip)) => IpAddr::V4(ip).is_loopback(),
            Some(Host::Ipv6(ip)) => IpAddr::V6(ip).is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => return Err("the URL has no host".to_owned()),
        };
        match url.scheme() {
            "https" => {}
            "http" if loopback || self.allow_http => {}
            _ => return Err("must be https, or set allow_http = true".to_owned()),
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err("must not have user, password or fragment".to_owned());
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(issuer: &str, more: &str) -> Vec<String> {
        let text = format!("issuer = {issuer:?}\naudience = ['mesh']\n{more}");
        let config: OidcConfig = toml::from_str(&text).unwrap();
        config.faults(&[])
    }

    #[test]
    fn keys_come_by_https_or_from_this_machine() {
        for good in [
            "https://id.example.org/realms/hpc",
            "http://127.0.0.1:8080",
            "http://[::1]:1",
            "http://localhost/x",
        ] {
            assert_eq!(faults(good, ""), [""; 0], "{good}");
        }
        for bad in [
            "http://id.example.org",
            "http://127.0.0.1.example.org",
            "http://localhost.example.org",
            "ftp://localhost",
            "https://me:pw@id.example.org",
            "id.example.org",
            "https://id.example.org#x",
        ] {
            assert_eq!(faults(bad, "").len(), 1, "{bad}");
        }
        assert_eq!(faults("http://id", "allow_http = true"), [""; 0]);
    }

    #[test]
    fn faults_are_named() {
        for (more, part) in [
            ("clock_skew = '1h'", "clock_skew"),
            ("keys_max_age = '1s'", "keys_max_age"),
            ("admins = ['']", "admins"),
        ] {
            let faults = faults("https://id", more);
            assert!(faults[0].contains(part), "{faults:?}");
        }
    }
}
