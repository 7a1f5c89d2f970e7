//! Arguments of the commands for backups.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `smesh backup`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Writes one tar file. Run it on the host of the services, as their user, while they run. It contains the databases of ledger, cost-engine and
webhook-dispatcher, the streams and buckets of NATS, the positions of all consumers, the newest signed checkpoint, price book and identity map.
Databases on PostgreSQL are dumped with pg_dump. Archives of the ledger are files; copy them yourself.

On NATS of your own, [mesh.nats] must be the role admin, as for `smesh nats provision`.

Examples:
  smesh backup /srv/backup                                     writes /srv/backup/slurm-mesh-CLUSTER-TIME.tar
  smesh backup --secrets /srv/backup                           also with keys: store it as safely as the keys
  smesh backup - | zstd | aws s3 cp - s3://bucket/mesh.tar.zst
  smesh backup verify /srv/backup/slurm-mesh-prod-20261125T020000Z.tar

Exit status: 0 the backup is complete; 1 it is not, and no file was left behind."
)]
pub struct Backup {
    /// Verify a backup
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    /// Folder to write to, or - for standard output
    #[arg(value_name = "DIR|-", required = true)]
    pub target: Option<PathBuf>,
    /// Only the databases, or with --streams both
    #[arg(long)]
    pub databases: bool,
    /// Only streams and buckets
    #[arg(long)]
    pub streams: bool,
    /// Also mesh.toml, the ledger's signing key and the webhook-dispatcher's key
    #[arg(long)]
    pub secrets: bool,
}

/// `smesh backup verify`
#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Check a backup without a running slurm-mesh: checksums, databases, and the ledger's chain, tree and checkpoints
    #[command(after_help = "\
Exit status: 0 the backup can be restored; 1 it is damaged or incomplete, or the ledger in it was changed.")]
    Verify {
        /// Backup to verify, or - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// `smesh restore`
#[derive(Debug, Args)]
#[command(
    group = clap::ArgGroup::new("where").required(true).args(["into", "to_running"]),
    after_help = "\
Prints what it will do, and does it only after a confirmation, or with --yes. Stop the services first. Nothing that exists is overwritten: files,
tables and streams with messages are refused. Then verifies the ledger.

Consumers begin at the positions they had before the databases were copied, so nothing is skipped; what services have handled already is
recognised by its id. Counters of events continue with a distance, so that no id is used again.

Give the newest checkpoint that you stored elsewhere with --checkpoint. If the ledger has signed later entries than the backup has, it stores and
signs nothing until `smesh ledger resume`; see `smesh ledger resume --help`.

Examples:
  smesh restore FILE --into /var/lib/slurm-mesh                everything, for `smesh up`
  smesh restore FILE --to-running                              to the configured databases and the NATS server of [mesh.nats]
  smesh restore FILE --to-running --databases                  only databases, next to the streams that are there

Exit status: 0 everything is restored and the ledger verified; 1 otherwise."
)]
pub struct Restore {
    /// Backup to restore, or - for standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Data directory to create; must not exist or be empty
    #[arg(long, value_name = "NEW_DIR")]
    pub into: Option<PathBuf>,
    /// Restore to the configured data directory, databases and NATS server
    #[arg(long)]
    pub to_running: bool,
    /// Only the databases, or with --streams both
    #[arg(long)]
    pub databases: bool,
    /// Only streams and buckets
    #[arg(long)]
    pub streams: bool,
    /// Newest signed checkpoint that was stored elsewhere
    #[arg(long, value_name = "NOTE")]
    pub checkpoint: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}
