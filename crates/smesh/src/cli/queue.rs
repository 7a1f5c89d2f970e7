//! Arguments of `smesh queue`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

/// `smesh queue`
#[derive(Debug, Subcommand)]
pub enum Queue {
    /// Show how often the estimated starts were right
    Quality,
    /// Replay a trace of jobs through the estimator, and score its estimates
    Replay(QueueReplay),
}

/// `smesh queue replay`
#[derive(Debug, Args)]
#[command(after_help = "\
Feeds the trace through the estimator of pending-explainer in the order of its events, so that no estimate sees what comes later, and
checks this by a second replay of the first half. A job has a first estimate when it has waited for 30 s, and later ones while it waits.

TRACE is a file in the Standard Workload Format, also gzipped (https://www.cs.huji.ac.il/labs/parallel/workload/), or the output of
  sacct -aXP --format=JobID,User,Account,Partition,QOS,Submit,Eligible,Start,End,Timelimit,NNodes,NCPUS,ReqTRES,State,Restarts
or the name of a generated trace: stationary, light, overload, bursts, changing.

Exit status: 0 all goals are met; 1 a goal is missed, or the trace cannot be read; 130 interrupted.

Examples:
  smesh queue replay KTH-SP2-1996-2.1-cln.swf.gz
  smesh queue replay KTH-SP2-1996-2.1-cln.swf.gz --schedule easy --output estimates.csv
  smesh queue replay stationary --seed 7")]
pub struct QueueReplay {
    /// Trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Format of the file
    #[arg(long, value_enum, default_value_t = TraceFormat::Swf)]
    pub format: TraceFormat,
    /// CPUs of the machine [default: from the trace's header]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    pub cpus: Option<i64>,
    /// Take the trace's starts, or schedule its jobs by EASY backfilling with three priority groups
    #[arg(long, value_enum, default_value_t = Schedule::None)]
    pub schedule: Schedule,
    /// Time between two estimates of a job
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub every: Duration,
    /// End at this time of the trace, in its seconds
    #[arg(long, value_name = "SECONDS")]
    pub until: Option<i64>,
    /// Seed of a generated trace
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Jobs of a generated trace
    #[arg(long, value_name = "N", default_value_t = 12_000)]
    pub jobs: usize,
    /// CSV file for the estimates, a row each
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// Standard Workload Format
    Swf,
    /// Output of sacct
    Sacct,
}

/// Where the starts of a replay come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// From the trace
    None,
    /// From EASY backfilling
    Easy,
}
