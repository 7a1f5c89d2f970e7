//! The price book: prices of the site's nodes, written by the operator.
//!
//! A TOML file, documented in this service's README. It is accepted completely or not at all: all faults are reported at once, each
//! with file, line and key. Names, dates and amounts are converted to the types of [`crate::domain`] here, once.

pub mod checks;
pub mod estimate;
pub mod feeds;
mod file;
mod prices;
mod read;
pub mod series;
pub(crate) mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::domain::price::Nodes;
use crate::domain::{Capacity, Exact, Market, NodeSpec, RateSchedule, ShareRule, Weights};

/// Why a price book cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PriceBookError {
    /// The file cannot be read.
    #[error("read price book {path}", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The book has faults.
    #[error("price book {file}: {faults}", faults = list(faults))]
    Invalid {
        /// Name of the file.
        file: String,
        /// All faults.
        faults: Vec<Fault>,
    },
    /// The content has changed, but the version has not.
    #[error(
        "price book {path} changed but has the label {label:?} of earlier costs with other prices: change `version`",
        path = path.display()
    )]
    VersionReused {
        /// Path of the file.
        path: PathBuf,
        /// Name and version.
        label: String,
    },
}

/// A fault in a price book.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line number, from 1.
    pub line: usize,
    /// The key, e.g. `node_type.price.on_demand`. Empty if the text is not valid TOML.
    pub key: String,
    /// The fault, and the valid form.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)
    }
}

fn list(faults: &[Fault]) -> String {
    faults
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Basis of the charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Shares of nodes.
    Nodes(ShareRule),
    /// Billing units, at these prices per unit and hour.
    Billing(RateSchedule),
}

/// A valid price book.
#[derive(Clone, Debug)]
pub struct PriceBook {
    /// Name of the book.
    pub name: String,
    /// Version. The site changes it with every price change.
    pub version: String,
    /// ISO 4217 code. One currency per book, without conversion.
    pub currency: String,
    /// Basis of the charge.
    pub charge: Charge,
    /// SHA-256 of the text in hexadecimal digits, without comments, layout and the contents of series files.
    pub text_digest: String,
    /// SHA-256 of the content in hexadecimal digits, without comments and layout.
    pub digest: String,
    /// The text. If it has series files, with their contents instead.
    pub content: String,
    /// Paths of its series files.
    pub series_files: Vec<PathBuf>,
    factors: BTreeMap<FactorKey, Exact>,
    node_types: Vec<NodeType>,
    partition_prices: BTreeMap<(String, String), Prices>,
    spot: Vec<NodeSelector>,
}

/// Runs with a surcharge or discount.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FactorKey {
    Qos(String),
    Partition(String),
    Account(String),
}

impl fmt::Display for FactorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Qos(name) => write!(f, "qos {name:?}"),
            Self::Partition(name) => write!(f, "partition {name:?}"),
            Self::Account(name) => write!(f, "account {name:?}"),
        }
    }
}

#[derive(Clone, Debug)]
struct NodeType {
    name: String,
    place: NodeSelector,
    capacity: Capacity,
    weights: Option<Weights>,
    prices: Prices,
}

#[derive(Clone, Debug, Default)]
struct Prices {
    on_demand: Arc<RateSchedule>,
    spot: Arc<RateSchedule>,
}

impl Prices {
    fn of(&self, market: Market) -> &Arc<RateSchedule> {
        match market {
            Market::OnDemand => &self.on_demand,
            Market::Spot => &self.spot,
        }
    }
}

/// Selects nodes, partitions, or nodes while they serve a partition. `None` selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeSelector {
    nodes: Option<BTreeSet<String>>,
    partitions: Option<BTreeSet<String>>,
}

impl NodeSelector {
    fn covers(&self, node: &str, partition: &str) -> bool {
        let has = |names: &Option<BTreeSet<String>>, name: &str| {
            names.as_ref().is_none_or(|names| names.contains(name))
        };
        has(&self.nodes, node) && has(&self.partitions, partition)
    }

    /// Precedence of selectors that cover the same node: first those that name nodes, then those that name partitions.
    fn precision(&self) -> (bool, bool) {
        (self.nodes.is_some(), self.partitions.is_some())
    }

    /// True if both cover a common node with equal precedence.
    fn collides_with(&self, other: &Self) -> bool {
        let meet = |a: &Option<BTreeSet<String>>, b: &Option<BTreeSet<String>>| match (a, b) {
            (Some(a), Some(b)) => !a.is_disjoint(b),
            _ => true,
        };
        self.precision() == other.precision()
            && meet(&self.nodes, &other.nodes)
            && meet(&self.partitions, &other.partitions)
    }
}

impl PriceBook {
    /// Loads a file.
    ///
    /// # Errors
    /// If it cannot be read, or has faults. Lists all faults.
    pub fn load(path: &Path) -> Result<Self, PriceBookError> {
        let text = std::fs::read_to_string(path).map_err(|source| PriceBookError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse_in(&text, &path.display().to_string(), path.parent())
    }

    /// Parses a text. `file` is its name in errors.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, PriceBookError> {
        Self::parse_in(text, file, None)
    }

    fn parse_in(text: &str, file: &str, folder: Option<&Path>) -> Result<Self, PriceBookError> {
        read::read(text, folder).map_err(|faults| PriceBookError::Invalid {
            file: file.to_owned(),
            faults,
        })
    }

    /// Name and version.
    pub fn name_and_version(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// Name, version and the first digits of the digest, as in cost events.
    pub fn label(&self) -> String {
        let digits = self.digest.get(..8).unwrap_or(&self.digest);
        format!("{} #{digits}", self.name_and_version())
    }

    /// Surcharge or discount of a run: the product of all factors that match. `None` if none does.
    pub fn factor(&self, qos: &str, partition: &str, account: &str) -> Option<Exact> {
        let keys = [
            FactorKey::Qos(qos.to_owned()),
            FactorKey::Partition(partition.to_owned()),
            FactorKey::Account(account.to_owned()),
        ];
        let factors = keys.iter().filter_map(|key| self.factors.get(key));
        factors.cloned().reduce(|product, factor| product * factor)
    }

    /// Name of the charge mode, as in cost events.
    pub const fn mode_name(&self) -> &'static str {
        match &self.charge {
            Charge::Nodes(mode) => mode.as_str(),
            Charge::Billing(_) => "billing",
        }
    }

    /// Properties of a node while it serves a partition. `None` if no node type covers it.
    pub fn node(&self, node: &str, partition: &str) -> Option<NodeSpec> {
        let covering = self
            .node_types
            .iter()
            .filter(|node_type| node_type.place.covers(node, partition));
        let node_type = covering.max_by_key(|node_type| node_type.place.precision())?;
        let market = if self.spot.iter().any(|place| place.covers(node, partition)) {
            Market::Spot
        } else {
            Market::OnDemand
        };
        let prices = self
            .partition_prices
            .get(&(partition.to_owned(), node_type.name.clone()))
            .unwrap_or(&node_type.prices);
        Some(NodeSpec {
            node_type: node_type.name.clone(),
            market,
            capacity: node_type.capacity,
            weights: node_type.weights.clone(),
            rates: Arc::clone(prices.of(market)),
        })
    }

    /// Properties of several nodes. Nodes without a node type are left out, and pricing then reports them.
    pub fn nodes<'a>(&self, names: impl IntoIterator<Item = &'a str>, partition: &str) -> Nodes {
        names
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), Arc::new(self.node(name, partition)?))))
            .collect()
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_2;
