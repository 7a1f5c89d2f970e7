//! Arguments of the commands that query the ledger, and of replays.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use mesh_runtime::TimeBound;
use slurm_types::JobRef;

use super::time_bound;

/// Which events.
#[derive(Clone, Debug, Default, Args)]
pub struct Filter {
    /// Only these types, e.g. job.failed or 'job.*'; several with commas
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub r#type: Vec<String>,
    /// Only this job
    #[arg(long, value_name = "ID")]
    pub job: Option<JobRef>,
    /// Only jobs of this user
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Only jobs of the person with this OIDC subject or e-mail address
    #[arg(long, value_name = "PERSON")]
    pub identity: Option<String>,
    /// Only this account
    #[arg(long, value_name = "ACCOUNT")]
    pub account: Option<String>,
    /// Only this partition
    #[arg(long, value_name = "PARTITION")]
    pub partition: Option<String>,
    /// Only events of this node, and of jobs that ran on it
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only jobs of this name; 'train*' for every name that begins so
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// From this time on: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or how long ago (30m, 2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub since: Option<TimeBound>,
    /// Before this time
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub until: Option<TimeBound>,
}

/// `smesh events`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh events                                  the newest 50, oldest first
  smesh events --follow --type 'job.*'          as they happen
  smesh events --job 123_4 --json               everything about a task, as CloudEvents, one a line
  smesh events --user alice --since 7days --type job.failed,job.out_of_memory

Categories: job, node, user, cost, queue, capture. Normal users see what belongs to their jobs.")]
pub struct Events {
    /// Which events.
    #[command(flatten)]
    pub filter: Filter,
    /// At most so many, the newest
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    /// Go on with what happens from now on
    #[arg(short, long)]
    pub follow: bool,
}

/// What an export is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// An event in JSON on each line
    Ndjson,
    /// A table with a header
    Csv,
}

impl ExportFormat {
    /// Name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
        }
    }
}

/// `smesh export`
#[derive(Debug, Args)]
#[command(after_help = "\
Writes everything that the filter chooses up to now, oldest first, however much it is. A file appears under its name when it is complete.

Examples:
  smesh export --since 2026-10-01 --until 2026-11-01 --format csv -o october.csv
  smesh export --type 'job.*' --fields seq,time,type,data.owner.user | gzip > jobs.ndjson.gz")]
pub struct Export {
    /// Which events.
    #[command(flatten)]
    pub filter: Filter,
    /// What to write
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Only these parts of each event, by their paths in its JSON, with commas
    #[arg(long, value_name = "PATHS")]
    pub fields: Option<String>,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `smesh replay`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
For a consumer that was away too long, or had a fault: events come again as they were, with the same ids, beside what happens now. They are
on NATS below mesh.replay.<id>., marked by the header ce-replayid, for three days; never on slurm.>, so nobody else notices.

You have told what you may see: your own jobs, your accounts' as a coordinator, everything as an auditor or administrator. Who had what told
is in the audit (smesh events --type audit.replay).

Examples:
  smesh replay start --since 7days --type 'job.*' --wait      and meanwhile:  nats stream view MESH_REPLAY
  smesh replay start --from 1200 --to 3400 --to-endpoint pipeline --rate 50
  smesh replay list --state running")]
pub enum Replay {
    /// Begin a replay; it goes on by itself, also after a crash
    Start(Box<ReplayStart>),
    /// List your replays (administrators and auditors: all), the newest first
    List {
        /// Only those in this state: running, done, failed, cancelled
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show how a replay stands
    Show {
        /// Its id
        id: String,
        /// Return when it has ended; exit status 1 if it was not done then
        #[arg(long)]
        wait: bool,
    },
    /// End a replay before it is done; what nobody has received by then is taken away
    Cancel {
        /// Its id
        id: String,
    },
}

/// `smesh replay start`
#[derive(Debug, Args)]
#[command(after_help = "\
Tells what the filter chooses, oldest first, up to the end of the ledger as it is now. A consumer that may see an event twice knows it by its
id. After a crash, what was under way is told again within seconds; NATS drops what it has already.

A webhook endpoint gets the events that its own filter lets through, whatever their age, each again although it had it before; its
requests have the attribute replayid. It has to be one of your own; administrators have events told to any.

Examples:
  smesh replay start --job 123_4
  smesh replay start --user alice --since 2026-11-01 --until 2026-11-08 --wait
  smesh replay start --from 1200 --to 3400 --to-endpoint pipeline --rate 50
  smesh replay start --type job.failed --key nightly-2026-11-22 --json      repeated, it is the same replay

Exit status with --wait: 0 everything was told; 1 it failed or was cancelled. Ctrl-C ends the waiting, not the replay.")]
pub struct ReplayStart {
    /// Which events.
    #[command(flatten)]
    pub filter: Filter,
    /// From this sequence of the ledger on
    #[arg(long, value_name = "SEQ")]
    pub from: Option<u64>,
    /// Up to this sequence [default: the last one now]
    #[arg(long, value_name = "SEQ")]
    pub to: Option<u64>,
    /// Only for this webhook endpoint [default: on the bus]
    #[arg(long, value_name = "NAME")]
    pub to_endpoint: Option<String>,
    /// Events in a second at most [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// A text of your own: the same command with the same key begins one replay
    #[arg(long, value_name = "TEXT")]
    pub key: Option<String>,
    /// Return when it has ended, and show how far it is
    #[arg(long)]
    pub wait: bool,
}

/// `smesh stats`
#[derive(Debug, Args)]
#[command(after_help = "\
Waits are from being eligible to the start, as sacct's Planned; P50: half of the jobs waited no longer. Costs are final costs.

Examples:
  smesh stats --since 7days                          in total
  smesh stats --since 7days --by user
  smesh stats --since 2026-11-01 --by day,account --json")]
pub struct Stats {
    /// Which events.
    #[command(flatten)]
    pub filter: Filter,
    /// What to sum by, with commas: day (UTC), cluster, user, account, partition, name
    #[arg(long, value_name = "GROUPS")]
    pub by: Option<String>,
}

/// `smesh job`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh job 123        smesh job 123_4        smesh job 123 -M other-cluster
  smesh job 123 --at 2026-11-22T10:00:00Z     as it stood then")]
pub struct JobHistory {
    /// The job
    #[arg(value_name = "ID")]
    pub job: JobRef,
    /// As it stood at this time: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or how long ago (30m, 2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub at: Option<TimeBound>,
}

/// `smesh node`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh node n17
  smesh node n17 --at 2h                      as it stood two hours ago")]
pub struct Node {
    /// The node, by its NodeName
    #[arg(value_name = "NODE")]
    pub node: String,
    /// As it stood at this time: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or how long ago (30m, 2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub at: Option<TimeBound>,
}
