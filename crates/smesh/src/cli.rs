//! The command line as data. Flags and id formats are the same in every command.

mod history;
mod hooks;
mod ledger;
mod nats;
mod webhooks;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mesh_runtime::{ParseTimeError, TimeBound};
use slurm_types::JobRef;

pub use history::{
    Events, Export, ExportFormat, Filter, JobHistory, Node, Replay, ReplayStart, Stats,
};
pub use hooks::{FlushHooks, HookFiles, Hooks, InstallHooks};
pub use ledger::{
    Ledger, LedgerExport, LedgerKey, LedgerMonitor, LedgerResume, LedgerRetain, Verify,
};
pub use nats::{Nats, NatsConfig, NatsProvision};
pub use webhooks::{
    WebhookAdd, WebhookEdit, WebhookFields, WebhookPreview, Webhooks, WhichDeliveries,
};

/// Parses a time as typed by a user, in the caller's time zone.
fn time_bound(text: &str) -> Result<TimeBound, ParseTimeError> {
    TimeBound::parse(text, &chrono::Local::now())
}

const STYLES: clap::builder::Styles = clap::builder::Styles::styled()
    .header(anstyle::AnsiColor::Green.on_default().bold())
    .usage(anstyle::AnsiColor::Green.on_default().bold())
    .literal(anstyle::AnsiColor::Cyan.on_default().bold())
    .placeholder(anstyle::AnsiColor::Cyan.on_default());

const AFTER_HELP: &str = "\
Jobs are named as Slurm names them: 123, 123_4 (a task of an array), 123+1 (a component of a heterogeneous job); -M names a cluster.

Exit status: 0 done; 1 not done, or a check found something; 2 and 3 see `smesh wait --help`; 64 wrong command line;
69 slurm-mesh does not answer; 77 not allowed; 78 wrong configuration.";

/// Events, costs and explanations of a Slurm cluster.
#[derive(Debug, Parser)]
#[command(name = "smesh", version, styles = STYLES, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    /// Which mesh, and how to show it.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which mesh, and how to show it")]
pub struct Global {
    /// Configuration [default: ./mesh.toml if nobody else may write it, else /etc/slurm-mesh/mesh.toml]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESH_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    /// Unix socket of the API [default: as the configuration says]
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "MESH_SOCKET",
        hide_env_values = true,
        conflicts_with = "url"
    )]
    pub socket: Option<PathBuf>,
    /// Address of the API, e.g. https://login1:8686; needs --token-file or $SMESH_TOKEN
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "MESH_URL",
        hide_env_values = true
    )]
    pub url: Option<String>,
    /// File with the token for --url [default: the token itself in $SMESH_TOKEN]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESH_TOKEN_FILE",
        hide_env_values = true
    )]
    pub token_file: Option<PathBuf>,
    /// PEM file with certificate authorities for --url, beside those of the system
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESH_CA_FILE",
        hide_env_values = true,
        requires = "url"
    )]
    pub ca_file: Option<PathBuf>,
    /// Cluster [default: as the configuration says]
    #[arg(
        short = 'M',
        long,
        global = true,
        value_name = "CLUSTER",
        env = "SLURM_CLUSTERS",
        hide_env_values = true
    )]
    pub cluster: Option<String>,
    /// For machines: one JSON document, or one per line where there are many
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a commented mesh.toml for this machine
    Init(Init),
    /// Run all services in this process
    Up(Up),
    /// List what happened, or follow what happens
    Events(Events),
    /// Write what happened to a file: NDJSON or CSV
    Export(Export),
    /// Have recorded events told once more, on the bus or to a webhook endpoint
    #[command(subcommand)]
    Replay(Replay),
    /// Sum up what happened: how often, how long jobs waited, what they cost
    Stats(Stats),
    /// Tell a job's story: its runs and what happened to each
    Job(JobHistory),
    /// Tell how a node stands or stood, and what happened to it
    Node(Node),
    /// Say why a job waits, who can act, and until when
    Why(Job),
    /// Wait until something happens to a job
    Wait(Wait),
    /// Show what was spent
    Cost(Cost),
    /// Make, change, try and remove webhook endpoints
    #[command(subcommand)]
    Webhooks(Webhooks),
    /// Say who the mesh takes you for, and what you may see
    Whoami,
    /// Prove that the ledger was not changed
    Verify(Verify),
    /// Checkpoints, keys and exports for those who audit the ledger; prepare its database
    #[command(subcommand)]
    Ledger(Ledger),
    /// Check what jobs cost by the price book
    #[command(subcommand)]
    Price(Price),
    /// Bring what can be read of a service's damaged file into a new one
    Recover(Recover),
    /// Check everything, end to end, and say what to fix
    Doctor(Doctor),
    /// Users, rights and streams of a nats-server of your own
    #[command(subcommand)]
    Nats(Nats),
    /// Print, install, test and flush Slurm's hooks
    #[command(subcommand)]
    Hooks(Hooks),
    /// Read output of Slurm as the collectors do, for bug reports
    Inspect(Inspect),
}

/// `smesh init`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh init                                  writes ./mesh.toml from Slurm's own configuration
  smesh init -o /etc/slurm-mesh/mesh.toml --data-dir /var/lib/slurm-mesh

Beside it: price-book.toml (what nodes cost) and identity.toml (who people are), both to be edited.")]
pub struct Init {
    /// slurm.conf to read [default: $SLURM_CONF, else /etc/slurm/slurm.conf]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Where state is to be kept [default: /var/lib/slurm-mesh]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "mesh.toml")]
    pub output: PathBuf,
    /// Replace files that are there already
    #[arg(long)]
    pub force: bool,
}

/// `smesh up`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs ingest, node-watcher, cost-engine, pending-explainer, ledger and webhook-dispatcher, and a nats-server of their own
unless [mesh.nats] url names one: NATS_SERVER_BIN, else the one on the search path, else one beside smesh.
Stops orderly on Ctrl-C and SIGTERM. Nothing is lost if it is killed.

Example:
  smesh init && smesh up          then, in another shell:  smesh events --follow")]
pub struct Up {
    /// Where state is kept, instead of what the configuration says
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Port of its nats-server on 127.0.0.1 [default: a free one, kept for the next start if it is still free]
    #[arg(long, value_name = "PORT", env = "MESH_NATS_PORT")]
    pub nats_port: Option<u16>,
}

/// `smesh recover`
#[derive(Debug, Args)]
#[command(after_help = "\
While `smesh up` is stopped. The damaged file is moved aside and never changed. Costs are computed again from what the bus has
(14 days) at the next start. The ledger is put back from a backup instead.

Examples:
  smesh recover cost-engine
  smesh recover webhook-dispatcher")]
pub struct Recover {
    /// The service, as `smesh doctor` names it
    #[arg(value_name = "SERVICE")]
    pub service: String,
}

/// `smesh why`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh why 123        smesh why 123_4        smesh why 123 -M other-cluster")]
pub struct Job {
    /// The job
    #[arg(value_name = "ID")]
    pub job: JobRef,
}

/// `smesh wait`
#[derive(Debug, Args)]
#[command(after_help = "\
Returns at once if it has happened already. Asks slurm-mesh, never Slurm. EVENT is `end` (of the job, however it ends; a requeue
is none), or an event of a job: started, completed, failed, timeout, out_of_memory, cost.finalized, ...

Exit status: 0 it happened; 2 it can no longer happen, the job has ended otherwise; 3 --timeout is over.

Examples:
  smesh wait 123 started
  smesh wait $(sbatch --parsable train.sh) completed && ./evaluate.sh
  smesh wait 123_4 end --timeout 2h")]
pub struct Wait {
    /// The job
    #[arg(value_name = "ID")]
    pub job: JobRef,
    /// What to wait for
    #[arg(value_name = "EVENT")]
    pub event: String,
    /// How long to wait at most, e.g. 30s, 2h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}

/// What costs are summed by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CostBy {
    /// Unix user
    User,
    /// Slurm account
    Account,
    /// Month in which runs ended
    Month,
    /// Job
    Job,
    /// Partition
    Partition,
}

impl CostBy {
    /// Name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Account => "account",
            Self::Month => "month",
            Self::Job => "job",
            Self::Partition => "partition",
        }
    }
}

/// `smesh cost`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  smesh cost                                    by user
  smesh cost --by account --since 2026-11-01
  smesh cost --live                             what runs now, and what it costs per hour")]
pub struct Cost {
    /// What to sum by
    #[arg(long, value_enum, default_value = "user")]
    pub by: CostBy,
    /// Runs that ended at or after this time: 2026-11-01, 2026-11-22T10:00, yesterday (local time), or how long ago (7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub since: Option<TimeBound>,
    /// Runs that ended before this time
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub until: Option<TimeBound>,
    /// Only this user's
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// What runs now
    #[arg(long, conflicts_with_all = ["since", "until"])]
    pub live: bool,
}

/// `smesh inspect`
#[derive(Debug, Args)]
#[command(after_help = "\
For bug reports: shows what slurm-mesh makes of what Slurm printed. The output is recognised by itself: squeue, sacct, scontrol and sinfo as
text (tables with the names of their columns) or with --json, and slurmrestd's answers, of Slurm 22.05 to 26.05. Prints one JSON document per
record and asks nobody: neither Slurm nor slurm-mesh needs to run.

Examples:
  scontrol show job 123 | smesh inspect -
  sacct -D -P -o JobID,JobIDRaw,State,ExitCode,Submit,Start,End,NodeList -j 123 > sacct.txt; smesh inspect sacct.txt
  curl -s --unix-socket /run/slurmrestd.socket http://localhost/slurm/v0.0.42/jobs/ | smesh inspect -

Look for \"oddities\" above 0 and for names in \"state\" that Slurm does not have: that is what a bug report is about. Job names, comments
and paths are in the output: remove what others must not see.

Exit status: 0 every record was read; 1 it cannot be read (the line or field and what was expected are named).")]
pub struct Inspect {
    /// File to read; - is standard input
    pub file: PathBuf,
}

/// `smesh price`
#[derive(Debug, Subcommand)]
pub enum Price {
    /// Check that jobs cost by a price book what a file says
    #[command(after_help = "\
The file names jobs and what they must cost:
  [[job]]
  name = \"a whole CPU node for an hour\"
  partition = \"cpu\"
  nodes = \"n1\"                      # a host list
  tres = \"cpu=4,mem=4000M\"          # as sacct prints AllocTRES
  start = 2026-08-01T08:00:00Z
  end = 2026-08-01T09:00:00Z
  cost = \"0.36\"                     # or \"none\": it must have no price
Also: exclusive = true, suspended_seconds = 600.

Exit status: 0 every job costs that; 1 one does not, or a file cannot be read.")]
    Check {
        /// TOML file with the jobs
        file: PathBuf,
        /// Price book; default is the one that mesh.toml names
        #[arg(long, value_name = "FILE")]
        book: Option<PathBuf>,
    },
}

/// `smesh doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as root or SlurmUser on the Slurm controller: others cannot see all. Exit status: 0 all is well; 1 something must be fixed.")]
pub struct Doctor {}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn job_ids_are_read_in_slurms_forms() {
        for id in ["123", "123_4", "123+1"] {
            let cli = Cli::try_parse_from(["smesh", "job", id]).unwrap();
            assert!(
                matches!(cli.command, Command::Job(JobHistory { job, .. }) if job.to_string() == id),
                "{id}"
            );
        }
        for id in ["x", "0", "123.4", "-1", "123_"] {
            assert!(
                Cli::try_parse_from(["smesh", "job", "--", id]).is_err(),
                "{id}"
            );
        }
    }

    #[test]
    fn flags_may_stand_anywhere() {
        let cli = Cli::try_parse_from([
            "smesh",
            "-M",
            "c1",
            "events",
            "--json",
            "--type",
            "job.*,cost.finalized",
        ])
        .unwrap();
        assert_eq!(cli.global.cluster.as_deref(), Some("c1"));
        assert!(cli.global.json);
    }
}
