//! `smesh inspect`: how the collectors parse an output of Slurm.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use mesh_runtime::time_bound;
use serde_json::json;

use crate::error::Error;
use crate::{cli, show, zone};

pub(super) fn run(args: &cli::Inspect) -> Result<ExitCode, Error> {
    let name = match args.file.as_path() == Path::new("-") {
        true => Path::new("standard input"),
        false => &args.file,
    };
    let bytes = read(&args.file).map_err(|source| Error::io("read", name, source))?;
    // The machine's zone matters only if a time has none.
    let zone = args.timezone.map_or_else(zone::of_machine, Ok);
    let read = |text: &str| {
        let zone = zone.as_ref().map_err(Clone::clone)?;
        time_bound::printed(text, zone).map_err(|error| error.to_string())
    };
    let inspection = slurm_client::inspect::inspect(&bytes, &read)
        .map_err(|error| Error::Failed(format!("{}: {error}", name.display())))?;
    let zone = zone.ok().filter(|_| inspection.local_times);
    if inspection.records.is_empty() {
        anstream::eprintln!(
            "{}: {}, complete but without records",
            name.display(),
            inspection.source
        );
    }
    for record in &inspection.records {
        let mut record = json!(record);
        if let Some(zone) = zone {
            record["timezone"] = zone.name().into();
        }
        show::line(record)?;
    }
    if let (Some(zone), None) = (zone, args.timezone) {
        anstream::eprintln!(
            "times without a zone were read in {zone}, that of this machine; --timezone names another"
        );
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
