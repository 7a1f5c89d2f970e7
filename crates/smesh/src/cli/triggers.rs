//! Arguments of `smesh triggers`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `smesh triggers`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Rules are in mesh.toml ([[workflow-trigger.rules]]), or you make them by `apply`, where the site permits it (workflow-trigger.api_rules). You see and
use your own; administrators see and use all. RULE is the name of your rule, or USER/NAME. A run is what a rule did because of one event.

  smesh triggers apply rules.toml                  makes or changes the rules of a file
  smesh triggers test plot --event 0191…           what the rule would do with that event; submits nothing
  smesh triggers fire align --data '{\"key\": \"a.fastq.gz\"}'
  smesh triggers runs plot                         what became of its events
  smesh triggers runs --state approval             runs that wait for a person; approvers see those of their rules
  smesh triggers approve smesh:1:…                 lets one of them go on
  smesh triggers dead                              runs that were refused or given up, with Slurm's words
  smesh triggers redrive smesh:1:…                 tries one of them again")]
pub enum Triggers {
    /// List rules
    List,
    /// Make or change rules by API, as files say
    #[command(after_help = "\
A file has rules with the keys that they have in mesh.toml, e.g.:
  [[rules]]
  name = \"plot\"
  on = { types = [\"job.completed\"], when = 'job.name == \"simulate\"' }
  action = { submit = \"plot.sh\", args = [\"{{ job.work_dir }}\"] }

`submit` is a script beside the file. Its text is sent and stored with the rule: apply again after a change of it. The owner is you, unless an
administrator names another user as `owner`. Rules of users fire on their own events. All rules are checked before the first one is changed.

Examples:
  smesh triggers apply --dry-run rules.toml
  smesh triggers apply --prune --yes rules.toml    also deletes those of your rules by API that the file lacks")]
    Apply {
        /// Files with [[rules]] (- for standard input)
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Delete your rules by API that are in none of the files
        #[arg(long)]
        prune: bool,
        /// Delete without asking
        #[arg(long, requires = "prune")]
        yes: bool,
    },
    /// Delete a rule by API; what it has started goes on
    Delete {
        /// Name of the rule
        rule: String,
    },
    /// Show a rule, where it is defined, and its latest runs
    Show {
        /// Name of the rule
        rule: String,
    },
    /// Show what a rule would do with an event or with data, and submit nothing
    Test {
        /// Name of the rule
        rule: String,
        /// Id of an event in the ledger, or a file with an event as JSON (- for standard input)
        #[arg(long, value_name = "ID|FILE")]
        event: Option<String>,
        /// Data as for fire
        #[arg(long, value_name = "JSON", conflicts_with = "event")]
        data: Option<String>,
    },
    /// Fire a rule with data
    Fire {
        /// Name of the rule
        rule: String,
        /// Data for the rule's templates, as JSON (@FILE reads a file, - standard input)
        #[arg(long, value_name = "JSON", default_value = "{}")]
        data: String,
        /// Id of the firing: the same id fires the rule once [default: random]
        #[arg(long, value_name = "ID")]
        id: Option<String>,
    },
    /// Pause a rule; its events are refused until it is resumed
    Pause {
        /// Name of the rule
        rule: String,
        /// Reason, shown to others
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Resume a rule
    Resume {
        /// Name of the rule
        rule: String,
    },
    /// List runs, the newest first, or show one
    Runs {
        /// Name of a rule, or key of a run [default: all rules]
        rule: Option<String>,
        /// Only runs in these states, separated by commas: approval, planned, submitting, accepted, confirmed, released, done, refused, given_up, dry_run
        #[arg(long, value_name = "STATES")]
        state: Option<String>,
        /// Largest number of runs to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// List runs that were refused or given up
    Dead {
        /// Name of a rule [default: all rules]
        rule: Option<String>,
        /// Largest number of runs to list
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u32,
    },
    /// Approve a run that waits for it: the rule then does what it says
    Approve {
        /// Key of the run: smesh:1:…
        key: String,
    },
    /// Reject a run that waits for approval
    Reject {
        /// Key of the run: smesh:1:…
        key: String,
        /// Reason, shown to others
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Try a run again that was refused or given up
    Redrive {
        /// Key of the run: smesh:1:…
        key: String,
    },
}

/// `smesh tree`
#[derive(Debug, Args)]
#[command(after_help = "\
Each line is a run of a rule: its event, the rule, and the job that it submitted or what it did. You see the runs of your own rules.

Example:
  smesh tree 4711")]
pub struct Tree {
    /// Id of a job that a rule submitted, or that led to one
    #[arg(value_name = "JOB")]
    pub job: u32,
}

/// `smesh publish`
#[derive(Debug, Args)]
#[command(after_help = "\
Your rules with `on = { source = \"publish\" }` select it by its type and data. Inside a job that a rule submitted it continues the job's chain.

Example, at the end of a batch script:
  smesh publish --type reads.aligned --data '{\"sample\": \"s17\"}' --id \"$SLURM_JOB_ID\"")]
pub struct Publish {
    /// Type of the event
    #[arg(long, value_name = "TYPE")]
    pub r#type: String,
    /// Its data, as JSON (@FILE reads a file, - standard input)
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub data: String,
    /// Its id: the same id is the same event [default: random]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// The job inside which it happens
    #[arg(long, value_name = "JOB", env = "SLURM_JOB_ID")]
    pub job: Option<u32>,
}
