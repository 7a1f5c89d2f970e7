//! The command line arguments.

use std::path::PathBuf;

use clap::Parser;

/// Verify exports and archives of a slurm-mesh ledger
///
/// Recomputes the hash chain and the Merkle tree from all entries. The root must be equal to that of a checkpoint signed by a given key. Nothing else is
/// used or trusted: no database, no network, no service. docs/reference/events.md §6 explains how to write such a program yourself.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Exit status: 0 everything is as signed; 1 an entry is wrong, or cannot be proved or read; 2 invalid command line.

Examples:
  smesh ledger export -o ledger.ndjson; smesh ledger key show > ledger.pub     on the host of the ledger
  mesh-verify --key ledger.pub ledger.ndjson                                   anywhere
  mesh-verify --key ledger.pub archive/ledger-*.ndjson.gz                      consecutive archives
  mesh-verify --key ledger.pub --checkpoint trusted.note ledger.ndjson         also detects a history rewritten since the checkpoint
  mesh-verify --key ledger.pub --checkpoint trusted.note                       only checks the signature of the checkpoint
  curl -s \"$URL/v1/ledger/export\" | mesh-verify --key ledger.pub -"
)]
pub struct Cli {
    /// Public key of the ledger, or a file with one key per line; repeatable
    #[arg(long, value_name = "KEY|FILE", required = true)]
    pub key: Vec<String>,
    /// File with a signed checkpoint that was stored elsewhere; the entries must be consistent with it; repeatable
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Vec<PathBuf>,
    /// Number of hashing threads, 1 to 1024 [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Print the result as one JSON object, also on failure
    #[arg(long)]
    pub json: bool,
    /// Exports or archives in order, optionally compressed with gzip; - for standard input
    #[arg(value_name = "FILE", required_unless_present = "checkpoint")]
    pub files: Vec<PathBuf>,
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => Err("a number from 1 to 1024".to_owned()),
    }
}
