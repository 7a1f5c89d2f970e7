//! The markets on which nodes are bought.

use std::fmt;

/// How a node was bought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Market {
    /// At the list price.
    #[default]
    OnDemand,
    /// At a lower price; the provider may reclaim the node.
    Spot,
}

impl Market {
    /// Name in price books and cost events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
        }
    }
}

impl fmt::Display for Market {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
