//! Arguments of the commands that query the ledger, and of replays.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use mesh_runtime::TimeBound;
use slurm_types::JobRef;

use super::time_bound;

/// Filter of events.
#[derive(Clone, Debug, Default, Args)]
pub struct Filter {
    /// Only events of these types, separated by commas, e.g. job.failed or 'job.*'
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub r#type: Vec<String>,
    /// Only events of this job
    #[arg(long, value_name = "ID")]
    pub job: Option<JobRef>,
    /// Only events of this user and their jobs
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Only events of the person with this OIDC subject or e-mail address
    #[arg(long, value_name = "PERSON")]
    pub identity: Option<String>,
    /// Only events of this account
    #[arg(long, value_name = "ACCOUNT")]
    pub account: Option<String>,
    /// Only events in this partition
    #[arg(long, value_name = "PARTITION")]
    pub partition: Option<String>,
    /// Only events of this node and of jobs that ran on it
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only events of jobs with this name; 'train*' matches a prefix
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only events at or after this time: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or an age (30m, 2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub since: Option<TimeBound>,
    /// Only events before this time
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub until: Option<TimeBound>,
}

/// `smesh events`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh events                                  the newest 50, oldest first
  smesh events --follow --type 'job.*'          new events as they happen
  smesh events --job 123_4 --json               all events of an array task, as CloudEvents, one per line
  smesh events --user alice --since 7days --type job.failed,job.out_of_memory

Categories: job, node, user, cost, queue, capture. Regular users see the events of their own jobs.")]
pub struct Events {
    /// Filter of events.
    #[command(flatten)]
    pub filter: Filter,
    /// Largest number of events to list; the newest are listed
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
    /// Keep running and print new events
    #[arg(short, long)]
    pub follow: bool,
}

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One JSON event per line
    Ndjson,
    /// Table with a header line
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
Writes all matching events up to now, oldest first, without a limit. The output file appears under its name once it is complete.

Examples:
  smesh export --since 2026-10-01 --until 2026-11-01 --format csv -o october.csv
  smesh export --type 'job.*' --fields seq,time,type,data.owner.user | gzip > jobs.ndjson.gz")]
pub struct Export {
    /// Filter of events.
    #[command(flatten)]
    pub filter: Filter,
    /// Output format
    #[arg(long, value_enum, default_value = "ndjson")]
    pub format: ExportFormat,
    /// Only these fields of each event: JSON paths separated by commas
    #[arg(long, value_name = "PATHS")]
    pub fields: Option<String>,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `smesh replay`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
For a consumer that was offline too long or lost data: events are published unchanged, with the same ids, in parallel to new events. They appear
on NATS under mesh.replay.<id>., with the header ce-replayid, and are retained as set in ledger.replay.retention. They never appear on slurm.>, so
other consumers are not affected.

You can replay the events that you may see: those of your own jobs, of your accounts as a coordinator, or all as an auditor or administrator.
Replays are recorded in the audit (smesh events --type audit.replay).

Examples:
  smesh replay start --since 7days --type 'job.*' --wait      in another shell:  nats stream view MESH_REPLAY
  smesh replay start --from 1200 --to 3400 --to-endpoint pipeline --rate 50
  smesh replay list --state running")]
pub enum Replay {
    /// Start a replay; it runs in the background and survives a crash
    Start(Box<ReplayStart>),
    /// List your replays, newest first (administrators and auditors: all replays)
    List {
        /// Only replays in this state: running, done, failed or cancelled
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Largest number of replays to list
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show the progress of a replay
    Show {
        /// Id of the replay
        id: String,
        /// Wait until the replay has ended; exit status 1 if it failed or was cancelled
        #[arg(long)]
        wait: bool,
    },
    /// Cancel a replay; messages not yet received are removed
    Cancel {
        /// Id of the replay
        id: String,
    },
}

/// `smesh replay start`
#[derive(Debug, Args)]
#[command(after_help = "\
Publishes the matching events, oldest first, up to the current end of the ledger. Consumers recognise duplicates by the id of the event. After
a crash, the replay resumes within seconds; NATS drops the messages that it already has.

A webhook endpoint receives the events that match its own filter, whatever their age and even if it received them before. Its requests have the
attribute replayid. You can replay to your own endpoints; administrators can replay to any endpoint.

Examples:
  smesh replay start --job 123_4
  smesh replay start --user alice --since 2026-11-01 --until 2026-11-08 --wait
  smesh replay start --from 1200 --to 3400 --to-endpoint pipeline --rate 50
  smesh replay start --type job.failed --key nightly-2026-11-22 --json      repeating it does not start a second replay

Exit status with --wait: 0 the replay is done; 1 it failed or was cancelled. Ctrl-C stops waiting, not the replay.")]
pub struct ReplayStart {
    /// Filter of events.
    #[command(flatten)]
    pub filter: Filter,
    /// First ledger sequence number [default: 1]
    #[arg(long, value_name = "SEQ")]
    pub from: Option<u64>,
    /// Last ledger sequence number [default: the current end of the ledger]
    #[arg(long, value_name = "SEQ")]
    pub to: Option<u64>,
    /// Send to this webhook endpoint [default: publish on the bus]
    #[arg(long, value_name = "NAME")]
    pub to_endpoint: Option<String>,
    /// Largest number of events per second [default: from the configuration, 1000 unless set]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Idempotency key: repeating the command with the same key starts only one replay
    #[arg(long, value_name = "TEXT")]
    pub key: Option<String>,
    /// Wait until the replay has ended, and show its progress
    #[arg(long)]
    pub wait: bool,
}

/// `smesh stats`
#[derive(Debug, Args)]
#[command(after_help = "\
Waiting times run from eligibility to the start, like Planned in sacct. P50 is the median. Costs are final costs.

Examples:
  smesh stats --since 7days                          in total
  smesh stats --since 7days --by user
  smesh stats --since 2026-11-01 --by day,account --json
  smesh stats --kpi --since 30days --by account      efficiency, waste, waits and failures, exact")]
pub struct Stats {
    /// Filter of events.
    #[command(flatten)]
    pub filter: Filter,
    /// Grouping, separated by commas: day (UTC), cluster, user, account, partition, name [default: totals only]
    #[arg(long, value_name = "GROUPS")]
    pub by: Option<String>,
    /// Show CPU efficiency, memory waste, waits and failure rates of runs instead; groups: cluster, partition, account, user, identity, qos
    #[arg(long, conflicts_with = "type")]
    pub kpi: bool,
}

/// `smesh job`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh job 123        smesh job 123_4        smesh job 123 -M other-cluster
  smesh job 123 --at 2026-11-22T10:00:00Z     its state at that time")]
pub struct JobHistory {
    /// Job id
    #[arg(value_name = "ID")]
    pub job: JobRef,
    /// Show the state at this time: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or an age (30m, 2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub at: Option<TimeBound>,
}

/// `smesh node`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  smesh node n17
  smesh node n17 --at 2h                      its state two hours ago
  smesh node history n17                      how long it was up, down, drained, and why; its boots")]
pub struct Node {
    /// What to show instead of the events
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    /// The node
    #[command(flatten)]
    pub selected: Option<SelectedNode>,
}

/// `smesh node …`
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Show its stays in each state with durations, causes and actors, and how long its boots took
    History(SelectedNode),
}

/// A node and a time.
#[derive(Debug, Args)]
pub struct SelectedNode {
    /// NodeName of the node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Show the state at this time: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or an age (30m, 2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub at: Option<TimeBound>,
}
