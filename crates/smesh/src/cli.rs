//! The command line as data. Flags and id forms are the same everywhere.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use slurm_types::JobRef;

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
    /// Only events of this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Only jobs of this name; 'train*' for every name that begins so
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// From this time on: RFC 3339, or how long ago (30m, 2h, 7days)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
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
    /// The word of the API.
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
    /// End a replay before it is done; what it has told stays told
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
requests have the attribute replayid. Only administrators have events told to an endpoint.

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
pub struct Story {
    /// The job
    #[arg(value_name = "ID")]
    pub job: JobRef,
    /// As it stood at this time: RFC 3339, or how long ago (30m, 2h, 7days)
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
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
    /// As it stood at this time: RFC 3339, or how long ago (30m, 2h, 7days)
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
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
    /// Let an endpoint go on
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
    /// List the newest deliveries of an endpoint
    Deliveries {
        /// Its name
        name: String,
        /// How many
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Remove an endpoint; what waits for it ends as dead letters
    Remove {
        /// Its name
        name: String,
    },
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
    /// Any other field of the API, as timeout=5s or 'max_attempts=20'; a value that is JSON is taken as such
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
}

/// `smesh verify`
#[derive(Debug, Args)]
#[command(after_help = "\
Computes chain and tree of the whole ledger again from the stored bodies, compares them with the signed checkpoints, and names the first bad
record. Without --export or --remote it reads the database itself, so it runs as the user of `smesh up`, with a role of PostgreSQL that may
read, or on a copy.

Whoever can write the database and has the key can make another history. Against that keep a checkpoint elsewhere now and then, and the
public key:
  smesh ledger checkpoint > 2026-11-22.note       smesh ledger key show > ledger.keys
  smesh verify --key ledger.keys --checkpoint 2026-11-22.note

An auditor needs no access: an export is verified anywhere, with nothing but the public key.
  smesh ledger export -o ledger.ndjson            smesh verify --export ledger.ndjson --key ledger.keys

Exit status: 0 the ledger is as it was written; 1 it is not.")]
pub struct Verify {
    /// Ledger database [default: as the configuration says]
    #[arg(long, value_name = "FILE")]
    pub database: Option<PathBuf>,
    /// An export of `smesh ledger export`, or an archive of `smesh ledger retain`; - is standard input. Needs --key
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "database",
        requires = "key"
    )]
    pub export: Option<PathBuf>,
    /// An export that is fetched from the API meanwhile. Needs --key
    #[arg(long, conflicts_with_all = ["database", "export"], requires = "key")]
    pub remote: bool,
    /// Public key of the ledger, or a file with some [default: those that the ledger names itself]
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// A checkpoint that was kept
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Vec<PathBuf>,
    /// Folder with the archives of the ledger: verify what is archived there, too [default: only its hashes]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["export", "remote"])]
    pub archive: Option<PathBuf>,
}

/// `smesh ledger`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
`migrate` and `roles` are only for a ledger on PostgreSQL (ledger.db.url) whose service runs with a role that may add and nothing else. The
owner of the database makes the tables, then the roles:

  export MESH_LEDGER__DB__URL=postgres://owner:…@db.example.org/ledger
  smesh ledger migrate
  smesh ledger roles | psql \"$MESH_LEDGER__DB__URL\"

and again after an upgrade. Without such roles the service makes its tables by itself.")]
pub enum Ledger {
    /// Make the tables, or bring them to this version
    Migrate,
    /// Print the SQL that makes the roles and gives them their rights
    Roles,
    /// Print the newest signed checkpoint, to be kept elsewhere
    Checkpoint,
    /// The keys that sign checkpoints
    #[command(subcommand)]
    Key(LedgerKey),
    /// Write the entries into a file that `smesh verify --export` verifies anywhere
    Export(LedgerExport),
    /// Take the content of old entries out of the database, into a file that proves it
    Retain(LedgerRetain),
    /// List what was archived or erased
    Archives,
}

/// `smesh ledger retain`
#[derive(Debug, Args)]
#[command(after_help = "\
Archives what is older, up to the last entry that a signed checkpoint covers, then takes it out of the database. Hashes stay, so `smesh verify`
works as before; with --archive DIR it verifies the archives, too. Each archive is verified alone by `smesh verify --export FILE --key KEY`.
Whatever interrupts it, run it again. It works on the database itself, also while the ledger runs: as the user of `smesh up`, on PostgreSQL
with a role of ledger_retention (ledger.retention.url). The running ledger puts the act into the audit.

  smesh ledger retain --before 400days --archive-dir /srv/archive
  smesh ledger retain --before 2025-01-01T00:00:00Z --erase        nothing is kept but hashes

To erase what is archived, delete the file.")]
pub struct LedgerRetain {
    /// What was recorded before: RFC 3339, or how long ago (400days)
    #[arg(long, value_name = "TIME")]
    pub before: String,
    /// Folder for the archives; made if it is not there [default: as the configuration says]
    #[arg(long, value_name = "DIR", conflicts_with = "erase")]
    pub archive_dir: Option<PathBuf>,
    /// Write no archive: the content is gone for ever
    #[arg(long)]
    pub erase: bool,
    /// Only tell what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// `smesh ledger key`
#[derive(Debug, Subcommand)]
pub enum LedgerKey {
    /// Print the public keys, one a line; the last one signs now
    Show,
    /// Make a new key, which signs from now on. Give its public key to those who verify
    Rotate,
}

/// `smesh ledger export`
#[derive(Debug, Args)]
#[command(after_help = "\
Goes up to the newest checkpoint. Holds everything, so it is for administrators and auditors.")]
pub struct LedgerExport {
    /// File to write, which must not be there yet [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// First entry
    #[arg(long, value_name = "SEQ", default_value_t = 1)]
    pub from: u64,
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

/// `smesh hooks`
#[derive(Debug, Subcommand)]
pub enum Hooks {
    /// Print what to write into slurm.conf and elsewhere, and the scripts it names, keeping the site's own programs
    Print(HookFiles),
    /// Write the scripts into a folder
    Install(InstallHooks),
    /// Deliver now what hooks have spooled and Slurm's Lua plugins have written down
    Flush(FlushHooks),
    /// Ring as every installed hook would, and see it arrive
    #[command(after_help = "\
Nothing of the site's own is run, and nothing is submitted: each doorbell is marked as a probe, which is counted and not looked at.
Run it as root on the Slurm controller. Exit status: 0 every installed hook arrives; 1 one does not, or none is installed.")]
    Test(HookFiles),
}

/// `smesh hooks flush`
#[derive(Debug, Args)]
#[command(after_help = "\
Every call of a hook delivers what waits as well. With --watch it runs until it is stopped, for hosts where hooks are rarely called.
Exit status: 0 nothing waits any more; 1 something stays.")]
pub struct FlushHooks {
    /// The hooks' configuration [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// Go on doing it
    #[arg(long)]
    pub watch: bool,
    /// How often to look, with --watch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
}

/// What hook scripts refer to.
#[derive(Debug, Default, Args)]
pub struct HookFiles {
    /// The mesh-hook program [default: beside smesh, else /usr/bin/mesh-hook]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Its configuration [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// slurm.conf to read if slurmctld does not answer [default: as Slurm finds it]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Folder of the scripts
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm-mesh/hooks")]
    pub dir: PathBuf,
}

/// `smesh hooks install`
#[derive(Debug, Args)]
pub struct InstallHooks {
    /// Folder to write into; SlurmUser must be able to read it
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The mesh-hook program [default: beside smesh, else /usr/bin/mesh-hook]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Its configuration [default: hook.toml in the data directory]
    #[arg(long, value_name = "FILE")]
    pub hook_config: Option<PathBuf>,
    /// slurm.conf to read if slurmctld does not answer [default: as Slurm finds it]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
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
