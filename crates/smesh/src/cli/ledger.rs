//! Arguments of the commands that verify and maintain the ledger.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use mesh_runtime::TimeBound;

use super::time_bound;

/// `smesh verify`
#[derive(Debug, Args)]
#[command(after_help = "\
Recomputes the hash chain and Merkle tree of the whole ledger from the stored bodies, compares them with the signed checkpoints, and names the
first bad record. Without --export or --remote it reads the database directly: run it as the user of `smesh up`, with a PostgreSQL role that may
read, or on a copy. Nothing proves when a checkpoint or the first key was made (`made_at`); only a witness's cosignature has a signed time.

Anyone who can write to the database and has the private key can forge the history. To detect this, regularly store a checkpoint and the public
key elsewhere:
  smesh ledger checkpoint > 2026-11-22.note       smesh ledger key show > ledger.keys
  smesh verify --key ledger.keys --checkpoint 2026-11-22.note

An auditor needs no access: an export can be verified anywhere with only the public key.
  smesh ledger export -o ledger.ndjson            smesh verify --export ledger.ndjson --key ledger.keys

Exit status: 0 the ledger is unchanged; 1 it was changed, or cannot be verified; 77 a file of an archive must not be read by this user.")]
pub struct Verify {
    /// Ledger database [default: from the configuration]
    #[arg(long, value_name = "FILE")]
    pub database: Option<PathBuf>,
    /// Verify an export of `smesh ledger export` or an archive of `smesh ledger retain`; - for standard input. Requires --key
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "database",
        requires = "key"
    )]
    pub export: Option<PathBuf>,
    /// Fetch an export from the API and verify it. Requires --key
    #[arg(long, conflicts_with_all = ["database", "export"], requires = "key")]
    pub remote: bool,
    /// Public key of the ledger, or a file with one key per line [default: the keys stored in the ledger]
    #[arg(long, value_name = "KEY|FILE")]
    pub key: Vec<String>,
    /// File with a checkpoint that was stored elsewhere
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Vec<PathBuf>,
    /// Public key of a witness, or a file with one key per line
    #[arg(long, value_name = "KEY|FILE", requires = "cosignatures")]
    pub witness: Vec<String>,
    /// Number of these witnesses that must have cosigned the newest checkpoint
    #[arg(
        long,
        value_name = "N",
        requires = "witness",
        conflicts_with = "export"
    )]
    pub cosignatures: Option<usize>,
    /// Also verify the archives in this folder [default: compare the archives at their original paths with their signed SHA-256]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["export", "remote"])]
    pub archive: Option<PathBuf>,
    /// Name of an archive that may be missing, because it is kept elsewhere or was deleted to erase its content; repeatable
    #[arg(long, value_name = "NAME", conflicts_with_all = ["export", "remote"])]
    pub elsewhere: Vec<String>,
    /// Sequence of an audit entry about an archive or a key whose content was removed by an earlier version; repeatable
    #[arg(long, value_name = "SEQ", conflicts_with_all = ["export", "remote"])]
    pub removed: Vec<i64>,
    /// Rebuild the stored subtrees from the entries if nothing else is wrong; proofs are computed from subtrees
    #[arg(long, conflicts_with_all = ["export", "remote"])]
    pub repair: bool,
}

/// `smesh ledger`
#[derive(Debug, Subcommand)]
#[command(after_help = "\
`migrate` and `roles` are for a ledger on PostgreSQL (ledger.db.url) whose service has an append-only role. The owner of the database creates
the tables, then the roles:

  export MESH_LEDGER__DB__URL=postgres://owner:…@db.example.org/ledger
  smesh ledger migrate
  smesh ledger roles | psql \"$MESH_LEDGER__DB__URL\"

Repeat both after an upgrade. Without such roles the service creates its tables itself.")]
pub enum Ledger {
    /// Create the tables, or migrate them to this version
    Migrate,
    /// Print the SQL that creates the roles and grants their permissions
    Roles,
    /// Print the newest signed checkpoint, to be stored elsewhere
    Checkpoint,
    /// Show or rotate the keys that sign checkpoints
    #[command(subcommand)]
    Key(LedgerKey),
    /// Export the entries to a file for `smesh verify --export`
    Export(LedgerExport),
    /// Move the content of old entries from the database to a verifiable archive
    Retain(LedgerRetain),
    /// List archived and erased ranges of entries
    Archives,
    /// Recover the entries that are missing after a restore from a backup
    Resume(LedgerResume),
    /// Check continuously that each checkpoint of the ledger is consistent with the previous one
    Monitor(LedgerMonitor),
    /// Trust the current state of the ledger, although it contradicts an earlier one
    Accept {
        /// Current origin of the ledger, as confirmed by its administrators
        origin: String,
    },
}

/// `smesh ledger monitor`
#[derive(Debug, Args)]
#[command(after_help = "\
Run it on another host than the ledger's, under another account (with --url), and set up an alert for exit status 1. Each new checkpoint must be
signed by a known key and must provably extend the previous one. The newest checkpoint is stored in known_ledgers.json in
~/.local/state/slurm-mesh (or at $SMESH_KNOWN_LEDGERS); every smesh command of this user checks against it.

The checkpoints that the ledger publishes on NATS (MESH_CHECKPOINTS) must fit those of the API: all that were published since the last check, and
at first contact those of the last day. [mesh.nats] of mesh.toml names the server and the credentials of the role reader; without a url there it is
the server of `smesh up`.

A contradiction is also reported to the ledger, which records it in the audit (audit.history), its log and the metric
ledger_contradictions_total.

Exit status: 0 after Ctrl-C or SIGTERM; 1 the ledger contradicts an earlier checkpoint. While it cannot be reached, the monitor tries again.")]
pub struct LedgerMonitor {
    /// Interval of the checks
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
    /// Check once and exit
    #[arg(long)]
    pub once: bool,
    /// Do not compare with the checkpoints published on NATS
    #[arg(long)]
    pub api_only: bool,
    /// Write metrics to this file, for node_exporter's textfile collector
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
}

/// `smesh ledger resume`
#[derive(Debug, Args)]
#[command(after_help = "\
After a restore from a backup the ledger answers queries, but neither stores nor signs entries, because it has already signed later ones. While
the ledger runs,

  smesh ledger resume

reads the missing entries from the bus in their original order. It writes them only if the result has exactly the root of the newest known
checkpoint, or of --from-checkpoint. Then the ledger continues under its origin.

Entries that the bus no longer has are lost. In this case the ledger can continue without them, permanently under another origin:

  smesh ledger resume --new-origin ledger.example.org/2 --because 'disk of db1 lost, backup of the night before'

The first checkpoint under the new origin is also signed by the former key. It covers an entry that names the former origin and its newest
checkpoint.")]
pub struct LedgerResume {
    /// File with the signed checkpoint to recover [default: the newest known checkpoint]
    #[arg(long, value_name = "FILE", conflicts_with = "new_origin")]
    pub from_checkpoint: Option<PathBuf>,
    /// Give up the missing entries, and continue under this origin
    #[arg(long, value_name = "NAME", requires = "because")]
    pub new_origin: Option<String>,
    /// Reason, recorded in the ledger
    #[arg(long, value_name = "TEXT", requires = "new_origin")]
    pub because: Option<String>,
}

/// `smesh ledger retain`
#[derive(Debug, Args)]
#[command(after_help = "\
Archives the content of older entries, up to the last one covered by a signed checkpoint, then removes it from the database. The hashes remain, so
`smesh verify` still works; with --archive DIR it verifies the archives, too. `smesh verify --export FILE --key KEY` verifies a single archive.
If it is interrupted, run it again. It works directly on the database, even while the ledger runs. Run it as the user of `smesh up`; on PostgreSQL
use a member of the role ledger_retention (ledger.retention.url). The running ledger records the operation in the audit. Nothing is taken out of a
ledger that has fewer entries than were signed, so NATS with its checkpoints must answer.

  smesh ledger retain --before 400days --archive-dir /srv/archive
  smesh ledger retain --before 2025-01-01T00:00:00Z --erase        only the hashes remain

To erase archived content, delete the archive file.")]
pub struct LedgerRetain {
    /// Entries recorded before this time: 2026-11-22, 2026-11-22T10:00 (local time), or an age (400days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub before: TimeBound,
    /// Folder for the archives; created if missing [default: from the configuration]
    #[arg(long, value_name = "DIR", conflicts_with = "erase")]
    pub archive_dir: Option<PathBuf>,
    /// Delete the content permanently, without an archive
    #[arg(long)]
    pub erase: bool,
    /// Only print what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// `smesh ledger key`
#[derive(Debug, Subcommand)]
pub enum LedgerKey {
    /// Print the public keys, one per line; the last one is in use
    Show,
    /// Generate a new signing key; give its public key to everyone who verifies the ledger
    Rotate,
    /// Print a private key for a ledger that has not started yet, whose replicas share the key as a file that they cannot write
    New {
        /// Origin of the ledger, ledger.checkpoint.origin [default: slurm-mesh.org/ledger/CLUSTER]
        #[arg(long)]
        origin: Option<String>,
    },
}

/// `smesh ledger export`
#[derive(Debug, Args)]
#[command(after_help = "\
Exports all entries up to the newest checkpoint. The export contains everything, so only administrators and auditors may create it.")]
pub struct LedgerExport {
    /// File to write; must not exist yet [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Sequence number of the first entry
    #[arg(long, value_name = "SEQ", default_value_t = 1)]
    pub from: u64,
}
