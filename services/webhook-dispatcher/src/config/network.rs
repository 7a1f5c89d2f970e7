//! How receivers are reached: name resolution, certificates, proxy.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use guarded_http::{Bypass, Network, Proxy, Rule};
use reqwest::Certificate;
use secrecy::{ExposeSecret, SecretString};
use secret_file::LoginUrl;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{Config, Fault, text_or_file};

const DNS: u16 = 53;

/// `[webhook-dispatcher.proxy]` as written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyConfig {
    /// `http://host:port`. Empty: no proxy.
    pub url: LoginUrl,
    /// `user:password`. Set it in the environment, not in the file.
    #[serde(serialize_with = "secret_file::masked")]
    pub credentials: Option<SecretString>,
    /// File with `user:password`. Empty: none.
    pub credentials_file: PathBuf,
    /// Receivers that are reached without the proxy.
    pub no_proxy: Vec<String>,
}

impl Config {
    /// Validates the network settings. `read` reads a file, `read_secret` a file that must not be readable by others.
    ///
    /// # Errors
    /// All faults, not only the first.
    pub fn network(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
        read_secret: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Network, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut fault = |key, problem: String| faults.push(Fault::new(key, problem));
        let authorities = self.authorities(&read).unwrap_or_else(|problem| {
            fault("ca_file", problem);
            Vec::new()
        });
        let mut dns_servers = Vec::new();
        for text in &self.dns_servers {
            match server(text) {
                Some(server) => dns_servers.push(server),
                None => fault(
                    "dns_servers",
                    format!(
                        "{text:?} is no address of a server (write 10.0.0.53, or [fd00::53]:5353 with a port)"
                    ),
                ),
            }
        }
        let proxy = self.proxy.check(&read_secret, &mut fault);
        if faults.is_empty() {
            Ok(Network {
                authorities,
                dns_servers,
                proxy,
            })
        } else {
            Err(faults)
        }
    }

    fn authorities(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<Certificate>, String> {
        if self.ca_file.as_os_str().is_empty() {
            return Ok(Vec::new());
        }
        let path = self.ca_file.display();
        let text = read(&self.ca_file).map_err(|error| format!("read {path}: {error}"))?;
        match Certificate::from_pem_bundle(text.as_bytes()) {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err(format!(
                "{path} has no certificates: PEM is needed, -----BEGIN CERTIFICATE-----"
            )),
        }
    }
}

impl ProxyConfig {
    fn check(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
        fault: &mut impl FnMut(&'static str, String),
    ) -> Option<Proxy> {
        let mut rules = Vec::new();
        for text in &self.no_proxy {
            match text.parse::<Rule>() {
                Ok(rule) => rules.push(rule),
                Err(error) => fault("proxy.no_proxy", error.to_string()),
            }
        }
        let credentials = self.credentials(read).unwrap_or_else(|found| {
            fault(found.key, found.problem);
            None
        });
        if self.url.is_empty() {
            return None;
        }
        // The text may contain a password and must not appear in a fault.
        let url = match Url::parse(&self.url) {
            Ok(url) if url.scheme() == "http" && url.has_host() => url,
            _ => {
                fault("proxy.url", "http://host:port is needed".to_owned());
                return None;
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            let problem = "has a user or password: they belong into proxy.credentials_file, or into MESH_WEBHOOK_DISPATCHER__PROXY__CREDENTIALS";
            fault("proxy.url", problem.to_owned());
        }
        Some(Proxy {
            url,
            credentials,
            bypass: Bypass::new(rules),
        })
    }

    fn credentials(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Option<(String, SecretString)>, Fault> {
        let keys = ["proxy.credentials", "proxy.credentials_file"];
        let text = self.credentials.as_ref().map(ExposeSecret::expose_secret);
        let file = Some(self.credentials_file.as_path());
        let file = file.filter(|file| !file.as_os_str().is_empty());
        let Some(given) = text_or_file(keys, text, file, &read)? else {
            return Ok(None);
        };
        match given.expose_secret().trim().split_once(':') {
            Some((user, password)) if !user.is_empty() => {
                Ok(Some((user.to_owned(), password.into())))
            }
            _ => {
                let key = keys[usize::from(file.is_some())];
                Err(Fault::new(key, "user:password is needed"))
            }
        }
    }
}

/// Parses an address with an optional port.
fn server(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some((address, DNS).into());
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use url::Host;

    use super::*;

    fn network(text: &str) -> Result<Network, Vec<String>> {
        let file: toml::Table = toml::from_str(text).unwrap();
        let config: Config = file.try_into().unwrap();
        let read = |path: &Path| match path.to_str() {
            Some("login") => Ok("mesh:s3:cret\n".to_owned()),
            Some("nonsense") => Ok("nonsense".to_owned()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        };
        config
            .network(read, read)
            .map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_is_written_is_what_is_meant() {
        let plain = network("").unwrap();
        assert!(plain.authorities.is_empty() && plain.dns_servers.is_empty());
        assert!(plain.proxy.is_none());
        let network = network(
            "dns_servers = [\"10.0.0.53\", \"[fd00::53]:5353\"]\n[proxy]\nurl = \"http://proxy.example.org:3128\"\n\
             credentials_file = \"login\"\nno_proxy = [\"ci.example.org\"]",
        )
        .unwrap();
        let servers: Vec<String> = network
            .dns_servers
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(servers, ["10.0.0.53:53", "[fd00::53]:5353"]);
        let proxy = network.proxy.unwrap();
        assert_eq!(proxy.to_string(), "proxy.example.org:3128");
        let (user, password) = proxy.credentials.unwrap();
        assert_eq!(
            (user.as_str(), password.expose_secret()),
            ("mesh", "s3:cret")
        );
        assert!(proxy.bypass.has(&Host::Domain("ci.example.org")));
    }

    #[test]
    fn every_fault_names_its_key_and_no_password() {
        let faults = network(
            "ca_file = \"nonsense\"\ndns_servers = [\"dns.example.org\"]\n[proxy]\nurl = \"http://mesh:s3cret@proxy.example.org:3128\"\n\
             credentials_file = \"missing\"\nno_proxy = [\"a b\"]",
        )
        .err()
        .unwrap();
        let keys: Vec<&str> = faults
            .iter()
            .map(|fault| fault.split(": ").next().unwrap_or_default())
            .collect();
        assert_eq!(
            keys,
            [
                "webhook-dispatcher.ca_file",
                "webhook-dispatcher.dns_servers",
                "webhook-dispatcher.proxy.no_proxy",
                "webhook-dispatcher.proxy.credentials_file",
                "webhook-dispatcher.proxy.url"
            ]
        );
        assert!(!faults.concat().contains("s3cret"), "{faults:?}");
        for url in [
            "https://proxy:3128",
            "socks5://proxy",
            "proxy:3128",
            "http://mesh:s3cret@:1",
        ] {
            let faults = network(&format!("[proxy]\nurl = \"{url}\"")).err().unwrap();
            assert_eq!(
                faults,
                ["webhook-dispatcher.proxy.url: http://host:port is needed"]
            );
        }
        let twice = "[proxy]\ncredentials = \"a:b\"\ncredentials_file = \"login\"";
        assert!(network(twice).err().unwrap()[0].contains("given twice"));
        let half = "[proxy]\ncredentials = \"s3cret\"";
        assert_eq!(
            network(half).err().unwrap(),
            ["webhook-dispatcher.proxy.credentials: user:password is needed"]
        );
    }
}
