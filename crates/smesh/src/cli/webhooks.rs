//! Arguments of the commands about webhooks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use mesh_runtime::TimeBound;

use super::time_bound;

/// `smesh webhooks`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Your endpoints receive the events of your own jobs; administrators can create endpoints for all events. Endpoints in mesh.toml are edited there.
Names are per owner: NAME is your endpoint, or else the operator's. /NAME is always the operator's. Administrators use USER/NAME for other users.
  smesh webhooks add next-step https://ci.example.org/slurm --type job.completed --type job.failed
  smesh webhooks add chat --format slack             prompts for the URL, which is a secret, without echoing it
  smesh webhooks add chat @slack.url --format slack  reads the URL from a file; - reads standard input
  smesh webhooks test next-step                      sends a signed sample now
  smesh webhooks test next-step --event 0191… --dry-run     shows the request for a real event, and whether it would be sent
  smesh webhooks preview --template body.json --type job.failed     shows the output of a template before it is used
  smesh webhooks dead next-step                      lists dead letters; deliveries next-step ID shows every attempt
  smesh webhooks redeliver next-step --all --since 2days
  smesh webhooks rotate next-step                    creates a new secret; the old one also signs for a day
Command lines are visible to everyone on the machine (ps). Pass URLs of chats, passwords in URLs, header values and tokens of formats in a file
(@FILE), or on standard input or at a prompt (-). URL, --header, --format and --set accept both.
  smesh webhooks add bot --format '{\"type\": \"slack-api\", \"token\": \"@bot.token\", \"channel\": \"C0123\"}'")]
pub enum Webhooks {
    /// Create an endpoint; its signing secret is shown once
    Add(WebhookAdd),
    /// List endpoints with their status
    List,
    /// Show an endpoint and its latest attempts
    Show {
        /// Name of the endpoint
        name: String,
    },
    /// Edit an endpoint; fields that are not given stay unchanged
    Edit(WebhookEdit),
    /// Pause an endpoint; its events are queued for as long as the bus retains them (14 days)
    Pause {
        /// Name of the endpoint
        name: String,
        /// Reason, shown to others
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Resume an endpoint; an active one with an open circuit or a requested wait is retried at once
    Resume {
        /// Name of the endpoint
        name: String,
    },
    /// Send a signed test event to an endpoint and show the response
    Test {
        /// Name of the endpoint
        name: String,
        /// Send the event with this id from the ledger instead of a sample
        #[arg(long, value_name = "ID")]
        event: Option<String>,
        /// Show the request without sending it
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the message of an endpoint, format or template without sending it
    Preview(WebhookPreview),
    /// Create a new signing secret, shown once; the old one also signs for a while
    Rotate {
        /// Name of the endpoint
        name: String,
        /// How long the old secret also signs, e.g. 12h or 2d; at most 7d [default: from the configuration]
        #[arg(long, value_name = "TIME")]
        overlap: Option<String>,
        /// File with the new secret, whsec_… (- for standard input or a prompt) [default: a random secret]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
    },
    /// List the newest deliveries of an endpoint, or show one with its attempts and event
    Deliveries {
        /// Name of the endpoint
        name: String,
        /// Id of the event
        #[arg(value_name = "ID", conflicts_with_all = ["state", "kind", "cause", "since", "until"])]
        id: Option<String>,
        /// Only deliveries in this state: waiting, delivered, dead or expired
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// Filter of deliveries.
        #[command(flatten)]
        which: WhichDeliveries,
        /// Largest number of deliveries to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// List the newest dead letters of an endpoint: deliveries that were given up
    Dead {
        /// Name of the endpoint
        name: String,
        /// Filter of deliveries.
        #[command(flatten)]
        which: WhichDeliveries,
        /// Largest number of deliveries to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Redeliver dead letters; without ids or --all, show requested redeliveries and their progress
    Redeliver {
        /// Name of the endpoint
        name: String,
        /// Ids of the events
        #[arg(value_name = "ID", conflicts_with_all = ["all", "kind", "cause", "since", "until"])]
        ids: Vec<String>,
        /// All dead letters that match the other options
        #[arg(long)]
        all: bool,
        /// Filter of deliveries.
        #[command(flatten)]
        which: WhichDeliveries,
        /// Deliveries per second [default: 100]
        #[arg(long, value_name = "N")]
        rate: Option<u32>,
    },
    /// Remove an endpoint; its waiting deliveries become dead letters
    Remove {
        /// Name of the endpoint
        name: String,
    },
}

/// Filter of deliveries.
#[derive(Debug, Default, Args)]
pub struct WhichDeliveries {
    /// Only events of this type, e.g. job.failed or 'job.*'
    #[arg(long = "type", id = "kind", value_name = "TYPE")]
    pub kind: Option<String>,
    /// Only failures with this cause: refused, gone, address, tls, failing, limited, unreachable, timeout, proxy, content, internal or removed
    #[arg(long, value_name = "CAUSE")]
    pub cause: Option<String>,
    /// Only deliveries that changed at or after this time: 2026-11-22T10:00, 2026-11-22, yesterday (local time), or an age (2h, 7days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub since: Option<TimeBound>,
    /// Only deliveries that changed before this time
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub until: Option<TimeBound>,
}

/// `smesh webhooks add`
#[derive(Debug, Args)]
pub struct WebhookAdd {
    /// Name of the endpoint: letters, digits, dots, underscores and hyphens
    pub name: String,
    /// URL of the receiver, @FILE to read it from a file, or - for standard input or a prompt; optional for formats with a known URL, prompted for with
    /// chats
    #[arg(value_name = "URL")]
    pub address: Option<String>,
    /// Unix user who owns the endpoint (administrators only) [default: you]
    #[arg(long, value_name = "USER")]
    pub owner: Option<String>,
    /// File with the signing secret, whsec_… (- for standard input or a prompt) [default: a random secret]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Fields of the endpoint.
    #[command(flatten)]
    pub fields: WebhookFields,
}

/// `smesh webhooks preview`
#[derive(Debug, Args)]
#[command(after_help = "\
A template is a text with fields of the event in {{ … }}, e.g. in body.json:
  {\"text\": {{ \"Job \" ~ job.id ~ \" of \" ~ owner.user ~ \": \" ~ type }}{% if job %}, \"code\": {{ job.exit_code }}{% endif %}}
With a JSON content type, every {{ … }} is written as JSON; text includes its quotes. docs/guide/webhook-formats.md lists fields and filters. Errors
name line and column. A misspelt field is an error, not an empty text.

Examples:
  smesh webhooks preview --template body.json                        with a sample of job.failed
  smesh webhooks preview --template body.txt --content-type text/plain --type node.down
  smesh webhooks preview --format slack --type job.completed         the JSON of a chat message, e.g. for Slack's Block Kit Builder
  smesh webhooks preview next-step --event 0191…                     the message of an endpoint for an event from the ledger
  smesh webhooks edit next-step --format \"$(jq -Rs '{type: \"template\", body: .}' body.json)\"     uses the template

Exit status: 0 the message was rendered; 1 it cannot be rendered (the error names the reason).")]
pub struct WebhookPreview {
    /// Name of the endpoint; required without --format or --template
    #[arg(required_unless_present_any = ["format", "template"])]
    pub name: Option<String>,
    /// File with a template, or - for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "format"])]
    pub template: Option<PathBuf>,
    /// Content type of the template's output [default: application/json]
    #[arg(long, value_name = "TYPE", requires = "template")]
    pub content_type: Option<String>,
    /// Format: cloudevents, slack, teams, discord, or a JSON object with `type` and its settings; use @FILE or - if it contains a token
    #[arg(long, value_name = "FORMAT", conflicts_with = "name")]
    pub format: Option<String>,
    /// Use the event with this id from the ledger
    #[arg(long, value_name = "ID", conflicts_with = "kind")]
    pub event: Option<String>,
    /// Use a sample event of this type [default: job.failed]
    #[arg(long = "type", id = "kind", value_name = "TYPE")]
    pub kind: Option<String>,
}

/// `smesh webhooks edit`
#[derive(Debug, Args)]
pub struct WebhookEdit {
    /// Name of the endpoint
    pub name: String,
    /// URL of the receiver, @FILE to read it from a file, or - for standard input or a prompt
    #[arg(long, value_name = "URL")]
    pub address: Option<String>,
    /// Reset a field to its default, e.g. `partitions` or `retry.max_interval`
    #[arg(long, value_name = "FIELD")]
    pub unset: Vec<String>,
    /// Fields to change.
    #[command(flatten)]
    pub fields: WebhookFields,
}

/// Fields of an endpoint.
#[derive(Debug, Args)]
pub struct WebhookFields {
    /// Format: cloudevents, slack, teams, discord, or a JSON object with `type` and its settings; @FILE or - for the object, or "@FILE" or "-" for
    /// a token in it
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Only events of this type, e.g. job.failed or 'job.*'; repeatable
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,
    /// Only events of this user; repeatable
    #[arg(long = "user", value_name = "USER")]
    pub users: Vec<String>,
    /// Only events in this partition; repeatable
    #[arg(long = "partition", value_name = "PARTITION")]
    pub partitions: Vec<String>,
    /// Header of every request, e.g. 'x-team: physics'; 'NAME: @FILE' reads the value from a file, 'NAME: -' from standard input; repeatable
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// Description of the endpoint
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Largest number of requests per second, minute or hour: 10/s, 30/m, 100/h [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub rate_limit: Option<String>,
    /// Largest burst after a pause, in requests [default: the number in the rate limit]
    #[arg(long, value_name = "N")]
    pub burst: Option<u32>,
    /// HTTP status that means success, e.g. 202, 2xx or 200-204; repeatable [default: 2xx]
    #[arg(long, value_name = "STATUS")]
    pub success: Vec<String>,
    /// Deadline of one attempt, e.g. 5s; at most 30s [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Total number of attempts before a delivery becomes a dead letter [default: 12]
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
    /// Give up a delivery after this time, e.g. 1d, even if attempts are left [default: never]
    #[arg(long, value_name = "TIME")]
    pub give_up_after: Option<String>,
    /// Largest age of events to send, e.g. 1h [default: 1h for chats, else unlimited]
    #[arg(long, value_name = "TIME")]
    pub max_event_age: Option<String>,
    /// Longest wait that the receiver may request with Retry-After, e.g. 30m [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub max_retry_after: Option<String>,
    /// Chats: report a pending job after this time, e.g. 15m or 0s; at once if someone must act [default: 15m]
    #[arg(long, value_name = "TIME")]
    pub pending_threshold: Option<String>,
    /// Any other field of the API, e.g. retry.max_interval=1h or 'accounts=["physics"]'; JSON values are parsed; FIELD=@FILE reads a file,
    /// FIELD=- standard input; repeatable
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
}
