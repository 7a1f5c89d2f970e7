//! The amounts of a cost that a price stands behind.
//!
//! cost-engine counts a price of 0 as none and gives a reason instead of an amount. Events of its first versions have an
//! amount of 0 for such a run. It must not look like a run that cost nothing.

use mesh_events::proto::mesh::cost::v1::{CostEvent, Money};

/// The final cost, if there is a price.
pub fn total(cost: &CostEvent) -> Option<&Money> {
    charged(cost, cost.total.as_ref())
}

/// The cost so far, if there is a price.
pub fn accrued(cost: &CostEvent) -> Option<&Money> {
    charged(cost, cost.accrued.as_ref())
}

/// The cost per hour, if there is a price.
pub fn burn_rate(cost: &CostEvent) -> Option<&Money> {
    cost.burn_rate.as_ref().filter(|rate| rate.micros != 0)
}

/// A run that was not charged for a second cost nothing indeed.
fn charged<'a>(cost: &CostEvent, amount: Option<&'a Money>) -> Option<&'a Money> {
    amount.filter(|amount| amount.micros != 0 || cost.charged_seconds == 0)
}
