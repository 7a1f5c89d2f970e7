//! The command line as data. Flags and id formats are the same in every command.

mod backup;
mod budget;
mod cost;
mod doctor;
mod groups;
mod history;
mod hooks;
mod init;
mod ledger;
mod nats;
mod price;
mod queue;
mod request;
mod triggers;
mod webhooks;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use mesh_runtime::{ParseTimeError, TimeBound};
use slurm_types::JobRef;

pub use backup::{Backup, BackupCommand, Restore};
pub use budget::Budget;
pub use cost::{Cost, CostAttribution, CostBy, CostCommand, CostReport, CostReportFormat};
pub use doctor::{Doctor, ServiceAddress};
pub use history::{
    Events, Export, ExportFormat, Filter, JobHistory, Node, NodeCommand, Replay, ReplayStart, Stats,
};
pub use hooks::{FlushHooks, HookFiles, Hooks, InstallHooks};
pub use init::{Init, InitKubernetes, NatsServers};
pub use ledger::{
    Ledger, LedgerExport, LedgerKey, LedgerMonitor, LedgerResume, LedgerRetain, Verify,
};
pub use nats::{Nats, NatsConfig, NatsProvision};
pub use price::{ImportFiles, Price, PriceEstimate, PriceImport};
pub use queue::{Queue, QueueReplay, Schedule, Squeue, TraceFormat, When, Why};
pub use request::{Request, Requests};
pub use triggers::{Publish, Tree, Triggers};
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
Job ids have Slurm's format: 123, 123_4 (array task), 123+1 (component of a heterogeneous job). -M selects a cluster.

Exit status: 0 success; 1 failure, or a check found a problem; 2 and 3 see `smesh wait --help`; 64 invalid command line;
69 slurm-mesh does not answer; 77 permission denied; 78 invalid configuration.";

/// Shows events, costs and explanations of a Slurm cluster.
#[derive(Debug, Parser)]
#[command(name = "smesh", version, styles = STYLES, help_template = groups::help_template(), after_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    /// Global options.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses a command line. The options of `smesh squeue` are squeue's, some of which are also ours.
    ///
    /// # Errors
    /// If it is invalid, or asks for help or the version.
    pub fn of_arguments(mut arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        let is_squeue = arguments.get(1).is_some_and(|command| command == "squeue")
            && arguments.get(2).is_none_or(|option| option != "--help");
        if !is_squeue {
            return Self::try_parse_from(arguments);
        }
        let options = arguments.split_off(2);
        let mut cli = Self::try_parse_from(arguments)?;
        if let Command::Squeue(squeue) = &mut cli.command {
            squeue.arguments = options;
        }
        Ok(cli)
    }
}

/// Options of every command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Configuration file [default: ./mesh.toml if only you can write it, else /etc/slurm-mesh/mesh.toml]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESH_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    /// Unix socket of the API [default: from the configuration]
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "MESH_SOCKET",
        hide_env_values = true,
        conflicts_with = "url"
    )]
    pub socket: Option<PathBuf>,
    /// URL of the API, e.g. https://login1:8686; requires --token-file or $SMESH_TOKEN
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "MESH_URL",
        hide_env_values = true
    )]
    pub url: Option<String>,
    /// File with the token for --url [default: the value of $SMESH_TOKEN]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESH_TOKEN_FILE",
        hide_env_values = true
    )]
    pub token_file: Option<PathBuf>,
    /// PEM file with certificate authorities to trust for --url, besides the system's
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESH_CA_FILE",
        hide_env_values = true
    )]
    pub ca_file: Option<PathBuf>,
    /// Cluster name [default: from the configuration]
    #[arg(
        short = 'M',
        long,
        global = true,
        value_name = "CLUSTER",
        env = "SLURM_CLUSTERS",
        hide_env_values = true
    )]
    pub cluster: Option<String>,
    /// Print JSON: one document, or one per line for lists
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a commented mesh.toml for this machine
    Init(Init),
    /// Run all services in this process
    Up(Up),
    /// List events, or follow new ones
    Events(Events),
    /// Export events as NDJSON or CSV
    Export(Export),
    /// Replay recorded events on the bus or to a webhook endpoint
    #[command(subcommand)]
    Replay(Replay),
    /// Show statistics: numbers of jobs, waiting times and costs
    Stats(Stats),
    /// Show the history of a job: its runs and their events
    Job(JobHistory),
    /// Show the current or past state of a node, and its events
    Node(Node),
    /// Explain why a job is pending, who can act, and when it may start
    Why(Why),
    /// Estimate when a job would start that is not submitted yet
    When(When),
    /// Show how good estimated starts are, or try them on a trace
    #[command(subcommand)]
    Queue(Queue),
    /// Answer like squeue, without asking slurmctld
    Squeue(Squeue),
    /// Wait for an event of a job
    Wait(Wait),
    /// Show the costs of jobs
    Cost(Cost),
    /// Show budgets and what of them is used, or check budget files
    #[command(subcommand)]
    Budget(Budget),
    /// Create, edit, test and remove webhook endpoints
    #[command(subcommand)]
    Webhooks(Webhooks),
    /// List, test, fire and pause rules that start jobs, and show their runs
    #[command(subcommand)]
    Triggers(Triggers),
    /// Show which event led to a job, and what the job led to
    Tree(Tree),
    /// Publish an event for rules, also from inside a job
    Publish(Publish),
    /// Show your identity and permissions
    Whoami,
    /// Verify that the ledger was not changed
    Verify(Verify),
    /// Manage the ledger: database, checkpoints, keys, exports and archives
    #[command(subcommand)]
    Ledger(Ledger),
    /// Check the price book, estimate a job, import prices
    #[command(subcommand)]
    Price(Price),
    /// Recover the readable part of a service's damaged database file
    Recover(Recover),
    /// Back up databases, streams and state while everything runs, or verify a backup
    Backup(Backup),
    /// Restore a backup
    Restore(Restore),
    /// Show or change which log lines are written, without a restart
    LogLevel(LogLevel),
    /// Check the installation end to end, and report what to fix
    Doctor(Doctor),
    /// Set up users, permissions and streams on your own nats-server
    #[command(subcommand)]
    Nats(Nats),
    /// Print, install, test and flush Slurm's hooks
    #[command(subcommand)]
    Hooks(Hooks),
    /// Parse output of Slurm as the collectors do, for bug reports
    Inspect(Inspect),
    /// Write man pages and shell completions of all programs
    #[command(hide = true)]
    Manual(Manual),
}

/// `smesh manual`
#[derive(Debug, Args)]
pub struct Manual {
    /// Folder to write to
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// `smesh up`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs ingest, node-watcher, cost-engine, pending-explainer, ledger and webhook-dispatcher, the exporter
if enabled is true in [exporter], and the workflow-trigger if it has rules. Also starts a nats-server
unless url is set in [mesh.nats]: the program in NATS_SERVER_BIN, else in PATH, else next to smesh.
Ctrl-C and SIGTERM shut it down gracefully. Nothing is lost if it is killed.

Example:
  smesh init --data-dir data && smesh up          then, in another shell in this folder:  smesh events --follow

Without --data-dir `smesh init` chooses /var/lib/slurm-mesh, which only root can create.")]
pub struct Up {
    /// Folder for state [default: from the configuration]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Port of its nats-server on 127.0.0.1 [default: a free port, reused at the next start if it is still free]
    #[arg(long, value_name = "PORT", env = "MESH_NATS_PORT")]
    pub nats_port: Option<u16>,
    /// Check the configuration, the files it names and nats-server, then exit
    #[arg(long)]
    pub check_config: bool,
}

/// `smesh recover`
#[derive(Debug, Args)]
#[command(after_help = "\
Stop `smesh up` first. The damaged file is moved aside and never changed. Costs, budgets of the API and closed periods are
restored from the ledger, also if the file is gone; costs that the ledger lacks are computed at the next start from the events on
the bus (14 days). Webhooks begin again with all events on the bus that the audit does not report as delivered. The exporter
counts all events on the bus again. Rules of the workflow-trigger do nothing again that the audit reports; where it is not known
what a rule has done, the rule is paused and names the run or event. The ledger cannot be recovered this way; restore it from a
backup.

Examples:
  smesh recover cost-engine
  smesh recover webhook-dispatcher")]
pub struct Recover {
    /// Name of the service, as shown by `smesh doctor`
    #[arg(value_name = "SERVICE")]
    pub service: String,
}

/// `smesh wait`
#[derive(Debug, Args)]
#[command(after_help = "\
Returns at once if the event has already happened. Queries slurm-mesh, never Slurm. EVENT is `end` (any end of the job, except a
requeue) or an event of a job: started, completed, failed, timeout, out_of_memory, cost.finalized, ...

Exit status: 0 the event happened; 2 it can no longer happen, because the job ended in another way; 3 --timeout expired.

Examples:
  smesh wait 123 started
  smesh wait $(sbatch --parsable train.sh) completed && ./evaluate.sh
  smesh wait 123_4 end --timeout 2h")]
pub struct Wait {
    /// Job id
    #[arg(value_name = "ID")]
    pub job: JobRef,
    /// Event to wait for
    #[arg(value_name = "EVENT")]
    pub event: String,
    /// Longest time to wait, e.g. 30s, 2h [default: unlimited]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}

/// `smesh inspect`
#[derive(Debug, Args)]
#[command(after_help = "\
Shows how slurm-mesh parses output of Slurm. The format is detected: squeue, sacct, scontrol and sinfo as text (tables need their header) or with
--json, and responses of slurmrestd, of Slurm 22.05 to 26.05. Prints one JSON document per record. Neither Slurm nor slurm-mesh needs to run.

Slurm prints times without a zone, in that of the machine where the command ran. They are read in --timezone, which each document then names. A time
that cannot be read, or that the clocks of the zone showed twice, is refused. SLURM_TIME_FORMAT=%s makes Slurm print Unix seconds instead.

Examples:
  scontrol show job 123 | smesh inspect -
  sacct -D -P -o JobID,JobIDRaw,State,ExitCode,Submit,Start,End,NodeList -j 123 > sacct.txt; smesh inspect sacct.txt
  smesh inspect sacct.txt --timezone Europe/Berlin      printed on a machine in Berlin
  curl -s --unix-socket /run/slurmrestd.socket http://localhost/slurm/v0.0.42/jobs/ | smesh inspect -

Please report \"oddities\" above 0, and names in \"state\" that Slurm does not have. The output contains job names, comments and paths: remove
anything confidential.

Exit status: 0 every record was parsed; 1 a record cannot be parsed (the error names the line, the field or column, the expected value, and a command
to ask Slurm with).")]
pub struct Inspect {
    /// File to read, or - for standard input
    pub file: PathBuf,
    /// Time zone of times that have none, e.g. Europe/Berlin [default: that of this machine, as `date` shows it]
    #[arg(long, value_name = "ZONE", value_parser = crate::zone::parse)]
    pub timezone: Option<chrono_tz::Tz>,
}

/// `smesh log-level`
#[derive(Debug, Args)]
#[command(after_help = "\
FILTER has the syntax of mesh.telemetry.log_filter: a level (error, warn, info, debug, trace), or levels of modules. A change lasts until the next
restart, or until log_filter in mesh.toml changes. For administrators.

Examples:
  smesh log-level
  smesh log-level info,ledger=debug
  smesh log-level debug --service ingest              a service that runs as its own process on this host")]
pub struct LogLevel {
    /// New filter [default: show the present one]
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
    /// Service that runs as its own process [default: `smesh up`]
    #[arg(long, value_name = "SERVICE", conflicts_with_all = ["socket", "url"])]
    pub service: Option<String>,
}

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
