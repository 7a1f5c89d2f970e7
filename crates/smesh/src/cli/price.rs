//! Arguments of `smesh price`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use mesh_runtime::TimeBound;

use super::time_bound;

/// `smesh price`
#[derive(Debug, Subcommand)]
pub enum Price {
    /// Compare the costs of sample jobs with the expected costs in a file
    #[command(after_help = "\
The file lists jobs and their expected costs:
  [[job]]
  name = \"a whole CPU node for an hour\"
  partition = \"cpu\"
  nodes = \"n1\"                      # a host list
  tres = \"cpu=4,mem=4000M\"          # as sacct prints AllocTRES
  start = 2026-08-01T08:00:00Z
  end = 2026-08-01T09:00:00Z
  cost = \"0.36\"                     # or \"none\" if it must have no price
Optional: exclusive = true, suspended_seconds = 600.

Exit status: 0 all costs are as expected; 1 a cost differs, or a file cannot be read.")]
    Check {
        /// TOML file with the jobs
        file: PathBuf,
        /// Price book [default: from the configuration]
        #[arg(long, value_name = "FILE")]
        book: Option<PathBuf>,
    },
    /// Show what a job would cost per hour, and at its time limit
    Estimate(PriceEstimate),
    /// Write a price series from a provider's prices
    #[command(subcommand)]
    Import(PriceImport),
}

/// `smesh price estimate`
#[derive(Debug, Args)]
#[command(after_help = "\
Amounts are per node. Without --cpus, --mem and --gres the job has whole nodes. If the price book names the nodes of the partition, pass --nodelist.

Examples:
  smesh price estimate --partition gpu-a100 --nodes 8 --gres gpu:8 --time 24h
  smesh price estimate --nodelist n[1-2] --cpus 4 --mem 16G --time 90m --qos urgent")]
pub struct PriceEstimate {
    /// Partition
    #[arg(long, default_value = "")]
    pub partition: String,
    /// Number of nodes
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "nodelist"
    )]
    pub nodes: u32,
    /// Nodes as a host list
    #[arg(long, value_name = "HOSTS")]
    pub nodelist: Option<String>,
    /// CPUs per node
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cpus: u32,
    /// Memory per node, such as 64G
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub mem: Option<u64>,
    /// GPUs per node, such as gpu:8 or gpu:a100:8
    #[arg(long, value_name = "GRES", value_parser = gpus)]
    pub gres: Option<u32>,
    /// Billing units of the job, for a price book in mode `billing`
    #[arg(long, value_name = "N")]
    pub billing: Option<u64>,
    /// Time limit, such as 24h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub time: Option<Duration>,
    /// QOS
    #[arg(long, default_value = "")]
    pub qos: String,
    /// Account
    #[arg(long, default_value = "")]
    pub account: String,
    /// Start of the job [default: now]
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub at: Option<TimeBound>,
    /// Price book [default: from the configuration]
    #[arg(long, value_name = "FILE")]
    pub book: Option<PathBuf>,
}

/// `smesh price import`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
The output is a series for [[node_type.series]] of the price book. If it exists it is extended; its past prices must be the same in the feed.

Examples:
  smesh price import csv prices.csv --time-column from --price-column eur -o a100.csv
  aws ec2 describe-spot-price-history --instance-types p4d.24xlarge | smesh price import aws-spot - --instance-type p4d.24xlarge -o spot.csv

Exit status: 0 the series is written; 1 it is not, and is unchanged.")]
pub enum PriceImport {
    /// From CSV with a header
    Csv {
        /// Feed and output
        #[command(flatten)]
        files: ImportFiles,
        /// Column with times, such as 2026-07-01T08:00:00Z
        #[arg(long, value_name = "NAME", default_value = "time")]
        time_column: String,
        /// Column with prices per hour
        #[arg(long, value_name = "NAME", default_value = "price")]
        price_column: String,
        /// Column with zones
        #[arg(long, value_name = "NAME")]
        zone_column: Option<String>,
    },
    /// From the output of `aws ec2 describe-spot-price-history`
    AwsSpot {
        /// Feed and output
        #[command(flatten)]
        files: ImportFiles,
        /// Instance type
        #[arg(long, value_name = "TYPE")]
        instance_type: String,
        /// Product description
        #[arg(long, value_name = "TEXT", default_value = "Linux/UNIX")]
        product: String,
    },
    /// From an offer file of AWS for EC2: on-demand prices of shared hardware
    AwsOffers {
        /// Feed and output
        #[command(flatten)]
        files: ImportFiles,
        /// Instance type
        #[arg(long, value_name = "TYPE")]
        instance_type: String,
        /// Region, such as eu-central-1
        #[arg(long, value_name = "REGION")]
        region: String,
        /// Operating system
        #[arg(long, value_name = "NAME", default_value = "Linux")]
        operating_system: String,
        /// Currency
        #[arg(long, value_name = "CODE", default_value = "USD")]
        currency: String,
    },
}

/// Feed and output of an import
#[derive(Debug, Args)]
pub struct ImportFiles {
    /// Prices of the provider; `-` is standard input
    pub feed: PathBuf,
    /// Series to write or to extend
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

fn memory(text: &str) -> Result<u64, String> {
    slurm_types::parse_mem_mib(text).ok_or_else(|| "expected a size such as 64G".to_owned())
}

fn gpus(text: &str) -> Result<u32, String> {
    let count = text.strip_prefix("gpu:").and_then(|rest| {
        let count = rest.rsplit(':').next()?;
        count.parse().ok()
    });
    count.ok_or_else(|| "expected gpu:N or gpu:TYPE:N; other resources have no price".to_owned())
}
