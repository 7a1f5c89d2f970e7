//! Arguments of `smesh cost`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use mesh_runtime::TimeBound;

use super::time_bound;

/// Grouping of costs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CostBy {
    /// Person: all Unix users of an OIDC identity, on all clusters
    Identity,
    /// Unix user
    User,
    /// Slurm account
    Account,
    /// Month in which the runs ended
    Month,
    /// Day, with --attribution slice
    Day,
    /// Job
    Job,
    /// Partition
    Partition,
    /// QOS
    Qos,
}

impl CostBy {
    /// Name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::User => "user",
            Self::Account => "account",
            Self::Month => "month",
            Self::Day => "day",
            Self::Job => "job",
            Self::Partition => "partition",
            Self::Qos => "qos",
        }
    }
}

/// How runs are assigned to a period.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CostAttribution {
    /// With their whole cost, by their end
    End,
    /// With the part of their cost that lies in the period
    Slice,
}

/// `smesh cost me`
#[derive(Debug, Subcommand)]
pub enum CostCommand {
    /// What your own jobs have cost this month, ended and running
    Me {
        /// Count from this time on: 2026-11-01, yesterday (local time), or an age (7days) [default: start of the month]
        #[arg(long, value_name = "TIME", value_parser = time_bound)]
        since: Option<TimeBound>,
    },
    /// Cost of each node by category; for administrators and auditors
    Nodes {
        /// Count from this time on [default: start of the month]
        #[arg(long, value_name = "TIME", value_parser = time_bound)]
        since: Option<TimeBound>,
        /// Count up to this time [default: now]
        #[arg(long, value_name = "TIME", value_parser = time_bound)]
        until: Option<TimeBound>,
    },
    /// The costs of a period, each run with its part in it
    Report(CostReport),
    /// Close a period that has ended (UTC): its report does not change any more, and the ledger has its SHA-256
    Close {
        /// 2026-10, 2026-Q3 or 2026
        #[arg(value_name = "PERIOD")]
        period: String,
    },
    /// List closed periods
    Periods,
}

/// Form of a cost report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CostReportFormat {
    /// Table for a terminal
    Table,
    /// Comma-separated values for a spreadsheet, with exact amounts
    Csv,
    /// JSON, as the API answers it
    Json,
    /// FOCUS 1.2, the format of cloud bills: a row for each ended run and month (UTC)
    Focus,
    /// One self-contained HTML file with figures
    Html,
}

/// `smesh cost report`
#[derive(Debug, Args)]
pub struct CostReport {
    /// 2026-11, 2026-Q4 or 2026 [default: this month]
    #[arg(long, value_name = "PERIOD")]
    pub period: Option<String>,
    /// Grouping of the costs; not for FOCUS [default: account]
    #[arg(long, value_enum)]
    pub by: Option<CostBy>,
    /// Form of the report
    #[arg(long, value_enum, default_value = "table")]
    pub format: CostReportFormat,
    /// Time zone of the period, e.g. Europe/Berlin; not for FOCUS [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub timezone: Option<String>,
    /// Only for FOCUS: name of the site, as who bills
    #[arg(long, value_name = "NAME")]
    pub site: Option<String>,
    /// Only for FOCUS: costs are invoiced, so BilledCost is EffectiveCost instead of 0
    #[arg(long)]
    pub billed_effective: bool,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print the table again and again, with running jobs until now
    #[arg(long)]
    pub watch: bool,
    /// Interval of --watch, at least 1s
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10s")]
    pub interval: Duration,
}

/// `smesh cost`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh cost                                    by user
  smesh cost me                                 your own, this month
  smesh cost --by identity --since 2026-11-01   by person
  smesh cost --by account --since 2026-11-01
  smesh cost --by month --attribution slice     by month, each run with its part in the month
  smesh cost report --period 2026-11 --by identity --format html -o november.html
  smesh cost nodes --since 2026-11-01           cost of nodes: allocated, idle, booting, drained
  smesh cost --live                             running jobs and their cost per hour")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cost {
    /// Costs of a person
    #[command(subcommand)]
    pub command: Option<CostCommand>,
    /// Grouping of the costs
    #[arg(long, value_enum, default_value = "user")]
    pub by: CostBy,
    /// Only runs that ended at or after this time: 2026-11-01, 2026-11-22T10:00, yesterday (local time), or an age (7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub since: Option<TimeBound>,
    /// Only runs that ended before this time
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub until: Option<TimeBound>,
    /// Only costs of this user
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// How runs are assigned to the period
    #[arg(long, value_enum, default_value = "end")]
    pub attribution: CostAttribution,
    /// Time zone of months with --attribution slice, e.g. Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub timezone: Option<String>,
    /// Show running jobs
    #[arg(long, conflicts_with_all = ["since", "until"])]
    pub live: bool,
}
