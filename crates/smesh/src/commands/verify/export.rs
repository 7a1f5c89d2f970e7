//! Verifies an export, from a file or of a ledger elsewhere.

use std::io::BufReader;
use std::path::Path;

use indicatif::ProgressBar;
use ledger::domain::export::ExportVerifier;
use ledger::{FirstFault, TrustAnchors, VerifyReport};
use ledger_format::file::{self, FileError};

use super::report::FailedComparison;
use crate::cli::Global;
use crate::client::Query;
use crate::error::Error;
use crate::settings;

pub(super) fn file(
    path: &Path,
    trust: &TrustAnchors,
    bar: &ProgressBar,
) -> Result<Result<VerifyReport, FailedComparison>, Error> {
    let io = |source| Error::io("read", path, source);
    let mut lines = if path == Path::new("-") {
        file::ExportReader::new(BufReader::new(std::io::stdin()))
    } else {
        file::ExportReader::open(path)
    }
    .map_err(io)?;
    let options = file::VerifyOptions {
        keys: &trust.keys,
        trusted: &trust.checkpoints,
        threads: file::available_threads(),
        progress: &mut |_, verified, of| {
            bar.set_length(of);
            bar.set_position(verified);
        },
    };
    match file::verify(&mut lines, options) {
        Ok(export) => Ok(Ok(VerifyReport::of_export(export.verified, trust))),
        Err(FileError::Invalid(bad)) => Ok(Err(bad.into())),
        Err(FileError::Read(source)) => Err(io(source)),
        Err(error) => Err(unprovable(&error)),
    }
}

/// The error for a file that is not an export, or that no trusted key has signed.
fn unprovable(error: &(dyn std::error::Error + 'static)) -> Error {
    Error::Failed(format!(
        "verify export: {}",
        mesh_runtime::error_chain(error)
    ))
}

pub(super) async fn remote(
    global: &Global,
    trust: &TrustAnchors,
    bar: &ProgressBar,
) -> Result<Result<VerifyReport, FailedComparison>, Error> {
    let client = settings::client(global)?;
    let mut text = client.download("/v1/ledger/export", &Query::new()).await?;
    let mut lines = Lines::new(trust, bar);
    let mut rest = Vec::new();
    while let Some(part) = text.next().await? {
        rest.extend_from_slice(&part);
        let mut begin = 0;
        while let Some(end) = rest[begin..].iter().position(|byte| *byte == b'\n') {
            if let Err(bad) = lines.take(&rest[begin..=begin + end])? {
                return Ok(Err(bad.into()));
            }
            begin += end + 1;
        }
        rest.drain(..begin);
    }
    lines.finish()
}

/// Reads an export line by line.
struct Lines<'a> {
    trust: &'a TrustAnchors,
    bar: &'a ProgressBar,
    verifier: Option<ExportVerifier>,
}

impl<'a> Lines<'a> {
    const fn new(trust: &'a TrustAnchors, bar: &'a ProgressBar) -> Self {
        Self {
            trust,
            bar,
            verifier: None,
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<Result<(), FirstFault>, Error> {
        if let Some(verifier) = &mut self.verifier {
            let taken = verifier.next(line);
            self.bar.set_position(verifier.last().unsigned_abs());
            return Ok(taken);
        }
        let verifier = ExportVerifier::new(line, &self.trust.keys, &self.trust.checkpoints);
        let verifier = verifier.map_err(|error| unprovable(&error))?;
        self.bar.set_length(verifier.checkpoint().size);
        self.verifier = Some(verifier);
        Ok(Ok(()))
    }

    fn finish(self) -> Result<Result<VerifyReport, FailedComparison>, Error> {
        let Some(verifier) = self.verifier else {
            return Err(Error::Failed("verify export: it is empty".into()));
        };
        let verified = verifier.finish();
        Ok(verified
            .map(|verified| VerifyReport::of_export(verified, self.trust))
            .map_err(FailedComparison::from))
    }
}
