//! The settings as an operator writes them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use reqwest::Certificate;
use secrecy::{ExposeSecret as _, SecretString};
use secret_file::{LoginUrl, text_or_file};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::bypass::{Bypass, Rule};
use crate::network::{Network, Proxy};

/// Port of DNS.
const DNS: u16 = 53;

/// The egress proxy as written.
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

/// A setting that cannot be used: its key, and the problem with its remedy.
pub type InvalidSetting = (&'static str, String);

impl Network {
    /// Validates the settings `ca_file`, `dns_servers` and `proxy`. `read` reads a file, `read_secret` a file that must
    /// not be readable by others.
    ///
    /// # Errors
    /// All faults, not only the first.
    pub fn new(
        ca_file: &Path,
        dns_servers: &[String],
        proxy: &ProxyConfig,
        read: impl Fn(&Path) -> io::Result<String>,
        read_secret: impl Fn(&Path) -> io::Result<String>,
    ) -> Result<Self, Vec<InvalidSetting>> {
        let mut faults = Vec::new();
        let mut network = Self::default();
        match authorities(ca_file, read) {
            Ok(found) => network.authorities = found,
            Err(problem) => faults.push(("ca_file", problem)),
        }
        for text in dns_servers {
            match server(text) {
                Some(server) => network.dns_servers.push(server),
                None => faults.push((
                    "dns_servers",
                    format!(
                        "{text:?} is no address of a server (write 10.0.0.53, or [fd00::53]:5353 with a port)"
                    ),
                )),
            }
        }
        network.proxy = proxy.check(read_secret, &mut faults);
        if faults.is_empty() {
            Ok(network)
        } else {
            Err(faults)
        }
    }
}

fn authorities(
    file: &Path,
    read: impl Fn(&Path) -> io::Result<String>,
) -> Result<Vec<Certificate>, String> {
    if file.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    let path = file.display();
    let text = read(file).map_err(|error| format!("read {path}: {error}"))?;
    match Certificate::from_pem_bundle(text.as_bytes()) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!(
            "{path} has no certificates: PEM is needed, -----BEGIN CERTIFICATE-----"
        )),
    }
}

impl ProxyConfig {
    fn check(
        &self,
        read: impl Fn(&Path) -> io::Result<String>,
        faults: &mut Vec<InvalidSetting>,
    ) -> Option<Proxy> {
        let mut rules = Vec::new();
        for text in &self.no_proxy {
            match text.parse::<Rule>() {
                Ok(rule) => rules.push(rule),
                Err(error) => faults.push(("proxy.no_proxy", error.to_string())),
            }
        }
        let credentials = self.credentials(read).unwrap_or_else(|fault| {
            faults.push(fault);
            None
        });
        if self.url.is_empty() {
            return None;
        }
        // The text may contain a password and must not appear in a fault.
        let url = match Url::parse(&self.url) {
            Ok(url) if url.scheme() == "http" && url.has_host() => url,
            _ => {
                faults.push(("proxy.url", "http://host:port is needed".to_owned()));
                return None;
            }
        };
        if !url.username().is_empty() || url.password().is_some() {
            let problem = "has a user or password: they belong into proxy.credentials_file, or into MESH_WEBHOOK_DISPATCHER__PROXY__CREDENTIALS";
            faults.push(("proxy.url", problem.to_owned()));
        }
        Some(Proxy {
            url,
            credentials,
            bypass: Bypass::new(rules),
        })
    }

    fn credentials(
        &self,
        read: impl Fn(&Path) -> io::Result<String>,
    ) -> Result<Option<(String, SecretString)>, InvalidSetting> {
        let keys = ["proxy.credentials", "proxy.credentials_file"];
        let text = self.credentials.as_ref().map(|text| text.expose_secret());
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
                Err((key, "user:password is needed".to_owned()))
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
