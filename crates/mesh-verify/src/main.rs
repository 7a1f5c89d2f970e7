//! `mesh-verify`: verifies exports and archives of a ledger with only its public key. The
//! verification itself is in `ledger-format`; this crate is its command line.

mod cli;
mod report;

use std::io::{BufReader, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};
use ledger_format::checkpoint::Checkpoint;
use ledger_format::file::{self, ExportReader, FileError, VerifiedExport, VerifyOptions};
use ledger_format::note::PublicKey;

use crate::cli::Cli;
use crate::report::{Failure, Report, TrustedCheckpoint};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let report = run(&cli);
    let text = match (&report, cli.json) {
        (Ok(report), true) => report.json().to_string(),
        (Ok(report), false) => report.to_string(),
        (Err(failure), true) => failure.json().to_string(),
        (Err(failure), false) => failure.to_string(),
    };
    // A write error means that the reader closed the pipe. The exit status reports the result as
    // well.
    drop(writeln!(std::io::stdout(), "{text}"));
    match report {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(cli: &Cli) -> Result<Report, Failure> {
    let keys = keys(&cli.key)?;
    let trusted = cli
        .checkpoint
        .iter()
        .map(|path| checkpoint(path, &keys))
        .collect::<Result<Vec<_>, _>>()?;
    let mut exports: Vec<(PathBuf, VerifiedExport)> = Vec::new();
    for path in &cli.files {
        let export = export(cli, path, &keys, &trusted)?;
        if let Some((_, before)) = exports.last()
            && !follows(&export, before)
        {
            return Err(Failure::unverifiable(
                path,
                format!(
                    "it does not continue the previous file, which ends with entry {}: it starts with {}, or has a different history",
                    before.checkpoint.size,
                    export.first()
                ),
            ));
        }
        exports.push((path.clone(), export));
    }
    Ok(Report { exports, trusted })
}

/// True if one export continues where another ended.
fn follows(export: &VerifiedExport, before: &VerifiedExport) -> bool {
    export.checkpoint.origin == before.checkpoint.origin
        && export.start.tree.size() == before.checkpoint.size
        && export.start.tree.root() == before.checkpoint.root
        && export.start.chain == before.verified.head
}

fn export(
    cli: &Cli,
    path: &Path,
    keys: &[PublicKey],
    trusted: &[TrustedCheckpoint],
) -> Result<VerifiedExport, Failure> {
    let opened = match path == Path::new("-") {
        true => ExportReader::new(BufReader::new(std::io::stdin())),
        false => ExportReader::open(path),
    };
    let mut lines = opened.map_err(|error| Failure::unreadable(path, &error))?;
    let trusted: Vec<Checkpoint> = trusted
        .iter()
        .map(|trusted| trusted.checkpoint.clone())
        .collect();
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(0).with_style(bar_style()),
        false => ProgressBar::hidden(),
    };
    let result = file::verify(
        &mut lines,
        VerifyOptions {
            keys,
            trusted: &trusted,
            threads: cli.threads.unwrap_or_else(file::available_threads),
            progress: &mut |first, last, of| {
                bar.set_length(of + 1 - first);
                bar.set_position(last + 1 - first);
            },
        },
    );
    bar.finish_and_clear();
    result.map_err(|error| match error {
        FileError::Invalid(fault) => Failure::invalid_entry(path, &fault),
        FileError::Read(error) => Failure::unreadable(path, &error),
        error => Failure::unverifiable(path, report::chain(&error)),
    })
}

/// Loads the keys of the command line. Each argument is a key file or a key.
fn keys(given: &[String]) -> Result<Vec<PublicKey>, Failure> {
    let mut keys = Vec::new();
    for key in given {
        let text = std::fs::read_to_string(key).unwrap_or_else(|_| key.clone());
        let read = PublicKey::parse_all(&text).map_err(|error| {
            let reason = format!("neither a public key nor a file of public keys: {error}");
            Failure::unverifiable(Path::new(key), reason)
        })?;
        keys.extend(read);
    }
    match keys.is_empty() {
        true => Err(Failure::unverifiable(
            Path::new("--key"),
            "it contains no key".to_owned(),
        )),
        false => Ok(keys),
    }
}

/// Loads a trusted checkpoint, which one of the keys must have signed.
fn checkpoint(path: &Path, keys: &[PublicKey]) -> Result<TrustedCheckpoint, Failure> {
    let note = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
    let (checkpoint, signed_by) = Checkpoint::open(&note, keys)
        .map_err(|error| Failure::unverifiable(path, report::chain(&error)))?;
    Ok(TrustedCheckpoint {
        path: path.to_owned(),
        checkpoint,
        signed_by: signed_by.into_iter().map(PublicKey::label).collect(),
    })
}

fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} entries, {per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
