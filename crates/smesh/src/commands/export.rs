//! `smesh export`: writes the events that match a filter to a file.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use tempfile::NamedTempFile;

use super::events::filter;
use crate::cli::{self, Global};
use crate::error::Error;
use crate::settings;

pub(super) async fn run(global: &Global, args: cli::Export) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let mut query = filter(global, &args.filter).query();
    query.push(("format", args.format.as_str().into()));
    query.extend(args.fields.map(|fields| ("fields", fields)));
    let mut download = client.download("/v1/events/export", &query).await?;
    let mut target = ExportTarget::open(args.output)?;
    // Shown on a terminal only, on standard error.
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {binary_bytes} written in {elapsed}")
            .expect("a valid template"),
    );
    while let Some(part) = download.next().await? {
        target.write(&part)?;
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    target.complete()?;
    Ok(ExitCode::SUCCESS)
}

pub(super) enum ExportTarget {
    /// Standard output.
    Stream(io::Stdout),
    /// A file, renamed to its final name once complete, so that a partial export is not taken for a complete one.
    File(PathBuf, NamedTempFile),
}

impl ExportTarget {
    pub(super) fn open(path: Option<PathBuf>) -> Result<Self, Error> {
        let Some(path) = path else {
            return Ok(Self::Stream(io::stdout()));
        };
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let file = NamedTempFile::new_in(folder)
            .map_err(|source| Error::io("create a file in", folder, source))?;
        Ok(Self::File(path, file))
    }

    pub(super) fn write(&mut self, part: &[u8]) -> Result<(), Error> {
        match self {
            Self::Stream(stream) => stream
                .write_all(part)
                .map_err(|source| Error::io("write", "standard output", source)),
            Self::File(path, file) => file
                .write_all(part)
                .map_err(|source| Error::io("write", path, source)),
        }
    }

    pub(super) fn complete(self) -> Result<(), Error> {
        match self {
            Self::Stream(mut stream) => stream
                .flush()
                .map_err(|source| Error::io("write", "standard output", source)),
            Self::File(path, file) => {
                file.as_file()
                    .sync_all()
                    .map_err(|source| Error::io("write", &path, source))?;
                file.persist(&path)
                    .map_err(|error| Error::io("write", &path, error.error))?;
                Ok(())
            }
        }
    }
}
