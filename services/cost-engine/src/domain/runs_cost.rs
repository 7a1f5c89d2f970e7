//! Cost of several runs, of which some may have no price.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

use serde::{Serialize, Serializer};

use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::Micros;

/// Cost of some runs. In JSON the amount in millionths as a text, or null if there are runs and none of them has a price: such a cost is
/// not known, and not 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunsCost {
    /// Cost of the runs that have a price.
    pub known: Micros,
    /// Number of runs with a price.
    pub priced: u64,
    /// Number of runs without a price.
    pub unpriced: u64,
}

impl RunsCost {
    /// Cost of one run. `None` without a price.
    pub fn of(cost: Option<Micros>) -> Self {
        Self {
            known: cost.unwrap_or_default(),
            priced: cost.is_some().into(),
            unpriced: cost.is_none().into(),
        }
    }

    /// Number of runs.
    pub const fn runs(&self) -> u64 {
        self.priced + self.unpriced
    }

    /// The amount, zero without runs. `None` if there are runs and none of them has a price.
    pub fn amount(&self) -> Option<Micros> {
        (self.priced > 0 || self.unpriced == 0).then_some(self.known)
    }
}

impl Add for RunsCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            known: self.known + other.known,
            priced: self.priced + other.priced,
            unpriced: self.unpriced + other.unpriced,
        }
    }
}

impl AddAssign for RunsCost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for RunsCost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}

impl Serialize for RunsCost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.amount() {
            Some(amount) => serializer.collect_str(&amount),
            None => serializer.serialize_none(),
        }
    }
}

impl PartialSchema for RunsCost {
    fn schema() -> RefOr<Schema> {
        let text_or_null = ObjectBuilder::new()
            .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
            .description(Some("Cost of some runs in millionths of the currency. Null if there are runs and none of them has a price"));
        text_or_null.into()
    }
}

impl ToSchema for RunsCost {}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn a_cost_without_any_price_is_not_zero() {
        let cost = |costs: &[Option<i64>]| -> RunsCost {
            let costs = costs.iter().map(|cost| RunsCost::of(cost.map(Micros)));
            costs.sum()
        };
        for (costs, amount) in [
            (&[][..], json!("0")),
            (&[None, None], json!(null)),
            (&[Some(5), None], json!("5")),
            // Free of charge by a price, for a run of no length.
            (&[Some(0), None], json!("0")),
        ] {
            assert_eq!(to_value(cost(costs)).unwrap(), amount, "{costs:?}");
        }
        let one = cost(&[Some(5), None, None]);
        assert_eq!((one.runs(), one.unpriced), (3, 2));
    }
}
