//! Serde types of a file of vectors. Unknown fields are refused everywhere, because a misspelt field would silently check nothing.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Number, Value};

/// A file. The texts at its head are documentation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub schema: String,
    #[serde(rename = "units")]
    _units: Option<Value>,
    #[serde(rename = "rounding")]
    _rounding: Option<Value>,
    #[serde(rename = "modes")]
    _modes: Option<Value>,
    #[serde(rename = "billing")]
    _billing: Option<Value>,
    pub vectors: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Vector {
    /// A job's runs and their costs.
    Job(JobVector<ExpectJob>),
    /// A job that has no price.
    JobError(JobVector<ExpectError>),
    /// Burn rate and estimate at the start.
    Burn(BurnVector),
    /// Slurm's billing units.
    Billing(BillingVector),
    /// Nodes in a period.
    NodePeriod(PeriodVector),
}

impl Vector {
    pub fn id(&self) -> &str {
        match self {
            Self::Job(vector) => &vector.id,
            Self::JobError(vector) => &vector.id,
            Self::Burn(vector) => &vector.id,
            Self::Billing(vector) => &vector.id,
            Self::NodePeriod(vector) => &vector.id,
        }
    }

    pub fn title(&self) -> &str {
        match self {
            Self::Job(vector) => &vector.title,
            Self::JobError(vector) => &vector.title,
            Self::Burn(vector) => &vector.title,
            Self::Billing(vector) => &vector.title,
            Self::NodePeriod(vector) => &vector.title,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobVector<E> {
    pub id: String,
    #[serde(default)]
    pub title: String,
    pub mode: ModeName,
    pub prices: Vec<Price>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub weights: BTreeMap<String, NodeWeights>,
    pub runs: Vec<RunFacts>,
    /// Present time, for open runs.
    pub now: Option<i64>,
    pub expect: E,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BurnVector {
    pub id: String,
    #[serde(default)]
    pub title: String,
    pub mode: ModeName,
    pub prices: Vec<Price>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub weights: BTreeMap<String, NodeWeights>,
    pub run: BurnRun,
    pub expect: ExpectBurn,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeriodVector {
    pub id: String,
    #[serde(default)]
    pub title: String,
    pub mode: ModeName,
    pub prices: Vec<Price>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub weights: BTreeMap<String, NodeWeights>,
    pub period: (i64, i64),
    pub runs: Vec<RunFacts>,
    /// Present time, for open runs.
    pub now: Option<i64>,
    pub expect: ExpectPeriod,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BillingVector {
    pub id: String,
    #[serde(default)]
    pub title: String,
    pub flag: Flag,
    #[serde(default)]
    pub weights: BTreeMap<String, BillingWeight>,
    pub alloc: BTreeMap<String, u64>,
    pub elapsed_s: u64,
    #[serde(default)]
    pub suspended_s: u64,
    pub rate_micro_per_billing_hour: i64,
    pub expect: ExpectBilling,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ModeName {
    MaxShare,
    WeightedShare,
    WholeNode,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(super) enum MarketName {
    OnDemand,
    Spot,
}

#[derive(Deserialize)]
pub(super) enum Flag {
    #[serde(rename = "SUM")]
    Sum,
    #[serde(rename = "MAX_TRES")]
    MaxTres,
    #[serde(rename = "MAX_TRES_GRES")]
    MaxTresGres,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Price {
    pub node_type: String,
    pub market: MarketName,
    pub from: Option<i64>,
    pub to: Option<i64>,
    pub rate_micro_per_hour: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub name: String,
    #[serde(rename = "type")]
    pub node_type: String,
    pub market: MarketName,
    pub cap: CapacityFacts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CapacityFacts {
    #[serde(default)]
    pub cpu: u64,
    #[serde(default)]
    pub mem_mib: u64,
    #[serde(default)]
    pub gpu: u64,
}

/// Fractions `[numerator, denominator]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeWeights {
    #[serde(default = "no_weight")]
    pub cpu: (i64, i64),
    #[serde(default = "no_weight")]
    pub mem_mib: (i64, i64),
    #[serde(default = "no_weight")]
    pub gpu: (i64, i64),
}

const fn no_weight() -> (i64, i64) {
    (0, 1)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunFacts {
    pub run_id: String,
    /// Absent or null if it never started.
    pub start: Option<i64>,
    /// Absent or null if it has not ended or never started.
    pub end: Option<i64>,
    #[serde(default)]
    pub state: String,
    pub alloc: Option<Value>,
    pub segments: Option<Vec<SegmentFacts>>,
    #[serde(default)]
    pub suspends: Vec<(i64, Option<i64>)>,
    #[serde(default)]
    pub exclusive: bool,
    /// Does not affect the cost up to now.
    #[serde(rename = "time_limit_s")]
    _time_limit_s: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BurnRun {
    #[serde(rename = "run_id")]
    _run_id: String,
    pub start: i64,
    pub time_limit_s: Option<u64>,
    pub alloc: Value,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(rename = "state")]
    _state: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SegmentFacts {
    pub from: i64,
    pub to: Option<i64>,
    pub alloc: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeAlloc {
    pub node: String,
    #[serde(default)]
    pub cpu: u64,
    #[serde(default)]
    pub mem_mib: u64,
    #[serde(default)]
    pub gpu: u64,
}

/// An allocation known only as totals.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TotalAlloc {
    pub nodes: Vec<String>,
    pub total: CapacityFacts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BillingWeight {
    /// A decimal number as text, because JSON numbers are not exact everywhere.
    pub weight: Decimal,
    /// Units of the amount that the weight is for, e.g. 1024 for a weight per GiB.
    #[serde(default = "one")]
    pub per: u64,
}

const fn one() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Decimal {
    Text(String),
    Number(Number),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectJob {
    pub runs: Option<Vec<ExpectRun>>,
    pub job_cost_micro: Option<i64>,
    pub completed_micro: Option<i64>,
    pub not_completed_micro: Option<i64>,
    pub open_micro: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectRun {
    pub run_id: String,
    pub exact_micro: Option<String>,
    pub cost_micro: Option<i64>,
    pub class: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectError {
    pub error: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectBurn {
    pub burn_micro_per_hour: Option<i64>,
    pub exact_burn: Option<String>,
    pub estimate_at_time_limit_micro: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectBilling {
    pub billing_exact: Option<String>,
    pub billing: Option<i64>,
    pub held_s: Option<i64>,
    pub cost_micro: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectPeriod {
    pub node_cost_micro: Option<i64>,
    pub jobs: Option<Vec<ExpectRun>>,
    pub allocated_micro: Option<i64>,
    pub idle_micro: Option<i64>,
    pub over_recovery_micro: Option<i64>,
}
