//! Arguments of `smesh doctor`.

use std::str::FromStr;

use clap::Args;

use crate::services::{self, SERVICES};

/// `smesh doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as root or SlurmUser on the Slurm controller; other users cannot check everything.

With --service it checks services at their addresses, from any host or pod: readiness, versions and certificates, with the token of
an administrator (--token-file or $SMESH_TOKEN). Also NATS and slurmrestd, if the configuration names them. What cannot be checked
from there is listed as skipped. Of several replicas behind one address, one answers.

Examples:
  smesh doctor
  smesh doctor --service ledger=https://ledger:8686 --service ingest=https://ctl1:8686 --token-file admin.token --ca-file ca.pem

Exit status: 0 no problems; 1 something must be fixed.")]
pub struct Doctor {
    /// Check a service at the address of its API; may be repeated
    #[arg(long = "service", value_name = "NAME=URL", conflicts_with_all = ["socket", "url"])]
    pub services: Vec<ServiceAddress>,
}

/// A service that runs elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// Name of the service.
    pub name: &'static str,
    /// Address of its API, e.g. `https://ledger:8686`.
    pub url: String,
}

impl FromStr for ServiceAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, url) = text
            .split_once('=')
            .ok_or("a name and an address are needed, e.g. ledger=https://ledger:8686")?;
        let service = services::find(name).ok_or_else(|| {
            let names: Vec<&str> = SERVICES.iter().map(|service| service.name()).collect();
            format!("no service {name:?}; there are {}", names.join(", "))
        })?;
        Ok(Self {
            name: service.name(),
            url: url.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_service_that_there_is() {
        let address: ServiceAddress = "ledger=http://x:8686".parse().unwrap();
        assert_eq!((address.name, &*address.url), ("ledger", "http://x:8686"));
        for (wrong, expected) in [
            ("http://x:8686", "NAME"),
            ("ledgre=http://x:8686", "node-watcher"),
        ] {
            let error = wrong.parse::<ServiceAddress>().unwrap_err();
            let expected = expected.replace("NAME", "ledger=https://");
            assert!(error.contains(&expected), "{wrong}: {error}");
        }
    }
}
