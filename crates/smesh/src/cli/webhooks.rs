//! Arguments of the commands about webhooks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use mesh_runtime::TimeBound;

use super::time_bound;

/// `smesh webhooks`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
A webhook of yours gets the events of your own jobs; administrators make wider ones. Those of mesh.toml are changed there.
Names are per owner: NAME is yours, or else the operator's (/NAME in any case); administrators name another's as USER/NAME.
  smesh webhooks add next-step https://ci.example.org/slurm --type job.completed --type job.failed
  smesh webhooks add chat --format slack             asks for the address, which is a secret, and does not show it
  smesh webhooks add chat @slack.url --format slack  reads it from a file; - reads standard input
  smesh webhooks test next-step                      a signed sample, now
  smesh webhooks test next-step --event 0191… --dry-run     what a real event would look like, and whether it would be sent
  smesh webhooks preview --template body.json --type job.failed     what a template makes, before it is used
  smesh webhooks dead next-step                      what was given up; deliveries next-step ID shows every attempt
  smesh webhooks redeliver next-step --all --since 2days
  smesh webhooks rotate next-step                    a new secret; the old one signs beside it for a day
Command lines are seen by everybody on the machine (ps). Addresses of chats, passwords in addresses, header values and tokens of formats belong into
files (@FILE), into standard input or a prompt (-): ADDRESS, --header, --format and --set take them so.
  smesh webhooks add bot --format '{\"type\": \"slack-api\", \"token\": \"@bot.token\", \"channel\": \"C0123\"}'")]
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
        /// Use the secret in this file (- for standard input or a prompt), whsec_…
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
    /// Only those that changed then or later: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or how long ago (2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub since: Option<TimeBound>,
    /// Only those that changed before
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub until: Option<TimeBound>,
}

/// `smesh webhooks add`
#[derive(Debug, Args)]
pub struct WebhookAdd {
    /// Its name: letters, digits, dots, underscores and hyphens
    pub name: String,
    /// Where to send: URL, @FILE to read it from, or - for standard input or a prompt; may be left out for formats whose address is known, and is asked
    /// for where it is a chat's
    #[arg(value_name = "URL")]
    pub address: Option<String>,
    /// Unix user it belongs to (administrators; without: you)
    #[arg(long, value_name = "USER")]
    pub owner: Option<String>,
    /// Sign with the secret in this file (- for standard input or a prompt), whsec_…; without, one is made
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
With a JSON type every {{ … }} is written as JSON, a text with its quotes. docs/guide/webhook-formats.md lists fields and filters. What is wrong
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
    /// cloudevents, slack, teams, discord, or a JSON object with `type` and the settings of the format; @FILE or - if a token is in it
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
    /// Where to send: URL, @FILE to read it from, or - for standard input or a prompt
    #[arg(long, value_name = "URL")]
    pub address: Option<String>,
    /// Take a field back to its default, as `partitions` or `retry.max_interval`
    #[arg(long, value_name = "FIELD")]
    pub unset: Vec<String>,
    /// What changes
    #[command(flatten)]
    pub fields: WebhookFields,
}

/// Fields of an endpoint.
#[derive(Debug, Args)]
pub struct WebhookFields {
    /// What is sent: cloudevents, slack, teams, discord, or a JSON object with `type` and the settings of the format; @FILE or -, or "@FILE" or "-" in
    /// place of a token in it
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
    /// A header of every request, as 'x-team: physics'; 'authorization: @FILE' reads its value from a file, 'authorization: -' from standard input
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
    /// Wait for no longer than this because the receiver asks for it by Retry-After, as 30m [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub max_retry_after: Option<String>,
    /// Chats: say that a job is pending once it has waited for so long, as 15m or 0s; at once if somebody has to act [default: 15m]
    #[arg(long, value_name = "TIME")]
    pub pending_threshold: Option<String>,
    /// Any other field of the API, as retry.max_interval=1h or 'accounts=["physics"]'; a value that is JSON is taken as such, FIELD=@FILE and
    /// FIELD=- are read
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
}
