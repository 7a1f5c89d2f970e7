//! Arguments of the commands that verify and maintain the ledger.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use mesh_runtime::TimeBound;

use super::time_bound;

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
    /// Public key of a witness, or a file with some
    #[arg(long, value_name = "KEY|FILE", requires = "cosignatures")]
    pub witness: Vec<String>,
    /// How many of these witnesses must have cosigned the newest checkpoint
    #[arg(
        long,
        value_name = "N",
        requires = "witness",
        conflicts_with = "export"
    )]
    pub cosignatures: Option<usize>,
    /// Folder with the archives of the ledger: verify what is archived there, too [default: compare the files that are where they were
    /// written with the SHA-256 that was signed]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["export", "remote"])]
    pub archive: Option<PathBuf>,
    /// Make stored subtrees anew if nothing else is wrong: proofs are made of them, and they follow from the entries
    #[arg(long, conflicts_with_all = ["export", "remote"])]
    pub repair: bool,
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
    /// Bring back what a ledger had before a backup was put in its place
    Resume(LedgerResume),
    /// Compare the ledger again and again with what it showed before; ends with status 1 if it contradicts that
    Monitor(LedgerMonitor),
    /// Trust what the ledger shows now, although it contradicts what it showed before
    Accept {
        /// The origin that it has now, as its administrators say
        origin: String,
    },
}

/// `smesh ledger monitor`
#[derive(Debug, Args)]
#[command(after_help = "\
Run it on another host, as another account than the ledger's (with --url), and have somebody called when it ends with status 1. Each new
checkpoint must be signed by a known key and proven to continue the one before. The newest is kept in known_ledgers.json, in
~/.local/state/slurm-mesh (or $SMESH_KNOWN_LEDGERS), where every smesh of this user compares with it.

On a contradiction it also reports to the ledger, which puts it into the audit (audit.history), its log and ledger_contradictions_total.")]
pub struct LedgerMonitor {
    /// How often to compare
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
    /// Compare once
    #[arg(long)]
    pub once: bool,
    /// Write metrics for node_exporter's textfile collector
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
}

/// `smesh ledger resume`
#[derive(Debug, Args)]
#[command(after_help = "\
After a backup was put back the ledger answers, but neither takes in nor signs: what comes next was signed before. While it runs,

  smesh ledger resume

takes what is missing from the bus, in the order it had, and writes nothing unless that gives exactly the root of the newest checkpoint that
is known, or of the one of --from-checkpoint. Then the ledger goes on under its origin, as if nothing had happened.

What the bus does not have any more is lost. Then the ledger goes on with what it has, under another origin, for ever:

  smesh ledger resume --new-origin ledger.example.org/2 --because 'disk of db1 lost, backup of the night before'

Its first checkpoint is signed by the former key, too, and counts an entry that names the former origin and its newest checkpoint.")]
pub struct LedgerResume {
    /// The signed checkpoint to come back to [default: the newest that is known]
    #[arg(long, value_name = "FILE", conflicts_with = "new_origin")]
    pub from_checkpoint: Option<PathBuf>,
    /// Give up what is missing, and go on under this origin
    #[arg(long, value_name = "NAME", requires = "because")]
    pub new_origin: Option<String>,
    /// Why; goes into the ledger
    #[arg(long, value_name = "TEXT", requires = "new_origin")]
    pub because: Option<String>,
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
    /// What was recorded before: 2026-11-22, 2026-11-22T10:00 (local time), or how long ago (400days)
    #[arg(long, value_name = "TIME", value_parser = time_bound)]
    pub before: TimeBound,
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
