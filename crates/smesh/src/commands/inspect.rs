//! `smesh inspect`: how the collectors parse an output of Slurm.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::cli;
use crate::error::Error;
use crate::show;

pub(super) fn run(args: &cli::Inspect) -> Result<ExitCode, Error> {
    let name = match args.file.as_path() == Path::new("-") {
        true => Path::new("standard input"),
        false => &args.file,
    };
    let bytes = read(&args.file).map_err(|source| Error::io("read", name, source))?;
    let inspection = slurm_client::inspect::inspect(&bytes)
        .map_err(|error| Error::Failed(format!("{}: {error}", name.display())))?;
    if inspection.records.is_empty() {
        anstream::eprintln!(
            "{}: {}, complete but without records",
            name.display(),
            inspection.source
        );
    }
    for record in &inspection.records {
        show::line(json!(record))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(file)
}
