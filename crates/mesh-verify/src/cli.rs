//! The command line arguments.

use std::path::PathBuf;

use clap::Parser;

/// Verify exports and archives of a slurm-mesh ledger
///
/// Every entry is hashed again, chained, and put into the Merkle tree, whose root must be the one of a checkpoint that a given key has signed. Nothing
/// else is asked or trusted: no database, no network, no service. docs/reference/events.md §6 says how to write such a program yourself.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Exit status: 0 all of it is as it was signed; 1 the first lie, or what cannot be proved or read; 2 a wrong command line.

Examples:
  smesh ledger export -o ledger.ndjson; smesh ledger key show > ledger.pub     where the ledger is
  mesh-verify --key ledger.pub ledger.ndjson                                      anywhere
  mesh-verify --key ledger.pub archive/ledger-*.ndjson.gz                         archives, which must follow each other
  mesh-verify --key ledger.pub --checkpoint trusted.note ledger.ndjson               was it written anew since?
  mesh-verify --key ledger.pub --checkpoint trusted.note                             only whether the checkpoint is signed
  curl -s \"$URL/v1/ledger/export\" | mesh-verify --key ledger.pub -"
)]
pub struct Cli {
    /// Public key of the ledger, or a file with some, one a line
    #[arg(long, value_name = "KEY|FILE", required = true)]
    pub key: Vec<String>,
    /// A signed checkpoint that was kept elsewhere: the entries must lead to it, too
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Vec<PathBuf>,
    /// Threads that hash [default: one for each core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Answer with one JSON object, whatever the result
    #[arg(long)]
    pub json: bool,
    /// Exports or archives, compressed or not, in their order; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "checkpoint")]
    pub files: Vec<PathBuf>,
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => Err("a number from 1 to 1024".to_owned()),
    }
}
