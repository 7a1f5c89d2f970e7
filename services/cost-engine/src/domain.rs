//! What runs cost: pure functions over facts, without IO, clocks or floating point.
//!
//! A run is charged for what it *held*, not for what it used. For every allocated node and every interval in which nothing changes
//!
//! ```text
//! rate of the node per hour × seconds of the interval × share of the node / 3600
//! ```
//!
//! is added up exactly, and the sum is rounded once, half to even, to millionths of the currency unit. Intervals are half open and end
//! where something changes: the run starts or ends, is suspended or resumed, is resized, or the price changes. Everything that is a sum
//! of runs (a job, an array, a person, a month) adds the rounded figures, so that reports agree with each other to the last digit.
//!
//! - [`money`]: exact fractions, millionths, rounding.
//! - [`rates`]: what a node costs, and since when.
//! - [`share`]: which part of a node a run holds.
//! - [`price`]: the cost of a run, its burn rate and its estimate.
//! - [`billing`]: cost by Slurm's own billing units instead of nodes.
//! - [`period`]: what a node cost in a period, and how much of that its jobs paid.
//! - [`suspension`]: suspended intervals from what is known about them.
//!
//! Not here: where prices come from ([`crate::price_book`]) and how events are read ([`crate::usage`]).

pub mod billing;
mod class;
mod error;
pub mod money;
pub mod period;
pub mod price;
pub mod rates;
pub mod share;
pub mod suspension;

pub use class::Class;
pub use error::{PriceError, Resource};
pub use money::{Exact, Micros};
pub use price::{BurnRate, Line, NodeAmounts, Run, RunCost, Segment, burn, price};
pub use rates::{Market, RateSchedule};
pub use share::{Amounts, Capacity, Mode, NodeSpec, Weights};

/// Half-open interval `[from, to)` of Unix seconds.
pub type Interval = (i64, i64);
