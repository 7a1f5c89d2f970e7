//! The command line as data. Flags and id forms are the same everywhere.

mod history;
mod hooks;
mod ledger;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use slurm_types::JobRef;

pub use history::{Events, Export, ExportFormat, Filter, Node, Replay, ReplayStart, Stats, Story};
pub use hooks::{FlushHooks, HookFiles, Hooks, InstallHooks};
pub use ledger::{Ledger, LedgerExport, LedgerKey, LedgerRetain, Verify};

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
    /// Address of the API, e.g. http://login1:8686; needs --token-file or $SMESH_TOKEN
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
    Job(Story),
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
    /// Check the arithmetic of costs against test vectors
    #[command(subcommand)]
    Price(Price),
    /// Check everything, end to end, and say what to fix
    Doctor(Doctor),
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
    /// The word of the API.
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
    /// Runs that ended at or after this date or time
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Runs that ended before this date or time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only this user's
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// What runs now
    #[arg(long, conflicts_with_all = ["since", "until"])]
    pub live: bool,
}

/// `smesh webhooks`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
A webhook of yours gets the events of your own jobs; administrators make wider ones. Those of mesh.toml are changed there.
  smesh webhooks add next-step https://ci.example.org/slurm --type job.completed --type job.failed
  smesh webhooks add chat https://hooks.slack.com/services/… --format slack
  smesh webhooks test next-step                      a signed sample, now
  smesh webhooks test next-step --event 0191… --dry-run     what a real event would look like, and whether it would be sent
  smesh webhooks preview --template body.json --type job.failed     what a template makes, before it is used
  smesh webhooks dead next-step                      what was given up; deliveries next-step ID shows every attempt
  smesh webhooks redeliver next-step --all --since 2days
  smesh webhooks rotate next-step                    a new secret; the old one signs beside it for a day")]
pub enum Webhooks {
    /// Make an endpoint; its signing secret is shown once
    Add(WebhookAdd),
    /// List the endpoints and how they fare
    List,
    /// Show one endpoint and its last attempts
    Show {
        /// Its name
        name: String,
    },
    /// Change an endpoint; what is not named stays
    Edit(WebhookEdit),
    /// Let an endpoint wait; its events are queued for as long as the bus keeps them (14 days)
    Pause {
        /// Its name
        name: String,
        /// Why, for others who look at it
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Let an endpoint go on; an active one whose circuit is open, or whose receiver asked for a pause, is tried at once
    Resume {
        /// Its name
        name: String,
    },
    /// Send a signed test event to an endpoint and show the answer
    Test {
        /// Its name
        name: String,
        /// Send this event of the ledger instead of a sample
        #[arg(long, value_name = "ID")]
        event: Option<String>,
        /// Show what would be sent, and send nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what an endpoint would be sent, or what a format or template makes; nothing is sent
    Preview(WebhookPreview),
    /// Make a new signing secret, which is shown once; the old one signs beside it for a while
    Rotate {
        /// Its name
        name: String,
        /// How long the old one signs, as 12h or 2d; at most 7d
        #[arg(long, value_name = "TIME")]
        overlap: Option<String>,
        /// Use the secret in this file, whsec_…
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// List the newest deliveries of an endpoint, or show one with its attempts and its event
    Deliveries {
        /// Its name
        name: String,
        /// Id of the event
        #[arg(value_name = "ID", conflicts_with_all = ["state", "kind", "cause", "since", "until"])]
        id: Option<String>,
        /// Only those that are waiting, delivered, dead or expired
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Which of them
        #[command(flatten)]
        which: WhichDeliveries,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// List the newest dead letters of an endpoint: what was given up
    Dead {
        /// Its name
        name: String,
        /// Which of them
        #[command(flatten)]
        which: WhichDeliveries,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Have dead letters delivered again; without any, show what was asked for and how far it is
    Redeliver {
        /// Name of the endpoint
        name: String,
        /// Ids of events
        #[arg(value_name = "ID", conflicts_with_all = ["all", "kind", "cause", "since", "until"])]
        ids: Vec<String>,
        /// Every dead letter that the other options do not leave out
        #[arg(long)]
        all: bool,
        /// Which of them
        #[command(flatten)]
        which: WhichDeliveries,
        /// So many a second, of those that are named [default: 100]
        #[arg(long, value_name = "N")]
        rate: Option<u32>,
    },
    /// Remove an endpoint; what waits for it ends as dead letters
    Remove {
        /// Its name
        name: String,
    },
}

/// Which deliveries.
#[derive(Debug, Default, Args)]
pub struct WhichDeliveries {
    /// Only those of this type, as job.failed or 'job.*'
    #[arg(long = "type", id = "kind", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Only those that failed for this reason: refused, gone, address, tls, failing, limited, unreachable, timeout, proxy, content, internal or removed
    #[arg(long, value_name = "CAUSE")]
    pub cause: Option<String>,
    /// Only those that changed then or later: RFC 3339, a day, or how long ago, as 2h or 7days
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only those that changed before
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}

/// `smesh webhooks add`
#[derive(Debug, Args)]
pub struct WebhookAdd {
    /// Its name: letters, digits, dots, underscores and hyphens
    pub name: String,
    /// Where to send; may be left out for formats whose address is known
    #[arg(value_name = "URL")]
    pub address: Option<String>,
    /// Unix user it belongs to (administrators; without: you)
    #[arg(long, value_name = "USER")]
    pub owner: Option<String>,
    /// Sign with the secret in this file, whsec_…; without, one is made
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// What it is
    #[command(flatten)]
    pub fields: WebhookFields,
}

/// `smesh webhooks preview`
#[derive(Debug, Args)]
#[command(after_help = "\
A template is any text with fields of the event in {{ … }}, e.g. in body.json:
  {\"text\": {{ \"Job \" ~ job.id ~ \" of \" ~ owner.user ~ \": \" ~ type }}{% if job %}, \"code\": {{ job.exit_code }}{% endif %}}
With a JSON type every {{ … }} is written as JSON, a text with its quotes. docs/howto/webhook-formats.md lists fields and filters. What is wrong
is named with its line and column; a misspelt field is an error, never an empty text.

Examples:
  smesh webhooks preview --template body.json                        a job that failed
  smesh webhooks preview --template body.txt --content-type text/plain --type node.down
  smesh webhooks preview --format slack --type job.completed         what a chat would show, as JSON for Slack's Block Kit Builder
  smesh webhooks preview next-step --event 0191…                     what an endpoint would be sent of an event of the ledger
  smesh webhooks edit next-step --format \"$(jq -Rs '{type: \"template\", body: .}' body.json)\"     and then to use it

Exit status: 0 it can be made; 1 it cannot, and why.")]
pub struct WebhookPreview {
    /// Name of an endpoint; without, a format or a template is shown
    #[arg(required_unless_present_any = ["format", "template"])]
    pub name: Option<String>,
    /// File with a template; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "format"])]
    pub template: Option<PathBuf>,
    /// Type of what the template makes [default: application/json]
    #[arg(long, value_name = "TYPE", requires = "template")]
    pub content_type: Option<String>,
    /// cloudevents, slack, teams, discord, or a JSON object with `type` and the settings of the format
    #[arg(long, value_name = "FORMAT", conflicts_with = "name")]
    pub format: Option<String>,
    /// An event of the ledger
    #[arg(long, value_name = "ID", conflicts_with = "kind")]
    pub event: Option<String>,
    /// A sample of this type [default: job.failed]
    #[arg(long = "type", id = "kind", value_name = "TYPE")]
    pub kind: Option<String>,
}

/// `smesh webhooks edit`
#[derive(Debug, Args)]
pub struct WebhookEdit {
    /// Its name
    pub name: String,
    /// Where to send
    #[arg(long, value_name = "URL")]
    pub address: Option<String>,
    /// Take a field back to its default, as `partitions`
    #[arg(long, value_name = "FIELD")]
    pub unset: Vec<String>,
    /// What changes
    #[command(flatten)]
    pub fields: WebhookFields,
}

/// Fields of an endpoint.
#[derive(Debug, Args)]
pub struct WebhookFields {
    /// What is sent: cloudevents, slack, teams, discord, or a JSON object with `type` and the settings of the format
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Types of events, as job.failed or 'job.*'; several are allowed
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,
    /// Only events of this user; several are allowed
    #[arg(long = "user", value_name = "USER")]
    pub users: Vec<String>,
    /// Only events in this partition; several are allowed
    #[arg(long = "partition", value_name = "PARTITION")]
    pub partitions: Vec<String>,
    /// A header of every request, as 'authorization: Bearer …', or 'authorization: @file' to read its value from a file
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Requests in a second, minute or hour: 10/s, 30/m, 100/h [default: as fast as it goes]
    #[arg(long, value_name = "RATE")]
    pub rate_limit: Option<String>,
    /// Requests at once after a pause, within the rate limit [default: the number in it]
    #[arg(long, value_name = "N")]
    pub burst: Option<u32>,
    /// A status that means success, as 202, 2xx or 200-204; several are allowed [default: 2xx]
    #[arg(long, value_name = "STATUS")]
    pub success: Vec<String>,
    /// Deadline of one attempt, at most 30s
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Attempts in all before a delivery becomes a dead letter
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
    /// Give a delivery up after so long, as 1d, although attempts are left
    #[arg(long, value_name = "TIME")]
    pub give_up_after: Option<String>,
    /// Do not send older events, as 1h
    #[arg(long, value_name = "TIME")]
    pub max_event_age: Option<String>,
    /// Any other field of the API, as circuit_after=5 or 'accounts=["physics"]'; a value that is JSON is taken as such
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
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
    /// Check a file of cost test vectors; exit status 1 if a figure comes out otherwise
    Check {
        /// JSON file of the schema cost-vectors/1
        file: PathBuf,
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
                matches!(cli.command, Command::Job(Story { job, .. }) if job.to_string() == id),
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
