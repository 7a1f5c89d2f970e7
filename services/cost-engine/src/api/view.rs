//! The responses about costs. [`live`] and [`report`] compute them from rows and open runs.

mod live;
mod report;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::adapters::CostGroup;
use crate::domain::{Micros, RunsCost};

pub(super) use live::live;
pub(super) use report::spent;
pub(crate) use report::{Slices, sliced};

/// Running jobs and their costs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LiveCosts {
    /// Name and version of the price book; absent without one.
    pub price_book: Option<String>,
    /// Currency of every amount; absent without a price book.
    pub currency: Option<String>,
    /// End of the time covered by `accrued_micros`.
    pub as_of: DateTime<Utc>,
    /// Sum of the jobs' burn rates. Null if there are jobs and none has a price.
    pub burn_rate_micros: RunsCost,
    /// Sum of the jobs' costs so far. Null if there are jobs and none has a price.
    pub accrued_micros: RunsCost,
    /// Number of jobs without a price, whose cost is missing in `accrued_micros`.
    pub unpriced_runs: u64,
    /// Running jobs.
    pub jobs: Vec<LiveJob>,
}

/// A running job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LiveJob {
    /// Cluster of the job.
    pub cluster: String,
    /// Job id in Slurm's form.
    pub job: String,
    /// Entity key of the run.
    pub run: String,
    /// Job name.
    pub name: String,
    /// Unix user name of the owner.
    pub user: String,
    /// Account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// Nodes as a host list.
    pub nodes: String,
    /// Start in Unix seconds.
    pub started: i64,
    /// True while the job is suspended.
    pub suspended: bool,
    /// Cost per hour at its start; absent without a price.
    #[serde(serialize_with = "optional_text")]
    #[schema(value_type = Option<String>)]
    pub burn_rate_micros: Option<Micros>,
    /// Cost so far; absent without a price.
    #[serde(serialize_with = "optional_text")]
    #[schema(value_type = Option<String>)]
    pub accrued_micros: Option<Micros>,
    /// Estimated cost at the time limit; absent without a price or a limit.
    #[serde(serialize_with = "optional_text")]
    #[schema(value_type = Option<String>)]
    pub estimated_micros: Option<Micros>,
    /// Why there is no price. Empty if there is one.
    pub problem: String,
}

/// How a run is assigned to a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    /// With its whole cost, by its end.
    #[default]
    End,
    /// With the part of its cost that lies in the period.
    Slice,
}

/// Costs in a period.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CostReport {
    /// Grouping of the rows.
    pub by: CostGroup,
    /// How runs are assigned to the period.
    pub attribution: Attribution,
    /// Time up to which open runs are charged.
    pub as_of: DateTime<Utc>,
    /// Sums, by cluster, key and currency.
    pub rows: Vec<CostReportRow>,
}

/// Sum for one cluster, key and currency.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CostReportRow {
    /// Cluster. Empty in a report by identity, which sums over clusters.
    pub cluster: String,
    /// Value of the grouping: user, account, month, job, partition or QOS. In a report by identity `<issuer>#<subject>`, or
    /// `unix:<user>@<cluster>` for users whose identity is not known.
    pub key: String,
    /// In a report by identity: e-mail address or name of the person. Absent if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub name: String,
    /// Currency. Empty for open runs while there is no price book.
    pub currency: String,
    /// Number of runs, including open ones.
    pub runs: u64,
    /// Number of runs that have not ended.
    pub open_runs: u64,
    /// Number of runs without a price, whose cost is missing in the amounts.
    pub unpriced_runs: u64,
    /// Cost of runs that ended COMPLETED. This and the other costs of runs are null if there are such runs and none has a price.
    pub completed_micros: RunsCost,
    /// Cost of runs that ended otherwise.
    pub not_completed_micros: RunsCost,
    /// Part of the two amounts above that adjustments added after the final costs. Negative if they lowered them. By slice, without runs
    /// that a bound of the slice cuts.
    #[serde(serialize_with = "amount_text")]
    #[schema(value_type = String)]
    pub adjustments_micros: Micros,
    /// Cost so far of runs that have not ended.
    pub open_micros: RunsCost,
    /// Sum of `completed_micros`, `not_completed_micros` and `open_micros`.
    pub total_micros: RunsCost,
    /// Charged seconds, summed over the runs.
    pub charged_seconds: u64,
    /// Part of `completed_micros` for resources that were held and not used, of runs whose use is known. Absent if there is none.
    #[serde(serialize_with = "amount_text", skip_serializing_if = "is_nothing")]
    #[schema(value_type = Option<String>)]
    pub unused_micros: Micros,
    /// Parts of `not_completed_micros`, by what ended the runs: `cancelled`, `failed`, `node_fail`, `oom`, `preempted`, `requeued`,
    /// `timeout`. Absent if there is none.
    #[serde(
        serialize_with = "amount_texts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub lost_micros: BTreeMap<&'static str, Micros>,
}

pub(crate) fn amount_text<S: Serializer>(
    amount: &Micros,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(amount)
}

fn is_nothing(amount: &Micros) -> bool {
    *amount == Micros::ZERO
}

pub(crate) fn amount_texts<S: Serializer>(
    amounts: &BTreeMap<&'static str, Micros>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        amounts
            .iter()
            .map(|(kind, amount)| (kind, amount.to_string())),
    )
}

fn optional_text<S: Serializer>(amount: &Option<Micros>, serializer: S) -> Result<S::Ok, S::Error> {
    match amount {
        Some(amount) => serializer.collect_str(amount),
        None => serializer.serialize_none(),
    }
}
