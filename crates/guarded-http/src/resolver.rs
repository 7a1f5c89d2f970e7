//! Resolves names to addresses. This is the only place that does: the checked address is the one connected to, so DNS
//! rebinding is not possible.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::{Resolver, TokioResolver};
use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::watch;

use crate::address::check;
use crate::system::{System, ask};

/// The source of addresses.
#[derive(Clone)]
pub struct Names(Arc<Lookups>);

struct Lookups {
    source: Source,
    /// Names being looked up, each once.
    under_way: Mutex<UnderWay>,
}

type UnderWay = HashMap<String, watch::Receiver<Option<Found>>>;

/// Removes a name when its lookup ends, also by a panic, so that later callers start a new one.
struct Entry {
    names: Names,
    name: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.names.under_way().remove(&self.name);
    }
}

/// The addresses, or why there are none.
type Found = Result<Vec<IpAddr>, Unresolved>;

enum Source {
    /// The system's resolver: `/etc/nsswitch.conf`, `/etc/hosts`, `/etc/resolv.conf`.
    System(Arc<System>),
    /// Only the configured DNS servers.
    Servers {
        resolver: Box<TokioResolver>,
        /// The key that configures them.
        key: String,
    },
}

impl Source {
    async fn look_up(&self, name: &str) -> Found {
        let unresolved = |unknown, problem| Unresolved::new(name, unknown, problem);
        let found: Vec<IpAddr> = match self {
            Self::System(system) => {
                let found = system.look_up(name).await;
                found.map_err(|problem| unresolved(is_unknown(&problem), problem))?
            }
            Self::Servers { resolver, key } => {
                let found = resolver.lookup_ip(name).await.map_err(|error| {
                    if error.is_no_records_found() {
                        unresolved(true, "DNS knows no address of it".to_owned())
                    } else {
                        unresolved(false, format!("no answer of {key} ({error})"))
                    }
                })?;
                found.iter().collect()
            }
        };
        if found.is_empty() {
            return Err(unresolved(true, "DNS knows no address of it".to_owned()));
        }
        Ok(found)
    }
}

/// All addresses of a name are forbidden.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name} is at an address that may not be reached ({why}); allow_private or allow_subnets would allow it"
)]
pub(crate) struct Forbidden {
    name: String,
    why: &'static str,
}

/// A name without addresses.
#[derive(Clone, Debug, thiserror::Error)]
#[error("look up {name}: {problem}")]
pub(crate) struct Unresolved {
    name: String,
    /// DNS reports that the name does not exist. Otherwise the lookup failed.
    pub(crate) unknown: bool,
    problem: String,
}

impl Unresolved {
    fn new(name: &str, unknown: bool, problem: String) -> Self {
        let name = name.to_owned();
        Self {
            name,
            unknown,
            problem,
        }
    }
}

impl Names {
    /// A resolver that uses these DNS servers, configured under this key, or the system's resolver if there are none.
    ///
    /// # Errors
    /// If the resolver cannot be created.
    pub fn new(servers: &[SocketAddr], key: String) -> Result<Self, NetError> {
        if servers.is_empty() {
            return Ok(Self::of_system(System::new(ask)));
        }
        let servers = servers.iter().map(|server| {
            let at = |mut connection: ConnectionConfig| {
                connection.port = server.port();
                connection
            };
            let connections = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
            NameServerConfig::new(server.ip(), true, connections)
        });
        let config = ResolverConfig::from_name_servers(servers.collect());
        let mut resolver = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options = resolver.options_mut();
        options.use_hosts_file = ResolveHosts::Never;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        let resolver = Box::new(resolver.build()?);
        Ok(Self::of(Source::Servers { resolver, key }))
    }

    fn of(source: Source) -> Self {
        Self(Arc::new(Lookups {
            source,
            under_way: Mutex::default(),
        }))
    }

    pub(super) fn of_system(system: System) -> Self {
        Self::of(Source::System(Arc::new(system)))
    }

    /// Describes the resolver that has not answered a lookup of this name. `None` if no lookup is in progress.
    pub(crate) fn unanswered(&self, name: &str) -> Option<&str> {
        let is_under_way = self.under_way().contains_key(name);
        is_under_way.then_some(match &self.0.source {
            Source::System(_) => "the system's resolver",
            Source::Servers { key, .. } => key,
        })
    }

    /// The addresses of a name, at least one. A caller that is dropped does not cancel the lookup for others.
    pub(super) async fn addresses(&self, name: &str) -> Found {
        let mut answer = self.answer(name);
        let found = answer.wait_for(Option::is_some).await;
        let found = found.ok().and_then(|found| found.clone());
        found.unwrap_or_else(|| {
            let ends = "the lookup was aborted".to_owned();
            Err(Unresolved::new(name, false, ends))
        })
    }

    /// Joins a lookup in progress, or starts one.
    fn answer(&self, name: &str) -> watch::Receiver<Option<Found>> {
        let mut under_way = self.under_way();
        if let Some(answer) = under_way.get(name) {
            return answer.clone();
        }
        let (names, looked_up) = (self.clone(), name.to_owned());
        let lookup = async move { names.0.source.look_up(&looked_up).await };
        self.start(&mut under_way, name, lookup)
    }

    fn start(
        &self,
        under_way: &mut UnderWay,
        name: &str,
        lookup: impl Future<Output = Found> + Send + 'static,
    ) -> watch::Receiver<Option<Found>> {
        let (sender, answer) = watch::channel(None);
        under_way.insert(name.to_owned(), answer.clone());
        let entry = Entry {
            names: self.clone(),
            name: name.to_owned(),
        };
        tokio::spawn(async move {
            let found = lookup.await;
            drop(entry);
            sender.send_replace(Some(found));
        });
        answer
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        let under_way = self.0.under_way.lock();
        under_way.unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a name that the proxy will resolve again, connecting to any of its addresses. A name unknown here is
    /// left to the proxy.
    pub(crate) async fn check(&self, name: &str, allowed: &[IpNet]) -> Result<(), Forbidden> {
        let found = self.addresses(name).await.unwrap_or_default();
        match refused(name, &found, allowed).next() {
            Some(refused) => Err(refused),
            None => Ok(()),
        }
    }
}

fn refused<'a>(
    name: &'a str,
    found: &'a [IpAddr],
    allowed: &'a [IpNet],
) -> impl Iterator<Item = Forbidden> + 'a {
    found.iter().filter_map(move |address| {
        let why = check(*address, allowed).err()?;
        // Logged for operators only: the owner of the endpoint must not learn internal addresses.
        tracing::info!(name, %address, why, "receiver address refused: not in an allowed subnet");
        Some(Forbidden {
            name: name.to_owned(),
            why,
        })
    })
}

/// The C library gives its reason only as text (`EAI_NONAME` and `EAI_NODATA` of glibc, `EAI_NONAME` of musl).
fn is_unknown(problem: &str) -> bool {
    ["not known", "No address associated", "does not resolve"]
        .iter()
        .any(|known| problem.contains(known))
}

/// Resolves names and removes forbidden addresses.
pub struct GuardedResolver {
    names: Names,
    allowed: Vec<IpNet>,
}

impl GuardedResolver {
    /// A resolver that permits public addresses and these subnets.
    pub const fn new(names: Names, allowed: Vec<IpNet>) -> Self {
        Self { names, allowed }
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (names, allowed) = (self.names.clone(), self.allowed.clone());
        Box::pin(async move {
            let found = names.addresses(name.as_str()).await?;
            let reachable: Vec<IpAddr> = found
                .iter()
                .copied()
                .filter(|address| check(*address, &allowed).is_ok())
                .collect();
            match refused(name.as_str(), &found, &allowed).next() {
                Some(refused) if reachable.is_empty() => Err(refused.into()),
                _ => Ok(dialled(reachable)),
            }
        })
    }
}

/// Unguarded, for the proxy, which the operator configured.
impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.clone();
        Box::pin(async move { Ok(dialled(names.addresses(name.as_str()).await?)) })
    }
}

/// The connector sets the port.
fn dialled(addresses: Vec<IpAddr>) -> Addrs {
    Box::new(addresses.into_iter().map(|address| (address, 0).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lookup_that_panics_is_not_joined_by_later_ones() {
        let names = Names::of_system(System::new(|_| Ok(vec![IpAddr::from([127, 0, 0, 1])])));
        let mut answer = names.start(&mut names.under_way(), "name", async { panic!("a fault") });
        assert!(answer.wait_for(Option::is_some).await.is_err());
        assert_eq!(names.addresses("name").await.unwrap().len(), 1);
    }
}
