//! Costs of runs: pure functions over facts, without IO, clocks or floating point.
//!
//! A run is charged for its allocation, not for its actual use. For every allocated node and every interval in which nothing changes,
//!
//! ```text
//! rate of the node per hour × seconds of the interval × share of the node / 3600
//! ```
//!
//! is added up exactly. The sum is rounded once, half to even, to millionths of the currency unit. Intervals are half open. They end
//! at every change: the run starts or ends, is suspended, resumed or resized, or the price changes. Sums over runs (a job, an array, a
//! user, a month) add the rounded amounts, so that reports agree to the last digit.
//!
//! - [`money`]: exact fractions, millionths, rounding.
//! - [`rates`]: rates of a node over time. [`calendar`]: times of the week with other rates.
//! - [`share`]: the charged share of a node.
//! - [`price`]: the cost of a run, its burn rate and its estimate.
//! - [`curve`]: the cost of a run over time, and its parts. [`calendar_period`]: months, quarters and years in a time zone.
//! - [`billing`]: cost by Slurm's own billing units instead of nodes.
//! - [`period`]: cost of a node in a period, and the part that its jobs paid. [`node_costs`]: the same by category.
//! - [`waste`]: what a run held and did not use.
//! - [`suspension`]: suspended intervals from partial records.
//!
//! Not here: the source of prices ([`crate::price_book`]) and the decoding of events ([`crate::usage`]).

pub mod billing;
pub mod calendar;
pub mod calendar_period;
mod class;
pub mod curve;
mod error;
mod market;
pub mod money;
pub mod node_costs;
pub mod period;
pub mod price;
pub mod rates;
mod runs_cost;
pub mod share;
pub mod suspension;
pub mod waste;

pub use class::Class;
pub use curve::CostCurve;
pub use error::{PriceError, Resource};
pub use market::Market;
pub use money::{Exact, Micros};
pub use price::{BurnRate, Line, NodeAmounts, Run, RunCost, Segment, burn, price};
pub use rates::{Rate, RateSchedule};
pub use runs_cost::RunsCost;
pub use share::{Amounts, Capacity, NodeSpec, ShareRule, Weights};

/// Half-open interval `[from, to)` of Unix seconds.
pub type Interval = (i64, i64);
