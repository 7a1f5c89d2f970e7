//! Names become addresses here, and only here: what is checked is what is dialled, so no answer can change in between.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::domain::address::{Subnet, check};

/// Resolves names and leaves out addresses that must not be reached.
pub struct GuardedResolver {
    allowed: Vec<Subnet>,
}

impl GuardedResolver {
    /// A resolver that lets public addresses and these subnets through.
    pub fn new(allowed: Vec<Subnet>) -> Self {
        Self { allowed }
    }
}

/// Every address of a name is one that must not be reached.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name} is at {address}, which may not be reached ({why}); allow_private or allow_subnets would allow it"
)]
pub(super) struct Forbidden {
    name: String,
    address: std::net::IpAddr,
    why: &'static str,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = self.allowed.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut refused = None;
            let mut reachable: Vec<SocketAddr> = Vec::new();
            for address in found {
                match check(address.ip(), &allowed) {
                    Ok(()) => reachable.push(address),
                    Err(why) => {
                        refused = Some(Forbidden {
                            name: name.as_str().to_owned(),
                            address: address.ip(),
                            why,
                        })
                    }
                }
            }
            match refused {
                Some(refused) if reachable.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(reachable.into_iter()) as Addrs),
            }
        })
    }
}
