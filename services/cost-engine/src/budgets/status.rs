//! Result of an evaluation, as the API shows it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::crossing::percent;
use super::usage::Amounts;
use super::{Budget, Counts};
use crate::domain::calendar_period::Period;
use crate::domain::{Micros, RunsCost};

/// A budget and its use in the present period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct BudgetStatus {
    /// Name.
    pub name: String,
    /// What it covers: all keys must match, and one of the values of each.
    pub scope: ScopeStatus,
    /// Name of the period, such as `2026-11`.
    pub period: String,
    /// First second of the period.
    pub period_start: DateTime<Utc>,
    /// First second after the period. Absent for a rolling period.
    pub period_end: Option<DateTime<Utc>>,
    /// Time zone of the periods.
    pub timezone: String,
    /// Currency of the amounts.
    pub currency: String,
    /// Amount per period.
    #[serde(serialize_with = "text")]
    #[schema(value_type = String)]
    pub amount_micros: Micros,
    /// What counts as used.
    pub counts: Counts,
    /// Parts of final costs that lie in the period. This and the other costs of runs are null if there are such runs and none has a price.
    pub settled_micros: RunsCost,
    /// Costs of running jobs in the period until now.
    pub in_flight_micros: RunsCost,
    /// What pending jobs may cost until their time limits.
    pub pending_micros: RunsCost,
    /// All of these, and what running jobs may still cost in the period until their time limits.
    pub committed_micros: RunsCost,
    /// What is compared with the amount.
    pub used_micros: RunsCost,
    /// The same in percent of the amount, rounded down. Null without a price.
    pub percent: Option<u64>,
    /// Thresholds in percent.
    pub thresholds: Vec<u32>,
    /// Highest threshold that is passed and published. 0 if none is.
    pub threshold: u32,
    /// Cost of running jobs per hour.
    pub burn_rate_micros: RunsCost,
    /// Number of runs without a price, whose cost is missing in the amounts.
    pub unpriced_runs: u64,
    /// Use at the end of the period. Absent with fewer than three days of costs, and for rolling periods.
    pub forecast: Option<ForecastStatus>,
    /// Accounts of the scope that never had a job.
    pub unknown_accounts: Vec<String>,
}

impl BudgetStatus {
    /// The status without a forecast, and without what is published.
    pub(crate) fn of(budget: &Budget, period: &Period, used: Amounts, currency: &str) -> Self {
        let time = |seconds| DateTime::from_timestamp(seconds, 0);
        let counted = used.counted(budget.counts);
        Self {
            name: budget.name.clone(),
            scope: ScopeStatus::of(budget),
            period: period.name.clone(),
            period_start: time(period.from).unwrap_or_default(),
            period_end: time(period.to),
            timezone: budget.zone.name().to_owned(),
            currency: currency.to_owned(),
            amount_micros: budget.amount,
            counts: budget.counts,
            settled_micros: used.settled,
            in_flight_micros: used.in_flight,
            pending_micros: used.pending,
            committed_micros: used.committed(),
            used_micros: counted,
            percent: counted.amount().map(|used| percent(used, budget.amount)),
            thresholds: budget.thresholds.clone(),
            threshold: 0,
            burn_rate_micros: used.burn_rate,
            unpriced_runs: used.committed().unpriced,
            forecast: None,
            unknown_accounts: Vec::new(),
        }
    }
}

/// What a budget covers, as in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ScopeStatus {
    /// Names by key.
    #[serde(flatten)]
    #[schema(value_type = BTreeMap<String, Vec<String>>)]
    pub names: BTreeMap<&'static str, BTreeSet<String>>,
    /// True if the accounts below those of `account` count, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub subtree: bool,
}

impl ScopeStatus {
    fn of(budget: &Budget) -> Self {
        let scope = budget.scope.iter();
        Self {
            names: scope
                .map(|(key, values)| (key.as_str(), values.clone()))
                .collect(),
            subtree: budget.has_subtree(),
        }
    }
}

/// Forecast of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ForecastStatus {
    /// Use at the end of the period, exceeded with a probability of one half.
    #[serde(serialize_with = "text")]
    #[schema(value_type = String)]
    pub p50_micros: Micros,
    /// Use at the end of the period, exceeded with a probability of one tenth.
    #[serde(serialize_with = "text")]
    #[schema(value_type = String)]
    pub p90_micros: Micros,
    /// Day on which the amount is used up with a probability of one half. Absent if it lasts.
    pub exhausted_p50: Option<DateTime<Utc>>,
    /// Day on which it is used up with a probability of one tenth. Absent if it lasts.
    pub exhausted_p90: Option<DateTime<Utc>>,
}

fn text<S: serde::Serializer>(amount: &Micros, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(amount)
}
